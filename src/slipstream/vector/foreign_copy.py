"""One copy of a foreign environment: its calls, what it must return, and the loop over copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from slipstream.core.errors import KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.vector.foreign import flag, raised, reward_of, theirs
from slipstream.vector.leaves import MisfitError
from slipstream.vector.process.layout import AT

_NO_LIMIT = 2**62
_SEED_MASK = np.uint64(2**31 - 1)  # Gymnasium seeds are non-negative and fit an int32 everywhere
_AHEAD = 32  # episodes whose seeds are made at once


class ForeignCopy:
    """A Gymnasium environment behind a guard; `step_each` in `foreign_steps.py` steps it.

    Args:
        env: the environment.
        name: of it, for messages, without ``gym:``.
        number: of this copy among all.
        limit: steps after which an episode is cut, besides the environment's own limit.
        place: where its observations go if they are a vector of exactly this dtype and length;
            None where they never are.

    Attributes:
        episode: number of the running episode.
        length, ret: its steps and the sum of its rewards so far.
        steps: of the episodes before it.
        info: what it said besides, the last time.
        take: the environment's own `step`, without wrappers that have nothing to do any more.
        most: steps of an episode.
    """

    __slots__ = (
        "_checked", "_first", "_seeds", "_stream", "env", "episode", "info", "length", "limit",
        "most", "name", "number", "place", "ret", "steps", "take",
    )  # fmt: skip

    def __init__(
        self,
        env: Any,
        name: str,
        number: int,
        limit: int | None = None,
        place: NDArray[Any] | None = None,
    ) -> None:
        self.env, self.name, self.number, self.limit = env, name, number, limit
        self.episode = self.length = self.steps = 0
        self.ret = 0.0
        self.info: Any = {}
        self.take: Callable[[Any], Any] = env.step
        self.most = limit or _NO_LIMIT
        self._checked = True  # a wrapper may still have something to check
        self._stream, self._first = (-1, -1), 0
        self.show_in(place)

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return self.env.unwrapped

    def show_in(self, place: NDArray[Any] | None) -> None:
        """From now on its observations go there.

        A view of memory takes only what has its format and length, so writing is the check, in
        half the time of an array's.
        """
        self.place = None if place is None else place.data

    def show(self, seen: Any) -> bool:
        """Writes an observation into the copy's place; False where it does not fit it."""
        if self.place is None:
            return False
        try:
            self.place[:] = seen
        except (TypeError, ValueError, BufferError):
            return False
        return True

    def reset(self, seed: int, index: int, episode: int) -> Any:
        """Begins the episode with this number of the stream (seed, index); its first observation.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        if self._stream != (seed, index) or not 0 <= episode - self._first < _AHEAD:
            self._look_ahead(seed, index, episode)
        word = self._seeds[episode - self._first]
        self.steps += self.length
        self.episode, self.length, self.ret = episode, 0, 0.0
        if self._checked:
            self.take, own, self._checked = peeled(self.env)
            self.most = min(own, self.limit or own)
        try:
            came = self.env.reset(seed=word)
        except BaseException as error:
            if not theirs(error):
                raise
            doing = f"`reset` of environment {self.number}, episode {self.episode}"
            raise raised(self.name, doing, error) from error
        if not (isinstance(came, tuple) and len(came) == 2):
            what = f"a {type(came).__name__} instead of a tuple (observation, info)"
            raise self.failure("reset", what)
        seen, self.info = came
        return seen

    def _look_ahead(self, seed: int, index: int, episode: int) -> None:
        """Gymnasium's seeds of this episode and the next ones, made together."""
        self._stream, self._first = (seed, index), episode
        with np.errstate(over="ignore"):
            episodes = np.uint64(episode) + np.arange(_AHEAD, dtype=np.uint64)
            words = stream(np.uint64(seed), np.uint64(index), episodes)
        self._seeds: list[int] = (words & _SEED_MASK).tolist()

    def explained(self, error: BaseException, action: list[Any], t: int) -> BaseException:
        """What a step of it raised, with the copy's name; what is said already stays as it is.

        Args:
            error: what `step_each` raised.
            action: the last one, as agents know it.
            t: the step's number.
        """
        if isinstance(error, SlipstreamError) or not theirs(error):
            return error
        where = (
            f"`step` of environment {self.number}, step {t}, episode {self.episode}, last "
            f"action {action}"
        )
        wrapped = raised(self.name, where, error)
        wrapped.__cause__ = error
        return wrapped

    def take_back(self, reward: float) -> None:
        """A step that was counted was not real: what it showed cannot be used."""
        self.length -= 1
        self.ret -= reward

    def no_step(self, came: Any) -> KernelError:
        """Of something else than the five that a step returns."""
        size = f"a tuple of {len(came)}" if isinstance(came, tuple) else type(came).__name__
        what = f"{size} instead of (observation, reward, terminated, truncated, info)"
        return self.failure("step", what)

    def checked(
        self, paid: Any, terminated: Any, truncated: Any, action: list[Any], t: int
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
                f"gym:{self.name} returned the reward {reward} (environment {self.number}, step "
                f"{t}, last action {action}); a reward must be finite."
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


def peeled(env: Any) -> tuple[Callable[[Any], Any], int, bool]:
    """The innermost `step` that does the same, and the time limit that was passed by.

    `gymnasium.make` wraps every environment in a check of its first calls, a check that it was
    reset, and a time limit. Once the first have passed they cost a microsecond a step; the third
    value says whether they are still to pass.
    """
    limit, checked = _NO_LIMIT, False
    while True:
        kind = type(env)
        if kind is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        elif kind is PassiveEnvChecker:
            if not (env.checked_step and getattr(env, "checked_data_reuse", True)):
                checked = True
                break
        elif kind is not OrderEnforcing:
            break
        env = env.env
    return env.step, limit, checked


PULSES: list[Any] = []
"""Words for copies that are made in this process: a parent that watches it for hangs reads them."""


def step_each(
    stepping: Iterable[tuple[ForeignCopy, Any]],
    actions: NDArray[Any],
    rewards: Any,
    hand: Any,
    t: int,
    store: Callable[[ForeignCopy, Any], None],
    ended: Callable[[ForeignCopy, bool, bool], None],
) -> None:
    """Takes one action of each copy and counts it: the loop that vector layers are measured by.

    What an environment raises is raised from here; the copy at hand is `hand[AT]`, and a call with
    the same iterator goes on with the next one. `BEAT` does not rise between copies: who watches
    for hangs looks at both words, and an iterator that gives one copy twice must let it rise.

    Args:
        stepping: copies with their actions, as environments take them.
        actions: [E, K], the same as agents know them; rows are copies' numbers.
        rewards: takes each copy's reward under its number.
        hand: `hand[AT]` is set to the number of the copy at hand.
        t: the step's number, for messages.
        store: writes an observation that does not fit `ForeignCopy.place`, or raises.
        ended: told of a copy whose episode is over, terminated and truncated.
    """
    for copy, action in stepping:
        number = hand[AT] = copy.number
        came = copy.take(action)
        if not isinstance(came, tuple) or len(came) != 5:
            raise copy.no_step(came)
        seen, paid, terminated, truncated, copy.info = came
        if (
            type(paid) is not float
            or type(terminated) is not bool
            or type(truncated) is not bool
            or paid - paid != 0.0
        ):
            last = actions[number].tolist()
            paid, terminated, truncated = copy.checked(paid, terminated, truncated, last, t)
        place = copy.place
        if place is None:
            store(copy, seen)
        else:
            try:
                place[:] = seen
            except (TypeError, ValueError, BufferError):
                store(copy, seen)
        rewards[number] = paid
        copy.ret += paid
        copy.length = length = copy.length + 1
        if terminated or truncated or length >= copy.most:
            ended(copy, terminated, truncated or length >= copy.most)


def gone_astray(copy: ForeignCopy, terminated: bool, truncated: bool) -> None:
    """Takes the place of `ended` while actions are taken again: the episode went on before.

    Raises:
        KernelError: always.
    """
    raise copy.failure("step", "the end of an episode that had none here before")
