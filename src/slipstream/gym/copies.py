"""Copies of somebody else's environment, as the process that has them steps them.

`ForeignCopy` is one of them behind a guard, `step_each` the loop over them, `ForeignCopies` those
of one process: made, begun, stepped, made anew when they fail, closed.
"""

from __future__ import annotations

import copy as copying
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.core.process import AT, PULSE_WORDS
from slipstream.core.random import stream
from slipstream.gym.infos import (
    APART,
    NOTHING,
    Final,
    InfoTable,
    Signature,
    Told,
    episode_numbers,
)
from slipstream.gym.job import NEXT_STEP, SAME_STEP, Assignment, register
from slipstream.gym.making import (
    LOOK_SECONDS,
    HangError,
    RawReturn,
    flag,
    raised,
    refuse_shared,
    reward_of,
    same_spaces,
    shut,
    text_of,
    theirs,
)
from slipstream.gym.masks import (
    among_allowed,
    in_info,
    method_of,
    write_mask,
)
from slipstream.gym.process.faults import TRIES, backoff
from slipstream.kernels.forms import MisfitError
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL

FRESH = ("terminated", "truncated", "ended", "kept", "lost", "told")
"""Flags of a step, false before it."""

_NO_LIMIT = 2**62
_SEED_MASK = np.uint64(2**31 - 1)  # Gymnasium seeds are non-negative and fit an int32 everywhere
_AHEAD = 32  # episodes whose seeds are made at once
_SURELY = 1e37  # a sum of squares below it is of finite numbers, in float32 and float64
_NOT_FINITE = "that holds NaN or infinity"


class ForeignCopy:
    """A Gymnasium environment behind a guard; `step_each` steps it.

    Args:
        env: the environment.
        name: of it, for messages, without ``gym:``.
        number: of this copy among all.
        limit: steps after which an episode is cut, besides the environment's own limit.
        place: where its observations go if they are a vector of exactly this dtype and length;
            None where they never are.
        plain: it is stepped through all its wrappers, and rewards need not be finite.

    Attributes:
        episode: number of the running episode.
        length, ret: its steps and the sum of its rewards so far.
        steps: of the episodes before it.
        info: what it said besides, the last time.
        take: the environment's own `step`, without wrappers that have nothing to do any more.
        most: steps of an episode.
        raw: sum of rewards inside `env.training_wrappers`; None without such wrappers.
    """

    __slots__ = (
        "_checked", "_first", "_masks", "_plain", "_seeds", "_stream", "env", "episode", "info",
        "length", "limit", "most", "name", "number", "place", "raw", "ret", "steps", "take",
    )  # fmt: skip

    def __init__(
        self,
        env: Any,
        name: str,
        number: int,
        limit: int | None = None,
        place: NDArray[Any] | None = None,
        plain: bool = False,
    ) -> None:
        self.env, self.name, self.number, self.limit = env, name, number, limit
        self.episode = self.length = self.steps = 0
        self.ret = 0.0
        self.info: Any = {}
        self.take: Callable[[Any], Any] = env.step
        self.most = limit or _NO_LIMIT
        self._plain, self._checked = plain, not plain  # a wrapper may have something to check
        self._masks = method_of(env)
        self._stream, self._first = (-1, -1), 0
        while isinstance(env, gymnasium.Wrapper) and not isinstance(env, RawReturn):
            env = env.env
        self.raw = env if isinstance(env, RawReturn) else None
        self.show_in(place)

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
        """Writes an observation into the copy's place; False where it does not fit it."""
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
            mask = in_info(self.info) if self._masks is None else self._masks()
        except BaseException as error:
            if not theirs(error):
                raise
            where = f"environment {self.number}, episode {self.episode}, step {self.length}"
            raise raised(self.name, f"`action_masks` of {where}", error) from error
        try:
            write_mask(mask, place, sizes)
        except MisfitError as error:
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
            self._seeds: list[int] = (words & _SEED_MASK).tolist()
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
            step, own, self._checked = peeled(self.env)
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
        self,
        paid: Any,
        terminated: Any,
        truncated: Any,
        last: Callable[[int], list[Any]],
        t: int,
    ) -> tuple[float, bool, bool]:
        """What came in other types, or cannot be used; `last` gives a copy's last action."""
        reward, over, cut = reward_of(paid), flag(terminated), flag(truncated)
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

    def misfit(self, doing: str, error: MisfitError) -> KernelError:
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


