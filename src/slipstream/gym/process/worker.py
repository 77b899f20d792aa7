"""A worker process: waits for orders in shared words, steps its copies, reports what fails."""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from slipstream.core.errors import SlipstreamError
from slipstream.core.process import AT, BEAT, work_for
from slipstream.gym.copies import ForeignCopies
from slipstream.gym.job import Assignment
from slipstream.gym.making import HangError
from slipstream.gym.process.block import Block
from slipstream.gym.process.layout import (
    ASKED,
    ASLEEP,
    AWAITED,
    COMMANDS,
    DONE,
    HERE,
    NOT,
    ORDER,
    REPORTS,
    STEP,
    WARNED,
    WORDS,
    Layout,
)
from slipstream.gym.process.patience import ORDERED, SPIN_SECONDS, Bell, fence, spin
from slipstream.gym.process.scheduler import CopyScheduler, LongestWaiting

_FORGET = 0.9  # of a copy's measured cost that a new measurement leaves


def serve(worker: Any, scheduler: CopyScheduler | None, order: int) -> None:
    """Steps copies whose `wanted` is ahead of `served`, until something else is ordered.

    Args:
        worker: whose copies; it rings after each.
        scheduler: which is next.
        order: the number of the order that this follows.
    """
    scheduler = scheduler or LongestWaiting()
    words, copies = worker.words, worker.copies
    rows = np.array(copies.rows)
    asked = -1
    queue: list[int] = []
    since: dict[int, float] = {}
    cost = [0.0] * len(rows)
    while words[ORDER] == order:
        if words[ASKED] != asked:
            asked = words[ASKED]
            now = time.monotonic()
            missing = copies.at["wanted"][rows] != copies.at["served"][rows]
            waiting = np.flatnonzero(missing).tolist()
            since = {i: since.get(i, now) for i in waiting}
            waited = [now - since[i] for i in waiting]
            chosen = scheduler.order(waiting, waited, [cost[i] for i in waiting])
            queue = _whole(chosen, waiting)[::-1]
        if not queue:
            worker.sleep(lambda seen=asked: words[ASKED] != seen or words[ORDER] != order)
            continue
        i = queue.pop()
        began = time.perf_counter()
        copies.step_one(i)
        spent = time.perf_counter() - began
        cost[i] = spent if cost[i] == 0.0 else _FORGET * cost[i] + (1.0 - _FORGET) * spent
        since.pop(i, None)
        row = copies.rows[i]
        copies.at["served"][row] = copies.at["wanted"][row]
        worker.done.ring()


def _whole(chosen: Any, waiting: list[int]) -> list[int]:
    """What a scheduler said, without strangers, and with those that it forgot at the end."""
    left = dict.fromkeys(waiting)
    known = [int(i) for i in chosen if left.pop(int(i), 0) is None]
    return [*known, *left]


STEP_ALL, BEGIN, BEGIN_LOST, REPLAY, TALK, SERVE, REST, LEAVE = range(1, 9)
"""Orders: step; begin the selected copies, or all where a lost worker's stood; replay the selected
ones; answer a message on the pipe; step single copies as they are asked for; close the copies and
wait for another job; end. Copies write into the block between an order and its end only, so that
nobody reads what is being written."""

HANG_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else signal.SIGTERM
DESCRIPTORS = 5  # pipe, words, last words, and two of the bell "go"
_SOON = 4  # times the usual, for which a worker looks for an order after one that came so fast
_OF_A_JOB = 3  # block, and two of the bell "done"


def run(fds: Sequence[int], parent: int) -> None:
    """The whole life of a worker; does not return.

    Args:
        fds: pipe to the parent, shared words, file of last words, bell "go" (to hear, to ring).
        parent: the process that forked this one.
    """
    code = 0
    # A worker knows the main program's ids before it imports the module that registers them.
    warnings.filterwarnings("ignore", message=".*Overriding environment")
    try:
        work_for(parent)
        worker = _Worker(fds)
        while worker.serve():
            pass
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except BaseException:
        with suppress(OSError):
            os.write(fds[2], traceback.format_exc().encode())
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


class _Worker:
    def __init__(self, fds: Sequence[int]) -> None:
        self._pipe: Connection = Connection(fds[0])
        signal.signal(HANG_SIGNAL, self._hung)
        # No `time_limit` here: the parent has its own. Programs started here inherit no handler.
        signal.signal(signal.SIGALRM, lambda *_: None)
        faulthandler.enable(file=fds[2])
        # Before Python's own handler, so that code which never comes back is named, too.
        faulthandler.register(HANG_SIGNAL, file=fds[2], all_threads=True, chain=True)
        self._page = mmap.mmap(fds[1], mmap.PAGESIZE)
        self.words = memoryview(self._page)[: WORDS * 8].cast("Q")
        self._go = Bell((fds[3], fds[4]))
        self._poller = select.poll()
        self._poller.register(self._go.fds[0], select.POLLIN)
        self._poller.register(self._pipe.fileno(), 0)  # tells only that the other end is gone
        self._inside = False
        self._stack = ""
        self.copies: Any = None

    def serve(self) -> bool:
        """Does one job, until the parent says REST (True) or LEAVE; raises where it is gone."""
        job: Assignment = pickle.loads(self._pipe.recv_bytes())
        fds = self._handed()
        self._job = job
        self._block, self.done = Block(job.layout, fds[0]), Bell((fds[1], fds[2]))
        words = self.words
        last = words[ORDER]
        try:
            self.copies = ForeignCopies(job, self._block.arrays, self._report, self._at_hand)
            self.copies.hand = words
            self.copies.make()
        except Exception as error:
            self._pipe.send(("failed", _portable(error)))
            return False
        self._pipe.send(("ready", None))
        self.done.ring()
        leaving, soon = True, 0.0
        while True:
            ordered, began = partial(_ordered, words, last), time.perf_counter()
            if not spin(ordered, 0.0 if leaving else soon):
                while words[ORDER] == last:
                    self.sleep(ordered)
            # It looks for long only where orders come fast: nobody is served by looking in vain.
            soon = _SOON * job.spin if time.perf_counter() - began < _SOON * SPIN_SECONDS else 0.0
            leaving = True
            last = words[ORDER]
            command = last % COMMANDS
            if command in (LEAVE, REST):
                self.copies.close()
                self.copies = None
                if command == REST:
                    gc.collect()  # what refers to itself may still have views of the block
                self._block.close()
                self.done.close()
                words[DONE] = last
                if command == REST:
                    self._pipe.send(("resting", None))
                return bool(command == REST)
            if command == SERVE:
                words[DONE] = last  # it goes on until something else is ordered
                serve(self, job.scheduler, last)
                continue
            self._obey(command)
            leaving = self._finish(last)

    def _handed(self) -> list[int]:
        """The open files that follow a message."""
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as line:
            data, fds, _, _ = socket.recv_fds(line, 1, _OF_A_JOB)
        if not data:
            raise EOFError
        return fds

    def _finish(self, order: int) -> bool:
        """Says that an order is done; whether the parent was woken, and is to have this core."""
        words = self.words
        words[DONE] = order
        fence()
        awaited = words[AWAITED]
        if awaited != NOT or not ORDERED:
            self.done.ring()
        return bool(awaited == HERE)

    def sleep(self, ready: Callable[[], bool]) -> None:
        """Until the parent rings, if nothing is ready by then; raises where it is gone."""
        self.words[ASLEEP] = 1
        fence()
        try:
            if not ready():
                for fd, event in self._poller.poll():
                    if fd == self._pipe.fileno() and event & (select.POLLHUP | select.POLLERR):
                        raise EOFError
                self._go.hush()
        finally:
            self.words[ASLEEP] = 0

    def _obey(self, command: int) -> None:
        if command == TALK:
            method, arguments = self._pipe.recv()
            try:
                call = getattr(self.copies, method)
                if method in ("grow", "shrink"):
                    call = partial(self._resize, call)
                value = call(*arguments)
                answer: tuple[str, Any] = ("answer", (True, value))
            except Exception as error:
                answer = ("answer", (False, _portable(error)))
            self._send(answer)
            return
        try:
            if command == STEP_ALL:
                self.copies.step(self.words[STEP])
            elif command == BEGIN:
                self.copies.begin()
            elif command == BEGIN_LOST:
                self.copies.start(self._job.holds)
            else:
                self.copies.replay()
        except SlipstreamError as error:  # of a kernel: all copies are at fault
            self.words[REPORTS] += 1
            self._pipe.send(("error", _portable(error)))

    def _send(self, answer: tuple[str, Any]) -> None:
        """An answer; where it cannot travel, an error that says so."""
        try:
            self._pipe.send(answer)
        except Exception as error:
            refusal = TypeError(f"what a copy returned cannot be handed over: {error!s:.300}")
            self._pipe.send(("answer", (False, refusal)))

    def _resize(self, call: Any, layout: Layout, *arguments: Any) -> None:
        """Moves to another block."""
        old, self._block = self._block, Block(layout, self._handed()[0])
        call(self._block.arrays, *arguments)
        old.close()

    def _at_hand(self, copy: int | None) -> None:
        if copy is None:
            self._inside = False
            return
        words = self.words
        words[AT] = copy
        words[BEAT] += 1
        self._inside = True

    def _report(
        self,
        kind: str,
        copy: int,
        episode: int,
        step: int,
        action: list[Any],
        text: str,
        error: BaseException,
    ) -> None:
        if kind == "hung":
            text = f"the call took too long; it was here:\n{self._stack}"
        self.words[REPORTS] += 1
        cause = _travelling(error.__cause__ or error)
        self._pipe.send(("fault", (kind, copy, episode, step, action, text, cause)))

    def _hung(self, _signal: int, frame: Any) -> None:
        words = self.words
        meant = (words[WARNED], words[WARNED + 1])
        if self._inside and meant == (words[BEAT], words[AT]):  # else that call has come back
            self._inside = False
            self._stack = "".join(traceback.format_stack(frame)[-8:])
            raise HangError


def _ordered(words: memoryview, last: int) -> bool:
    return bool(words[ORDER] != last)


def _travelling(error: BaseException) -> BaseException | None:
    """An exception as the parent can raise it; None where it cannot travel."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return again if isinstance(again, Exception) else None


def _portable(error: Exception) -> Exception:
    if isinstance(error, SlipstreamError):
        return type(error)(str(error))
    known = _travelling(error)
    if isinstance(known, Exception):
        known.add_note("".join(traceback.format_exception(error)))
        return known
    return RuntimeError("".join(traceback.format_exception(error)))
