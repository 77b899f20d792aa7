"""Copies that are stepped as they are asked for: the first that are ready, or half after half."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.vector.process.layout import ASKED, HALF_DONE, HALF_WANTED, STEP
from slipstream.vector.process.link import UP, Link
from slipstream.vector.process.patience import look_ms, spin
from slipstream.vector.process.worker import HALVES, SERVE

if TYPE_CHECKING:
    from slipstream.vector.process.process_copies import ProcessCopies

_PAUSE_MS = 5  # between two tries to replace lost workers


class Asked:
    """What has been asked of a `ProcessCopies` beside steps of all copies at once.

    Attributes:
        out: bool [E], copies that were sent an action and not received since.
    """

    def __init__(self, copies: ProcessCopies) -> None:
        self._copies = copies
        self.out = np.zeros(copies.num_envs, np.bool_)
        self._arrived: list[int] = []  # ready copies that nobody has received yet
        self._mode = 0  # SERVE or HALVES, where workers are in it
        self._halves = [0, 0]  # steps ordered of either half
        self._half_links: list[list[Link]] = [[], []]

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies, and nothing is under way."""
        self.out = np.zeros(num_envs, np.bool_)

    def stop(self) -> None:
        """Before any other order.

        Raises:
            ConfigError: steps are under way.
        """
        if not self._mode:
            return
        if self.out.any() or any(self._half_links):
            raise ConfigError(
                f"Steps of {self._copies.ledger.name} are under way that were sent and not "
                "received; `recv` them all before anything else is asked of the copies."
            )
        self._mode = 0

    def go_on(self, links: list[Link]) -> None:
        """After something else was asked in between; a new worker begins first, and is greeted."""
        if self._mode:
            for link in links:
                if link.state == UP and link.begun:
                    link.order(self._mode)

    def _enter(self, mode: int) -> None:
        if self._mode == mode:
            return
        self.stop()
        self._copies.ready()
        self._mode = mode
        for link in self._copies.links:
            self.greet(link)

    def greet(self, link: Link) -> None:
        """Has a new worker do what the others do."""
        if not self._mode:
            return
        for half in (0, 1):
            link.words[HALF_WANTED + half] = link.words[HALF_DONE + half] = self._halves[half]
        link.order(self._mode)

    # Single copies.

    def idle_rows(self, copies: Any) -> NDArray[np.int64]:
        """Rows that may be sent to, before their actions are written; all where `copies` is None.

        Raises:
            ConfigError: they are no different copies, or one of them is under way already.
        """
        rows = different_rows(copies, len(self.out))
        if self.out[rows].any():
            busy = rows[self.out[rows]].tolist()
            raise ConfigError(
                f"Copies {busy[:8]} were sent an action that nobody has received the outcome of; "
                "`recv` it first."
            )
        return rows

    def send(self, copies: NDArray[np.int64]) -> None:
        """A step of these copies, which are idle, is wanted; their actions are in the block."""
        self._enter(SERVE)
        self.out[copies] = True
        chosen = np.zeros(len(self.out), np.bool_)
        chosen[copies] = True
        chosen &= ~self._copies.losses.unseen  # no action is theirs: see `_answer`
        self._copies.block["wanted"][chosen] += np.uint64(1)
        for link in self._copies.rows_of(chosen):
            link.rest()
            link.words[ASKED] += 1
            link.wake()

    def receive(self, count: int, timeout: float | None = None) -> NDArray[np.int64]:
        """The first so many copies that are ready, in the order in which they became so.

        Raises:
            ConfigError: fewer are under way.
            TimeoutError: they are not ready in time; what is ready waits for the next call.
        """
        under_way = int(self.out.sum())
        if not 1 <= count <= under_way:
            raise ConfigError(
                f"`recv` was asked for {count} copies, and {under_way} were sent an action."
            )
        copies = self._copies
        hang = copies.policy.hang_seconds
        until = None if timeout is None else time.monotonic() + timeout
        needed = 0
        while True:
            complete = copies.workers.complete
            if not complete:
                copies.mend()
                copies.ledger.check()
            self._note()
            self._answer(needed)
            if len(self._arrived) >= count:
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"`recv`: {len(self._arrived)} of {count} copies are ready.")
            copies.workers.sleep(look_ms(hang) if complete else _PAUSE_MS)
            needed = count
            for link in copies.links:
                if link.state == UP:
                    self._watch(link, hang)
        ready = np.array(self._arrived[:count], np.int64)
        del self._arrived[:count]
        self.out[ready] = False
        for link in copies.links:
            copies.workers.hear_reports(link)
        copies.workers.raise_error()
        return ready

    def _note(self) -> None:
        block = self._copies.block
        fresh = self.out & (block["wanted"] == block["served"]) & ~self._copies.losses.unseen
        fresh[self._arrived] = False
        self._arrived += np.flatnonzero(fresh).tolist()

    def _answer(self, needed: int) -> None:
        """Steps that nobody takes, for their worker was lost after the copies were last shown.

        That an episode is lost is said at once; what comes after it, once the worker is back, or
        where without it there would not be as many copies as are needed.
        """
        copies, losses = self._copies, self._copies.losses
        if not losses.any:
            return
        waiting = self.out & losses.unseen
        waiting[self._arrived] = False
        for link in copies.rows_of(waiting):
            rows = np.arange(len(self.out))[link.rows]
            rows = rows[waiting[rows]]
            here = link.state == UP and link.begun
            if not here:
                under_way = int((self.out & ~waiting).sum())  # has arrived, or will
                silent = losses.silent(rows)
                rows = np.setdiff1d(rows, silent[max(0, needed - under_way) :])
            losses.say(rows)
            losses.shown(rows, here)
            waiting[rows] = False
            self._arrived += rows.tolist()

    def lost(self, rows: NDArray[np.int64]) -> None:
        """Steps of a worker that is gone are over, also those that nobody has received."""
        block, gone = self._copies.block, set(rows.tolist())
        block["served"][rows] = block["wanted"][rows]
        self._arrived = [row for row in self._arrived if row not in gone]

    def _watch(self, link: Link, hang: float) -> None:
        block, at = self._copies.block, link.rows
        if (self.out[at] & (block["wanted"][at] != block["served"][at])).any():
            link.watch(hang)
        else:
            link.rest()

    # Halves.

    def send_half(self, half: int, t: int) -> None:
        """A step of one half is wanted; its actions are in the block."""
        self._enter(HALVES)
        copies = self._copies
        links = copies.links
        if not copies.workers.complete:
            copies.mend()
        unseen = copies.losses.unseen
        if copies.losses.any:
            links = [link for link in links if not unseen[slice(*link.ranges[half])].any()]
        self._halves[half] += 1
        for link in links:
            link.rest()
            link.words[STEP] = t
            link.words[HALF_WANTED + half] += 1
            link.wake()
        self._half_links[half] = links

    def receive_half(self, half: int) -> None:
        """Waits for the step of one half."""
        copies, links = self._copies, self._half_links[half]
        pending = list(links)

        def over() -> bool:
            while pending and _done(pending[-1], half):
                pending.pop()
            return not pending

        if not spin(over, copies.spin):
            hang = copies.policy.hang_seconds
            while True:
                # One that is made again, and says so meanwhile, was not asked for this step.
                left = [link for link in pending if _at_it(link, half)]
                if not left:
                    break
                copies.workers.sleep(look_ms(hang))
                for link in left:
                    if _at_it(link, half):
                        link.watch(hang)
        self._half_links[half] = []
        for link in links:
            copies.workers.hear_reports(link)
        copies.losses.mark()
        if copies.losses.any:
            for link in copies.links:
                copies.losses.pass_over(link, slice(*link.ranges[half]))
        copies.workers.raise_error()


def different_rows(copies: Any, num_envs: int) -> NDArray[np.int64]:
    """Numbers of copies, int64 [n]; all where `copies` is None.

    Raises:
        ConfigError: one does not exist, or is there twice.
    """
    if copies is None:
        return np.arange(num_envs)
    rows = np.asarray(copies, np.int64).reshape(-1)
    if len(np.unique(rows)) < len(rows) or not ((rows >= 0) & (rows < num_envs)).all():
        raise ConfigError(
            f"`send` takes the numbers of different copies, 0 to {num_envs - 1}; it was given "
            f"{rows.tolist()[:8]}."
        )
    return rows


def _done(link: Link, half: int) -> bool:
    return bool(link.words[HALF_DONE + half] == link.words[HALF_WANTED + half])


def _at_it(link: Link, half: int) -> bool:
    return link.state == UP and link.begun and not _done(link, half)
