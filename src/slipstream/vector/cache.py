"""The user's own folder of compiled code."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

from slipstream.core.errors import ResourceError

_DAYS_KEPT = 90


def cache_folder() -> Path:
    """`$SLIPSTREAM_CACHE`, else `~/.cache/slipstream`; made with mode 0700.

    Raises:
        ResourceError: somebody else owns or may write it, and it holds code that runs.
    """
    base = os.environ.get("SLIPSTREAM_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(base) if base else home / "slipstream"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        user = getattr(os, "getuid", lambda: "user")()
        folder = Path(tempfile.gettempdir()) / f"slipstream-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix":
        facts = folder.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
            raise ResourceError(
                f"The cache folder {folder} must belong to you and be writable by you alone, "
                f"because compiled code is loaded from it; run `chmod 700 {folder}` or set "
                "SLIPSTREAM_CACHE to another folder."
            )
    return folder


def write_module(path: Path, text: str) -> None:
    """Two processes may write the same module at once: each writes its own file and moves it.

    Raises:
        ResourceError: the folder cannot be written.
    """
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # Numba's index compares the stamp; the name already says the content.
        os.utime(temporary, (1e9, 1e9))
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise cannot_write(path.parent, error) from error


def cannot_write(folder: Path, error: OSError) -> ResourceError:
    """What to tell a user whose disk is full or read-only."""
    return ResourceError(
        f"Compiled code cannot be written to {folder}: {error.strerror or error}. Make room there, "
        "or set SLIPSTREAM_CACHE to a folder that can be written."
    )


def sweep(folder: Path) -> None:
    """Forgets compiled code that nobody has loaded for a long time."""
    oldest = time.time() - _DAYS_KEPT * 86_400
    for path in (*folder.glob("*.py"), *folder.glob("__pycache__/*")):
        try:
            used = path.stat()
            if max(used.st_atime, used.st_ctime) < oldest:
                path.unlink()
        except OSError:
            continue  # another process was faster
