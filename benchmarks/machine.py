"""Description of the machine that a figure was measured on, and its load by other processes."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.storage import provenance

# Constants of prctl(2), from <linux/prctl.h>.
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37

LIBRARIES = (
    *("slipstream", "numba", "numpy", "torch", "gymnasium"),
    *("stable-baselines3", "envpool", "gym-anytrading", "optuna", "elegantrl", "rlox"),
)


def stamp() -> dict[str, Any]:
    """Return the provenance of a result: commit, machine, day and versions."""
    machine = {**describe(), "date": time.strftime("%Y-%m-%d")}
    return {"commit": commit(), "machine": machine, "versions": versions()}


def describe() -> dict[str, Any]:
    """Return the CPU, cores, memory and operating system."""
    return {
        "processor": provenance.cpu_model(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """Return the commit of this code, followed by ``-dirty`` if sources differ from it.

    Return None outside a checkout. The checkout is that of this file, not of the working directory.
    """

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "HEAD").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", "--", ":/src", ":/benchmarks").returncode == 1
    except OSError:  # git is not installed
        return None
    return f"{head}{'-dirty' * changed}" if head else None


def versions() -> dict[str, str | None]:
    """Return the versions of slipstream and its peers; None for packages that are not installed."""
    installed: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = None
    return installed


def threads() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def best_threads(rate: Callable[[int], float]) -> int:
    """Return one thread or one a core, whichever reaches the higher rate."""
    choices = sorted({1, threads()})
    return choices[0] if len(choices) == 1 else max(choices, key=rate)


class Neighbours:
    """Measure the share of the machine that processes other than ours used.

    Use as a context manager; `share` and `own` are set on exit. Ours are this process and its
    descendants, finished ones and orphans included, such as the environments of a fork server
    that outlives its parent. On Linux this process adopts orphans during the measurement; on
    other systems they count as other processes.

    Attributes:
        share: share of all CPUs used by other processes, 0 to 1.
        own: CPU seconds of this process and its descendants.
    """

    share: float = 0.0
    own: float = 0.0

    def __enter__(self) -> Neighbours:
        self._adopted = _adopt_orphans(True)
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        self.own = _own_seconds() - self._own
        others = (_busy_seconds() - self._busy) - self.own
        share = others / (seconds * (os.cpu_count() or 1))
        self.share = round(min(1.0, max(0.0, share)), 3)
        _adopt_orphans(self._adopted)


def _adopt_orphans(adopt: bool) -> bool:
    """Set if orphaned descendants become children of this process; return the previous setting."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    before = ctypes.c_int(0)
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def _busy_seconds() -> float:
    """Return the CPU seconds used by all processes since the machine started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux includes the time of guests in user and nice.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle - guests)


def _own_seconds() -> float:
    """Return the CPU seconds of this process, its finished children and its living ones."""
    process = psutil.Process()
    times = process.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # ended since the listing; counts as finished from now on
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return float(total)
