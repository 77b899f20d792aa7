"""Batches of sub-environments for the adapters: any autoreset mode, native actions, new arrays.

Errors have slipstream's messages and the exception types that other libraries expect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError, KernelError
from slipstream.gym.env_factory import env_name
from slipstream.gym.foreign_env import spec_from_env
from slipstream.gym.gymnasium_environment import GymnasiumKind, env_fn, wrappers_from_section
from slipstream.gym.gymnasium_semantics import DISABLED, NEXT_STEP, SAME_STEP, NativeEnv
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD, RESET_KEEP_ALL
from slipstream.kernels.space_codec import (
    ActionCodec,
    SpaceMismatchError,
    as_array,
    describe_leaf,
    make_action_codec,
)
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import Episodes, allocate_buffers, member_indices
from slipstream.training.environments.factory import get_kind, make_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.settings.config import resolve


class ActionError(ConfigError, ValueError):
    """Actions of a wrong number, shape or dtype, or that are not in the action space."""


class ScalarActionError(ConfigError, TypeError):
    """A scalar instead of a batch of actions."""


class ResetNeededError(ConfigError, gymnasium.error.ResetNeeded):
    """A step of a sub-environment without a current episode."""


class SpaceError(ConfigError, RuntimeError):
    """Sub-environments with different spaces."""


class ClosedError(ConfigError, gymnasium.error.ClosedEnvironmentError):
    """Use of a closed adapter."""


class ForeignErrors:
    """Raise errors of a sub-environment unchanged, with slipstream's message as a note."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KernelError) and isinstance(error.__cause__, Exception):
            theirs = error.__cause__
            theirs.add_note(str(error))
            raise theirs from None


AT_END = {
    AutoresetMode.NEXT_STEP: NEXT_STEP,
    AutoresetMode.SAME_STEP: SAME_STEP,
    AutoresetMode.DISABLED: DISABLED,
}
"""Autoreset modes of `NativeEnv`."""
HANG_SECONDS = 300.0  # per call of a sub-environment; Gymnasium has no limit
_BOUNDS_TOLERANCE = 1e-5  # relative tolerance of bounds for rounding errors


class BatchStep(NamedTuple):
    """One step of all or some sub-environments. The caller owns the arrays.

    Attributes:
        obs: Observations [n, ...] of the stepped sub-environments.
        reward: float32 [n].
        terminated, truncated: bool [n].
        ended: Ids of sub-environments whose episode ended at this step, int64 [k].
        final_obs: Their final observations, [k, ...].
        episodes: Their episode statistics, in the order of `ended`.
        valid: bool [n], false for transitions that did not happen. None if all are valid.

    Under `AutoresetMode.NEXT_STEP`, the step after the end of an episode only resets: the action
    is ignored, `obs` is the first observation, the reward is 0 and both flags are false.

    With P > 1 players, observations and rewards are ``[n, P, ...]``.
    """

    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ended: NDArray[np.int64]
    final_obs: Any
    episodes: Episodes
    valid: NDArray[np.bool_] | None


