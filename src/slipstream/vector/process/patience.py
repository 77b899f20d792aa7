"""How a process waits for another one: it looks a while, then sleeps."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

SPIN_SECONDS = 50e-6  # about what being woken costs
_ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Writes of one core are seen in their order by the others."""
_LOOKS = 16  # between two looks at the clock


def spin_seconds(workers: int, cores: int) -> float:
    """How long to look before sleeping.

    Not at all where the workers and the process that orders them do not have a core each: who
    looks would take the time from who works. Nor where another core may see "done" before what
    was done.
    """
    return SPIN_SECONDS if _ORDERED and workers < cores else 0.0


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
