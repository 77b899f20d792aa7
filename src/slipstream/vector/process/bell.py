"""What wakes a sleeping process."""

from __future__ import annotations

import os
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
