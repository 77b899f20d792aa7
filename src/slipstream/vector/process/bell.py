"""What wakes a sleeping process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


class Bell:
    """An eventfd; a pipe where the system has none. Ringing never blocks and is never lost.

    Args:
        fds: (to hear, to ring) of a bell that was handed over; a new one unless given.
    """

    def __init__(self, fds: tuple[int, int] | None = None) -> None:
        if fds is None and hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            fds = (fd, fd)
        elif fds is None:
            fds = os.pipe()
            for fd in fds:
                os.set_blocking(fd, False)
        self.fds = fds

    def ring(self) -> None:
        """Wakes who listens now or later."""
        try:
            os.write(self.fds[1], _ONE)
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
        for fd in set(self.fds):
            with suppress(OSError):
                os.close(fd)


_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd adds
_MOST = 4096
