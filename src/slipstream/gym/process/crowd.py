"""Worker processes, with work and without: started, lent to environments, taken back, ended."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

from slipstream.core.process import not_started
from slipstream.gym.process.launcher import Launcher
from slipstream.gym.process.link import DOWN, IDLE, UP, Link
from slipstream.gym.process.worker import LEAVE, REST

_LEAVE_SECONDS = 2.0


class Crowd:
    """Worker processes of one way to start them.

    Args:
        method: "forkserver" or "spawn".
        kept: processes without work that are kept for the next environment; they have imported
            what the last one needed.
    """

    def __init__(self, method: str = "forkserver", kept: int = 0) -> None:
        self._launcher = Launcher(method)
        self.kept = kept
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._users = 0
        self._lock = threading.RLock()

    def take(self) -> Link:
        """A worker without a job: one that is there, or the place of one to be started."""
        with self._lock:
            while self._idle:
                link = self._idle.pop()
                if link.pipe is not None and not link.pipe.poll(0):  # else it has ended
                    break
                self._bury(link)
            else:
                link = Link()
            self._busy.add(link)
            return link

    def start(self, link: Link) -> None:
        """Starts a process for a worker that has none.

        Raises:
            ResourceError: the system allows no more processes, open files or memory.
        """
        with self._lock:
            try:
                link.start(self._launcher)
            except OSError as error:
                raise not_started(error, "give fewer workers") from error

    def ending(self, link: Link) -> str:
        """How a worker ended that is gone or was killed."""
        with self._lock:
            return self._launcher.ending(link.pid)

    def give_back(self, links: list[Link]) -> None:
        """Takes workers back: all are asked to close their copies; some are kept, none is left."""
        wanted = self.kept - len(self._idle)
        staying = [link for link in links if link.state == UP][: max(0, wanted)]
        try:
            for link in links:
                if link.state == UP:
                    link.order(REST if link in staying else LEAVE)
            until = time.monotonic() + _LEAVE_SECONDS
            for link in links:
                if link.state == UP and link.pipe is not None and _rested(link, until):
                    link.state = IDLE
        finally:
            with self._lock:
                for link in links:
                    self._busy.discard(link)
                    if link.state == IDLE and link in staying:
                        self._idle.append(link)
                    else:
                        self._bury(link)
                links.clear()

    def _bury(self, link: Link) -> None:
        if link.pipe is not None:
            link.kill(signal.SIGKILL)
            self._launcher.ending(link.pid)
        link.state = DOWN
        link.close()

    def claim(self, copies: int, name: str) -> None:
        """Told before copies are made; a pool with a budget may refuse."""

    def started(self, copies: int, name: str, pids: list[int]) -> None:
        """Told when copies were made by these processes."""

    def release(self, copies: int) -> None:
        """Told when copies are closed."""

    @property
    def all_pids(self) -> list[int]:
        """Numbers of all its processes."""
        with self._lock:
            return [link.pid for link in (*self._busy, *self._idle) if link.pipe is not None]

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes without work."""
        return [link.pid for link in self._idle]

    def close(self) -> None:
        """Ends the processes without work, and who starts them."""
        self.give_back([])
        with self._lock:
            idle, self._idle = self._idle, []
            for link in idle:
                self._bury(link)
            self._launcher.close()


def _rested(link: Link, until: float) -> bool:
    """Waits for a worker that was asked to rest or leave; whether it rests."""
    assert link.pipe is not None
    with suppress(EOFError, OSError):
        while link.pipe.poll(max(0.0, until - time.monotonic())):
            if link.pipe.recv()[0] == "resting":
                return True
    return False