class AdapterBatch(ABC):
    """E sub-environments.

    Args:
        name: Name of the environment, for messages.
        spec: Specification of the environment.
        actions: Converts between native actions and rows of numbers.
        num_envs: Number of sub-environments, E.
        autoreset: Autoreset mode.

    Attributes:
        env: The underlying environment.
        observation_space, action_space: Spaces of one sub-environment, as independent objects.
        mask: Mask of allowed actions, bool [E, n]. None without masks.
        apart: `send` and `recv` step sub-environments independently.
    """

    env: Any
    mask: NDArray[np.bool_] | None = None
    apart = False

    def __init__(
        self,
        name: str,
        spec: EnvSpec,
        actions: ActionCodec,
        num_envs: int,
        autoreset: AutoresetMode,
    ) -> None:
        self.name, self.spec, self.num_envs, self.autoreset = name, spec, num_envs, autoreset
        # Clients change them: CleanRL's SAC sets another dtype.
        self.observation_space = deepcopy(spec.native_observation_space or spec.observation_space)
        self.action_space = deepcopy(spec.native_action_space or spec.action_space)
        self.action_codec = actions
        self._players = () if spec.players == 1 else (spec.players,)
        self._waiting = np.zeros(num_envs, np.bool_)  # ended and not reset
        self._begun = np.zeros(num_envs, np.bool_)
        self.closed = False

    @abstractmethod
    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        """Reset sub-environments.

        Args:
            seeds: Seed of each sub-environment. None continues its current random stream.
            selected: Mask of sub-environments to reset, bool [E]. None resets all.

        Returns:
            Observations of all sub-environments. Those not selected keep their last one.
        """

    @abstractmethod
    def step(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> BatchStep:
        """Step all or some sub-environments.

        Args:
            actions: One action per stepped sub-environment, batch axis first.
            env_ids: Ids of the sub-environments to step, int64 [n], in the order of `actions`.

        Raises:
            ActionError: Wrong number, shape or dtype, or outside the space. Nothing was stepped.
            ResetNeededError: A sub-environment needs a reset.
        """

    def infos(self) -> dict[str, Any]:
        """Return the infos of the last step in Gymnasium's vector format; empty for kernels."""
        return {}

    def info_dicts(self, env_ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the infos of some sub-environments as new dicts."""
        return [{} for _ in env_ids]

    def send(self, actions: Any, env_ids: NDArray[np.int64]) -> None:
        """Start a step of some sub-environments if `apart`; raises like `step`."""
        raise NotImplementedError

    def recv(self, count: int) -> tuple[NDArray[np.int64], BatchStep]:
        """Return the ids and results of the first `count` finished steps."""
        raise NotImplementedError

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        """Sub-environments that were sent an action and not received since, bool [E]."""
        return np.zeros(self.num_envs, np.bool_)

    def settle(self) -> None:  # noqa: B027  (only asynchronous batches have steps in flight)
        """Wait for steps in flight and discard their results."""

    def close(self) -> None:
        """Close all sub-environments. Safe to call again."""
        if not self.closed:
            self.closed = True
            self.env.close()

    def __del__(self) -> None:
        """Close the environment if its owner did not."""
        with suppress(Exception):
            self.close()

    def check_open(self) -> None:
        """Raise ClosedError if the batch is closed."""
        if self.closed:
            raise ClosedError(f"{self.name} was closed. Create it again to use it.")

    def check_ready(self, selected: NDArray[np.bool_] | None = None) -> None:
        """Raise ResetNeededError if a sub-environment to step (mask `selected`) needs a reset."""
        self.check_open()
        if not self._begun.all():
            missing = ~self._begun if selected is None else selected & ~self._begun
            env_ids = np.flatnonzero(missing).tolist()
            which = (
                ""
                if len(env_ids) == self.num_envs
                else f" (missing for environments {truncate_list(env_ids)})"
            )
            if env_ids:
                raise ResetNeededError(f"{self.name}: call `reset` before the first `step`{which}.")
        if self.autoreset is AutoresetMode.DISABLED and self._waiting.any():
            over = self._waiting if selected is None else self._waiting & selected
            if over.any():
                raise ResetNeededError(
                    f"{self.name}: autoreset is disabled, and episodes have ended in environments "
                    f"{truncate_list(np.flatnonzero(over).tolist())}. Reset them with "
                    "options={'reset_mask': terminations | truncations} before the next step."
                )

    def encode_actions(
        self, actions: Any, env_ids: NDArray[np.int64] | None = None
    ) -> NDArray[Any]:
        """Check actions and convert them to rows [n, K]."""
        n = self.num_envs if env_ids is None else len(env_ids)
        if np.ndim(actions) == 0 and not isinstance(actions, Mapping):
            raise ScalarActionError(
                f"{self.name}: `step` takes one action for each of {n} environments, got "
                f"{actions!r:.60}."
            )
        try:
            rows = self.action_codec.encode(actions, (n, *self._players), self.spec.action_dim)
        except SpaceMismatchError as error:
            raise ActionError(f"{self.name}: `step` of {n} environments got {error}.") from None
        if isinstance(self.spec.action_space, spaces.Box):
            self._check_bounds(rows, self.spec.action_space)
        if self.mask is not None:
            self._check_allowed(rows, env_ids)
        return rows

    def _check_allowed(self, rows: NDArray[Any], env_ids: NDArray[np.int64] | None) -> None:
        assert self.mask is not None
        at = slice(None) if env_ids is None else env_ids
        allowed = np.take_along_axis(self.mask[at], self.action_codec.mask_columns(rows), axis=-1)
        allowed[self._waiting[at]] = True  # the action is ignored
        if not allowed.all():
            place = int(np.argwhere(~allowed)[0, 0])
            env_id = place if env_ids is None else int(env_ids[place])
            raise ActionError(
                f"{self.name}: an action of environment {env_id} is masked out. "
                "Choose an action that the action mask allows."
            )

    def _check_bounds(self, rows: NDArray[Any], space: spaces.Box) -> None:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        slack = _BOUNDS_TOLERANCE * (1.0 + np.minimum(np.abs(low), np.abs(high)))
        bad = (rows < low - slack) | (rows > high + slack)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ActionError(
                f"{self.name}: `step` got the action {rows[place]} at {place}, outside the action "
                f"space ({describe_leaf(self.action_codec.leaf)} from {low[place[-1]]} to "
                f"{high[place[-1]]}). Clip actions to it: np.clip(actions, space.low, space.high), "
                "or Gymnasium's ClipAction."
            )


def truncate_list(numbers: Sequence[int]) -> str:
    """Format a list of numbers, at most 8 of them."""
    text = ", ".join(map(str, numbers[:8]))
    return f"{text}, ..." if len(numbers) > 8 else text


def check_single_player(batch: AdapterBatch, stepping: str) -> None:
    """Raise ConfigError for a game in a single-player adapter, naming built-in opponents."""
    if batch.spec.players == 1:
        return
    module = getattr(getattr(getattr(batch, "env", None), "kernel", None), "module", None)
    bots = getattr(module, "OPPONENTS", {}).get("opponents")
    batch.close()
    fix = "Train it by self-play (docs/guides/self-play.md)"
    if bots:
        fix = f"Select built-in opponents, opponents={bots}"
    raise ConfigError(
        f"{batch.name} has {batch.spec.players} players, but {stepping} one. {fix}, or use the "
        "PettingZoo adapter (slipstream.adapters.pettingzoo), in which all players act."
    )


class KernelBatch(AdapterBatch):
    """E sub-environments of a kernel.

    Args:
        env: Vector environment that keeps every final observation (`RESET_KEEP_ALL`), or holds at
            the end of episodes (`HOLD`) for `AutoresetMode.DISABLED`.
        name: Name of the environment, for messages.
        autoreset: Autoreset mode.
    """

    def __init__(self, env: KernelVectorEnv, name: str, autoreset: AutoresetMode) -> None:
        super().__init__(name, env.spec, env.action_codec, env.num_envs, autoreset)
        self.env = env
        space, self._num_actions = (
            env.spec.action_space,
            0,
        )  # only for a Discrete space without a mask
        if isinstance(space, spaces.Discrete) and space == self.action_space:
            plain = env.spec.players == 1 and not env.mask_size and space.start == 0
            self._num_actions = int(space.n) if plain else 0
        self._out = allocate_buffers(env)
        self._pending = allocate_buffers(
            env
        ).obs  # first observations, which NEXT_STEP returns one step later
        self._none = np.zeros(self.num_envs, np.bool_)

    @property
    def mask(self) -> NDArray[np.bool_] | None:  # type: ignore[override]
        return self._out.mask

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        self.check_open()
        selected_rows = np.ones(self.num_envs, np.bool_) if selected is None else selected
        rows = self._out
        seeded = np.array([seed is not None for seed in seeds]) & selected_rows
        seeded_ids = np.flatnonzero(seeded)
        if len(seeded_ids):
            stream_seeds = np.array(
                [int(seeds[e] or 0) % 2**64 for e in seeded_ids.tolist()], np.uint64
            )
            self.env.restart(seeded_ids, stream_seeds, rows.obs, rows.mask)
        others = np.flatnonzero(selected_rows & ~seeded)
        if len(others):
            self.env.restart(others, None, rows.obs, rows.mask)
        self.env.drain_episodes()
        self.env.drain_final_obs()
        self._waiting = self._waiting & ~selected_rows
        self._begun = self._begun | selected_rows
        return self.env.observation_codec.decode(rows.obs.copy())

    def step(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> BatchStep:
        selected = None
        if env_ids is not None:
            selected = np.zeros(self.num_envs, np.bool_)
            selected[env_ids] = True
        self.check_ready(selected)
        rows = self._encode_all_actions(actions, env_ids)
        env, out, skipped = self.env, self._out, None if selected is None else ~selected
        restarting = None
        if self.autoreset is AutoresetMode.NEXT_STEP and self._waiting.any():
            restarting = self._waiting if selected is None else self._waiting & selected
            skipped = restarting if skipped is None else skipped | restarting
        if skipped is not None:
            env.hold(skipped)
        env.step(rows, out)
        obs = out.obs
        if skipped is not None:
            env.hold(self._none)
        if restarting is not None:
            obs[restarting] = self._pending[restarting]
        over = out.terminated | out.truncated
        finals, episodes = env.drain_final_obs(), env.drain_episodes()
        self._waiting = over if selected is None else np.where(selected, over, self._waiting)
        ended = np.flatnonzero(over)
        last = self._order_finals(ended, finals.obs, finals.index[:, 1])
        if self.autoreset is AutoresetMode.NEXT_STEP and len(ended):
            self._pending[ended] = obs[ended]
            obs[ended] = last
        rows_out = slice(None) if env_ids is None else env_ids
        return BatchStep(
            env.observation_codec.decode(obs[rows_out].copy()),
            out.reward[rows_out].copy(),
            out.terminated[rows_out].copy(),
            out.truncated[rows_out].copy(),
            ended,
            env.observation_codec.decode(last),
            episodes,
            None if out.valid.all() else out.valid[rows_out].copy(),
        )

    def _order_finals(
        self, ended: NDArray[np.int64], obs: NDArray[Any], at: NDArray[np.int64]
    ) -> Any:
        """Return final observations in the order of `ended`."""
        if self.autoreset is AutoresetMode.DISABLED:
            return self._out.obs[ended]  # still the newest observation
        if len(at) == len(ended):
            return obs[np.argsort(at, kind="stable")]
        rows = self._out.obs[ended]  # lost sub-environments have none
        rows[np.searchsorted(ended, at)] = obs
        return rows

    def _encode_all_actions(self, actions: Any, env_ids: NDArray[np.int64] | None) -> NDArray[Any]:
        """Check actions and convert them to rows [E, K]; rows that are not stepped are zero."""
        if env_ids is None and self._num_actions and type(actions) is np.ndarray:
            plain = actions.dtype == np.int64 and actions.shape == (self.num_envs,)
            # Negative numbers are large as uint64.
            if (
                plain
                and actions.flags.c_contiguous
                and actions.view(np.uint64).max() < self._num_actions
            ):
                return actions.reshape(-1, 1)
        rows = self.encode_actions(actions, env_ids)
        if env_ids is None:
            return rows
        all_rows = np.zeros((self.num_envs, *rows.shape[1:]), rows.dtype)
        all_rows[env_ids] = rows
        return all_rows


class ForeignBatch(AdapterBatch):
    """E sub-environments of a Gymnasium environment, in worker processes or in this process.

    Args:
        env_fns: Ids, or functions that create a sub-environment, [E].
        name: Name of the environment, for messages.
        autoreset: Autoreset mode.
        seed: Sub-environment e is seeded with seed + e if its first reset has no seed.
        backend: "process" ("auto") or "serial".
        workers: Number of workers. None uses one per available core.
        kwargs: Keyword arguments of every entry of `env_fns`.

    Raises:
        ConfigError, ResourceError, KernelError: A sub-environment cannot be created.
    """

    env: NativeEnv
    apart = True

    def __init__(
        self,
        env_fns: Sequence[Any],
        name: str,
        autoreset: AutoresetMode,
        seed: int = 0,
        *,
        backend: str = "auto",
        workers: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        env = NativeEnv(
            env_fns,
            backend="process" if backend == "auto" else backend,
            at_end=AT_END[autoreset],
            workers=workers,
            policy=FaultPolicy("raise", HANG_SECONDS),
            kwargs=kwargs,
        )
        try:
            spec = spec_from_env(env, name)
        except BaseException:
            env.close()
            raise
        super().__init__(name, spec, make_action_codec(spec), env.num_envs, autoreset)
        self.env = env
        self._first_seeds: list[int | None] = [seed + e for e in range(env.num_envs)]
        self._ret, self._length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        self.check_open()
        selected_rows = np.ones(self.num_envs, np.bool_) if selected is None else selected
        pairs = zip(seeds, self._first_seeds, strict=True)
        with ForeignErrors():
            self.env.reset(
                [first if seed is None else seed for seed, first in pairs], None, selected
            )
        for e in np.flatnonzero(selected_rows).tolist():
            self._first_seeds[e] = None
        self._ret[selected_rows], self._length[selected_rows] = 0.0, 0
        self._waiting = self._waiting & ~selected_rows
        self._begun = self._begun | selected_rows
        return self.env.observation()

    def step(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> BatchStep:
        if env_ids is not None:
            self.send(actions, env_ids)
            return self.recv(len(env_ids), env_ids)[1]
        self.check_ready()
        native_actions = self._native_actions(actions)
        with ForeignErrors():
            self.env.step(native_actions)
        return self._make_step(np.arange(self.num_envs))

    def infos(self) -> dict[str, Any]:
        return self.env.infos()

    def info_dicts(self, env_ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        infos = self.env.info_list()
        return [infos[env_id] for env_id in env_ids.tolist()]

    def send(self, actions: Any, env_ids: NDArray[np.int64]) -> None:
        selected = np.zeros(self.num_envs, np.bool_)
        selected[env_ids] = True
        self.check_ready(selected)
        self.env.send(self._native_actions(actions, env_ids), env_ids)

    def _native_actions(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> Any:
        """Check actions and convert them to the native format and dtype."""
        rows, leaf = self.encode_actions(actions, env_ids), self.action_codec.leaf
        if self.action_codec.start is not None:
            return self.action_codec.decode(rows)
        return as_array(actions).astype(leaf.dtype).reshape(len(rows), *leaf.shape)

    def recv(
        self, count: int, order: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], BatchStep]:
        """Return the ids and results of the first `count` finished steps.

        Args:
            count: Number of steps.
            order: The same ids in the order of the result. None uses the order of completion.
        """
        self.check_open()
        with ForeignErrors():
            ready = self.env.recv(count)
        if order is not None:
            ready = order
        return ready, self._make_step(ready)

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        return self.env.in_flight

    def settle(self) -> None:
        while num_in_flight := int(self.in_flight.sum()):
            try:
                self.env.recv(num_in_flight)
            except KernelError:  # its sub-environment will be reset
                if int(self.in_flight.sum()) == num_in_flight:
                    raise

    def _make_step(self, env_ids: NDArray[np.int64]) -> BatchStep:
        """Return the results of the last step of some sub-environments."""
        arrays = self.env.arrays
        reward, valid = arrays["reward"][env_ids], arrays["valid"][env_ids]
        terminated, truncated = arrays["terminated"][env_ids], arrays["truncated"][env_ids]
        over = terminated | truncated
        self._waiting[env_ids] = over
        self._ret[env_ids] += reward
        self._length[env_ids] += valid
        ended = env_ids[over]
        lost = arrays["lost"][ended]
        episodes = Episodes(
            np.zeros(len(ended), np.int64),
            ended,
            self._ret[ended],
            self._length[ended],
            {},
            lost if lost.any() else None,
        )
        self._ret[ended], self._length[ended] = 0.0, 0
        return BatchStep(
            self.env.observations_at(env_ids),
            reward.astype(np.float32),
            terminated,
            truncated,
            ended,
            self.env.final_observations_at(ended),
            episodes,
            None if valid.all() else valid,
        )


def make_batch(
    target: str | Mapping[str, Any],
    num_envs: int,
    *,
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
    backend: str = "auto",
    split: str = "train",
    workers: int | None = None,
    seed: int = 0,
    foreign: bool = True,
    **settings: Any,
) -> AdapterBatch:
    """Create a batch of a kernel or of a Gymnasium environment.

    Args:
        target: As for `slipstream.make_vec`: kernel name or file, ``gym:ID``, or YAML file.
        num_envs: Number of sub-environments, E.
        autoreset: Autoreset mode.
        backend: "auto" (compiled), "compiled" or "serial" for kernels; "auto" (process), "process"
            or "serial" for ``gym:ID``.
        split: Split of a market's prices.
        workers: Number of worker processes for ``gym:ID``.
        seed: Seed of the random streams before the first `reset` with seeds.
        foreign: True if the adapter supports ``gym:ID``.
        **settings: Fields of the environment's Config; ``kwargs`` and ``wrappers`` of ``gym:ID``.

    Raises:
        ConfigError: A name, setting or backend is unknown.
    """
    config = resolve(target, {f"env.{name}": value for name, value in settings.items()})
    name, env_settings = config.env_name, config.env_settings
    if foreign and type(get_kind(name)) is GymnasiumKind:
        num_envs = check_count("num_envs", num_envs)
        if split != "train":
            raise ConfigError(f"{name} has no split {split!r}: only markets have splits.")
        if env_settings.get("training_wrappers"):
            raise ConfigError(
                f"`env.training_wrappers` is for `slipstream train`. Pass wrappers of {name} as "
                "`wrappers`."
            )
        factory = env_fn(name, wrappers_from_section(env_settings))
        return ForeignBatch(
            [factory] * num_envs,
            env_name(factory),
            autoreset,
            seed,
            backend=backend,
            workers=workers,
            kwargs=env_settings.get("kwargs"),
        )
    environment = make_environment(name, env_settings).part(KernelEnvironment)
    if environment is None:
        raise ConfigError(
            f"{name} is not a kernel. This adapter supports built-in environments and kernel "
            "files; see docs/guides/adapters.md for others."
        )
    num_envs = check_count("num_envs", num_envs)
    if workers is not None:
        raise ConfigError(
            f"{name} is a kernel, which is stepped in this process. Omit `workers`, which is for "
            "gym:ID."
        )
    if env_settings.get("self_play") is not None:
        raise ConfigError(
            f"{name}: `self_play` is for `slipstream train`. An adapter steps both players with "
            "actions of the caller. Omit `self_play`."
        )
    seeds, indices = member_indices([seed], num_envs)
    env = KernelVectorEnv(
        environment.kernel,
        environment.loaded,
        seeds,
        indices,
        split=split,
        backend=environment.kind.select_backend(backend),
        stagger=False,
        autoreset_mode=HOLD if autoreset is AutoresetMode.DISABLED else RESET_KEEP_ALL,
    )
    return KernelBatch(env, environment.kind.short_name, autoreset)


def get_foreign_env_fn(target: Any, options: dict[str, Any]) -> Any:
    """Return the function or id of a ``gym:ID``, or None for other targets.

    Its `wrappers` are removed from the options.
    """
    if not isinstance(target, str) or type(get_kind(target)) is not GymnasiumKind:
        return None
    return env_fn(target, wrappers_from_section({"wrappers": options.pop("wrappers", ())}))


def resolve_indices(indices: Any, num_envs: int) -> list[int]:
    """Convert SB3's `indices` to a list; negative numbers count from the end."""
    if indices is None:
        return list(range(num_envs))
    items: Iterable[Any] = [indices] if isinstance(indices, (int, np.integer)) else indices
    all_ids = range(num_envs)
    try:
        return [all_ids[int(e)] for e in items]
    except IndexError:
        raise IndexError(
            f"`indices` must be less than {num_envs} sub-environments, got {indices!r:.60}"
        ) from None


def split_batch(batch: Any) -> Sequence[Any]:
    """Split a batch of observations into single ones, as views."""
    if isinstance(batch, Mapping):
        parts = [split_batch(part) for part in batch.values()]
        return [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*[split_batch(part) for part in batch], strict=True))
    return list(batch)


def take_rows(batch: Any, index: slice | NDArray[Any]) -> Any:
    """Return some rows of a batch."""
    return _map_arrays(lambda parts: parts[0][index], [batch])


def concat_batches(batches: Sequence[Any]) -> Any:
    """Concatenate batches."""
    return batches[0] if len(batches) == 1 else _map_arrays(np.concatenate, batches)


def _map_arrays(function: Callable[[Sequence[NDArray[Any]]], Any], batches: Sequence[Any]) -> Any:
    """Apply a function to the corresponding arrays of all batches."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _map_arrays(function, [batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_map_arrays(function, parts) for parts in zip(*batches, strict=True))
    return function(batches)
