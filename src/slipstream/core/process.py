"""Processes that work for another one: what they ignore, whom they follow, how they ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a training to stop: the one that was started by people decides, and checkpoints."""

_PR_SET_PDEATHSIG = 1  # Linux: what a process gets when the one that forked it is gone


def die_with(parent: int) -> None:
    """Asks the system to kill this process when the thread that forked it ends, however it ends.

    Elsewhere than on Linux a child notices the end of its pipe.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def ending(code: int | None) -> str:
    """How a process ended, by its exit code; to stand behind its name."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    how = f"was killed by {signal.Signals(-code).name}"
    return how + (" (out of memory?)" if -code == signal.SIGKILL else "")
