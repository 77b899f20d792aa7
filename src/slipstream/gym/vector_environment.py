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
    METHOD,
    drop_mask_space,
    get_mask_method,
    has_discrete_actions,
    mask_from_info,
    observation_has_mask,
    write_mask,
)
from slipstream.gym.env_factory import close_env, import_named, make_timeout_error, row_spec
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
    """One named ``vec:MODULE:FUNCTION``; ``FUNCTION(num_envs, **kwargs)`` makes the environments.

    They are a Gymnasium `VectorEnv`, an EnvPool pool or an SB3 `VecEnv`, inside `WrappedVectorEnv`.
    """

    @property
    def identity(self) -> Identity | None:
        return None  # it is stepped as it is

    def may_crash(self, copies: int) -> bool:
        return False  # the other library has threads of its own, which no fork would have

    def _made(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        own = {"masked": self.spec.has_action_mask, **more}
        return _around(self.name, self.kwargs, seeds, indices, **own)


@dataclass(frozen=True)
class VectorKind(GymnasiumKind):
    """The name ``vec:MODULE:FUNCTION``."""

    noun: ClassVar[str] = "a vector environment of another library"
    loaded: ClassVar[type[GymnasiumEnvironment]] = VectorEnvironment
    backends: ClassVar[tuple[str, ...]] = ("auto", "serial")
    can_abort: ClassVar[bool] = False  # the other library decides when

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(VECTOR).replace(":", ".")

    @property
    def code(self) -> Mapping[str, str | None]:
        return {self.name: self.name.removeprefix(VECTOR).rpartition(":")[0]}

    @property
    def module(self) -> ModuleType | None:
        raise ConfigError(
            f"{self.name} makes its envs on this machine, all at once; nodes of a cluster make "
            "their own. Leave --cluster out, or register the environment and name it "
            "gym:my_module:ID."
        )

    def default_hyperparams(self, agent_name: str) -> Sections:
        return {}

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        return None

    def load(self, settings: Mapping[str, Any]) -> GymnasiumEnvironment:
        for key in ("metrics", "wrappers", "training_wrappers"):
            if settings.get(key):
                raise ConfigError(
                    f"`env.{key}` is for gym:ID; leave it out of {self.name}, whose function makes "
                    "and wraps its sub-environments itself."
                )
        kwargs, one = dict(settings.get("kwargs") or {}), np.zeros(1, np.uint64)
        with _around(self.name, kwargs, one, one) as probe:  # it is stepped as it is
            return VectorEnvironment(self, probe.spec, kwargs, step_seconds=0.0)

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        raise ConfigError(f"{self.name} draws no pictures; --video is for gym:ID environments.")


def _around(name: str, kwargs: Mapping[str, Any], *who: Any, **more: Any) -> VectorEnv:
    """Sub-environments as ours."""
    num_envs = len(who[0])
    try:
        with time_limit(start_timeout()):
            made = _function(name)(num_envs, **kwargs)
    except SlipstreamError:
        raise
    except TimeLimitError as error:
        raise make_timeout_error(name, error) from error
    except Exception as error:
        given = "".join(f", {key}={value!r}" for key, value in kwargs.items())
        raise ConfigError(
            f"{name} raised {type(error).__name__}: {error!s:.400} when it was called with "
            f"({num_envs}{given}). Fix the function: it must create that many environments, with "
            "`env.kwargs` as keyword arguments."
        ) from error
    return WrappedVectorEnv(made, *who, name=name, **more)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.removeprefix(VECTOR).rpartition(":")
    try:
        found: Callable[..., Any] = getattr(import_named(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be found ({error}): write vec:MODULE:FUNCTION, a function that makes "
            "so many envs when it is called with their number, of a module that is installed or "
            "lies in the working folder."
        ) from error
    return found


class WrappedVectorEnv(VectorEnv):
    """Foreign vector environments under slipstream's agents; they cannot be saved.

    Args:
        env: Gymnasium's `VectorEnv`, a synchronous EnvPool pool, or an SB3 `VecEnv`.
        seeds, indices: uint64 [E], as for `ForeignEnv`.
        name: for messages.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py`.
        limit: steps after which an evaluation's episode is cut.
        masked: its choices are masked; None: a first reset shows it.
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
                f"{name} made {self.num_envs} envs where {len(seeds)} were asked for: it must "
                "take the number as its first argument."
            )
        observation_space, action_space = self._env.observation_space, self._env.action_space
        self._separate_mask = bool(
            observation_has_mask(observation_space) and has_discrete_actions(action_space)
        )
        observation_space = (
            drop_mask_space(observation_space) if self._separate_mask else observation_space
        )
        spec = row_spec(name, observation_space, action_space)
        self._mask_method = (
            None if self._separate_mask or not spec.num_actions else self._env.mask_method(name)
        )
        if masked is None:
            masked = bool(spec.num_actions) and (
                self._separate_mask or self._mask_method is not None
            )
            if spec.num_actions and not masked:
                self._call(self._env.reset, self._episode_seeds(seeds, indices, 0))
                masked = any(one is not None for one in self._env.info_masks)
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
        words = self._episode_seeds(self._seeds, self._indices, self._resets)
        self._resets += 1
        self._finals, self._episodes = [], []
        self._clear_statistics(slice(None))
        self._rows = self._to_rows(self._call(self._env.reset, words))
        obs[...] = self._rows
        if mask is not None:
            mask[...] = self._mask

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Where a env cannot be reset alone, its running episode is stepped to its end first."""
        if len(copies) == 0:
            return
        chosen = np.zeros(self.num_envs, np.bool_)
        chosen[copies] = True
        numbers = np.zeros(self.num_envs, np.uint64)
        numbers[copies] = episodes.astype(np.uint64)
        words = self._episode_seeds(np.full(self.num_envs, seed % 2**64, np.uint64), numbers, 0)
        self._clear_statistics(copies)
        if self._rows is None or chosen.all():
            self._rows = self._to_rows(self._call(self._env.reset, words))
        else:
            each = [word if own else None for word, own in zip(words, chosen, strict=True)]
            step = self._call(self._env.reset_some, chosen, each)
            if step is None:
                self._skipped[copies] = True
            else:
                self._rows = self._to_rows(step)
        obs[copies] = self._rows[copies]
        if mask is not None:
            mask[...] = self._mask  # of all: others are stepped, too

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        step = self._call(self._env.step, self.action_codec.decode(actions))
        over = step.terminated | step.truncated
        rows = self._rows = self._to_rows(step.obs)
        if out.mask is not None:
            out.mask[...] = self._mask
        real = ~(step.fresh | self._skipped | self._held)
        self._skipped &= ~over  # its successor has begun
        out.obs[...], out.reward[...] = rows, np.where(real, step.reward, 0.0)
        self._ret[real] += np.asarray(step.reward, np.float64)[real]
        self._length[real] += 1
        late = real & (self._length >= self._limit) if self._limit is not None else real & False
        out.terminated[...] = step.terminated & real
        out.truncated[...] = (step.truncated & real) | late
        out.valid[...] = real | self._held
        for e in np.flatnonzero(real & (over | late)).tolist():
            if self._at_end == RESET_KEEP_ALL or (self._at_end == RESET and not step.terminated[e]):
                last = self._to_row(step.finals[e]) if e in step.finals else rows[e].copy()
                self._finals.append((last, t, e))
            self._episodes.append((t, e, float(self._ret[e]), int(self._length[e])))
            self._ret[e], self._length[e] = 0.0, 0
            self._held[e] = self._at_end == HOLD

    def drain_final_obs(self) -> FinalObs:
        kept, self._finals = self._finals, []
        return collect_final_obs(self.spec, kept)

    def drain_episodes(self) -> Episodes:
        ended, self._episodes = self._episodes, []
        return collect_episodes(self.spec, ended)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Nothing: a run that is resumed begins fresh episodes."""
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
        """What their code answers; what it raises, in a paragraph."""
        try:
            return call(*arguments)
        except SlipstreamError:
            raise
        except Exception as error:
            raise KernelError(
                f"{self._name} raised {type(error).__name__}: {error!s:.300} in "
                f"`{getattr(call, '__name__', METHOD)}`. "
                "Fix the environment, or the function that makes it."
            ) from error

    def _clear_statistics(self, copies: Any) -> None:
        self._ret[copies], self._length[copies] = 0.0, 0
        self._held[copies] = self._skipped[copies] = False

    def _episode_seeds(self, seeds: Any, indices: Any, episode: int) -> list[int]:
        with np.errstate(over="ignore"):
            streams = stream(seeds, indices, np.full(len(seeds), episode, np.uint64))
        return [int(word & SEED_MASK) for word in streams]

    def _to_rows(self, obs: Any) -> NDArray[Any]:
        """Rows of the newest observations, whose masks are written down."""
        self._update_masks(obs)
        try:
            rows, _ = self.observation_codec.encode(obs)
        except SpaceMismatchError as error:
            raise KernelError(f"{self._name}: its observations are {error}.") from None
        if not np.isfinite(rows).all():
            raise KernelError(f"{self._name}: its observations hold NaN or infinity.")
        return np.array(rows, self.spec.observation_dtype)

    def _update_masks(self, obs: Any) -> None:
        info_masks = self._env.info_masks
        if not self.mask_size:
            if self.spec.num_actions and any(one is not None for one in info_masks):
                raise KernelError(
                    f"{self._name} showed the info `action_mask`, which the first `reset` of its "
                    "first environment did not: give a mask of allowed choices with every "
                    "observation of all environments or with none."
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
                if self._env.waiting[e]:  # for a reset, so that its action is not read
                    place[...] = True
                    continue
                raise KernelError(
                    f"{self._name}: its environment {e} has {error}. Give one with every "
                    "observation. It must allow at least one action until the episode ends."
                ) from None

    def _to_row(self, obs: Any) -> NDArray[Any]:
        return np.array(self.observation_codec.encode(obs)[0], self.spec.observation_dtype)


class VectorStep(NamedTuple):
    """One step: `finals` are last observations by copy where the next episode has begun already;
    `fresh` [E] says which sub-environments began an episode instead of stepping."""

    obs: Any
    reward: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    finals: Mapping[int, Any]
    fresh: NDArray[np.bool_]


class _LibraryWrapper:
    """A vector environment of one library.

    Attributes:
        said: the info `action_mask` of each sub-environment's newest observation; None without one.
        waiting: bool [E], envs whose episode is over, and whose next step begins another one.
    """

    def __init__(self, env: Any, num_envs: int) -> None:
        self.env, self.num_envs = env, num_envs
        self.info_masks: list[Any] = [None] * num_envs
        self.waiting = np.zeros(num_envs, np.bool_)

    def mask_method(self, name: str) -> Callable[[], Any] | None:
        """Return a function that calls `action_masks()` of every environment; None without any."""
        found = getattr(getattr(self.env, "unwrapped", self.env), METHOD, None)
        return found if callable(found) else None

    def _read_info_masks(self, infos: Mapping[str, Any], rows: Any = slice(None)) -> None:
        masks, has = infos.get(ACTION_MASK_KEY), infos.get(f"_{ACTION_MASK_KEY}")
        for e in np.arange(self.num_envs)[rows].tolist():
            self.info_masks[e] = (
                None if masks is None or (has is not None and not has[e]) else masks[e]
            )


class _GymnasiumWrapper(_LibraryWrapper):
    """Any of its `VectorEnv`, in any autoreset mode."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.num_envs)
        self.observation_space, self.action_space = (
            env.single_observation_space,
            env.single_action_space,
        )
        self._mode = env.metadata.get("autoreset_mode")
        if not isinstance(self._mode, AutoresetMode):
            raise ConfigError(
                f"{env} does not say what follows an episode's end: its metadata need "
                "`autoreset_mode`, one of gymnasium.vector.AutoresetMode."
            )
        self._masks = self._mode is AutoresetMode.DISABLED or _supports_reset_mask(env.unwrapped)

    def mask_method(self, name: str) -> Callable[[], Any] | None:
        inner = self.env.unwrapped
        if isinstance(inner, SyncVectorEnv):
            found = [get_mask_method(one) for one in inner.envs]
            if _all_have([one is not None for one in found], name):
                return lambda: [one() for one in found if one is not None]
            return None
        if isinstance(inner, AsyncVectorEnv):
            have = inner.call("has_wrapper_attr", METHOD)
            return partial(inner.call, METHOD) if _all_have(have, name) else None
        return super().mask_method(name)

    def reset(self, seeds: list[int]) -> Any:
        self.waiting[:] = False
        try:
            obs, infos = self.env.reset(seed=seeds)
        except (gymnasium.error.Error, TypeError):  # some have one stream for all sub-environments
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
                finals = {e: _row(obs, e) for e in at}
                obs, infos = self.env.reset(options={"reset_mask": over.copy()})
                self._read_info_masks(infos, over)
        return VectorStep(obs, reward, terminated, truncated, finals, fresh)


class _EnvPoolWrapper(_LibraryWrapper):
    """EnvPool's, in synchronous mode: NEXT_STEP, seeds fixed when it is made."""

    def __init__(self, env: Any) -> None:
        if env.is_async:
            raise ConfigError("An EnvPool pool must be synchronous here: leave `batch_size` out.")
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
        for e, own in zip(
            np.flatnonzero(mask).tolist(), infos.get(ACTION_MASK_KEY, ()), strict=False
        ):
            self.info_masks[e] = own
        return self._last

    def step(self, actions: Any) -> VectorStep:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        self._read_info_masks(infos)
        fresh, self.waiting = self.waiting, terminated | truncated
        self._last = obs.copy()
        return VectorStep(self._last, reward, terminated, truncated, {}, fresh)


class _SB3Wrapper(_LibraryWrapper):
    """SB3's: resets within the step; some sub-environments cannot be reset alone."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.num_envs)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def mask_method(self, name: str) -> Callable[[], Any] | None:
        has = getattr(self.env, "has_attr", None)
        if has is None:
            return None
        if has(METHOD):
            return partial(self.env.env_method, METHOD)
        have: Sequence[bool] = ()
        with suppress(Exception):  # its environments are not Gymnasium's
            have = self.env.env_method("has_wrapper_attr", METHOD)
        _all_have(have, name)
        return None

    @property
    def _reset_infos(self) -> Any:
        """Infos of the resets that began the newest episodes, which SB3's wrappers do not have."""
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


def _all_have(have: Sequence[bool], name: str) -> bool:
    """Return true if all environments have the method `action_masks()`.

    Raises:
        ConfigError: only some have it.
    """
    if any(have) and not all(have):
        raise ConfigError(
            f"{name}: environment {list(have).index(True)} has a method `action_masks()`, and "
            f"environment {list(have).index(False)} has none. Give every environment the method "
            "or none."
        )
    return any(have)


def _row(batch: Any, e: int) -> Any:
    """One observation of a batch, its own."""
    if isinstance(batch, Mapping):
        return {key: _row(part, e) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(part, e) for part in batch)
    return np.array(batch[e])


def _supports_reset_mask(env: Any) -> bool:
    """Return true if its `reset` takes ``reset_mask``; others begin all sub-environments."""
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        return True
    try:
        return "reset_mask" in inspect.getsource(type(env))
    except (OSError, TypeError):
        return False


def wrap_vector_env(env: Any) -> Any:
    """By what the environment offers; a pool calls itself a `VectorEnv`, too."""
    if hasattr(env, "all_env_ids"):
        return _EnvPoolWrapper(env)
    if hasattr(env, "env_is_wrapped"):
        return _SB3Wrapper(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _GymnasiumWrapper(env)
    raise ConfigError(
        f"{type(env).__name__} is no vector environment that is known here: give Gymnasium's "
        "VectorEnv, an EnvPool pool, or an SB3 VecEnv."
    )
