"""One worker as its parent knows it."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from slipstream.core.process import AT, BEAT, START_SECONDS
from slipstream.gym.process.block import anonymous_file
from slipstream.gym.process.launcher import Launcher
from slipstream.gym.process.layout import (
    ANYWHERE,
    ASLEEP,
    AWAITED,
    COMMANDS,
    DONE,
    ORDER,
    REPORTS,
    WARNED,
    WORDS,
)
from slipstream.gym.process.patience import ORDERED, Bell, fence
from slipstream.gym.process.worker import HANG_SIGNAL

DOWN, IDLE, STARTING, UP = range(4)
_GRACE_SECONDS = 1.0  # after the signal that ends a hanging call, before the worker is killed
_WORDS_BYTES = 20_000  # of a worker's last words that are kept


class Link:
    """A worker's process, its pipe and the words that it shares with this process.

    Attributes:
        number: among the workers of an environment; ranges: its copies, (lo, hi) of each.
        state: DOWN (to be started when `due`), IDLE (without a job), STARTING or UP.
        pid: of its process.
        heard: reports taken so far.
        hung: it was killed because it had hung.
        lost: it ended, and its copies' rows do not say so yet.
        begun: its copies stand at a beginning, as far as they were ever reset.
    """

    def __init__(self) -> None:
        self.number, self.ranges = 0, [(0, 0)]
        self._file = anonymous_file(mmap.PAGESIZE, mmap.PAGESIZE)
        self._page = mmap.mmap(self._file, mmap.PAGESIZE)
        self.words = memoryview(self._page)[: WORDS * 8].cast("Q")
        self.go = Bell()
        self.state, self.pid, self.due = DOWN, 0, 0.0
        self.pipe: Connection | None = None
        self.heard = 0
        self.hung = self.lost = False
        self.begun = True
        self._order = 0
        self._beat, self._since, self._warned = (-1, -1), 0.0, 0.0
        self._last_words = -1

    @property
    def rows(self) -> slice | NDArray[np.int64]:
        """Its copies as an index."""
        return slice(*self.ranges[0]) if len(self.ranges) == 1 else self.numbers

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Its copies one by one."""
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(*own) for own in self.ranges)])

    @property
    def load(self) -> int:
        """How many copies it has."""
        return sum(hi - lo for lo, hi in self.ranges)

    def start(self, launcher: Launcher) -> None:
        """Start a process for it, which waits for a job."""
        words = anonymous_file(0)
        try:
            mine, theirs = socket.socketpair()
        except OSError:
            os.close(words)
            raise
        os.set_blocking(mine.fileno(), True)
        self.words[ORDER] = self.words[DONE] = self._order
        fds = [theirs.fileno(), self._file, words, *self.go.fds]
        try:
            self.pid = launcher.start(fds)
        except BaseException:
            mine.close()
            os.close(words)
            raise
        finally:
            theirs.close()
        self.pipe = Connection(mine.detach())
        self._last_words = words
        self.state, self.hung = IDLE, False

    def assign(self, job: bytes, fds: Sequence[int]) -> None:
        """Gives it a job and the descriptors for it; `hear` says when it is ready."""
        assert self.pipe is not None
        self.words[REPORTS], self.heard = 0, 0
        self._since = self._warned = 0.0
        self._beat = (-1, -1)
        self.state = STARTING
        with suppress(OSError):  # gone already: its end will be heard
            self.pipe.send_bytes(job)
            self.hand(fds)

    def hand(self, fds: Sequence[int]) -> None:
        """Hands it open files, after the message that says what for."""
        assert self.pipe is not None
        line = socket.socket(fileno=os.dup(self.pipe.fileno()))
        with line:
            socket.send_fds(line, [b"+"], list(fds))

    def order(self, command: int, awaited: int = ANYWHERE) -> None:
        """Tells it what to do; whether this process will sleep until it is done."""
        self._order = (self._order // COMMANDS + 1) * COMMANDS + command
        self._since = self._warned = 0.0
        self.words[AWAITED] = awaited
        self.words[ORDER] = self._order
        self.wake()

    def wake(self) -> None:
        """It shall look what is wanted of it."""
        fence()
        if self.words[ASLEEP] or not ORDERED:
            self.go.ring()

    @property
    def done(self) -> bool:
        """Whether it has done its last order."""
        return bool(self.words[DONE] == self._order)

    def watch(self, hang_seconds: float) -> None:
        """Looks whether the call at hand takes too long: a signal first, then the end."""
        now, beat = time.monotonic(), (self.words[BEAT], self.words[AT])
        if beat != self._beat or not self._since:
            self._beat, self._since, self._warned = beat, now, 0.0
            return
        starting = self.state == STARTING
        limit = max(START_SECONDS, hang_seconds) if starting else hang_seconds
        if self._warned:
            if now - self._warned > _GRACE_SECONDS:
                self.hung = True
                self.kill(signal.SIGKILL)
                self._hang_up()
        elif now - self._since > limit:
            self._warned = now
            self.words[WARNED], self.words[WARNED + 1] = beat
            self.kill(HANG_SIGNAL)

    def _hang_up(self) -> None:
        """Its end is to be heard here even while a process that it forked has the pipe open."""
        assert self.pipe is not None
        line = socket.socket(fileno=os.dup(self.pipe.fileno()))
        with line, suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    def rest(self) -> None:
        """Nothing is asked of it: the time until the next order does not count as hanging."""
        self._since = self._warned = 0.0

    def kill(self, number: int) -> None:
        """Sends its process a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def send(self, message: memoryview) -> None:
        """Pickled, on the slow path; a worker that is gone is noticed when it is to answer."""
        assert self.pipe is not None
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def last_words(self) -> str:
        """What its process wrote before it ended: a traceback, even of a crash in C."""
        if self._last_words < 0:
            return ""
        size = os.fstat(self._last_words).st_size  # calls that hung and came back are in it, too
        text = os.pread(self._last_words, _WORDS_BYTES, max(0, size - _WORDS_BYTES))
        return text.decode(errors="replace").strip()

    def drop(self) -> None:
        """Lets go of what belonged to the process that is gone."""
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
        if self._last_words >= 0:
            os.close(self._last_words)
            self._last_words = -1
        self.state = DOWN

    def close(self) -> None:
        """Lets go of everything."""
        self.drop()
        self.go.close()
        self.words.release()
        self._page.close()
        os.close(self._file)
