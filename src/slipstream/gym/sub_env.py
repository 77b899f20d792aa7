"""One environment of another library behind a guard, and the loop that steps many of them.

`SubEnv` begins episodes, counts steps, and names the call and the value if the environment raises
or returns what Gymnasium's interface does not allow. `step_envs` is the loop that vector layers are
measured by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from slipstream.core.child_process import AT
from slipstream.core.errors import KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.gym.action_masks import get_mask_method, mask_from_info, write_mask
from slipstream.gym.env_factory import RawReturn, as_reward, flag, raised, shut, theirs
from slipstream.gym.infos import Final
from slipstream.kernels.space_codec import SpaceMismatchError

SEED_MASK = np.uint64(2**31 - 1)
"""Gymnasium seeds are non-negative and fit an int32 everywhere."""
_NO_LIMIT = 2**62
_AHEAD = 32  # episodes whose seeds are made at once


class SubEnv:
    """A Gymnasium environment behind a guard; `step_envs` steps it.

    Args:
        name: of the environment, for messages, without ``gym:``.
        number: of this one among all.
        limit: steps after which an episode is cut, besides the environment's own limit.
        plain: it is stepped through all its wrappers, and rewards need not be finite.

    Attributes:
        env: the environment; None if it is down and closed.
        asleep: it waits at its episode's end or for the next step, or is down.
        episode: number of the running episode.
        length, ret: its steps and the sum of its rewards so far.
        steps: of the episodes before it.
        info: what the newest call returned besides.
        take: the environment's own `step`, without wrappers that have nothing to do any more.
        most: steps of an episode.
        place: where its observations go if they are a vector of exactly this dtype and length;
            None if they never are.
        raw: sum of rewards inside `env.training_wrappers`; None without such wrappers.
        due: when it is made again; failures: without a good step in between.
        shown: the info to hand over; final: how an episode ended at this step. Both matter if the
            block does not hold them.
        seen: its observation, given: its last action, if they have no place in the block.
        later: its episode is over, and the next step begins another one (NEXT_STEP).
    """

    __slots__ = (
        "_checked", "_first", "_masks", "_plain", "_seeds", "_stream", "asleep", "due", "env",
        "episode", "failures", "final", "given", "info", "later", "length", "limit", "most", "name",
        "number", "place", "raw", "ret", "seen", "shown", "steps", "take",
    )  # fmt: skip

    def __init__(
        self, name: str, number: int, limit: int | None = None, plain: bool = False
    ) -> None:
        self.name, self.number, self.limit, self._plain = name, number, limit, plain
        self.asleep = self.later = False
        self.due, self.failures = 0.0, 0
        self.place: memoryview | None = None
        self.shown: Any = {}
        self.final: Final = (None, {})
        self.seen: Any = None
        self.given: list[Any] = []
        self._stream, self._first = (-1, -1), 0
        self.clear()

    def clear(self) -> None:
        """It has no environment, and nothing was stepped."""
        self.env: Any = None
        self.raw: RawReturn | None = None
        self._masks: Callable[[], Any] | None = None
        self.episode = self.length = self.steps = 0
        self.ret = 0.0
        self.info: Any = {}
        self.most = self.limit or _NO_LIMIT

    def adopt(self, env: Any) -> None:
        """From now on this is its environment."""
        self.env, self._masks = env, get_mask_method(env)
        self.take: Callable[[Any], Any] = env.step
        self._checked = not self._plain  # a wrapper may have something to check
        while isinstance(env, gymnasium.Wrapper) and not isinstance(env, RawReturn):
            env = env.env
        self.raw = env if isinstance(env, RawReturn) else None

    def close(self) -> None:
        """Closes the environment, if there is one."""
        env = self.env
        self.clear()
        if env is not None:
            shut(env, f"gym:{self.name}")

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return self.env.unwrapped

    @property
    def returned(self) -> float:
        """Return of the episode so far: of the environment without `env.training_wrappers`."""
        return self.ret if self.raw is None else self.raw.total

    def show_in(self, place: NDArray[Any] | None) -> None:
        """From now on its observations go there.

        A view of memory takes only what has its format and length, so writing is the check, in
        half the time of an array's.
        """
        self.place = None if place is None else place.data

    def show(self, seen: Any) -> bool:
        """Writes an observation into its place; False if it does not fit there."""
        if self.place is None:
            return False
        try:
            self.place[:] = seen
        except (TypeError, ValueError, BufferError):
            return False
        return True

    def write_mask(self, place: NDArray[np.bool_], sizes: Sequence[int], doing: str) -> None:
        """Writes which choices are allowed next.

        Args:
            place: bool [n]; sizes: choices of each component.
            doing: the call that brought the observation, for messages.

        Raises:
            KernelError: there is no mask, or it is none.
        """
        try:
            mask = mask_from_info(self.info) if self._masks is None else self._masks()
        except BaseException as error:
            if not theirs(error):
                raise
            where = f"environment {self.number}, episode {self.episode}, step {self.length}"
            raise raised(self.name, f"`action_masks` of {where}", error) from error
        try:
            write_mask(mask, place, sizes)
        except SpaceMismatchError as error:
            rule = "a mask of allowed choices comes with every observation or with none"
            if mask is not None:
                rule = "a mask must allow at least one action until the episode ends"
            doing = doing if self._masks is None else "action_masks"
            raise self.failure(doing, f"{error} ({rule})") from None

    def seed_of(self, seed: int, index: int, episode: int) -> int:
        """Gymnasium's seed of the episode with this number of the stream (seed, index)."""
        if self._stream != (seed, index) or not 0 <= episode - self._first < _AHEAD:
            self._stream, self._first = (seed, index), episode
            with np.errstate(over="ignore"):
                episodes = np.uint64(episode) + np.arange(_AHEAD, dtype=np.uint64)
                words = stream(np.uint64(seed), np.uint64(index), episodes)
            self._seeds: list[int] = (words & SEED_MASK).tolist()
        return self._seeds[episode - self._first]

    def reset(self, episode: int, **arguments: Any) -> Any:
        """Begins an episode, which has this number; its first observation.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        self.steps += self.length
        self.episode, self.length, self.ret = episode, 0, 0.0
        if self.raw is not None:
            self.raw.total = self.raw.before = 0.0
        if self._checked:
            step, own, self._checked = unwrap_step(self.env)
            self.take = step if self.raw is None else partial(_step_marked, self.raw, step)
            self.most = min(own, self.limit or own)
        try:
            came = self.env.reset(**arguments)
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

    def explained(self, error: BaseException, action: list[Any], t: int) -> BaseException:
        """The error of a step with the environment's name, unless it names it already.

        Args:
            error: what `step_envs` raised.
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
        """Subtract a step that was counted and whose observation cannot be used."""
        self.length -= 1
        self.ret -= reward

    def discard_raw(self) -> None:
        """Subtract the raw rewards of a step that was discarded, counted or not."""
        if self.raw is not None:
            self.raw.total = self.raw.before

    def no_step(self, came: Any) -> KernelError:
        """The error for a step that returned something else than its five."""
        size = f"a tuple of {len(came)}" if isinstance(came, tuple) else type(came).__name__
        what = f"{size} instead of (observation, reward, terminated, truncated, info)"
        return self.failure("step", what)

    def checked(
        self, paid: Any, terminated: Any, truncated: Any, last: Callable[[int], list[Any]], t: int
    ) -> tuple[float, bool, bool]:
        """Converts what came in other types, or raises if it cannot be used.

        Args:
            last: gives the last action of the environment with a number.
        """
        reward, over, cut = as_reward(paid), flag(terminated), flag(truncated)
        if reward is None:
            raise self.failure("step", f"the reward {paid!r:.60} instead of one number")
        if over is None or cut is None:
            name, bad = ("terminated", terminated) if over is None else ("truncated", truncated)
            raise self.failure("step", f"`{name}` {bad!r:.60} instead of True or False")
        if not (self._plain or np.isfinite(reward)):
            raise KernelError(
                f"gym:{self.name} returned the reward {reward} (environment {self.number}, step "
                f"{t}, last action {last(self.number)}); a reward must be finite."
            )
        return reward, over, cut

    def misfit(self, doing: str, error: SpaceMismatchError) -> KernelError:
        """Error of an observation, returned by `doing`, that does not fit the space."""
        return self.failure(doing, f"the observation {error}")

    def failure(self, doing: str, what: str) -> KernelError:
        """An error that names what was called and what came back."""
        return KernelError(
            f"gym:{self.name}: `{doing}` of environment {self.number} returned {what} (episode "
            f"{self.episode}, step {self.length}). Mend the environment, or "
            "wrap it so that it keeps Gymnasium's interface."
        )


