"""Where a run came from: command, code, libraries and machine, for whoever must trust it later."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

LIBRARIES = (
    "slipstream",
    "torch",
    "numba",
    "numpy",
    "gymnasium",
    "polars",
    "TA-Lib",
    "pydantic",
    "safetensors",
)


def describe() -> dict[str, Any]:
    """Everything that is known before the environment is loaded."""
    return {
        "command": shlex.join(sys.argv),
        "folder": str(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": {"folder": git(Path.cwd()), "slipstream": git(Path(__file__).parent)},
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str | None]:
    """Versions of the libraries that decide numbers; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory, graphics cards and operating system."""
    return {
        "processor": processor(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def processor() -> str:
    """Model name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """NVIDIA cards by name and memory; empty where there is no card or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no card: all mean the same here
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            name = pynvml.nvmlDeviceGetName(handle)
            found.append({"name": str(name), "memory_gib": round(float(memory) / 2**30, 1)})
        return found
    except Exception:
        return []
    finally:
        pynvml.nvmlShutdown()


def git(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository that holds `folder`, and whether files differ from it."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)}


def source_hash(path: Path) -> str:
    """sha256 of a kernel's source file, short enough to read aloud."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
