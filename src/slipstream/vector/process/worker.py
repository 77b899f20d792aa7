"""A worker process: waits for orders in the shared block, steps its copies, reports what fails."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.core.process import STOP_SIGNALS, die_with
from slipstream.vector.process.bell import Bell
from slipstream.vector.process.block import Block
from slipstream.vector.process.foreign_copies import ForeignCopies, HangError
from slipstream.vector.process.job import NO_BEGIN, SAME, Foreign, Job
from slipstream.vector.process.layout import (
    AT,
    BEAT,
    COMMAND,
    DONE,
    REPORTS,
    SEQUENCE,
    STEP,
    WORDS,
)
from slipstream.vector.process.patience import spin

STEP_ALL, BEGIN, REPLAY, TALK, LEAVE = range(1, 6)
"""Orders: step; begin or replay the selected copies; answer a message on the pipe; end."""

HANG_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else signal.SIGTERM
DESCRIPTORS = 7  # pipe, block, last words, and two of each bell


def run(fds: Sequence[int], parent: int) -> None:
    """The whole life of a worker; does not return.

    Args:
        fds: pipe to the parent, block, file of last words, bells (to hear, to ring) "go", "done".
        parent: the process that forked this one.
    """
    code = 0
    try:
        for number in STOP_SIGNALS:  # the process that people started decides
            signal.signal(number, signal.SIG_IGN)
        die_with(parent)
        _Worker(fds).serve()
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
        faulthandler.enable(file=fds[2])
        # Before Python's own handler, so that code which never comes back is named, too.
        faulthandler.register(HANG_SIGNAL, file=fds[2], all_threads=True, chain=True)
        job: Job = pickle.loads(self._pipe.recv_bytes())
        self._job = job
        self._block = Block(job.layout, fds[1])
        self._go, self._done = Bell((fds[3], fds[4])), Bell((fds[5], fds[6]))
        every = self._block.words()
        self._words = every[job.worker * WORDS : (job.worker + 1) * WORDS]
        self._inside = False
        self._stack = ""
        self.copies: Any = None

    def serve(self) -> None:
        """Answers orders until the parent says LEAVE or is gone."""
        words, job = self._words, self._job
        last = words[SEQUENCE]
        try:
            if isinstance(job.what, Foreign):
                self.copies = ForeignCopies(job, self._block, self._report, self._at_hand)
            else:
                from slipstream.vector.process.kernel_copies import KernelCopies  # needs Numba

                self.copies = KernelCopies(job, self._block)
            self.copies.make()
            if job.first != NO_BEGIN:
                self.copies.start(job.first == SAME)
        except Exception as error:
            self._pipe.send(("failed", _portable(error)))
            return
        self._pipe.send(("ready", None))
        self._done.ring()
        poller = select.poll()
        poller.register(self._go.fds[0], select.POLLIN)
        poller.register(self._pipe.fileno(), 0)  # tells only that the other end is gone
        while True:
            if not spin(partial(_ordered, words, last), job.spin):
                while words[SEQUENCE] == last:
                    for fd, event in poller.poll():
                        if fd == self._pipe.fileno() and event & (select.POLLHUP | select.POLLERR):
                            return
                    self._go.hush()
            last, command = words[SEQUENCE], words[COMMAND]
            if command == LEAVE:
                self.copies.close()
                return
            self._obey(command)
            words[DONE] = last
            self._done.ring()

    def _obey(self, command: int) -> None:
        if command == TALK:
            method, arguments = self._pipe.recv()
            try:
                answer: tuple[str, Any] = (
                    "answer",
                    (True, getattr(self.copies, method)(*arguments)),
                )
            except Exception as error:
                answer = ("answer", (False, _portable(error)))
            self._pipe.send(answer)
            return
        try:
            if command == STEP_ALL:
                self.copies.step(self._words[STEP])
            elif command == BEGIN:
                self.copies.begin()
            else:
                self.copies.replay()
        except SlipstreamError as error:  # of a kernel: all copies are at fault
            self._words[REPORTS] += 1
            self._pipe.send(("error", _portable(error)))

    def _at_hand(self, copy: int | None) -> None:
        if copy is None:
            self._inside = False
            return
        words = self._words
        words[AT] = copy
        words[BEAT] += 1
        self._inside = True

    def _report(
        self, kind: str, copy: int, episode: int, step: int, action: list[Any], text: str
    ) -> None:
        if kind == "hung":
            text = f"the call took too long; it was here:\n{self._stack}"
        self._words[REPORTS] += 1
        self._pipe.send(("fault", (kind, copy, episode, step, action, text)))

    def _hung(self, _signal: int, frame: Any) -> None:
        if self._inside:
            self._inside = False
            self._stack = "".join(traceback.format_stack(frame)[-8:])
            raise HangError


def _ordered(words: memoryview, last: int) -> bool:
    return bool(words[SEQUENCE] != last)


def _portable(error: Exception) -> Exception:
    if isinstance(error, SlipstreamError):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))
