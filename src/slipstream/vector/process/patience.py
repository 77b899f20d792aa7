"""How a process waits for another one: it looks a while, then sleeps."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable

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
