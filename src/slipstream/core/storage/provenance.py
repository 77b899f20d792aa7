"""Where a run came from: command, code, libraries and machine, for whoever must trust it later."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.capacity import total_memory
from slipstream.core.storage import repository
from slipstream.core.storage.machine import Cards

LIBRARIES = (
    "slipstream",
    "torch",
    "numba",
    "numpy",
    "scipy",
    "optuna",
    "cmaes",
    "gymnasium",
    "polars",
    "TA-Lib",
    "pydantic",
    "safetensors",
)

_INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"),
    *("asimd", "sve"),
)


def describe() -> dict[str, Any]:
    """Everything that is known before the environment is loaded."""
    return {
        "id": uuid.uuid4().hex,
        "command": shlex.join(sys.argv),
        "folder": str(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": {
            "folder": repository.describe(Path.cwd()),
            "slipstream": repository.describe(Path(__file__).absolute().parent),
        },
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str | None]:
    """Versions of the libraries that decide numbers; optional ones only where installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in ("torch", "cmaes", "scipy"):
                found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory, graphics cards and operating system."""
    return {
        "processor": processor(),
        "instruction_sets": instruction_sets(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": os.cpu_count(),
        "memory_gib": round(total_memory() / 2**30, 1),
        "gpus": Cards().describe(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def processor() -> str:
    """Model name of the processor."""
    try:
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Names of those that compiled loops and products choose by; empty where nobody tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    known = set(flags.partition(":")[2].split())
    return [name for name in _INSTRUCTION_SETS if name in known]


def other_bits(before: Mapping[str, Any], what: str, libraries: Sequence[str]) -> str:
    """A sentence where this machine or its libraries may give other bits than at the beginning.

    Args:
        before: `provenance.json`, as `describe` made it.
        what: the run or study.
        libraries: by whose versions its numbers are decided.

    Returns:
        The sentence; empty where nothing that is known differs.
    """
    here, told = versions(), before.get("versions") or {}
    changed = [
        f"{name} was {told[name]} and is {here.get(name)}"
        for name in libraries
        if told.get(name) is not None and told[name] != here.get(name)
    ]
    old = ((before.get("git") or {}).get("slipstream") or {}).get("commit")
    new = (repository.describe(Path(__file__).absolute().parent) or {}).get("commit")
    if old and new and old != new:
        changed.append(f"slipstream's commit was {old[:9]} and is {new[:9]}")
    had, have = (before.get("machine") or {}).get("instruction_sets"), instruction_sets()
    if had is not None and set(had) != set(have):
        changed.append(f"instruction sets differ ({', '.join(sorted(set(had) ^ set(have)))})")
    if not changed:
        return ""
    return (
        f"Since {what} began: {'; '.join(changed)}. From here its last bits may differ from those "
        "of one that was never stopped."
    )


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two descriptions of an environment; sources by their names."""
    changed = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if key == "sources" and isinstance(old, Mapping) and isinstance(new, Mapping):
            changed += [one for one in sorted({*old, *new}) if old.get(one) != new.get(one)]
        elif old != new:
            changed.append(key)
    return changed