def step_each(
    stepping: Iterable[tuple[ForeignCopy, Any]],
    last: Callable[[int], list[Any]],
    rewards: Any,
    hand: Any,
    t: int,
    store: Callable[[ForeignCopy, Any], None],
    ended: Callable[[ForeignCopy, Any, bool, bool], None],
) -> None:
    """Takes one action of each copy and counts it: the loop that vector layers are measured by.

    What an environment raises is raised from here; the copy at hand is `hand[AT]`, and a call with
    the same iterator goes on with the next one. `BEAT` does not rise between copies: who watches
    for hangs looks at both words, and an iterator that gives one copy twice must let it rise.

    Args:
        stepping: copies with their actions, as environments take them.
        last: gives the last action of the copy with a number, for messages.
        rewards: takes each copy's reward under its number.
        hand: `hand[AT]` is set to the number of the copy at hand.
        t: the step's number, for messages.
        store: writes an observation that does not fit `ForeignCopy.place`, or raises.
        ended: told of a copy whose episode is over: its last observation, terminated, truncated.
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
            ended(copy, seen, terminated, truncated or length >= copy.most)


def gone_astray(copy: ForeignCopy, seen: Any, terminated: bool, truncated: bool) -> None:
    """Takes the place of `ended` while actions are taken again: the episode went on before.

    Raises:
        KernelError: always.
    """
    raise copy.failure("step", "the end of an episode that had none here before")


class _Place:
    """What is kept of a row besides its copy, which may be down.

    Attributes:
        due: when it is made anew; failures: without a good step in between.
        info, final: what it said, and how an episode ended at this step, where the block does not
            hold it.
        seen: its observation, where that has no place in the block.
        given: its last action, where that has none.
        later: its episode is over, and the next step begins another one (NEXT_STEP).
    """

    def __init__(self) -> None:
        self.due, self.failures = 0.0, 0
        self.info: Any = {}
        self.final: Final = (None, {})
        self.seen: Any = None
        self.given: list[Any] = []
        self.later = False


class ForeignCopies:
    """Some of E copies, by their rows in the arrays that all share.

    Two rules differ with who steps them. Agents (`job.what.spec`) have every episode seeded by its
    number, observations finite, infos on request, and actions logged so that a resumed copy takes
    them again. Other libraries have seeds, infos, rewards and wrappers as Gymnasium itself has
    them, and `NEXT_STEP` or `DISABLED` where an episode ends.

    Args:
        job: which they are.
        arrays: of the block.
        report: takes (kind, copy, episode, step, last action, text, error) of each failure.
        at_hand: called with a copy's row before its calls; None after them.

    Attributes:
        rows: of the copies here, in order; what is kept of each is in lists of the same order.
        ranges: the same as (lo, hi).
        copies: None where one is down and closed.
        asleep: copies that are held at their episode's end, wait for the next step, or are down.
        place_of: number of the copy that has a row.
        name: of the environment, for messages.
        hand: words of which `hand[AT]` is the row at hand.
        alone: nobody else reads the arrays; what is slow to keep there is written on request.
        stained: what copies show of a step is to be cleared before the next one: flags are set, or
            rewards are not of this one.
    """

    def __init__(
        self,
        job: Assignment,
        arrays: dict[str, NDArray[Any]],
        report: Callable[..., None],
        at_hand: Callable[[int | None], None],
    ) -> None:
        self.job, self._report, self.at_hand = job, report, at_hand
        self._what, self.name, self._form = job.what, job.what.name, job.what.form()
        for data in job.what.registered:
            register(data)
        self._told = job.what.spec is None
        spec = job.what.spec
        self._names = [] if spec is None else [metric.name for metric in spec.metrics]
        self._sizes = () if spec is None else spec.components
        self._table = InfoTable()
        self._assigned = {row: dict(own) for row, own in job.what.assigned.items()}
        self._given: dict[int, Any] = {}  # actions by row that did not fit into the block
        self.hand: Any = [0] * PULSE_WORDS
        self.alone = False
        self.rows: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.copies: list[ForeignCopy | None] = []
        self.asleep: list[bool] = []
        self._places: list[_Place] = []
        self.attach(arrays)
        for lo, hi in job.ranges:
            self._room(lo, hi)
        self._index()

    def attach(self, arrays: dict[str, NDArray[Any]]) -> None:
        """From now on they write there."""
        self.at = arrays
        self._obs, self._final = (self._form.places(arrays, name) for name in ("obs", "final"))
        self._acted, self._info = arrays.get("actions"), arrays["info"].reshape(-1).data
        self._mask = arrays.get("mask")
        # Views of memory take and give single numbers in half the time of arrays.
        self._paid = arrays["reward"].data
        if self._told:
            self._last_info = arrays["last_info"].reshape(-1).data
            self._longest = 0
        else:
            assert self._acted is not None
            self._episode, self._log = arrays["episode"].data, arrays["log"]
            self._streams = arrays["seed"].data, arrays["index"].data
            self._longest = self._log.shape[1]
            # Of copies that are alone: actions of the newest steps, in turn, of all that go on.
            self._turns = np.zeros((self._longest, *self._acted.shape), self._log.dtype)
            self._taken = 0
        for row, copy in zip(self.rows, self.copies, strict=True):
            if copy is None:
                continue
            copy.show_in(self._place(row))
            if self.alone and 0 < copy.length <= self._longest:
                self._turns[self._newest(copy.length), row] = self._log[row, : copy.length]

    def _room(self, lo: int, hi: int) -> list[int]:
        """Places for copies of the rows lo..hi-1; none is made yet."""
        first, n = len(self.rows), hi - lo
        self.rows += range(lo, hi)
        self.ranges.append((lo, hi))
        self.copies += [None] * n
        self.asleep += [False] * n
        self._places += [_Place() for _ in range(n)]
        return list(range(first, first + n))

    def _index(self) -> None:
        """`index`: the rows, as a slice where they follow each other."""
        self._numbers = np.array(self.rows, np.int64)
        own_rows = [slice(*own) for own in self.ranges]
        self.index = own_rows[0] if len(own_rows) == 1 else self._numbers
        self.place_of = {row: i for i, row in enumerate(self.rows)}
        self._flags = [self.at[name][rows] for name in FRESH for rows in own_rows]
        self.stained = True
        # The numbers of each array of floats in one line: of all copies of a range, of a row.
        floats = [] if self._told else [own for own in self._obs if own.dtype.kind == "f"]
        self._wide = all(own.dtype.itemsize > 2 for own in floats)  # the product fits
        self._flat = [own[rows].reshape(-1) for own in floats for rows in own_rows]
        self._flat_row = {row: [own[row].reshape(-1) for own in floats] for row in self.rows}

    def _place(self, row: int) -> NDArray[Any] | None:
        """Where a copy's observations go if they are vectors of numbers."""
        only = self._form.only
        return self._obs[0][row] if only is not None and len(only.shape) == 1 else None

    # Made and closed.

    def adopt(self, env: Any) -> None:
        """The first copy is there already."""
        self.copies[0] = self._guarded(env, 0)

    def _guarded(self, env: Any, i: int) -> ForeignCopy:
        row = self.rows[i]
        place, limit = self._place(row), self._what.limit
        return ForeignCopy(env, self.name, row, limit, place, plain=self._told)

    def make(self) -> None:
        """Makes all copies; one that fails is reported and down."""
        self.make_some(range(len(self.rows)))

    def make_some(self, which: Sequence[int]) -> None:
        """Makes copies; one that fails is reported and down."""
        for i in which:
            try:
                self._remake(i)
            except BaseException as error:
                self._failed(i, error)

    def _remake(self, i: int) -> None:
        """Makes copy i in the place of one that is closed."""
        row, what = self.rows[i], self._what
        self.at_hand(row)
        old, self.copies[i] = self.copies[i], None
        if old is not None:
            shut(old.env, f"gym:{self.name}")
        env = what.make(row)
        wrong = same_spaces(env, self.name, row, what.spaces)
        if wrong is not None:
            raise ConfigError(wrong)
        if self._mask is None and self._sizes and method_of(env) is not None:
            raise ConfigError(
                f"gym:{self.name}: environment {row} has a method `action_masks()`, but the first "
                "environment (without `env.training_wrappers`) has no action mask. Give every "
                "environment the method or none. Name a wrapper that adds it in `env.wrappers`."
            )
        for name, value in self._assigned.get(row, {}).items():
            env.set_wrapper_attr(name, value)
        made = self._guarded(env, i)
        refuse_shared(self.name, made, (old, *self.copies))
        self.copies[i] = made
        self.at_hand(None)

    def grow(self, arrays: dict[str, NDArray[Any]], lo: int, hi: int, begun: bool) -> None:
        """Takes on the copies of rows lo..hi-1, made here; arrays that are larger."""
        self.attach(arrays)
        which = self._room(lo, hi) if hi > lo else []
        self._index()
        self.make_some(which)
        if begun:
            self._begin_some(which)

    def shrink(self, arrays: dict[str, NDArray[Any]], size: int) -> None:
        """Closes the copies of rows from `size` on."""
        keep = [i for i, row in enumerate(self.rows) if row < size]
        for row, copy in zip(self.rows, self.copies, strict=True):
            if row >= size and copy is not None:
                shut(copy.env, f"gym:{self.name}")
        lists: tuple[list[Any], ...] = (self.rows, self.copies, self.asleep, self._places)
        for one in lists:
            one[:] = [one[i] for i in keep]
        self.ranges = [(lo, min(hi, size)) for lo, hi in self.ranges if lo < size]
        self._assigned = {row: own for row, own in self._assigned.items() if row < size}
        self.attach(arrays)
        self._index()

    def close(self) -> None:
        """Closes the environments."""
        for copy in self.copies:
            if copy is not None:
                shut(copy.env, f"gym:{self.name}")

    # Episodes begun.

    def begin(self, seeds: list[Any] | None = None, options: list[Any] | None = None) -> None:
        """Begins new episodes of the copies that are selected.

        Args:
            seeds, options: of each copy, as Gymnasium's `reset` takes them; without them the next
                episode of its own stream.
        """
        self.clear()
        for i in np.flatnonzero(self.at["selected"][self.index]).tolist():
            try:
                if self.copies[i] is None:
                    self._remake(i)
                if seeds is None or options is None:
                    self._begin_next(i)
                    continue
                if seeds[i] is not None:
                    self.at["seed"][self.rows[i]] = int(seeds[i]) % 2**62 + 1
                self._begin(i, 0, seed=seeds[i], options=options[i])
            except BaseException as error:
                self._fault(i, error, running=False)

    def begin_all(self) -> None:
        """Begins an episode of every copy: they are new, and the others have begun before."""
        self._begin_some(range(len(self.rows)))

    def _begin_some(self, which: Sequence[int], *, again: bool = False) -> None:
        for i in which:
            if self.copies[i] is not None:
                try:
                    self._begin_next(i, again=again)
                except BaseException as error:
                    self._fault(i, error, running=False)

    def start(self, same: bool) -> None:
        """After a loss: begins with the episodes that were lost, or those after them."""
        awake, at = [], self.at
        for i, (row, held) in enumerate(zip(self.rows, at["held"][self.index], strict=True)):
            if self.copies[i] is None:  # it could not be made, and is down
                continue
            if self._told:
                at["restarts"][row] += np.uint64(1)
            else:
                failed = bool(at["tries"][row] >= TRIES)  # the next step gives it up
                self.asleep[i] = bool(held or failed)
                at["down"][row] = failed and not held
            if not self.asleep[i]:
                awake.append(i)
        self._begin_some(awake, again=same)

    def _begin_next(self, i: int, *, again: bool = False) -> None:
        """Begins the next episode of copy i, or the one that it was in."""
        at, copy, row = self.at, self.copies[i], self.rows[i]
        assert copy is not None
        if self._told:  # by what it was seeded with, and how often it has failed
            seed, restarts = at["seed"][row], at["restarts"][row]
            if not seed:  # it was never given one; others are kept with 1 added
                self._begin(i, 0)
                return
            with np.errstate(over="ignore"):
                word = stream(np.uint64(seed), np.uint64(2**63), restarts)
            self._begin(i, 0, seed=int(word & _SEED_MASK))
            return
        if again:
            self._episode[row] -= self._episode[row] > 0
        episode = self._episode[row]
        self._episode[row] = episode + 1
        if not self.alone:
            at["ret"][row], at["length"][row] = 0.0, 0
        seeds, indices = self._streams
        self._begin(i, episode, seed=copy.seed_of(seeds[row], indices[row], episode))

    def _begin(self, i: int, episode: int, **arguments: Any) -> None:
        at, copy, row = self.at, self.copies[i], self.rows[i]
        assert copy is not None
        if self.asleep[i]:
            at["held"][row] = at["down"][row] = self.asleep[i] = False
        self._places[i].later = False
        self.at_hand(row)
        first = copy.reset(episode, **arguments)
        self.at_hand(None)
        if not copy.show(first):
            self._store(copy, "reset", first)
        if self._told:
            self._say(i, copy.info)
            return
        if not self._finite(row):
            raise copy.misfit("reset", MisfitError(_NOT_FINITE))
        self._allow(copy, "reset")

    def _allow(self, copy: ForeignCopy, doing: str) -> None:
        """Writes what a copy's mask allows next; refuses one that nobody has looked for."""
        if self._mask is not None:
            self.at_hand(copy.number)
            copy.write_mask(self._mask[copy.number], self._sizes, doing)
            self.at_hand(None)
        elif self._sizes and in_info(copy.info) is not None:
            what = (
                "the info `action_mask`, which the first `reset` of the first environment did not "
                "(a mask of allowed choices comes with every observation or with none)"
            )
            if self._what.spec is not None and self._what.spec.masked is None:
                what = (
                    "the info `action_mask`, but the first `reset`, in a forked process, took more "
                    f"than {LOOK_SECONDS:g} s or failed, so that it was not known whether `info` "
                    "has one: offer it by a method `action_masks()`"
                )
            raise copy.failure(doing, what)

    def _allow_all(self, which: Iterable[int]) -> None:
        """Writes the masks of those copies whose episode goes on after a step."""
        ended = self.at["ended"]
        for i in which:
            copy, row = self.copies[i], self.rows[i]
            if copy is None or self.asleep[i] or ended[row]:
                continue
            try:
                self._allow(copy, "step")
            except BaseException as error:
                copy.take_back(float(self.at["reward"][row]))
                self._fault(i, error)

    # Steps.

    def step(self, t: int) -> None:
        """Steps every copy; one that ends begins its next episode at once, or as its rule says."""
        if self.stained:
            self.clear()
            self.stained = True in self.asleep
        if self.alone and self._longest:
            self._turns[self._taken % self._longest] = self._acted
            self._taken += 1
        else:
            self._note_actions(self._numbers, self.index)
        actions = self._natives(self.rows, self.index)
        if not self.stained:  # all are awake
            self._step_each(zip(self.copies, actions, strict=True), self.rows[0], t)
        else:
            asleep = self.asleep.copy()
            triples = zip(self.copies, actions, asleep, strict=True)
            awake = [(copy, action) for copy, action, sleeps in triples if not sleeps]
            self._step_each(awake, self.rows[0], t)
            for i, sleeps in enumerate(asleep):
                if sleeps:
                    self._wake(i)
        self.at_hand(None)
        if self._told:
            self._say_all(self.copies)
            return
        if self._mask is not None:
            self._allow_all(range(len(self.rows)))
        self._look()
        if not self.alone:
            self.note()

    def step_one(self, i: int) -> None:
        """Steps copy i alone."""
        row, at = self.rows[i], self.at
        if self.alone and self._longest:  # from now on they do not act in turn
            self.note()
            self.alone = False
        self._note_actions(row, row)
        self.stained = True
        at["valid"][row], at["reward"][row] = True, 0.0
        for name in FRESH:
            at[name][row] = False
        if self.asleep[i]:
            self._wake(i)
        else:
            action = self._natives([row], slice(row, row + 1))[0]
            self._step_each([(self.copies[i], action)], row, 0)
        self.at_hand(None)
        if self._told:
            self._say_all([self.copies[i]])
            return
        if self._mask is not None:
            self._allow_all([i])
        if self.copies[i] is not None and not self.asleep[i] and not self._finite(row):
            self._fault(i, self._unreal(i))
        copy = self.copies[i]
        at["ret"][row] = 0.0 if copy is None else copy.returned
        at["length"][row] = 0 if copy is None else copy.length

    def _step_each(self, stepping: Any, first: int, t: int) -> None:
        """Steps copies that are awake, from row `first` on; those that fail are begun again."""
        hand, stepping = self.hand, iter(stepping)
        hand[AT] = first
        while True:
            try:
                self.at_hand(hand[AT])
                step_each(stepping, self._last, self._paid, hand, t, self._store_step, self._ended)
                return
            except BaseException as error:
                row = hand[AT]
                i = self.place_of[row]
                copy = self.copies[i]
                assert copy is not None
                self._fault(i, copy.explained(error, self._last(row), t))

    def _last(self, row: int) -> list[Any]:
        """The last action of the copy that has a row, as plain numbers, for messages."""
        if given := self._places[self.place_of[row]].given:
            return given
        return [] if self._acted is None else list(np.ravel(self._acted[row]).tolist())

    def act(self, actions: dict[int, Any]) -> None:
        """Actions by row, of the next step, that have no place in the block."""
        self._given.update(actions)

    def _natives(self, rows: Sequence[int], index: slice | NDArray[np.int64]) -> list[Any]:
        """Actions of some rows, which `index` picks, as the environment takes them."""
        if not self._given:
            assert self._acted is not None
            return self._form.natives(self._acted[index])
        actions = []
        for row in rows:
            if row in self._given:
                actions.append(self._given.pop(row))
                self._places[self.place_of[row]].given = [actions[-1]]
            else:
                assert self._acted is not None
                actions.append(self._form.natives(self._acted[row : row + 1])[0])
        return actions

    def _store_step(self, copy: ForeignCopy, seen: Any) -> None:
        """Of what is no vector of the space's own dtype."""
        only = self._form.only
        if (
            only is not None
            and type(seen) is np.ndarray
            and seen.dtype == only.dtype
            and seen.shape == only.shape
        ):
            self._obs[0][copy.number] = seen
        else:
            self._store(copy, "step", seen)

    def _store(self, copy: ForeignCopy, doing: str, seen: Any) -> None:
        if not self._form.fixed:
            self._places[self.place_of[copy.number]].seen = seen
            return
        try:
            self._form.store(seen, self._obs, copy.number)
        except MisfitError as error:
            raise copy.misfit(doing, error) from None

    def _ended(self, copy: ForeignCopy, seen: Any, terminated: bool, truncated: bool) -> None:
        at, row, at_end = self.at, copy.number, self.job.at_end
        i = self.place_of[row]
        self.stained = True
        if not self._finite(row):
            raise self._unreal(i)
        if self._mask is None:
            self._allow(copy, "step")
        at["terminated"][row], at["truncated"][row], at["ended"][row] = terminated, truncated, True
        if self._told:
            if at_end == NEXT_STEP:
                self._places[i].later = self.asleep[i] = True
            if at_end != SAME_STEP:
                return
            self._keep(i, copy, seen)
        else:
            at["ended_ret"][row], at["ended_length"][row] = copy.returned, copy.length
            if self._names:
                at["metrics"][row] = episode_numbers(copy.info, self._names)
            if at_end == RESET_KEEP_ALL or (at_end == RESET and not terminated):
                at["kept"][row] = True
                for final, obs in zip(self._final, self._obs, strict=True):
                    final[row] = obs[row]
            if at_end == HOLD:
                at["held"][row] = self.asleep[i] = True
                return
        try:
            if self._told:
                self._begin(i, 0)
            else:
                self._begin_next(i)
        except BaseException as error:
            self._fault(i, error, running=self._told)
        self.at_hand(row)  # the others are still to be stepped

    def _keep(self, i: int, copy: ForeignCopy, seen: Any) -> None:
        """Keeps how an episode ended, before anything overwrites it."""
        at, row, place = self.at, self.rows[i], self._places[i]
        kept, code, info = None, NOTHING, copy.info
        for final, obs in zip(self._final, self._obs, strict=True):
            final[row] = obs[row]
        if not self._form.plain(seen):  # as Gymnasium tells it: an int, another dtype, ...
            kept, code = copying.deepcopy(seen), APART
        elif info:
            code = self._table.write(info, self._last_info, row)
        if code == APART:
            place.final = kept, dict(info)  # environments may fill the same one at a reset
        at["kept"][row], at["told_last"][row] = True, code

    def clear(self) -> None:
        """Before a step or something else of all copies."""
        self.stained = True
        self.at["valid"][self.index], self.at["reward"][self.index] = True, 0.0
        for flags in self._flags:
            flags.fill(False)

    def timed(self, rows: NDArray[Any]) -> list[float]:
        """Seconds of the steps with these actions [n, copies, K] in which no copy failed."""
        times = []
        assert self._acted is not None
        for t, actions in enumerate(rows):
            if self._mask is not None:
                actions = among_allowed(actions, self._mask[self.index], self._sizes)
            self._acted[self.index] = actions
            began = time.perf_counter()
            self.step(t)
            if self.at["valid"][self.index].all():
                times.append(time.perf_counter() - began)
        return times

    # What agents ask for: finite numbers, and episodes that are taken again.

    def _finite(self, row: int) -> bool:
        """Whether a copy shows numbers that float32 holds; not asked where it need not."""
        for flat in self._flat_row[row]:
            if self._wide and flat.dot(flat) < _SURELY:
                continue
            with np.errstate(over="ignore"):
                if not np.isfinite(flat.astype(np.float32)).all():
                    return False
        return True

    def _unreal(self, i: int) -> KernelError:
        """Takes back a step that was counted before its observation was looked at."""
        copy = self.copies[i]
        assert copy is not None
        copy.take_back(float(self.at["reward"][self.rows[i]]))
        return copy.misfit("step", MisfitError(_NOT_FINITE))

    def _look(self) -> None:
        """One product over all copies says whether any observation is not finite."""
        for flat in self._flat:
            if not (self._wide and flat.dot(flat) < _SURELY):
                break
        else:
            return
        for i, row in enumerate(self.rows):
            if self.copies[i] is not None and not self.asleep[i] and not self._finite(row):
                self._fault(i, self._unreal(i))

    def note(self) -> None:
        """Writes down where all episodes stand, and the actions of copies that are alone."""
        at, copies = self.at, self.copies
        at["ret"][self.index] = [0.0 if copy is None else copy.returned for copy in copies]
        at["length"][self.index] = [0 if copy is None else copy.length for copy in copies]
        if self.alone and self._longest:
            for row, n in zip(self.rows, self.at["length"][self.index].tolist(), strict=True):
                if n <= self._longest:
                    self._log[row, :n] = self._turns[self._newest(n), row]

    def _newest(self, n: int) -> NDArray[np.int64]:
        """Where the newest n actions of copies that are alone lie."""
        turns: NDArray[np.int64] = np.arange(self._taken - n, self._taken) % max(1, self._longest)
        return turns

    def _note_actions(self, rows: int | NDArray[np.int64], index: Any) -> None:
        """Actions of some rows, which `index` picks, into their logs at their episodes' steps."""
        if self._longest:
            assert self._acted is not None
            length = np.minimum(self.at["length"][index], self._longest - 1)
            self._log[rows, length] = self._acted[index]

    def replay(self) -> None:
        """Takes `length` actions of the log in the episode before `episode` again.

        `astray` where that cannot be done; what they show then is compared by the parent.
        """
        at, rows = self.at, self.rows
        assert self._acted is not None
        lengths, logs = at["length"][self.index].copy(), at["log"][self.index].copy()
        self.clear()
        for i in np.flatnonzero(at["selected"][self.index]).tolist():
            row = rows[i]
            at["astray"][row] = True
            try:
                if self.copies[i] is None:
                    self._remake(i)
                self._begin_next(i, again=True)
                copy = self.copies[i]
                assert copy is not None
                taken = logs[i, : int(lengths[i])]
                at["log"][row, : len(taken)] = taken
                if self.alone and len(taken):
                    self._turns[self._newest(len(taken)), row] = taken
                natives = self._form.natives(taken.astype(self._acted.dtype))
                step_each(
                    self._again(copy, natives),
                    self._last, self._paid, self.hand, 0, self._store_step, gone_astray,
                )  # fmt: skip
                self._allow(copy, "step")
                at["astray"][row] = False
                at["ret"][row], at["length"][row] = copy.returned, copy.length
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
            self.at_hand(None)

    def _again(self, copy: ForeignCopy, natives: list[Any]) -> Iterator[tuple[ForeignCopy, Any]]:
        """Actions of one copy, each of which may take as long as any call of it."""
        for native in natives:
            self.at_hand(copy.number)
            yield copy, native

    # Failures.

    def _fault(self, i: int, error: BaseException, running: bool = True) -> None:
        """A call of a copy failed: its step is not real, its episode is lost."""
        row, place, waits = self.rows[i], self._places[i], False
        if self._told:
            self.at["restarts"][row] += np.uint64(1)
            place.later = False
            # Else it shows its last observation, and the next step begins another episode.
            waits = running and self.job.at_end != SAME_STEP
        if running:
            self._lose(i)
        self._failed(i, error)
        if isinstance(error, HangError):
            self.copies[i] = None  # nobody knows what closing it would do
        if self.job.restart and not waits and not (running and self._given_up(i)):
            self._wake(i, now=True)
        if self._told and running:
            cause = error.__cause__ or error
            place.info = {**place.info, "fault": f"{type(cause).__name__}: {text_of(cause)}"}
            self.at["told"][row] = APART

    def _lose(self, i: int) -> None:
        """The step at hand of copy i is not real."""
        self.stained = True
        at, row, copy = self.at, self.rows[i], self.copies[i]
        at["valid"][row] = at["terminated"][row] = False
        at["truncated"][row] = at["lost"][row] = not self.job.holds
        at["reward"][row], at["kept"][row], at["ended"][row] = 0.0, False, False
        self._places[i].info = {}
        if copy is not None and not self._told:
            copy.discard_raw()
            at["ended_ret"][row], at["ended_length"][row] = copy.returned, copy.length

    def _failed(self, i: int, error: BaseException) -> None:
        """Reports a failure; the copy is down."""
        self.at_hand(None)
        copy, row, place = self.copies[i], self.rows[i], self._places[i]
        episode, step = (0, 0) if copy is None else (copy.episode, copy.length)
        kind = "hung" if isinstance(error, HangError) else "raised"
        text = text_of(error)
        if kind == "raised":
            text += "\n" + "".join(traceback.format_exception(error.__cause__ or error))
        self._report(kind, row, episode, step, self._last(row), text, error)
        self.stained = True
        worked = copy is not None and copy.steps + copy.length > 0
        place.failures = 1 if worked else place.failures + 1
        place.due = time.monotonic() + backoff(place.failures)
        self.asleep[i] = self.at["down"][row] = True
        if not self._told:  # to others it goes on showing its last observation
            self.at["tries"][row] += 1
            for obs in self._obs:
                obs[row] = 0
            if self._mask is not None:
                self._mask[row] = True

    def _given_up(self, i: int) -> bool:
        """Whether copy i, at this step, stops trying an episode that has failed too often."""
        at, row = self.at, self.rows[i]
        if not self.job.holds or at["tries"][row] < TRIES:
            return False
        at["truncated"][row] = at["lost"][row] = at["held"][row] = self.asleep[i] = True
        at["down"][row] = False
        return True

    def _wake(self, i: int, now: bool = False) -> None:
        """A copy that is down is made anew when it is time; one that is held goes on waiting."""
        row = self.rows[i]
        if self.at["held"][row]:
            return
        self.stained = True
        if not now:
            self.at["valid"][row] = False
            if self._places[i].later:
                try:
                    self._begin(i, 0)
                except BaseException as error:
                    self._fault(i, error)
                return
            if self._given_up(i):
                return
        if not self.job.restart or time.monotonic() < self._places[i].due:
            return
        try:
            self._remake(i)
            self._begin_next(i, again=self.job.holds)
        except BaseException as error:
            self._failed(i, error)

    # What is asked of them.

    def _say(self, i: int, info: Any) -> None:
        """Writes down what a copy said besides, or keeps it to be asked for."""
        row = self.rows[i]
        self._places[i].info = info
        self.stained = True
        self.at["told"][row] = self._table.write(info, self._info, row) if info else NOTHING

    def _say_all(self, copies: Sequence[ForeignCopy | None]) -> None:
        """Writes the infos of those copies whose step was real."""
        lost, down = self.at["lost"], self.at["down"]
        for copy in copies:
            if copy is None or not copy.info:
                continue
            if not (lost[copy.number] or down[copy.number]):
                self._say(self.place_of[copy.number], copy.info)

    def tell(self, signatures: Sequence[Signature]) -> list[Told]:
        """What copies said and could not write down: row, info, how the episode ended.

        Args:
            signatures: of the infos that may be written from now on.
        """
        at, found = self.at, list[Told]()
        self._table.take(signatures)
        if not self._told:
            self.stained = True
            for i, copy in enumerate(self.copies):
                self._say(i, {} if copy is None else copy.info)
        for row, place in zip(self.rows, self._places, strict=True):
            said = at["told"][row] == APART
            ended = self._told and at["kept"][row] and at["told_last"][row] == APART
            if said or ended:
                found.append((row, place.info if said else None, place.final if ended else None))
        return found

    def objects(self) -> list[Any]:
        """Observations without a place in the block."""
        return [place.seen for place in self._places]

    def call(self, calls: list[tuple[int, str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """(row, name, args, kwargs): an attribute of each, called where it can be."""
        values = []
        for row, name, args, kwargs in calls:
            found = self._env(row).get_wrapper_attr(name)
            values.append(found(*args, **kwargs) if callable(found) else found)
        return values

    def assign(self, name: str, values: list[tuple[int, Any]]) -> None:
        """Sets an attribute of each (row, value)."""
        for row, value in values:
            self._env(row).set_wrapper_attr(name, value)
            self._assigned.setdefault(row, {})[name] = value  # for when it is made anew

    def _env(self, row: int) -> Any:
        copy = self.copies[self.place_of[row]]
        if copy is None:
            raise KernelError(f"gym:{self.name}: environment {row} is down; reset it first.")
        return copy.env
