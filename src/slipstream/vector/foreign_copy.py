"""One copy of a foreign environment: its calls, and what it must return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from slipstream.core.errors import KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.vector.foreign import flag, raised, reward_of
from slipstream.vector.leaves import MisfitError

_NO_LIMIT = 2**62
_SEED_MASK = np.uint64(2**31 - 1)  # Gymnasium seeds are non-negative and fit an int32 everywhere


class ForeignCopy:
    """A Gymnasium environment behind a guard.

    Args:
        env: the environment.
        name: of it, for messages, without ``gym:``.
        number: of this copy among all.
        limit: steps after which an episode is cut, besides the environment's own limit.

    Attributes:
        episode: number of the running episode.
        length, ret: its steps and the sum of its rewards so far.
        info: what it said besides, the last time.
    """

    def __init__(self, env: Any, name: str, number: int, limit: int | None = None) -> None:
        self.env, self.name, self.number, self.limit = env, name, number, limit
        self.episode = self.length = 0
        self.ret = 0.0
        self.info: Any = {}
        self._step, self._limit = env.step, limit or _NO_LIMIT

    def reset(self, seed: np.uint64, index: np.uint64, episode: np.uint64) -> Any:
        """Begins the episode with this number of the stream (seed, index); its first observation.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        with np.errstate(over="ignore"):
            word = stream(seed, index, episode)
        self.episode, self.length, self.ret = int(episode), 0, 0.0
        if self._step == self.env.step:
            self._step, own = peeled(self.env)
            self._limit = min(own, self.limit or own)
        try:
            came = self.env.reset(seed=int(word & _SEED_MASK))
        except (Exception, SystemExit) as error:
            doing = f"`reset` of environment {self.number}, episode {self.episode}"
            raise raised(self.name, doing, error) from error
        if not (isinstance(came, tuple) and len(came) == 2):
            what = f"a {type(came).__name__} instead of a tuple (observation, info)"
            raise self.failure("reset", what)
        seen, self.info = came
        return seen

    def step(
        self, action: Any, rows: NDArray[Any], row: int, t: int
    ) -> tuple[Any, float, bool, bool]:
        """Takes one action and counts it; observation, reward, terminated and truncated.

        Args:
            action: as the environment takes it.
            rows: [E, K] of which row `row` is the same as agents know it.
            t: the step's number in messages.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        try:
            came = self._step(action)
        except SlipstreamError:
            raise
        except (Exception, SystemExit) as error:
            where = (
                f"`step` of environment {self.number}, step {t}, episode {self.episode}, last "
                f"action {rows[row].tolist()}"
            )
            raise raised(self.name, where, error) from error
        if not (isinstance(came, tuple) and len(came) == 5):
            raise self._no_step(came)
        seen, reward, terminated, truncated, self.info = came
        if (
            type(reward) is not float
            or type(terminated) is not bool
            or type(truncated) is not bool
            or reward - reward != 0.0
        ):
            last = f"(environment {self.number}, step {t}, last action {rows[row].tolist()})"
            reward, terminated, truncated = self._checked(reward, terminated, truncated, last)
        self.ret += reward
        self.length += 1
        return seen, reward, terminated, truncated or self.length >= self._limit

    def take_back(self, reward: float) -> None:
        """A step that was counted was not real: what it showed cannot be used."""
        self.length -= 1
        self.ret -= reward

    def _no_step(self, came: Any) -> KernelError:
        size = f"a tuple of {len(came)}" if isinstance(came, tuple) else type(came).__name__
        what = f"{size} instead of (observation, reward, terminated, truncated, info)"
        return self.failure("step", what)

    def _checked(
        self, paid: Any, terminated: Any, truncated: Any, last: str
    ) -> tuple[float, bool, bool]:
        """What came in other types, or cannot be used."""
        reward, over, cut = reward_of(paid), flag(terminated), flag(truncated)
        if reward is None:
            raise self.failure("step", f"the reward {paid!r:.60} instead of one number")
        if over is None or cut is None:
            name, bad = ("terminated", terminated) if over is None else ("truncated", truncated)
            raise self.failure("step", f"`{name}` {bad!r:.60} instead of True or False")
        if not np.isfinite(reward):
            raise KernelError(
                f"gym:{self.name} returned the reward {reward} {last}; a reward must be finite."
            )
        return reward, over, cut

    def misfit(self, doing: str, error: MisfitError) -> KernelError:
        """Of an observation that `doing` returned."""
        return self.failure(doing, f"the observation {error}")

    def failure(self, doing: str, what: str) -> KernelError:
        """An error that names what was called and what came back."""
        return KernelError(
            f"gym:{self.name}: `{doing}` of environment {self.number} returned {what} (episode "
            f"{self.episode}, step {self.length}). Mend the environment, or "
            "wrap it so that it keeps Gymnasium's interface."
        )


def peeled(env: Any) -> tuple[Callable[[Any], Any], int]:
    """The innermost `step` that does the same, and the time limit that was passed by.

    `gymnasium.make` wraps every environment in a check of its first calls, a check that it was
    reset, and a time limit. Once the first have passed they cost a microsecond a step.
    """
    limit = _NO_LIMIT
    while True:
        kind = type(env)
        if kind is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        elif kind is PassiveEnvChecker:
            if not (env.checked_step and getattr(env, "checked_data_reuse", True)):
                break
        elif kind is not OrderEnforcing:
            break
        env = env.env
    return env.step, limit
