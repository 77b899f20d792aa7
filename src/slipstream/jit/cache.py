"""Cache of compiled code in the user's folder.

A module is a folder that is created atomically: it is filled under another name and then renamed. A
checksum file lists the hash of every file, and altered files are never loaded, that is executed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.core.errors import ResourceError
from slipstream.core.safe_io import UnreadableError, check_private, make_private_folder, read_bytes

log = logging.getLogger("slipstream")

_DAYS_KEPT = 90
_HOURS_UNFINISHED = 24  # age after which an unfinished folder is removed
_SEAL, _UNFINISHED, _LOCK = "seal.json", ".unfinished-", ".lock-"
_LOOKS_A_SECOND = 20
BUILD_TIMEOUT = 600.0  # far more than any module takes: a slower builder hangs
_HELD = (errno.EAGAIN, errno.EACCES)
_REMEMBERED = ("bench", "checked", "leases", "machine")  # folders beside the modules, never pruned


def cache_folder() -> Path:
    """Return `$SLIPSTREAM_CACHE`, else `~/.cache/slipstream`; created with mode 0700.

    Raises:
        ResourceError: another user owns it or may write it, and code is loaded from it.
    """
    try:
        folder = _wanted()
        make_private_folder(folder)
        if not os.access(folder, os.W_OK):
            check_private(folder)
            raise PermissionError(folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home folder
        user = getattr(os, "getuid", lambda: "user")()
        folder = Path(tempfile.gettempdir()) / f"slipstream-{user}"
        if folder.is_symlink():  # the parent folder is world-writable
            raise ResourceError(
                f"The cache folder {folder} is a link, possibly of another user; remove it, "
                "or set SLIPSTREAM_CACHE to another folder."
            ) from None
        folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder


def _wanted() -> Path:
    base = os.environ.get("SLIPSTREAM_CACHE")
    if base:
        return Path(base)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "slipstream"


def private_folder(name: str) -> Path:
    """Return a folder in the cache for data beside compiled code."""
    assert name in _REMEMBERED
    folder = cache_folder() / name
    try:
        make_private_folder(folder)
    except OSError as error:
        raise cannot_write(folder, error, "Cached data") from error
    return folder


class _Makers:
    """Build locks held by this process."""

    held = 0

    @classmethod
    def renew(cls) -> None:
        """Reset in a forked child, which inherits no locks."""
        cls.held = 0


os.register_at_fork(after_in_child=_Makers.renew)


@contextmanager
def build_lock(folder: Path, waits: bool = True) -> Iterator[bool]:
    """Let one process at a time build a module; check inside whether it exists by now.

    Yields true if this process holds the lock. Other processes wait until the builder is done or
    dead, at most `BUILD_TIMEOUT`, or not at all without `waits`. A process that is already building
    a module never waits, which prevents deadlocks. If locking is impossible, two processes may
    build the same module and the first one's is kept: only time depends on the lock.

    It is a record lock (fcntl): forked children do not inherit it.
    """
    path = folder.parent / f"{_LOCK}{folder.name}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # the disk is full or read-only
        yield False
        return
    try:
        patient = waits and not _Makers.held
        is_locked = _take(handle, folder.name, BUILD_TIMEOUT if patient else 0.0)
        _Makers.held += is_locked
        try:
            yield is_locked
        finally:
            if is_locked:
                _Makers.held -= 1
                path.unlink(missing_ok=True)  # waiting processes load or build the module
    finally:
        os.close(handle)


def _take(handle: int, name: str, patience: float) -> bool:
    """Acquire the lock of a module's file; return False if it is not available."""
    deadline, notified = time.monotonic() + patience, False
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _HELD or time.monotonic() > deadline:
                return False
        if not notified:
            log.info("another process is compiling %s: waiting for it", name)
            notified = True
        time.sleep(1.0 / _LOOKS_A_SECOND)


def _unfinished(pid: int) -> str:
    """Return the name prefix of folders that a process of this machine is filling."""
    return f"{_UNFINISHED}{os.uname().nodename}-{pid}-"


def remove_unfinished(pid: int) -> None:
    """Remove unfinished modules of a process of this machine that was ended while compiling."""
    for folder in cache_folder().glob(f"{_unfinished(pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to compile into; rename it to `folder`, with checksums, on success.

    If two processes build the same module (see `build_lock`), the first one's is kept.

    Raises:
        ResourceError: the folder cannot be written.
    """
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=_unfinished(os.getpid()), dir=folder.parent))
    except OSError as error:
        raise cannot_write(folder.parent, error) from error
    try:
        yield unfinished
        write_checksum(unfinished)
        os.rename(unfinished, folder)
    except OSError as error:
        if not is_intact(folder):  # otherwise another process was faster
            raise cannot_write(folder.parent, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_checksum(folder: Path) -> None:
    """Write the hashes of all files of a folder."""
    hashes = {name: _hash(folder / name) for name in _files(folder)}
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=_UNFINISHED)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(hashes, file, indent=0)
    os.replace(temporary, folder / _SEAL)


def is_intact(folder: Path) -> bool:
    """Return true if every file matches its checksum."""
    try:
        hashes = json.loads(read_bytes(folder / _SEAL))
        return bool(hashes) and all(_hash(folder / name) == was for name, was in hashes.items())
    except (OSError, UnreadableError, ValueError, AttributeError, TypeError):
        return False


def discard(folder: Path) -> None:
    """Remove a damaged module atomically.

    Raises:
        ResourceError: it cannot be moved.
    """
    try:
        grave = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
        os.rename(folder, grave / folder.name)
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        raise cannot_write(folder.parent, error) from error
    shutil.rmtree(grave, ignore_errors=True)


def _files(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != _SEAL)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _hash(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def cannot_write(folder: Path, error: OSError, what: str = "Compiled code") -> ResourceError:
    """Return the error for a full or read-only disk."""
    return ResourceError(
        f"{what} cannot be written to {folder}: {error.strerror or error}. Make room there, "
        "or set SLIPSTREAM_CACHE to a folder that can be written."
    )


def prune(folder: Path) -> None:
    """Remove compiled code that was not loaded for a long time, and unfinished modules."""
    now = time.time()
    for path in (*folder.glob("*/"), *folder.glob(f"{_LOCK}*")):
        if path.name in _REMEMBERED:
            continue
        brief = path.name.startswith((_UNFINISHED, _LOCK))
        kept = _HOURS_UNFINISHED * 3600 if brief else _DAYS_KEPT * 86400
        try:
            used = (path / _SEAL if (path / _SEAL).exists() else path).stat()
            if max(used.st_atime, used.st_ctime) > now - kept:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            continue  # another process was faster
