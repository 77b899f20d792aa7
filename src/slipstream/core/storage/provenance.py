"""Provenance of a run: command, code, libraries and machine.

The commit of a git repository is read without executing anything of the repository. Its settings
can name programs that git runs (`core.fsmonitor`, hooks, filters, external diffs), and a folder of
prices may belong to such a repository. `git rev-parse` runs none of them. `git status` would, so it
gets an empty directory of ours as the repository and borrows only the objects and the index.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.capacity import total_memory
from slipstream.core.plugins import plugin_versions
from slipstream.core.safe_io import path_exists
from slipstream.core.storage.resource_monitor import Gpus

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

_GIT_SECONDS = 5.0
_GIT_SETTINGS = "[core]\n\trepositoryformatversion = {}\n\tbare = false\n\tfsmonitor = false\n"
_GIT_SHA256 = "[extensions]\n\tobjectformat = sha256\n"
_GIT_PATHS = ("--git-path", "index", "--git-path", "objects")
_GIT_VARIABLES = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


def describe() -> dict[str, Any]:
    """Return all provenance that is known before the environment is loaded."""
    return {
        "id": uuid.uuid4().hex,
        "command": shlex.join(sys.argv),
        "folder": str(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": {
            "folder": describe_commit(Path.cwd()),
            "slipstream": describe_commit(Path(__file__).absolute().parent),
        },
        "versions": versions(),
        "plugins": plugin_versions(),
        "machine": machine_info(),
    }


def versions() -> dict[str, str | None]:
    """Return versions of the libraries that affect results; optional ones only if installed."""
    libraries: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in ("torch", "cmaes", "scipy"):
                libraries[name] = None
    return libraries


def machine_info() -> dict[str, Any]:
    """Return CPU, cores, memory, GPUs and operating system."""
    return {
        "processor": cpu_model(),
        "instruction_sets": instruction_sets(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": os.cpu_count(),
        "memory_gib": round(total_memory() / 2**30, 1),
        "gpus": Gpus().describe(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cpu_model() -> str:
    """Return the model name of the CPU."""
    return _cpu_facts("model name") or platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Return the instruction sets that compiled code depends on; empty if unknown."""
    known = set(_cpu_facts("flags", "Features").split())
    return [name for name in _INSTRUCTION_SETS if name in known]


def _cpu_facts(*names: str) -> str:
    """Return the first value in /proc/cpuinfo with one of these names."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def reproducibility_warning(before: Mapping[str, Any], what: str, libraries: Sequence[str]) -> str:
    """Return a warning if results may no longer be bit-identical on this machine.

    Args:
        before: `provenance.json`, as `describe` returned it.
        what: the run or study.
        libraries: libraries whose versions affect its results.

    Returns:
        The warning; empty if nothing has changed.
    """
    current, recorded = versions(), before.get("versions") or {}
    changed = [
        f"{name} was {recorded[name]} and is {current.get(name)}"
        for name in libraries
        if recorded.get(name) is not None and recorded[name] != current.get(name)
    ]
    old = ((before.get("git") or {}).get("slipstream") or {}).get("commit")
    new = (describe_commit(Path(__file__).absolute().parent) or {}).get("commit")
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


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ between two descriptions of an environment; sources by file."""
    changed = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if key == "sources" and isinstance(old, Mapping) and isinstance(new, Mapping):
            changed += [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        elif old != new:
            changed.append(key)
    return changed


def commit_text(commit: Mapping[str, Any] | None) -> str:
    """Format the result of `describe_commit`; empty without a commit."""
    commit = commit or {}
    return str(commit.get("commit", "")) + ", with local changes" * bool(commit.get("dirty"))


def describe_commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository that holds `folder`, and whether files differ from it.

    The result is null without git or a commit. `dirty` is null if git cannot compare. Untracked
    files and submodules are ignored.
    """
    root = next((p for p in (folder, *folder.parents) if path_exists(p / ".git")), None)
    # An explicit GIT_DIR makes git skip its check of who owns the repository.
    output = root and _git("rev-parse", *_GIT_PATHS, "HEAD", root=root)
    lines = (output or "").splitlines()
    if not root or len(lines) != 3:
        return None
    return {"commit": lines[2], "dirty": _differs(root, root / lines[0], root / lines[1], lines[2])}


def _differs(root: Path, index: Path, objects: Path, commit: str) -> bool | None:
    """Return true if tracked files differ from the commit; None if git cannot compare."""
    if not index.is_file():
        return None
    wide = len(commit) == 64
    with tempfile.TemporaryDirectory(prefix="slipstream-") as place:
        ours = Path(place)
        (ours / "refs").mkdir()
        (ours / "HEAD").write_text(commit + "\n")
        (ours / "config").write_text(_GIT_SETTINGS.format(int(wide)) + _GIT_SHA256 * wide)
        changed = _git(
            *("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"),
            root=root,
            GIT_DIR=place,
            GIT_WORK_TREE=str(root),
            GIT_INDEX_FILE=str(index),
            GIT_OBJECT_DIRECTORY=str(objects),
        )
    return None if changed is None else bool(changed)


def _git(*arguments: str, root: Path, **variables: str) -> str | None:
    """Return the output of git, independent of the user's settings; None if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env={**environment, **_GIT_VARIABLES, "GIT_DIR": str(root / ".git"), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(done.stdout).strip()
