"""One copy of a foreign environment: its calls, and what it must return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.vector.foreign import flag, raised, reward_of
from slipstream.vector.leaves import MisfitError

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
    """

    def __init__(self, env: Any, name: str, number: int, limit: int | None = None) -> None:
        self.env, self.name, self.number, self.limit = env, name, number, limit
        self.episode = self.length = 0
        self.ret = 0.0

    def reset(self, seed: np.uint64, index: np.uint64, episode: np.uint64) -> Any:
        """Begins the episode with this number of the stream (seed, index); its first observation.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        with np.errstate(over="ignore"):
            word = stream(seed, index, episode)
        self.episode, self.length, self.ret = int(episode), 0, 0.0
        try:
            came = self.env.reset(seed=int(word & _SEED_MASK))
        except (Exception, SystemExit) as error:
            doing = f"`reset` of environment {self.number}, episode {self.episode}"
            raise raised(self.name, doing, error) from error
        if not (isinstance(came, tuple) and len(came) == 2):
            what = f"a {type(came).__name__} instead of a tuple (observation, info)"
            raise self.failure("reset", what)
        return came[0]

    def step(self, action: Any, row: NDArray[Any], t: int) -> tuple[Any, float, bool, bool]:
        """Takes one action; observation, reward, terminated and truncated.

        Args:
            action: as the environment takes it; row: [K], the same as agents know it.
            t: the step's number in messages.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        try:
            came = self.env.step(action)
        except SlipstreamError:
            raise
        except (Exception, SystemExit) as error:
            where = (
                f"`step` of environment {self.number}, step {t}, episode {self.episode}, last "
                f"action {row.tolist()}"
            )
            raise raised(self.name, where, error) from error
        if not (isinstance(came, tuple) and len(came) == 5):
            size = f"a tuple of {len(came)}" if isinstance(came, tuple) else type(came).__name__
            what = f"{size} instead of (observation, reward, terminated, truncated, info)"
            raise self.failure("step", what)
        reward, terminated, truncated = reward_of(came[1]), flag(came[2]), flag(came[3])
        if reward is None:
            raise self.failure("step", f"the reward {came[1]!r:.60} instead of one number")
        if terminated is None or truncated is None:
            name, bad = ("terminated", came[2]) if terminated is None else ("truncated", came[3])
            raise self.failure("step", f"`{name}` {bad!r:.60} instead of True or False")
        if not np.isfinite(reward):
            raise KernelError(
                f"gym:{self.name} returned the reward {reward} (environment {self.number}, step "
                f"{t}, last action {row.tolist()}); a reward must be finite."
            )
        return came[0], reward, terminated, truncated

    def count(self, reward: float, truncated: bool) -> bool:
        """Counts a step whose observation is good; whether the episode is cut short here."""
        self.ret += reward
        self.length += 1
        return truncated or (self.limit is not None and self.length >= self.limit)

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
