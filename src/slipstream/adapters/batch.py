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


class NoActionsError(ConfigError, TypeError):
    """One number where a batch of actions belongs."""


class UnreadyError(ConfigError, gymnasium.error.ResetNeeded):
    """A step of a sub-environment that has not begun an episode."""


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
_ROUNDING = 1e-5  # relative tolerance of bounds for rounding errors


class BatchStep(NamedTuple):
    """One step of all or some sub-environments. The caller owns the arrays.

    Attributes:
        obs: Observations [n, ...] of the stepped sub-environments.
        reward: float32 [n].
        terminated, truncated: bool [n].
        ended: Ids of sub-environments whose episode ended at this step, int64 [k].
        finals: Their final observations, [k, ...].
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
    finals: Any
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
        self._form = actions
        self._players = () if spec.players == 1 else (spec.players,)
        self._waiting = np.zeros(num_envs, np.bool_)  # ended, and not begun again
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
            UnreadyError: A sub-environment needs a reset.
        """

    def infos(self) -> dict[str, Any]:
        """Return the infos of the last step in Gymnasium's vector format; empty for kernels."""
        return {}

    def said(self, env_ids: NDArray[np.int64]) -> list[dict[str, Any]]:
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

    def settle(self) -> None:  # noqa: B027  (nothing is, unless they step apart)
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

    def check_ready(self, chosen: NDArray[np.bool_] | None = None) -> None:
        """Raise UnreadyError if a sub-environment to step (mask `chosen`) needs a reset."""
        self.check_open()
        if not self._begun.all():
            missing = ~self._begun if chosen is None else chosen & ~self._begun
            who = np.flatnonzero(missing).tolist()
            which = "" if len(who) == self.num_envs else f" (missing for environments {few(who)})"
            if who:
                raise UnreadyError(f"{self.name}: call `reset` before the first `step`{which}.")
        if self.autoreset is AutoresetMode.DISABLED and self._waiting.any():
            over = self._waiting if chosen is None else self._waiting & chosen
            if over.any():
                raise UnreadyError(
                    f"{self.name}: episodes of environments {few(np.flatnonzero(over).tolist())} "
                    "have ended, and autoreset is disabled. Reset them with "
                    "options={'reset_mask': terminations | truncations} before the next step."
                )

    def rows(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Actions as rows [n, K], checked."""
        n = self.num_envs if env_ids is None else len(env_ids)
        if np.ndim(actions) == 0 and not isinstance(actions, Mapping):
            raise NoActionsError(
                f"{self.name}: `step` takes one action for each of {n} environments, got "
                f"{actions!r:.60}."
            )
        try:
            rows = self._form.encode(actions, (n, *self._players), self.spec.action_dim)
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
        allowed = np.take_along_axis(self.mask[at], self._form.mask_columns(rows), axis=-1)
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
        slack = _ROUNDING * (1.0 + np.minimum(np.abs(low), np.abs(high)))
        bad = (rows < low - slack) | (rows > high + slack)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ActionError(
                f"{self.name}: `step` was given {rows[place]} at {place}, outside the action "
                f"space ({describe_leaf(self._form.leaf)} from {low[place[-1]]} to "
                f"{high[place[-1]]}). Clip actions to it: np.clip(actions, space.low, space.high), "
                "or Gymnasium's ClipAction."
            )


def few(numbers: Sequence[int]) -> str:
    """The first few of some numbers."""
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown


def check_single_player(batch: AdapterBatch, stepping: str) -> None:
    """Raise ConfigError for a game in a single-player adapter, naming built-in opponents."""
    if batch.spec.players == 1:
        return
    module = getattr(getattr(getattr(batch, "env", None), "kernel", None), "module", None)
    bots = getattr(module, "OPPONENTS", {}).get("opponents")
    batch.close()
    remedy = "it has no players of its own, train it by self-play (docs/guides/self-play.md)"
    if bots:
        remedy = f"give its own players, opponents={bots}"
    raise ConfigError(
        f"{batch.name} has {batch.spec.players} players, and {stepping} one: {remedy}; or use the "
        "PettingZoo face (slipstream.adapters.pettingzoo), in which all of them act."
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
        space, self._choices = env.spec.action_space, 0  # of a single choice without a mask
        if isinstance(space, spaces.Discrete) and space == self.action_space:
            plain = env.spec.players == 1 and not env.mask_size and space.start == 0
            self._choices = int(space.n) if plain else 0
        self._out = allocate_buffers(env)
        self._pending = allocate_buffers(
            env
        ).obs  # first observations that NEXT_STEP shows one step later
        self._none = np.zeros(self.num_envs, np.bool_)

    @property
    def mask(self) -> NDArray[np.bool_] | None:  # type: ignore[override]
        return self._out.mask

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        self.check_open()
        chosen = np.ones(self.num_envs, np.bool_) if selected is None else selected
        rows = self._out
        seeded = np.array([seed is not None for seed in seeds]) & chosen
        fresh = np.flatnonzero(seeded)
        if len(fresh):
            words = np.array([int(seeds[e] or 0) % 2**64 for e in fresh.tolist()], np.uint64)
            self.env.restart(fresh, words, rows.obs, rows.mask)
        others = np.flatnonzero(chosen & ~seeded)
        if len(others):
            self.env.restart(others, None, rows.obs, rows.mask)
        self.env.drain_episodes()
        self.env.drain_final_obs()
        self._waiting = self._waiting & ~chosen
        self._begun = self._begun | chosen
        return self.env.observation_codec.decode(rows.obs.copy())

    def step(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> BatchStep:
        chosen = None
        if env_ids is not None:
            chosen = np.zeros(self.num_envs, np.bool_)
            chosen[env_ids] = True
        self.check_ready(chosen)
        rows = self._rows(actions, env_ids)
        env, out, passed = self.env, self._out, None if chosen is None else ~chosen
        waking = None
        if self.autoreset is AutoresetMode.NEXT_STEP and self._waiting.any():
            waking = self._waiting if chosen is None else self._waiting & chosen
            passed = waking if passed is None else passed | waking
        if passed is not None:
            env.hold(passed)
        env.step(rows, out)
        obs = out.obs
        if passed is not None:
            env.hold(self._none)
        if waking is not None:
            obs[waking] = self._pending[waking]
        over = out.terminated | out.truncated
        finals, episodes = env.drain_final_obs(), env.drain_episodes()
        self._waiting = over if chosen is None else np.where(chosen, over, self._waiting)
        ended = np.flatnonzero(over)
        last = self._last(ended, finals.obs, finals.index[:, 1])
        if self.autoreset is AutoresetMode.NEXT_STEP and len(ended):
            self._pending[ended] = obs[ended]
            obs[ended] = last
        at = slice(None) if env_ids is None else env_ids
        return BatchStep(
            env.observation_codec.decode(obs[at].copy()),
            out.reward[at].copy(),
            out.terminated[at].copy(),
            out.truncated[at].copy(),
            ended,
            env.observation_codec.decode(last),
            episodes,
            None if out.valid.all() else out.valid[at].copy(),
        )

    def _last(self, ended: NDArray[np.int64], obs: NDArray[Any], at: NDArray[np.int64]) -> Any:
        """Final observations in the order of `ended`."""
        if self.autoreset is AutoresetMode.DISABLED:
            return self._out.obs[ended]  # a sub-environment that waits goes on showing it
        if len(at) == len(ended):
            return obs[np.argsort(at, kind="stable")]
        rows = self._out.obs[ended]  # of a sub-environment that was lost there is none
        rows[np.searchsorted(ended, at)] = obs
        return rows

    def _rows(self, actions: Any, env_ids: NDArray[np.int64] | None) -> NDArray[Any]:
        """Actions as rows [E, K], checked; of sub-environments that are not stepped, anything."""
        if env_ids is None and self._choices and type(actions) is np.ndarray:
            plain = actions.dtype == np.int64 and actions.shape == (self.num_envs,)
            # As uint64 a negative number is too large, too.
            if (
                plain
                and actions.flags.c_contiguous
                and actions.view(np.uint64).max() < self._choices
            ):
                return actions.reshape(-1, 1)
        rows = self.rows(actions, env_ids)
        if env_ids is None:
            return rows
        whole = np.zeros((self.num_envs, *rows.shape[1:]), rows.dtype)
        whole[env_ids] = rows
        return whole


class ForeignBatch(AdapterBatch):
    """E sub-environments of a Gymnasium environment, in worker processes or in this one.

    Args:
        makers: [E] ids, or what makes a sub-environment.
        name: of the environment, for messages.
        autoreset: what follows an episode's end.
        seed: sub-environment e begins the stream of seed + e where its first reset has no seed.
        backend: process (auto) or serial.
        workers: processes. None uses one per available core.
        kwargs: keyword arguments of every one of `env_fns`.

    Raises:
        ConfigError, ResourceError, KernelError: they cannot be made.
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
        self._first: list[int | None] = [seed + e for e in range(env.num_envs)]
        self._ret, self._length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        self.check_open()
        chosen = np.ones(self.num_envs, np.bool_) if selected is None else selected
        pairs = zip(seeds, self._first, strict=True)
        with ForeignErrors():
            self.env.reset([own if one is None else one for one, own in pairs], None, selected)
        for e in np.flatnonzero(chosen).tolist():
            self._first[e] = None
        self._ret[chosen], self._length[chosen] = 0.0, 0
        self._waiting = self._waiting & ~chosen
        self._begun = self._begun | chosen
        return self.env.observation()

    def step(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> BatchStep:
        if env_ids is not None:
            self.send(actions, env_ids)
            return self.recv(len(env_ids), env_ids)[1]
        self.check_ready()
        native_actions = self._native_actions(actions)
        with ForeignErrors():
            self.env.step(native_actions)
        return self._outcome(np.arange(self.num_envs))

    def infos(self) -> dict[str, Any]:
        return self.env.infos()

    def said(self, env_ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        infos = self.env.info_list()
        return [infos[env_id] for env_id in env_ids.tolist()]

    def send(self, actions: Any, env_ids: NDArray[np.int64]) -> None:
        chosen = np.zeros(self.num_envs, np.bool_)
        chosen[env_ids] = True
        self.check_ready(chosen)
        self.env.send(self._native_actions(actions, env_ids), env_ids)

    def _native_actions(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> Any:
        """Checked actions as environments take them; numbers of a Box in its own dtype."""
        rows, leaf = self.rows(actions, env_ids), self._form.leaf
        if self._form.start is not None:
            return self._form.decode(rows)
        return as_array(actions).astype(leaf.dtype).reshape(len(rows), *leaf.shape)

    def recv(
        self, count: int, order: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], BatchStep]:
        """`order`: the same sub-environments as they shall be listed; as they come unless given."""
        self.check_open()
        with ForeignErrors():
            ready = self.env.recv(count)
        if order is not None:
            ready = order
        return ready, self._outcome(ready)

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        return self.env.in_flight

    def settle(self) -> None:
        while left := int(self.in_flight.sum()):
            try:
                self.env.recv(left)
            except KernelError:  # of a sub-environment that is to be begun again
                if int(self.in_flight.sum()) == left:
                    raise

    def _outcome(self, env_ids: NDArray[np.int64]) -> BatchStep:
        """What came of the step of these sub-environments."""
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


# Long: a line for each argument.
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
    """Sub-environments of a kernel or of a Gymnasium environment.

    Args:
        target: as for `slipstream.make_vec`: a kernel's name or file, ``gym:ID``, a YAML file.
        num_envs: E.
        autoreset: what follows an episode's end.
        backend: of a kernel auto (compiled), compiled or serial; of ``gym:ID`` process (auto) or
            serial.
        split: of a market's prices.
        workers: processes of ``gym:ID``.
        seed: random streams before the first `reset` with seeds.
        foreign: whether the face that asks takes a ``gym:ID``.
        **settings: fields of the environment's Config; ``kwargs`` and ``wrappers`` of ``gym:ID``.

    Raises:
        ConfigError: unknown names, settings or backends.
    """
    config = resolve(target, {f"env.{name}": value for name, value in settings.items()})
    name, own = config.env_name, config.env_settings
    if foreign and type(get_kind(name)) is GymnasiumKind:
        num_envs = check_count("num_envs", num_envs)
        if split != "train":
            raise ConfigError(f"{name} has no split {split!r}: only prices are split.")
        if own.get("training_wrappers"):
            raise ConfigError(
                f"`env.training_wrappers` is for `slipstream train`; put what {name} needs here "
                "into `wrappers`."
            )
        make = env_fn(name, wrappers_from_section(own))
        return ForeignBatch(
            [make] * num_envs,
            env_name(make),
            autoreset,
            seed,
            backend=backend,
            workers=workers,
            kwargs=own.get("kwargs"),
        )
    environment = make_environment(name, own).part(KernelEnvironment)
    if environment is None:
        raise ConfigError(
            f"{name} is no kernel: this face is for slipstream's own environments and "
            "kernel files; foreign ones have theirs (docs/guides/adapters.md)."
        )
    num_envs = check_count("num_envs", num_envs)
    if workers is not None:
        raise ConfigError(
            f"{name} is a kernel, which is compiled and stepped in this process: "
            "`workers` is for gym:ID; leave it out."
        )
    if own.get("self_play") is not None:
        raise ConfigError(
            f"{name}: `self_play` is for `slipstream train`; a face steps both seats, "
            "so that the second one's actions are yours. Leave it out."
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


def foreign_maker(target: Any, options: dict[str, Any]) -> Any:
    """Return what makes a sub-environment of a ``gym:ID``, its `wrappers` taken out of the options.

    None for any other target.
    """
    if not isinstance(target, str) or type(get_kind(target)) is not GymnasiumKind:
        return None
    return env_fn(target, wrappers_from_section({"wrappers": options.pop("wrappers", ())}))


def chosen(indices: Any, num_envs: int) -> list[int]:
    """Numbers of sub-environments, as SB3 names them; negative ones count from the end."""
    if indices is None:
        return list(range(num_envs))
    given: Iterable[Any] = [indices] if isinstance(indices, (int, np.integer)) else indices
    every = range(num_envs)
    try:
        return [every[int(e)] for e in given]
    except IndexError:
        raise IndexError(
            f"`indices` is {indices!r:.60}, and there are {num_envs} sub-environments"
        ) from None


def each(batch: Any) -> Sequence[Any]:
    """Single observations of a batch of them; views."""
    if isinstance(batch, Mapping):
        parts = [each(part) for part in batch.values()]
        return [dict(zip(batch, one, strict=True)) for one in zip(*parts, strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*[each(part) for part in batch], strict=True))
    return list(batch)


def at(batch: Any, index: slice | NDArray[Any]) -> Any:
    """Some rows of a batch."""
    return _over(lambda parts: parts[0][index], [batch])


def joined(batches: Sequence[Any]) -> Any:
    """Batches one after the other."""
    return batches[0] if len(batches) == 1 else _over(np.concatenate, batches)


def _over(function: Callable[[Sequence[NDArray[Any]]], Any], batches: Sequence[Any]) -> Any:
    """Calls it with the arrays that have the same place in all batches."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _over(function, [batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_over(function, parts) for parts in zip(*batches, strict=True))
    return function(batches)
