"""A folder's lock: one process at a time writes there, until it lets go or dies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TextIO

from slipstream.core.errors import ConfigError

_FILE = ".lock"
_PATIENCE_SECONDS = 2.0  # the workers of a process that was just killed need a moment to follow it


def take_lock(folder: Path, refusal: str) -> TextIO | None:
    """Holds the folder's lock until the file that is returned is closed; None on Windows.

    Raises:
        ConfigError: `refusal`; another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    file = (folder / _FILE).open("a")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > deadline:
                file.close()
                raise ConfigError(refusal) from None
            time.sleep(0.05)


def is_locked(folder: Path) -> bool:
    """Whether some process holds the folder's lock now."""
    try:
        import fcntl
    except ImportError:
        return False
    path = folder / _FILE
    if not path.exists():
        return False
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
