"""The environments ``vec:MODULE:FUNCTION``: functions that make a whole vector environment.

The function returns a Gymnasium `VectorEnv`, an EnvPool pool or an SB3 `VecEnv` of the requested
size. One `_LibraryWrapper` per library gives them a common interface, and `WrappedVectorEnv`
implements slipstream's `VectorEnv` on top of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from slipstream.core.child_process import TimeLimitError, start_timeout, time_limit
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.gym.action_masks import (
    MASK_METHOD,
    drop_mask_space,
    get_mask_method,
    has_discrete_actions,
    mask_from_info,
    observation_has_mask,
    write_mask,
)
from slipstream.gym.env_factory import (
    close_env,
    import_user_module,
    make_row_spec,
    make_timeout_error,
)
from slipstream.gym.gymnasium_environment import GymnasiumEnvironment, GymnasiumKind
from slipstream.gym.sub_env import SEED_MASK
from slipstream.gym.wrapper_checks import check_trainable
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.kernels.space_codec import ACTION_MASK_KEY, SpaceMismatchError
from slipstream.kernels.vector_env import (
    Episodes,
    FinalObs,
    StepBuffers,
    VectorEnv,
    collect_episodes,
    collect_final_obs,
)
from slipstream.training.environments.autotune_cache import Identity
from slipstream.training.environments.environment import Sections

VECTOR = "vec:"


@dataclass(frozen=True)
class VectorEnvironment(GymnasiumEnvironment):
    """A loaded ``vec:MODULE:FUNCTION``.

    ``FUNCTION(num_envs, **kwargs)`` returns a Gymnasium `VectorEnv`, an EnvPool pool or an SB3
    `VecEnv`, which `WrappedVectorEnv` wraps.
    """

    @property
    def identity(self) -> Identity | None:
        return None  # there is nothing to tune

    def may_crash(self, num_envs: int) -> bool:
        return False  # a fork would lose the threads of the other library

    def _make_vector_env(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        more = {"masked": self.spec.has_action_mask, **more}
        return _make_wrapped(self.name, self.kwargs, seeds, indices, **more)


@dataclass(frozen=True)
class VectorKind(GymnasiumKind):
    """The name ``vec:MODULE:FUNCTION``."""

    noun: ClassVar[str] = "a vector environment of another library"
    loaded: ClassVar[type[GymnasiumEnvironment]] = VectorEnvironment
    backends: ClassVar[tuple[str, ...]] = ("auto", "serial")
    can_abort: ClassVar[bool] = False  # steps end when the other library returns

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(VECTOR).replace(":", ".")

    @property
    def code(self) -> Mapping[str, str | None]:
        return {self.name: self.name.removeprefix(VECTOR).rpartition(":")[0]}

    @property
    def module(self) -> ModuleType | None:
        raise ConfigError(
            f"{self.name} creates all envs on this machine, but nodes of a cluster create their "
            "own. Omit --cluster, or register the environment and train gym:my_module:ID."
        )

    def default_hyperparams(self, agent_name: str) -> Sections:
        return {}

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        return None

    def load(self, settings: Mapping[str, Any]) -> GymnasiumEnvironment:
        for key in ("metrics", "wrappers", "training_wrappers"):
            if settings.get(key):
                raise ConfigError(
                    f"`env.{key}` requires gym:ID. Omit it for {self.name}, whose function creates "
                    "and wraps the sub-environments."
                )
        kwargs, zeros = dict(settings.get("kwargs") or {}), np.zeros(1, np.uint64)
        with _make_wrapped(self.name, kwargs, zeros, zeros) as probe:
            return VectorEnvironment(self, probe.spec, kwargs, step_seconds=0.0)

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        raise ConfigError(f"{self.name} cannot be rendered. --video requires gym:ID.")


def _make_wrapped(
    name: str,
    kwargs: Mapping[str, Any],
    seeds: NDArray[np.uint64],
    indices: NDArray[np.uint64],
    **more: Any,
) -> VectorEnv:
    """Create and wrap the sub-environments of a function."""
    num_envs = len(seeds)
    try:
        with time_limit(start_timeout()):
            env = _import_function(name)(num_envs, **kwargs)
    except SlipstreamError:
        raise
    except TimeLimitError as error:
        raise make_timeout_error(name, error) from error
    except Exception as error:
        arguments = "".join(f", {key}={value!r}" for key, value in kwargs.items())
        raise ConfigError(
            f"{name} raised {type(error).__name__}: {error!s:.400} when it was called with "
            f"({num_envs}{arguments}). Fix the function: it must create that many environments "
            "with the keyword arguments of `env.kwargs`."
        ) from error
    return WrappedVectorEnv(env, seeds, indices, name=name, **more)


def _import_function(name: str) -> Callable[..., Any]:
    module, _, function = name.removeprefix(VECTOR).rpartition(":")
    try:
        target: Callable[..., Any] = getattr(import_user_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be imported ({error}). Write vec:MODULE:FUNCTION for a function that "
            "takes the number of envs, in a module that is installed or in the working directory."
        ) from error
    return target


class WrappedVectorEnv(VectorEnv):
    """Vector environment of another library for slipstream's agents; its state cannot be saved.

    Args:
        env: Gymnasium `VectorEnv`, synchronous EnvPool pool, or SB3 `VecEnv`.
        seeds, indices: As for `ForeignEnv`, uint64 [E].
        name: Name of the environment, for messages.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py`.
        limit: Time limit of evaluation episodes in steps.
        masked: True if there is an action mask. None checks the first reset.
    """

    backend = "serial"

    def __init__(
        self,
        env: Any,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        name: str,
        at_end: int = RESET,
        limit: int | None = None,
        masked: bool | None = None,
    ) -> None:
        try:
            self._env = wrap_vector_env(env)
            check_trainable(env, name)
        except ConfigError:
            if hasattr(env, "close"):
                close_env(env, name)
            raise
        self.num_envs, self._name = self._env.num_envs, name
        if self.num_envs != len(seeds):
            close_env(env, name)
            raise ConfigError(
                f"{name} created {self.num_envs} envs instead of {len(seeds)}. Its first argument "
                "is the number of envs to create."
            )
        observation_space, action_space = self._env.observation_space, self._env.action_space
        self._separate_mask = bool(
            observation_has_mask(observation_space) and has_discrete_actions(action_space)
        )
        observation_space = (
            drop_mask_space(observation_space) if self._separate_mask else observation_space
        )
        spec = make_row_spec(name, observation_space, action_space)
        self._mask_method = (
            None if self._separate_mask or not spec.num_actions else self._env.get_mask_method(name)
        )
        if masked is None:
            masked = bool(spec.num_actions) and (
                self._separate_mask or self._mask_method is not None
            )
            if spec.num_actions and not masked:
                self._call(self._env.reset, self._episode_seeds(seeds, indices, 0))
                masked = any(mask is not None for mask in self._env.info_masks)
        self.spec, self.mask_size = (
            replace(spec, has_action_mask=masked),
            spec.num_actions if masked else 0,
        )
        self._mask = np.ones((self.num_envs, self.mask_size), np.bool_)
        self._seeds, self._indices = seeds.copy(), indices.copy()
        self._at_end, self._limit, self._resets = at_end, limit, 0
        e = self.num_envs
        self._ret, self._length = np.zeros(e), np.zeros(e, np.int64)
        self._held, self._skipped = np.zeros((2, e), np.bool_)
        self._rows: NDArray[Any] | None = None
        self._finals: list[tuple[NDArray[Any], int, int]] = []
        self._episodes: list[tuple[float, ...]] = []

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        seeds = self._episode_seeds(self._seeds, self._indices, self._resets)
        self._resets += 1
        self._finals, self._episodes = [], []
        self._clear_statistics(slice(None))
        self._rows = self._to_rows(self._call(self._env.reset, seeds))
        obs[...] = self._rows
        if mask is not None:
            mask[...] = self._mask

    def begin(
        self,
        env_ids: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Begin episodes of some rows.

        A library that cannot reset single rows completes their current episodes first.
        """
        if len(env_ids) == 0:
            return
        selected = np.zeros(self.num_envs, np.bool_)
        selected[env_ids] = True
        indices = np.zeros(self.num_envs, np.uint64)
        indices[env_ids] = episodes.astype(np.uint64)
        seeds = self._episode_seeds(np.full(self.num_envs, seed % 2**64, np.uint64), indices, 0)
        self._clear_statistics(env_ids)
        if self._rows is None or selected.all():
            self._rows = self._to_rows(self._call(self._env.reset, seeds))
        else:
            some_seeds = [
                word if is_selected else None
                for word, is_selected in zip(seeds, selected, strict=True)
            ]
            new_obs = self._call(self._env.reset_some, selected, some_seeds)
            if new_obs is None:
                self._skipped[env_ids] = True
            else:
                self._rows = self._to_rows(new_obs)
        obs[env_ids] = self._rows[env_ids]
        if mask is not None:
            mask[...] = self._mask  # of all rows, which may have been stepped

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        step = self._call(self._env.step, self.action_codec.decode(actions))
        over = step.terminated | step.truncated
        rows = self._rows = self._to_rows(step.obs)
        if out.mask is not None:
            out.mask[...] = self._mask
        is_real = ~(step.is_reset | self._skipped | self._held)
        self._skipped &= ~over  # the requested episode has begun
        out.obs[...], out.reward[...] = rows, np.where(is_real, step.reward, 0.0)
        self._ret[is_real] += np.asarray(step.reward, np.float64)[is_real]
        self._length[is_real] += 1
        is_cut = (
            is_real & (self._length >= self._limit) if self._limit is not None else is_real & False
        )
        out.terminated[...] = step.terminated & is_real
        out.truncated[...] = (step.truncated & is_real) | is_cut
        out.valid[...] = is_real | self._held
        for e in np.flatnonzero(is_real & (over | is_cut)).tolist():
            if self._at_end == RESET_KEEP_ALL or (self._at_end == RESET and not step.terminated[e]):
                last = self._to_row(step.final_obs[e]) if e in step.final_obs else rows[e].copy()
                self._finals.append((last, t, e))
            self._episodes.append((t, e, float(self._ret[e]), int(self._length[e])))
            self._ret[e], self._length[e] = 0.0, 0
            self._held[e] = self._at_end == HOLD

    def drain_final_obs(self) -> FinalObs:
        finals, self._finals = self._finals, []
        return collect_final_obs(self.spec, finals)

    def drain_episodes(self) -> Episodes:
        ended, self._episodes = self._episodes, []
        return collect_episodes(self.spec, ended)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return an empty state: a resumed run begins new episodes."""
        return {}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.reset_rows(obs, mask)
        self.num_restarted = self.num_envs

    def close(self) -> None:
        close_env(self._env.env, self._name)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call foreign code and convert its errors to KernelError."""
        try:
            return call(*arguments)
        except SlipstreamError:
            raise
        except Exception as error:
            raise KernelError(
                f"{self._name} raised {type(error).__name__}: {error!s:.300} in "
                f"`{getattr(call, '__name__', MASK_METHOD)}`. "
                "Fix the environment or the function that creates it."
            ) from error

    def _clear_statistics(self, rows: Any) -> None:
        self._ret[rows], self._length[rows] = 0.0, 0
        self._held[rows] = self._skipped[rows] = False

    def _episode_seeds(self, seeds: Any, indices: Any, episode: int) -> list[int]:
        with np.errstate(over="ignore"):
            streams = stream(seeds, indices, np.full(len(seeds), episode, np.uint64))
        return [int(word & SEED_MASK) for word in streams]

    def _to_rows(self, obs: Any) -> NDArray[Any]:
        """Convert the newest observations to rows and store their masks."""
        self._update_masks(obs)
        try:
            rows, _ = self.observation_codec.encode(obs)
        except SpaceMismatchError as error:
            raise KernelError(f"{self._name} returned observations {error}.") from None
        if not np.isfinite(rows).all():
            raise KernelError(f"{self._name} returned observations with NaN or infinity.")
        return np.array(rows, self.spec.observation_dtype)

    def _update_masks(self, obs: Any) -> None:
        info_masks = self._env.info_masks
        if not self.mask_size:
            if self.spec.num_actions and any(mask is not None for mask in info_masks):
                raise KernelError(
                    f"{self._name} returned the info `action_mask`, but the first `reset` of its "
                    "first environment did not. Return a mask with every observation of all "
                    "environments or with none."
                )
            return
        if self._separate_mask:
            info_masks = obs[ACTION_MASK_KEY]
        elif self._mask_method is not None:
            info_masks = self._call(self._mask_method)
        for e, place in enumerate(self._mask):
            try:
                write_mask(info_masks[e], place, self.spec.nvec)
            except SpaceMismatchError as error:
                if self._env.waiting[e]:  # the next step resets and ignores the action
                    place[...] = True
                    continue
                raise KernelError(
                    f"{self._name}: environment {e} returned {error}. Return a mask with every "
                    "observation. It must allow at least one action until the episode ends."
                ) from None

    def _to_row(self, obs: Any) -> NDArray[Any]:
        return np.array(self.observation_codec.encode(obs)[0], self.spec.observation_dtype)


class VectorStep(NamedTuple):
    """Result of one step.

    Attributes:
        final_obs: Final observations by row, of episodes whose successor has begun already.
        is_reset: Rows that began an episode instead of stepping, bool [E].
    """

    obs: Any
    reward: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: Mapping[int, Any]
    is_reset: NDArray[np.bool_]


class _LibraryWrapper:
    """A vector environment of one library.

    Attributes:
        info_masks: Info `action_mask` of each newest observation, or None.
        waiting: Environments whose episode has ended and whose next step resets, bool [E].
    """

    def __init__(self, env: Any, num_envs: int) -> None:
        self.env, self.num_envs = env, num_envs
        self.info_masks: list[Any] = [None] * num_envs
        self.waiting = np.zeros(num_envs, np.bool_)

    def get_mask_method(self, name: str) -> Callable[[], Any] | None:
        """Return a function that calls `action_masks()` of every environment; None without any."""
        method = getattr(getattr(self.env, "unwrapped", self.env), MASK_METHOD, None)
        return method if callable(method) else None

    def _read_info_masks(self, infos: Mapping[str, Any], rows: Any = slice(None)) -> None:
        masks, has = infos.get(ACTION_MASK_KEY), infos.get(f"_{ACTION_MASK_KEY}")
        for e in np.arange(self.num_envs)[rows].tolist():
            self.info_masks[e] = (
                None if masks is None or (has is not None and not has[e]) else masks[e]
            )


class _GymnasiumWrapper(_LibraryWrapper):
    """A Gymnasium `VectorEnv` with any autoreset mode."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.num_envs)
        self.observation_space, self.action_space = (
            env.single_observation_space,
            env.single_action_space,
        )
        self._mode = env.metadata.get("autoreset_mode")
        if not isinstance(self._mode, AutoresetMode):
            raise ConfigError(
                f"{env} has no autoreset mode. Set `autoreset_mode` in its metadata to one of "
                "gymnasium.vector.AutoresetMode."
            )
        self._masks = self._mode is AutoresetMode.DISABLED or _supports_reset_mask(env.unwrapped)

    def get_mask_method(self, name: str) -> Callable[[], Any] | None:
        inner = self.env.unwrapped
        if isinstance(inner, SyncVectorEnv):
            methods = [get_mask_method(sub_env) for sub_env in inner.envs]
            if _check_all_have([method is not None for method in methods], name):
                return lambda: [method() for method in methods if method is not None]
            return None
        if isinstance(inner, AsyncVectorEnv):
            have = inner.call("has_wrapper_attr", MASK_METHOD)
            return partial(inner.call, MASK_METHOD) if _check_all_have(have, name) else None
        return super().get_mask_method(name)

    def reset(self, seeds: list[int]) -> Any:
        self.waiting[:] = False
        try:
            obs, infos = self.env.reset(seed=seeds)
        except (gymnasium.error.Error, TypeError):  # some accept one seed only
            obs, infos = self.env.reset(seed=seeds[0])
        self._read_info_masks(infos)
        return obs

    def reset_some(self, mask: NDArray[np.bool_], seeds: list[int | None]) -> Any:
        if not self._masks:
            return None
        self.waiting[mask] = False
        obs, infos = self.env.reset(seed=seeds, options={"reset_mask": mask.copy()})
        self._read_info_masks(infos, mask)
        return obs

    def step(self, actions: Any) -> VectorStep:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        self._read_info_masks(infos)
        over = np.asarray(terminated | truncated, np.bool_)
        fresh, finals = np.zeros(self.num_envs, np.bool_), {}
        if self._mode is AutoresetMode.NEXT_STEP:
            fresh, self.waiting = self.waiting, over
        elif over.any():
            at = np.flatnonzero(over).tolist()
            if self._mode is AutoresetMode.SAME_STEP:
                finals = {e: infos["final_obs"][e] for e in at}
            else:
                finals = {e: _get_row(obs, e) for e in at}
                obs, infos = self.env.reset(options={"reset_mask": over.copy()})
                self._read_info_masks(infos, over)
        return VectorStep(obs, reward, terminated, truncated, finals, fresh)


class _EnvPoolWrapper(_LibraryWrapper):
    """A synchronous EnvPool pool: NEXT_STEP, with seeds fixed at construction."""

    def __init__(self, env: Any) -> None:
        if env.is_async:
            raise ConfigError(
                "An EnvPool pool must be synchronous. Create it without `batch_size`."
            )
        super().__init__(env, len(env))
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._last: Any = None

    def reset(self, seeds: list[int]) -> Any:
        self.waiting[:] = False
        obs, infos = self.env.reset()
        self._read_info_masks(infos)
        self._last = obs.copy()
        return self._last

    def reset_some(self, mask: NDArray[np.bool_], seeds: list[int | None]) -> Any:
        self.waiting[mask] = False
        self._last[mask], infos = self.env.reset(np.flatnonzero(mask).astype(np.int32))
        masks = infos.get(ACTION_MASK_KEY, ())
        for e, info_mask in zip(np.flatnonzero(mask).tolist(), masks, strict=False):
            self.info_masks[e] = info_mask
        return self._last

    def step(self, actions: Any) -> VectorStep:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        self._read_info_masks(infos)
        fresh, self.waiting = self.waiting, terminated | truncated
        self._last = obs.copy()
        return VectorStep(self._last, reward, terminated, truncated, {}, fresh)


class _SB3Wrapper(_LibraryWrapper):
    """An SB3 `VecEnv`: resets within the step, and cannot reset single environments."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.num_envs)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def get_mask_method(self, name: str) -> Callable[[], Any] | None:
        has = getattr(self.env, "has_attr", None)
        if has is None:
            return None
        if has(MASK_METHOD):
            return partial(self.env.env_method, MASK_METHOD)
        have: Sequence[bool] = ()
        with suppress(Exception):  # environments of another interface
            have = self.env.env_method("has_wrapper_attr", MASK_METHOD)
        _check_all_have(have, name)
        return None

    @property
    def _reset_infos(self) -> Any:
        """Infos of the newest resets, which SB3's wrappers do not forward."""
        return getattr(self.env.unwrapped, "reset_infos", [{}] * self.num_envs)

    def reset(self, seeds: list[int]) -> Any:
        self.env.seed(seeds[0])
        obs = self.env.reset()
        self.info_masks = [mask_from_info(info) for info in self._reset_infos]
        return obs

    def reset_some(self, mask: NDArray[np.bool_], seeds: list[int | None]) -> None:
        return None

    def step(self, actions: Any) -> VectorStep:
        obs, reward, dones, infos = self.env.step(actions)
        dones = np.asarray(dones, np.bool_)
        first = self._reset_infos
        self.info_masks = [
            mask_from_info(first[e] if dones[e] else info) for e, info in enumerate(infos)
        ]
        cut = np.array([bool(info.get("TimeLimit.truncated")) for info in infos]) & dones
        finals = {e: infos[e]["terminal_observation"] for e in np.flatnonzero(dones).tolist()}
        return VectorStep(obs, reward, dones & ~cut, cut, finals, np.zeros(self.num_envs, np.bool_))


def _check_all_have(have: Sequence[bool], name: str) -> bool:
    """Return true if all environments have the method `action_masks()`.

    Raises:
        ConfigError: Only some have it.
    """
    if any(have) and not all(have):
        raise ConfigError(
            f"{name}: environment {list(have).index(True)} has a method `action_masks()`, and "
            f"environment {list(have).index(False)} has none. Give every environment the method "
            "or none."
        )
    return any(have)


def _get_row(batch: Any, e: int) -> Any:
    """Return one observation of a batch as new arrays."""
    if isinstance(batch, Mapping):
        return {key: _get_row(part, e) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_get_row(part, e) for part in batch)
    return np.array(batch[e])


def _supports_reset_mask(env: Any) -> bool:
    """Return true if `reset` supports ``reset_mask``; other environments reset all rows."""
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        return True
    try:
        return "reset_mask" in inspect.getsource(type(env))
    except (OSError, TypeError):
        return False


def wrap_vector_env(env: Any) -> Any:
    """Wrap a vector environment of any library, detected by its attributes."""
    if hasattr(env, "all_env_ids"):  # first: a pool also derives from `VectorEnv`
        return _EnvPoolWrapper(env)
    if hasattr(env, "env_is_wrapped"):
        return _SB3Wrapper(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _GymnasiumWrapper(env)
    raise ConfigError(
        f"{type(env).__name__} is not a supported vector environment. Pass a Gymnasium VectorEnv, "
        "an EnvPool pool, or an SB3 VecEnv."
    )
