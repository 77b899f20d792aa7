"""A folder's lock: one process at a time writes there, until it lets go or dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import TextIO

from slipstream.core.errors import BusyError
from slipstream.core.reader import is_there
from slipstream.core.storage.files import disk_errors

LOCK = ".lock"
_PATIENCE_SECONDS = 10.0  # the workers of a process that was just killed need a moment to follow it
_HELD = (errno.EAGAIN, errno.EACCES)


def take_lock(
    folder: Path, refusal: str, patience: float | None = None, name: str = LOCK
) -> TextIO:
    """Holds the folder's lock until the file that is returned is closed.

    On a file system without locks nothing is held, and the file is returned all the same.

    Args:
        folder: to write in.
        refusal: what to say of another process that holds it.
        patience: seconds to wait for that one; ten unless given.
        name: of the lock's file.

    Raises:
        BusyError: `refusal`; another process holds it.
        ResourceError: the folder may not be written.
    """
    file = _open(folder / name, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + (_PATIENCE_SECONDS if patience is None else patience)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError as error:
            if error.errno not in _HELD:
                return file
            if time.monotonic() > deadline:
                file.close()
                raise BusyError(refusal) from None
            time.sleep(0.05)


def is_locked(folder: Path) -> bool:
    """Whether some process holds the folder's lock now."""
    return is_held(folder / LOCK)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock of this file now."""
    if not is_there(path):
        return False
    with _open(path, os.O_RDONLY) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # who asks beside this is no holder
        except OSError as error:
            return error.errno in _HELD
    return False


def _open(path: Path, flags: int) -> TextIO:
    """Without waiting for anybody, whatever lies there."""
    with disk_errors(path):
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
        return os.fdopen(handle, "r")
