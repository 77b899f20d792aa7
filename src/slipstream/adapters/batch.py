"""Copies of a kernel as the faces step them: any autoreset, native actions, arrays of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.errors import ActionError, ClosedError, NoActionsError, UnreadyError
from slipstream.core.errors import ConfigError
from slipstream.training.config import resolve
from slipstream.training.factory import make_environment
from slipstream.training.kernel_environment import KernelEnvironment
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.leaves import MisfitError, words
from slipstream.vector.loop import HOLD, RESET_KEEP_ALL
from slipstream.vector.process.kernel_env import KernelProcessEnv
from slipstream.vector.vector_env import Episodes, VectorEnv, blank, member_indices

_ROUNDING = 1e-5  # relative; how far rounding may carry a number beyond its bound


class Outcome(NamedTuple):
    """One step of all copies; the arrays are the caller's.

    Attributes:
        obs: [E, ...], as the environment shows it.
        reward: float32 [E].
        terminated, truncated: bool [E].
        ended: int64 [n], the copies whose episode ended at this step.
        finals: [n, ...], their last observations.
        episodes: statistics of them, in the order of `ended`.
        valid: bool [E], false where the transition is not real; None where all are.

    Where P > 1 players act, observations and rewards are ``[E, P, ...]``.
    """

    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ended: NDArray[np.int64]
    finals: Any
    episodes: Episodes
    valid: NDArray[np.bool_] | None


class Batch:
    """E copies of a kernel.

    Args:
        env: the copies, which keep every final observation (`RESET_KEEP_ALL`) or, for
            `AutoresetMode.DISABLED`, hold where an episode ends (`HOLD`).
        name: of the environment, for messages.
        autoreset: what follows an episode's end.

    Attributes:
        spec: of the environment.
        observation_space, action_space: of one copy, its own.
        mask: bool [E, n], the choices allowed now; None where all always are.
    """

    def __init__(self, env: VectorEnv, name: str, autoreset: AutoresetMode) -> None:
        self.env, self.name, self.autoreset = env, name, autoreset
        self.spec, self.num_envs = env.spec, env.num_envs
        spec = env.spec
        self.observation_space = spec.native_observation or spec.observation
        self.action_space = spec.native_action or spec.action
        one = isinstance(spec.action, spaces.Discrete) and spec.action == self.action_space
        plain = one and spec.players == 1 and not env.mask_width and spec.action.start == 0
        self._choices = int(spec.action.n) if plain else 0  # of a single choice without a mask
        self._players = () if spec.players == 1 else (spec.players,)
        self._out = blank(env)
        self._pending = blank(env).obs  # first observations that NEXT_STEP shows one step later
        self._waiting = np.zeros(self.num_envs, np.bool_)  # ended, and not begun again
        self._none = np.zeros(self.num_envs, np.bool_)
        self._begun = np.zeros(self.num_envs, np.bool_)
        self.closed = False

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        return self._out.mask

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        """Begins new episodes.

        Args:
            seeds: of each copy: the first episode of its random stream begins; None: the next one
                of the stream that it has.
            selected: bool [E], which copies; all of them unless given.

        Returns:
            Observations of all copies; those that were not selected show what they did before.
        """
        self._check_open()
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
        self.env.drain_finals()
        self._waiting = self._waiting & ~chosen
        self._begun = self._begun | chosen
        return self.shown()

    def shown(self) -> Any:
        """The newest observations, in fresh arrays."""
        return self.env.observations.native(self._out.obs.copy())

    def step(self, actions: Any, copies: NDArray[np.int64] | None = None) -> Outcome:
        """Steps every copy, or some of them.

        Args:
            actions: one for each copy that is stepped, the batch axis first.
            copies: int64 [n], which are stepped, in the order of the actions; the outcome's rows
                are of all copies, and those of the others mean nothing.

        Raises:
            ActionError: wrong number, shape or dtype, or beyond the space; nothing was stepped.
            UnreadyError: a copy was never reset, or has ended and waits for a reset.
        """
        chosen = None
        if copies is not None:
            chosen = np.zeros(self.num_envs, np.bool_)
            chosen[copies] = True
        self._check_ready(chosen)
        rows = self._rows(actions, copies)
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
        finals, episodes = env.drain_finals(), env.drain_episodes()
        self._waiting = over if chosen is None else np.where(chosen, over, self._waiting)
        ended = np.flatnonzero(over)
        last = self._last(ended, finals.obs, finals.index[:, 1])
        if self.autoreset is AutoresetMode.NEXT_STEP and len(ended):
            self._pending[ended] = obs[ended]
            obs[ended] = last
        return Outcome(
            self.shown(),
            out.reward.copy(),
            out.terminated.copy(),
            out.truncated.copy(),
            ended,
            env.observations.native(last),
            episodes,
            None if out.valid.all() else out.valid.copy(),
        )

    def close(self) -> None:
        """Ends the copies; may be called again."""
        if not self.closed:
            self.closed = True
            self.env.close()

    def _last(self, ended: NDArray[np.int64], obs: NDArray[Any], at: NDArray[np.int64]) -> Any:
        """Final observations in the order of `ended`."""
        if self.autoreset is AutoresetMode.DISABLED:
            return self._out.obs[ended]  # a copy that waits goes on showing it
        if len(at) == len(ended):
            return obs[np.argsort(at, kind="stable")]
        rows = self._out.obs[ended]  # of a copy that was lost there is none
        rows[np.searchsorted(ended, at)] = obs
        return rows

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.name} was closed; make it again to use it.")

    def _check_ready(self, chosen: NDArray[np.bool_] | None) -> None:
        """Refuses to step what has not begun an episode."""
        self._check_open()
        if not self._begun.all():
            missing = ~self._begun if chosen is None else chosen & ~self._begun
            who = np.flatnonzero(missing).tolist()
            which = "" if len(who) == self.num_envs else f" (copies {_few(who)} were not)"
            if who:
                raise UnreadyError(f"{self.name}: call `reset` before the first `step`{which}.")
        if self.autoreset is AutoresetMode.DISABLED and self._waiting.any():
            over = self._waiting if chosen is None else self._waiting & chosen
            if over.any():
                raise UnreadyError(
                    f"{self.name}: the episodes of copies {_few(np.flatnonzero(over).tolist())} "
                    "have ended, and with autoreset disabled nobody begins them again: reset with "
                    "options={'reset_mask': terminations | truncations} before the next step."
                )

    def _rows(self, actions: Any, copies: NDArray[np.int64] | None) -> NDArray[Any]:
        """Actions as rows [E, K], checked; of copies that are not stepped, anything."""
        if copies is None and self._choices and type(actions) is np.ndarray:
            plain = actions.dtype == np.int64 and actions.shape == (self.num_envs,)
            # As uint64 a negative number is too large, too.
            if (
                plain
                and actions.flags.c_contiguous
                and actions.view(np.uint64).max() < self._choices
            ):
                return actions.reshape(-1, 1)
        n = self.num_envs if copies is None else len(copies)
        if np.ndim(actions) == 0 and not isinstance(actions, Mapping):
            raise NoActionsError(
                f"{self.name}: `step` takes one action for each of {n} copies, and was given "
                f"{actions!r:.60}."
            )
        try:
            rows = self.env.actions.rows(actions, (n, *self._players), self.spec.action_width)
        except MisfitError as error:
            raise ActionError(f"{self.name}: `step` of {n} copies was given {error}.") from None
        if isinstance(self.spec.action, spaces.Box):
            self._check_bounds(rows, self.spec.action)
        if self.mask is not None:
            self._check_allowed(rows, copies)
        if copies is None:
            return rows
        whole = np.zeros((self.num_envs, *rows.shape[1:]), rows.dtype)
        whole[copies] = rows
        return whole

    def _check_allowed(self, rows: NDArray[Any], copies: NDArray[np.int64] | None) -> None:
        assert self.mask is not None
        at = slice(None) if copies is None else copies
        allowed = np.take_along_axis(self.mask[at], self.env.actions.places(rows), axis=-1)
        allowed[self._waiting[at]] = True  # the action is ignored
        if not allowed.all():
            place = int(np.argwhere(~allowed)[0, 0])
            copy = place if copies is None else int(copies[place])
            raise ActionError(
                f"{self.name}: a choice that is not allowed now, the first in copy {copy}; "
                "choose among those that the action mask allows."
            )

    def _check_bounds(self, rows: NDArray[Any], space: spaces.Box) -> None:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        slack = _ROUNDING * (1.0 + np.minimum(np.abs(low), np.abs(high)))
        bad = (rows < low - slack) | (rows > high + slack)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ActionError(
                f"{self.name}: `step` was given {rows[place]} at {place}, outside the action "
                f"space ({words(self.env.actions.leaf)} from {low[place[-1]]} to "
                f"{high[place[-1]]}). Clip actions to it: np.clip(actions, space.low, space.high), "
                "or Gymnasium's ClipAction."
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
    settings: Mapping[str, Any] | None = None,
) -> Batch:
    """Copies of a kernel by name, path or YAML file.

    Args:
        target: as for `slipstream.make_vec`, but no ``gym:ID``.
        num_envs: E.
        autoreset: what follows an episode's end.
        backend: auto (compiled), compiled, serial or process.
        split: of a market's prices.
        workers: processes of the backend `process`.
        seed: random streams before the first `reset` with seeds.
        settings: fields of the environment's Config.

    Raises:
        ConfigError: unknown names, settings or backends.
    """
    config = resolve(target, {f"env.{name}": value for name, value in (settings or {}).items()})
    environment = make_environment(config.env_name, config.env_settings)
    if not isinstance(environment, KernelEnvironment):
        raise ConfigError(
            f"{config.env_name} is no kernel: this face is for slipstream's own environments and "
            "kernel files; foreign ones have theirs (docs/faces.md)."
        )
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(f"`num_envs` must be at least 1, it is {num_envs!r}.")
    at_end = HOLD if autoreset is AutoresetMode.DISABLED else RESET_KEEP_ALL
    seeds, indices = member_indices([seed], num_envs)
    env: VectorEnv
    if backend == "process":
        env = KernelProcessEnv(
            config.env_name,
            seeds,
            indices,
            settings=config.env_settings,
            split=split,
            at_end=at_end,
            workers=workers,
        )
    else:
        env = KernelVectorEnv(
            environment.kernel,
            environment.loaded,
            seeds,
            indices,
            split=split,
            backend=environment.chosen_backend(backend),
            stagger=False,
            at_end=at_end,
        )
    return Batch(env, environment.short_name(config.env_name), autoreset)


def _few(numbers: Sequence[int]) -> str:
    """The first few of some numbers."""
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown
