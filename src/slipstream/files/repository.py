"""Which commit a folder is at, without trusting the folder.

A repository's own settings can name programs that git runs (`core.fsmonitor`, hooks, filters,
external diffs), and somebody else's prices may lie in one. So its commit is read from its files,
and git is asked for differences only with a directory of ours in place of the repository's: empty
settings, no hooks, no remotes; nothing is borrowed but the commits and the index.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.reader import UnreadableError, content, is_there

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REFERENCE = re.compile(r"refs/[\w./@+-]+")
_LIMIT = 1 << 24  # bytes of a file of references
_PATIENCE_SECONDS = 5.0
_LINKS = 5  # from one reference to another
_SETTINGS = "[core]\n\trepositoryformatversion = {}\n\tbare = false\n\tfsmonitor = false\n"
_SHA256 = "[extensions]\n\tobjectformat = sha256\n"


def commit_words(found: Mapping[str, Any] | None) -> str:
    """What `describe` found, in words; empty where there is no commit."""
    found = found or {}
    return str(found.get("commit", "")) + ", with local changes" * bool(found.get("dirty"))


def describe(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository that holds `folder`, and whether files differ from it.

    `dirty` is null where that cannot be told. Untracked files and submodules are passed over.
    """
    for root in (folder, *folder.parents):
        if is_there(root / ".git"):
            break
    else:
        return None
    try:
        own = _git_folder(root)
        common = _pointed(own / "commondir", own) or own
        commit = _commit(own, common)
    except (OSError, UnreadableError, ValueError):
        return None
    if commit is None:
        return None
    return {"commit": commit, "dirty": _differs(root, own, common, commit)}


def _git_folder(root: Path) -> Path:
    """``.git`` itself, or where a file of that name points: work trees and submodules have one."""
    place = root / ".git"
    if place.is_dir():
        return place
    text = _text(place)
    if not text.startswith("gitdir:"):
        raise ValueError("no repository")
    return root / text.removeprefix("gitdir:").strip()


def _pointed(file: Path, base: Path) -> Path | None:
    """The folder that a file names, relative to `base`."""
    return base / _text(file) if is_there(file) else None


def _commit(own: Path, common: Path) -> str | None:
    """The hash that HEAD stands for; None before the first commit."""
    text = _text(own / "HEAD")
    for _ in range(_LINKS):
        if _HASH.fullmatch(text):
            return text
        name = text.removeprefix("ref:").strip()
        if not _REFERENCE.fullmatch(name) or ".." in name:
            return None
        loose = next((f / name for f in (own, common) if is_there(f / name)), None)
        text = _text(loose) if loose is not None else _packed(common, name)
    return None


def _packed(common: Path, name: str) -> str:
    file = common / "packed-refs"
    if is_there(file):
        for line in _text(file).splitlines():
            commit, _, reference = line.partition(" ")
            if reference == name:
                return commit
    return ""


def _text(path: Path) -> str:
    return content(path, _LIMIT).decode("utf-8", "surrogateescape").strip()


def _differs(root: Path, own: Path, common: Path, commit: str) -> bool | None:
    """Whether tracked files differ from the commit; None where git cannot tell."""
    if not (own / "index").is_file():
        return None
    wide = len(commit) == 64
    with tempfile.TemporaryDirectory(prefix="slipstream-") as place:
        ours = Path(place)
        (ours / "refs").mkdir()
        (ours / "HEAD").write_text(commit + "\n")
        (ours / "config").write_text(_SETTINGS.format(int(wide)) + (_SHA256 if wide else ""))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environment = {
            **kept,
            "GIT_DIR": str(ours),
            "GIT_WORK_TREE": str(root),
            "GIT_INDEX_FILE": str(own / "index"),
            "GIT_OBJECT_DIRECTORY": str(common / "objects"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }
        command = [
            "git",
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--ignore-submodules=all",
        ]
        try:
            done = subprocess.run(
                command,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
    return bool(done.stdout.strip())
