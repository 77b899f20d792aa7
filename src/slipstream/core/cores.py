"""Processor cores."""

from __future__ import annotations

import os

import psutil

from slipstream.core.cgroup import cpu_limit


def usable_cores() -> int:
    """Physical cores this process may use: two threads on one core only take turns.

    As many as its affinity and its container's share of time allow.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = usable or 1
    limit = cpu_limit()
    if limit is not None:
        usable = min(usable, int(limit))
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
