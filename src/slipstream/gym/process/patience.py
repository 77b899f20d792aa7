"""How parent and worker wait for each other: they look for a while, then a bell wakes them."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class Bell:
    """A pipe. Ringing never blocks and is never lost.

    Linux takes a write into a pipe for a sign that who writes is about to sleep, as who rings is,
    and wakes who listens on the same core, where it need not wait for another one to stir. Of an
    eventfd it expects nothing, and puts two that are woken at once behind each other.

    Args:
        fds: (to hear, to ring) of a bell that was handed over; a new one unless given.
    """

    def __init__(self, fds: tuple[int, int] | None = None) -> None:
        if fds is None:
            fds = os.pipe()
            for fd in fds:
                os.set_blocking(fd, False)
        self.fds = fds

    def ring(self) -> None:
        """Wakes who listens now or later."""
        try:
            os.write(self.fds[1], b"!")
        except (BlockingIOError, BrokenPipeError):
            return  # it rings already; nobody is left

    def hush(self) -> None:
        """Ends the ringing."""
        try:
            while len(os.read(self.fds[0], _MOST)) == _MOST:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Once."""
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


_MOST = 4096


SPIN_SECONDS = 50e-6  # about what being woken costs
LOOK_MS = 50  # longest sleep between two looks at workers that say nothing
ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Writes of one core are seen in their order by the others."""
_LOCK = threading.Lock()
_LOOKS = 16  # between two looks at the clock


def spin_seconds(others: int, cores: int) -> float:
    """How long to look before sleeping, while so many others may be at work.

    Not at all where they need every core: who looks would take the time from who works. Nor where
    another core may see "done" before what was done.
    """
    return SPIN_SECONDS if ORDERED and others < cores else 0.0


def fence() -> None:
    """What was written before is seen by others before anything that is read after it.

    Two processes that each leave a note and then look for the other's need it, or both may miss it.
    """
    with _LOCK:  # a locked instruction, without a call of the system
        pass  # neither a signal's exception nor a finalizer comes before it is let go


def spin(ready: Callable[[], bool], seconds: float) -> bool:
    """Looks for so long whether something is ready."""
    if seconds <= 0.0:
        return ready()
    end = time.perf_counter() + seconds
    while True:
        for _ in range(_LOOKS):
            if ready():
                return True
        if time.perf_counter() > end:
            return False


def look_ms(hang_seconds: float) -> int:
    """Longest sleep between two looks at workers that say nothing."""
    return int(min(LOOK_MS, max(1.0, 250.0 * hang_seconds)))
