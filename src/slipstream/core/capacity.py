"""Cores and memory available to this process, within the limits of its container."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60  # bytes; cgroup v1 reports no limit as a number near 2**63


def cpu_limit(root: Path = _ROOT) -> float | None:
    """Return the container's CPU limit in cores; None if unlimited."""
    with suppress(OSError, ValueError):
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        given = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if given <= 0 else given / int((root / "cpu" / "cpu.cfs_period_us").read_text())
    return None


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the container's memory limit in bytes; None if unlimited."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limit = int((root / name).read_text())  # "max" is no number
            return None if limit >= _UNLIMITED else limit
    return None


def total_memory(root: Path = _ROOT) -> int:
    """Return the bytes that this process may use: the machine's memory or the container's limit."""
    limit, physical = memory_limit(root), psutil.virtual_memory().total
    return int(physical if limit is None else min(physical, limit))


def free_memory(root: Path = _ROOT) -> int:
    """Return the free bytes of that memory. File caches count as free."""
    limit, free = memory_limit(root), psutil.virtual_memory().available
    return int(free if limit is None else max(0, min(free, limit - _taken(root))))


def _taken(root: Path) -> int:
    """Return the bytes used by processes of this container, without file caches."""
    for used, stat, cached in (
        ("memory.current", "memory.stat", ("inactive_file", "active_file")),
        (
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            ("total_inactive_file", "total_active_file"),
        ),
    ):
        with suppress(OSError, ValueError):
            taken = int((root / used).read_text())
            words = dict(line.split() for line in (root / stat).read_text().splitlines())
            return taken - sum(int(words.get(name, 0)) for name in cached)
    return 0


def usable_cores() -> int:
    """Return the number of physical cores that this process may use.

    Limited by CPU affinity and the container's CPU limit. Two threads of one core only take turns.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = usable or 1
    limit = cpu_limit()
    if limit is not None:
        usable = min(usable, int(limit))
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def process_memory(pid: int) -> float:
    """Return the memory of a process in bytes (PSS); 0 if the process has ended."""
    try:
        process = psutil.Process(pid)
        try:
            return float(process.memory_full_info().pss)
        except (AttributeError, psutil.AccessDenied):
            return float(process.memory_info().rss)
    except psutil.Error:
        return 0.0
