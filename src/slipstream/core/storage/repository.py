"""Find the commit of a folder's git repository without executing anything of the repository.

The settings of a repository can name programs that git runs (`core.fsmonitor`, hooks, filters,
external diffs), and a folder of prices may belong to such a repository. `git rev-parse` runs none
of them. `git status` would, so it gets an empty directory of ours as the repository and borrows
only the objects and the index.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.reader import is_there

_PATIENCE_SECONDS = 5.0
_SETTINGS = "[core]\n\trepositoryformatversion = {}\n\tbare = false\n\tfsmonitor = false\n"
_SHA256 = "[extensions]\n\tobjectformat = sha256\n"
_PATHS = ("--git-path", "index", "--git-path", "objects")
_SAFE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


def commit_words(found: Mapping[str, Any] | None) -> str:
    """What `describe` found, in words; empty where there is no commit."""
    found = found or {}
    return str(found.get("commit", "")) + ", with local changes" * bool(found.get("dirty"))


def describe(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository that holds `folder`, and whether files differ from it.

    The result is null without git or a commit. `dirty` is null if git cannot compare. Untracked
    files and submodules are ignored.
    """
    root = next((p for p in (folder, *folder.parents) if is_there(p / ".git")), None)
    # An explicit GIT_DIR makes git skip its check of who owns the repository.
    found = root and _git("rev-parse", *_PATHS, "HEAD", root=root)
    lines = (found or "").splitlines()
    if not root or len(lines) != 3:
        return None
    return {"commit": lines[2], "dirty": _differs(root, root / lines[0], root / lines[1], lines[2])}


def _differs(root: Path, index: Path, objects: Path, commit: str) -> bool | None:
    """Return whether tracked files differ from the commit; None if git cannot compare."""
    if not index.is_file():
        return None
    wide = len(commit) == 64
    with tempfile.TemporaryDirectory(prefix="slipstream-") as place:
        ours = Path(place)
        (ours / "refs").mkdir()
        (ours / "HEAD").write_text(commit + "\n")
        (ours / "config").write_text(_SETTINGS.format(int(wide)) + _SHA256 * wide)
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
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env={**kept, **_SAFE, "GIT_DIR": str(root / ".git"), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(done.stdout).strip()
