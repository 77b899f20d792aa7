"""Processor cores."""

from __future__ import annotations

import os

import psutil


def usable_cores() -> int:
    """Physical cores this process may use: two threads on one core only take turns."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = usable or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
