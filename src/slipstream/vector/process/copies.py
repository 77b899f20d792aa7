"""A worker's copies of somebody else's environment: made, made anew when they fail, closed."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.vector.foreign import HangError, refuse_shared, shut, text_of
from slipstream.vector.process.faults import backoff
from slipstream.vector.process.job import Assignment
from slipstream.vector.process.layout import WORDS

FRESH = ("terminated", "truncated", "ended", "kept", "lost", "told")
"""Flags of a step, false before it."""

Copy = TypeVar("Copy")


class Copies(ABC, Generic[Copy]):
    """Some of E copies, by their rows in the arrays that all share.

    Args:
        job: which they are.
        arrays: of the block.
        report: takes (kind, copy, episode, step, last action, text, error) of each failure.
        at_hand: called with a copy's row before each of its calls; None after it.

    Attributes:
        rows: of the copies here, in order; what is kept of each is in lists of the same order.
        ranges: the same as (lo, hi).
        asleep: copies that are held at their episode's end or down.
        place_of: number of the copy that has a row.
        name: of the environment, for messages.
        hand: words of which `hand[AT]` is the row at hand.
        alone: nobody else reads the arrays; what is slow to keep there is written on request.
        stained: by range, whether flags of the last step are set, or rewards are not of this one.
    """

    name: str

    def __init__(
        self,
        job: Assignment,
        arrays: dict[str, NDArray[Any]],
        report: Callable[..., None],
        at_hand: Callable[[int | None], None],
    ) -> None:
        self.job, self._report, self.at_hand = job, report, at_hand
        self.hand: Any = [0] * WORDS
        self.alone = False
        self.rows: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.copies: list[Copy | None] = []
        self.asleep: list[bool] = []
        self._due: list[float] = []
        self._failures: list[int] = []  # without a good step in between
        self.attach(arrays)
        for lo, hi in job.ranges:
            self._room(lo, hi)
        self._index()

    def attach(self, arrays: dict[str, NDArray[Any]]) -> None:
        """From now on they write there."""
        self.at = arrays

    def _room(self, lo: int, hi: int) -> list[int]:
        """Places for copies of the rows lo..hi-1; none is made yet."""
        first = len(self.rows)
        n = hi - lo
        self.rows += range(lo, hi)
        self.ranges.append((lo, hi))
        self.copies += [None] * n
        self.asleep += [False] * n
        self._due += [0.0] * n
        self._failures += [0] * n
        return list(range(first, first + n))

    def _index(self) -> None:
        """`index`: the rows, as a slice where they follow each other; `parts`: of each range."""
        self.index: slice | NDArray[np.int64] = np.array(self.rows, np.int64)
        if len(self.ranges) == 1:
            self.index = slice(*self.ranges[0])
        self.parts: list[tuple[range, slice]] = []
        first = 0
        for lo, hi in self.ranges:
            self.parts.append((range(first, first + hi - lo), slice(lo, hi)))
            first += hi - lo
        self.place_of = {row: i for i, row in enumerate(self.rows)}
        self._flags = [[self.at[name][rows] for name in FRESH] for _, rows in self.parts]
        self.stained = [True] * len(self.parts)

    @abstractmethod
    def new(self, i: int) -> Copy:
        """Makes copy i."""

    @abstractmethod
    def begin_next(self, i: int, *, again: bool = False) -> None:
        """Begins the next episode of copy i, or the one that it was in."""

    @abstractmethod
    def advance(self, i: int, action: Any, t: int) -> None:
        """Takes one step of copy i, which is awake, and begins its next episode if it ends.

        It may leave the copy at hand; who steps several copies says at the end that none is.
        """

    @abstractmethod
    def natives(self, which: range, index: slice) -> list[Any]:
        """Actions of a range's copies, as the environment takes them."""

    @abstractmethod
    def native(self, i: int) -> Any:
        """That of copy i alone."""

    @abstractmethod
    def end_copy(self, copy: Copy) -> None:
        """Closes one."""

    @abstractmethod
    def where(self, i: int) -> tuple[int, int, list[Any]]:
        """Episode, step and last action of a copy, for messages."""

    @abstractmethod
    def worked(self, i: int) -> bool:
        """Whether a copy has made a good step since it was made."""

    @abstractmethod
    def blank(self, i: int) -> None:
        """What a copy shows that failed."""

    def adopt(self, copy: Any) -> None:
        """The first copy is there already."""
        self.copies[0] = copy

    def make(self) -> None:
        """Makes all copies; one that fails is reported and down."""
        self.make_some(range(len(self.rows)))

    def make_some(self, which: Sequence[int]) -> None:
        """Makes copies; one that fails is reported and down."""
        for i in which:
            try:
                self.remake(i)
            except BaseException as error:
                self.failed(i, error)

    def remake(self, i: int) -> None:
        """Makes copy i in the place of one that is closed."""
        self.at_hand(self.rows[i])
        old, self.copies[i] = self.copies[i], None
        if old is not None:
            with suppress(Exception, SystemExit):
                self.end_copy(old)
        made = self.new(i)
        refuse_shared(self.name, made, (old, *self.copies))
        self.copies[i] = made
        self.at_hand(None)

    def step(self, t: int) -> None:
        """Steps every copy; one that ends begins its next episode at once."""
        for part in range(len(self.parts)):
            self.step_part(part, t)

    def step_part(self, part: int, t: int) -> None:
        """Steps the copies of one range."""
        which, index = self.parts[part]
        self.stain()
        asleep = self.asleep
        self.clear_part(part)
        for i, action in zip(which, self.natives(which, index), strict=True):
            if asleep[i]:
                self.wake(i)
            else:
                self.advance(i, action, t)
        self.at_hand(None)

    def stain(self) -> None:
        """What copies show of a step is to be cleared before the next one."""
        self.stained = [True] * len(self.parts)

    def clear_part(self, part: int) -> None:
        """Before a step of the copies of one range."""
        if not self.stained[part]:
            return
        index = self.parts[part][1]
        self.stained[part] = True in self.asleep
        self.at["valid"][index], self.at["reward"][index] = True, 0.0
        for flags in self._flags[part]:
            flags.fill(False)

    def clear(self) -> None:
        """Before something else of all copies."""
        self.stain()
        at, index = self.at, self.index
        at["valid"][index], at["reward"][index] = True, 0.0
        for name in FRESH:
            at[name][index] = False

    def clear_one(self, i: int) -> None:
        """Before a step of copy i."""
        self.stain()
        at, row = self.at, self.rows[i]
        at["valid"][row], at["reward"][row] = True, 0.0
        for name in FRESH:
            at[name][row] = False

    def step_one(self, i: int) -> None:
        """Steps copy i alone."""
        self.clear_one(i)
        if self.asleep[i]:
            self.wake(i)
        else:
            self.advance(i, self.native(i), 0)
        self.at_hand(None)

    def fault(self, i: int, error: BaseException, running: bool = True) -> None:
        """A call of a copy failed: its step is not real, its episode is lost."""
        if running:
            self.lose(i)
        self.failed(i, error)
        if isinstance(error, HangError):
            self.copies[i] = None  # nobody knows what closing it would do
        if self.job.restart and not (running and self.given_up(i)):
            self.wake(i, now=True)

    def given_up(self, i: int) -> bool:
        """Whether copy i, at this step, stops trying an episode that has failed too often."""
        return False

    def lose(self, i: int) -> None:
        """The step at hand of copy i is not real."""
        self.stain()
        at, row = self.at, self.rows[i]
        at["valid"][row] = at["terminated"][row] = False
        at["truncated"][row] = at["lost"][row] = not self.job.holds
        at["reward"][row], at["kept"][row], at["ended"][row] = 0.0, False, False

    def failed(self, i: int, error: BaseException) -> None:
        """Reports a failure; the copy is down."""
        self.at_hand(None)
        episode, step, action = self.where(i)
        kind = "hung" if isinstance(error, HangError) else "raised"
        text = text_of(error)
        if kind == "raised":
            text += "\n" + "".join(traceback.format_exception(error.__cause__ or error))
        self._report(kind, self.rows[i], episode, step, action, text, error)
        self.stain()
        self._failures[i] = 1 if self.worked(i) else self._failures[i] + 1
        self._due[i] = time.monotonic() + backoff(self._failures[i])
        self.asleep[i] = self.at["down"][self.rows[i]] = True
        self.blank(i)

    def wake(self, i: int, now: bool = False) -> None:
        """A copy that is down is made anew when it is time; one that is held goes on waiting."""
        row = self.rows[i]
        if self.at["held"][row]:
            return
        self.stain()
        if not now:
            self.at["valid"][row] = False
            if self.given_up(i):
                return
        if not self.job.restart or time.monotonic() < self._due[i]:
            return
        try:
            self.remake(i)
            self.begin_next(i, again=self.job.holds)
        except BaseException as error:
            self.failed(i, error)

    def grow(self, arrays: dict[str, NDArray[Any]], lo: int, hi: int, begun: bool) -> None:
        """Takes on the copies of rows lo..hi-1, made here; arrays that are larger."""
        self.attach(arrays)
        which = self._room(lo, hi) if hi > lo else []
        self._index()
        self.make_some(which)
        if begun:
            self._begin_some(which)

    def begin_all(self) -> None:
        """Begins an episode of every copy: they are new, and the others have begun before."""
        self._begin_some(range(len(self.rows)))

    def _begin_some(self, which: Sequence[int]) -> None:
        for i in which:
            if self.copies[i] is not None:
                try:
                    self.begin_next(i)
                except BaseException as error:
                    self.fault(i, error, running=False)

    def shrink(self, arrays: dict[str, NDArray[Any]], size: int) -> None:
        """Closes the copies of rows from `size` on."""
        keep = [i for i, row in enumerate(self.rows) if row < size]
        for i in range(len(self.rows)):
            copy = self.copies[i]
            if self.rows[i] >= size and copy is not None:
                with suppress(Exception, SystemExit):
                    self.end_copy(copy)
        lists: tuple[list[Any], ...] = (
            self.rows, self.copies, self.asleep, self._due, self._failures
        )  # fmt: skip
        for one in lists:
            one[:] = [one[i] for i in keep]
        self.ranges = [(lo, min(hi, size)) for lo, hi in self.ranges if lo < size]
        self.attach(arrays)
        self._index()

    def close(self) -> None:
        """Closes the environments."""
        for copy in self.copies:
            if copy is not None:
                shut(partial(self.end_copy, copy), f"gym:{self.name}")


def one_action(rows: NDArray[Any], row: int) -> list[Any]:
    """A row of actions as plain numbers, for messages."""
    return list(np.ravel(rows[row]).tolist())
