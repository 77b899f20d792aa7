"""The user's own folder of compiled code.

A module is a folder in it that appears whole: it is filled under another name and then renamed.
Its seal lists the hash of every file, and nothing is loaded (which is to say, run) that differs.
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
_HOURS_UNFINISHED = 24  # after which a folder that was being filled belongs to a process long gone
_SEAL, _UNFINISHED, _LOCK = "seal.json", ".unfinished-", ".lock-"
_LOOKS_A_SECOND = 20
BUILD_TIMEOUT = 600.0  # far more than any module takes: who is so slow has been stopped
_HELD = (errno.EAGAIN, errno.EACCES)
_REMEMBERED = ("bench", "checked", "leases", "machine")  # folders beside the modules, never swept


def cache_folder() -> Path:
    """`$SLIPSTREAM_CACHE`, else `~/.cache/slipstream`; made with mode 0700.

    Raises:
        ResourceError: somebody else owns or may write it, and it holds code that runs.
    """
    try:
        folder = _wanted()
        make_private_folder(folder)
        if not os.access(folder, os.W_OK):
            check_private(folder)
            raise PermissionError(folder)
    except (OSError, RuntimeError):  # the latter of a user without a home
        user = getattr(os, "getuid", lambda: "user")()
        folder = Path(tempfile.gettempdir()) / f"slipstream-{user}"
        if folder.is_symlink():  # anybody may write there: it could lead anywhere
            raise ResourceError(
                f"The cache folder {folder} is a link that somebody may have planted; remove it, "
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
    """A folder of that name in the cache, for what is remembered beside compiled code."""
    assert name in _REMEMBERED
    folder = cache_folder() / name
    try:
        make_private_folder(folder)
    except OSError as error:
        raise cannot_write(folder, error, "What slipstream remembers") from error
    return folder


class _Makers:
    """Locks of modules that this process is making."""

    held = 0

    @classmethod
    def renew(cls) -> None:
        """In a forked child, to which no lock of its parent belongs."""
        cls.held = 0


os.register_at_fork(after_in_child=_Makers.renew)


@contextmanager
def build_lock(folder: Path, waits: bool = True) -> Iterator[bool]:
    """Lets one process at a time make a module; look once more whether it is there, inside.

    The block is told whether this process is the one; without `waits`, another one may be.

    Others wait until the maker is done or dead, at most `BUILD_TIMEOUT`. Nobody waits who makes
    a module already, so that no two wait for each other. Where there can be no lock, two processes
    make the same module, of which the first one's is kept: nothing but time depends on the lock.

    It is a record lock (fcntl): a child that is forked meanwhile has no share in it.
    """
    path = folder.parent / f"{_LOCK}{folder.name}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # a full disk, or one that may not be written
        yield False
        return
    try:
        patient = waits and not _Makers.held
        own = _take(handle, folder.name, BUILD_TIMEOUT if patient else 0.0)
        _Makers.held += own
        try:
            yield own
        finally:
            if own:
                _Makers.held -= 1
                path.unlink(missing_ok=True)  # who waits on it finds the module, or makes it
    finally:
        os.close(handle)


def _take(handle: int, name: str, patience: float) -> bool:
    """Takes the lock of a module's file; False: it cannot be had."""
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _HELD or time.monotonic() > deadline:
                return False
        if not told:
            log.info("another process is compiling %s: waiting for it", name)
            told = True
        time.sleep(1.0 / _LOOKS_A_SECOND)


def _unfinished(pid: int) -> str:
    """How folders are called that a process of this machine is staged_folder."""
    return f"{_UNFINISHED}{os.uname().nodename}-{pid}-"


def remove_unfinished(pid: int) -> None:
    """Takes away what a process of this machine left that was ended while it compiled."""
    for folder in cache_folder().glob(f"{_unfinished(pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A new folder to compile into, which becomes `folder`, sealed, when the block ends well.

    Where two processes make the same module at once (see `build_lock`), the first one's is kept.

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
        if not is_intact(folder):  # else another process was faster
            raise cannot_write(folder.parent, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_checksum(folder: Path) -> None:
    """Writes down the hash of every file that is there now."""
    hashes = {name: _hash(folder / name) for name in _files(folder)}
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=_UNFINISHED)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(hashes, file, indent=0)
    os.replace(temporary, folder / _SEAL)


def is_intact(folder: Path) -> bool:
    """Whether every file is what was sealed."""
    try:
        hashes = json.loads(read_bytes(folder / _SEAL))
        return bool(hashes) and all(_hash(folder / name) == was for name, was in hashes.items())
    except (OSError, UnreadableError, ValueError, AttributeError, TypeError):
        return False


def discard(folder: Path) -> None:
    """Takes a damaged module away, at once for everybody.

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
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != _SEAL)
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _hash(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def cannot_write(folder: Path, error: OSError, what: str = "Compiled code") -> ResourceError:
    """What to tell a user whose disk is full or read-only."""
    return ResourceError(
        f"{what} cannot be written to {folder}: {error.strerror or error}. Make room there, "
        "or set SLIPSTREAM_CACHE to a folder that can be written."
    )


def prune(folder: Path) -> None:
    """Forgets compiled code that nobody has loaded for a long time, and what was never finished."""
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