def _step_marked(raw: RawReturn, step: Callable[[Any], Any], action: Any) -> Any:
    """Step an environment whose raw return can be taken back."""
    raw.before = raw.total
    return step(action)


def unwrap_step(env: Any) -> tuple[Callable[[Any], Any], int, bool]:
    """The innermost `step` that does the same, and the time limit that was passed by.

    `gymnasium.make` wraps every environment in a check of its first calls, a check that it was
    reset, and a time limit. Once the first have passed they cost a microsecond a step; the third
    value is true if they are still to pass.
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


def step_envs(
    stepping: Iterable[tuple[SubEnv, Any]],
    last: Callable[[int], list[Any]],
    rewards: Any,
    hand: Any,
    t: int,
    store: Callable[[SubEnv, Any], None],
    ended: Callable[[SubEnv, Any, bool, bool], None],
) -> None:
    """Takes one action of each environment and counts it.

    What an environment raises is raised from here; the one at hand is `hand[AT]`, and a call with
    the same iterator goes on with the next one. `BEAT` does not rise between environments: who
    watches for hangs looks at both words, and an iterator that gives one twice must let it rise.

    Args:
        stepping: environments with their actions, as they take them.
        last: gives the last action of the environment with a number, for messages.
        rewards: takes each reward under the environment's number.
        hand: `hand[AT]` is set to the number of the environment at hand.
        t: the step's number, for messages.
        store: writes an observation that does not fit `SubEnv.place`, or raises.
        ended: is called with an environment whose episode is over: its last observation,
            terminated, truncated.
    """
    for env, action in stepping:
        number = hand[AT] = env.number
        came = env.take(action)
        if not isinstance(came, tuple) or len(came) != 5:
            raise env.no_step(came)
        seen, paid, terminated, truncated, env.info = came
        if (
            type(paid) is not float
            or type(terminated) is not bool
            or type(truncated) is not bool
            or paid - paid != 0.0
        ):
            paid, terminated, truncated = env.checked(paid, terminated, truncated, last, t)
        place = env.place
        if place is None:
            store(env, seen)
        else:
            try:
                place[:] = seen
            except (TypeError, ValueError, BufferError):
                store(env, seen)
        rewards[number] = paid
        env.ret += paid
        env.length = length = env.length + 1
        if terminated or truncated or length >= env.most:
            ended(env, seen, terminated, truncated or length >= env.most)
