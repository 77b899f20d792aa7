"""Atomic file output: every artefact of a run is written by this module.

There are exactly three ways to write: `write_bytes` replaces a file, `atomic_folder` a folder, and
`AppendOnlyFile` appends. Each documents its durability after a power cut. Durable files are never
written through a shared memory map, whose write-back order is undefined. `acquire_lock` gives one
process at a time write access to a folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil

from slipstream.core.errors import BusyError, ResourceError
from slipstream.core.safe_io import HASH_KEY, path_exists, payload_hash, regular_file

_INTACT = "What was written before it is intact; "
_FULL = "The disk is full: {path} could not be written. " + _INTACT
_REMEDIES = {  # by errno; {path} is the file being written
    errno.ENOSPC: _FULL + "free some space on that disk and resume.",
    errno.EDQUOT: "Your share of the disk is used up: {path} could not be written. "
    + _INTACT
    + "free some of it and resume.",
    errno.EFBIG: "{path} could not be written: it would be larger than files may be here (see "
    "`ulimit -f`). " + _INTACT + "raise the limit and resume.",
    errno.EMFILE: "{path} could not be opened: this process has as many files open as it may (see "
    "`ulimit -n`). Raise the limit, or use fewer shards or workers.",
    errno.ENFILE: "{path} could not be opened: this machine has as many files open as it may. End "
    "other programs, or use fewer shards or workers.",
    errno.EIO: "{path} could not be written: the disk reports an error ({reason}). "
    + _INTACT
    + "copy it elsewhere and resume there.",
}
_OTHER = "{path} may not be written ({reason}); choose another folder, or fix its permissions."
_PARTIAL = ".partial"
LOCK = ".lock"
_PATIENCE_SECONDS = 10.0  # workers of a killed process take a moment to end
_HELD = (errno.EAGAIN, errno.EACCES)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert OS errors of writing into a `ResourceError` with the file name."""
    try:
        yield
    except BrokenPipeError:  # of a pipe or socket, not of a disk
        raise
    except OSError as error:
        sentence = _REMEDIES.get(error.errno or 0, _OTHER)
        reason = error.strerror or str(error)
        raise ResourceError(sentence.format(path=path, reason=reason)) from error
    except ValueError as error:
        if "embedded null" not in str(error):  # in a name; other errors are bugs
            raise
        raise ResourceError(_OTHER.format(path=repr(str(path)), reason=error)) from error


def write_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace `path` by `content` atomically: a crash leaves the old bytes or the new ones.

    This is the only place where a file is renamed over another. The bytes are on disk before the
    rename, and the rename is on disk before this returns: a power cut leaves the old file or the
    new one, and later ones keep the new file. This costs two waits for the disk.

    Args:
        path: of the file; its folder exists, see `make_folder`.
        content: all bytes.
        durable: False skips waiting for the disk, for files that only live processes read
            (`status.json`), or whose damage is detected and repaired to the same bits (states of a
            study's running members). A kill still leaves the old or the new file.
    """
    with disk_errors(path):
        handle, name = tempfile.mkstemp(_PARTIAL, _prefix(path), path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_UMASK)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            fsync_folder(path.parent)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Call `write_bytes` with UTF-8 text; file names that are not UTF-8 are escaped."""
    write_bytes(path, text.encode(errors="backslashreplace"), durable)


def write_json(path: Path, values: Mapping[str, Any], durable: bool = True) -> None:
    """Write indented JSON; NaN and infinity become null, so that any reader accepts it."""
    write_text(path, json.dumps(to_jsonable(values), indent=2, allow_nan=False) + "\n", durable)


def write_hashed(path: Path, values: Mapping[str, Any], durable: bool = True) -> None:
    """Write JSON with a hash of the values, which `read_json` verifies."""
    facts = to_jsonable(values)
    write_json(path, {**facts, HASH_KEY: payload_hash(facts)}, durable)


@contextmanager
def atomic_folder(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """Create a folder that gets its name only after the body has filled it without an error.

    Yields a hidden folder beside it. All files in it are on disk before the rename, however the
    body wrote them, and the rename is on disk before this returns. An existing `path` is replaced:
    for an instant it is absent, but never half written. The replaced folder becomes `keep`, or is
    deleted.
    """
    with disk_errors(path):
        make_folder(path.parent)
        temporary = Path(tempfile.mkdtemp(_PARTIAL, _prefix(path), path.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_UMASK)
            for file in temporary.iterdir():
                _sync(file)
            fsync_folder(temporary)
            if path.exists():
                old = keep or temporary.with_name(f"{_prefix(path)}old{_PARTIAL}")
                shutil.rmtree(old, ignore_errors=True)
                os.replace(path, old)
                os.replace(temporary, path)
                if keep is None:
                    shutil.rmtree(old, ignore_errors=True)
            else:
                os.replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        fsync_folder(path.parent)


def remove_partials(*folders: Path) -> None:
    """Remove partial files of killed processes; those of running processes are kept."""
    for folder in folders:
        for leftover in folder.glob(f".*{_PARTIAL}"):
            writer = leftover.name.removesuffix(_PARTIAL).rsplit("-", 2)[-2:-1]
            number = int(writer[0]) if writer and writer[0].isdigit() else 0
            if number not in (0, os.getpid()) and psutil.pid_exists(number):
                continue
            remove(leftover)


def is_at_least_as_new(path: Path, other: Path) -> bool:
    """Return true if a file exists that is not older than another one."""
    try:
        return path.stat().st_mtime_ns >= other.stat().st_mtime_ns
    except OSError:
        return False


def is_partial(path: Path) -> bool:
    """Return true if a name is that of an unfinished file or folder."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def remove(path: Path) -> None:
    """Delete a file or a folder if possible."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    """Return a hidden prefix with the process id, which `remove_partials` reads."""
    return f".{path.name[:80]}-{os.getpid()}-"


class AppendOnlyFile:
    """Append-only file, unbuffered, so that a full disk is detected by the write that hits it.

    Data survive a kill immediately, and a power cut after the next `sync`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._named = False  # true once the name is on disk
        with disk_errors(path):  # opening a pipe without a reader fails at once
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
            self._file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
            if stat.S_ISFIFO(os.fstat(self._file.fileno()).st_mode):  # a pipe with a reader
                self._file.close()
                raise OSError(errno.EINVAL, "It is a named pipe, not a file", str(path))

    def write(self, content: bytes) -> None:
        """Append all of `content`.

        Raises:
            ResourceError: the disk is full; a part may have been written.
        """
        left = memoryview(content)
        with disk_errors(self.path):
            while left:
                left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Wait until all written data are on disk.

        Raises:
            ResourceError: the disk is full, or reports an error.
        """
        with disk_errors(self.path):
            os.fsync(self._file.fileno())
            if not self._named:
                fsync_folder(self.path.parent)
                self._named = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its missing parents durably.

    Args:
        path: of the folder; an existing one is unchanged.
        private: use mode 0700, independent of the umask.

    Raises:
        ResourceError: it cannot be created, or the name is taken by a file.
    """
    with disk_errors(path):
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
        if private and path in missing:
            path.chmod(0o700)
    for parent in missing:
        fsync_folder(parent.parent)


def fsync_folder(path: Path) -> None:
    """Make the names inside `path` durable, if the system supports it."""
    with suppress(OSError):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return the hex digest of a regular file.

    Raises:
        UnreadableError: it is not a regular file.
    """
    regular_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_jsonable(value: Any) -> Any:
    """Return a JSON-compatible copy: NumPy values become plain, non-finite numbers None."""
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        return to_jsonable(value.tolist())
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


_UMASK = _umask()


def acquire_lock(
    folder: Path, refusal: str, timeout: float | None = None, name: str = LOCK
) -> TextIO:
    """Hold the folder's lock until the returned file is closed.

    On a file system without locks, the file is returned without a lock.

    Args:
        folder: folder to write in.
        refusal: error message if another process holds the lock.
        timeout: seconds to wait for that process; ten by default.
        name: file name of the lock.

    Raises:
        BusyError: another process holds it; has the message `refusal`.
        ResourceError: the folder may not be written.
    """
    file = _open(folder / name, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + (_PATIENCE_SECONDS if timeout is None else timeout)
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
    """Return true if a process holds the folder's lock."""
    return is_lock_held(folder / LOCK)


def is_lock_held(path: Path) -> bool:
    """Return true if a process holds the lock of this file."""
    if not path_exists(path):
        return False
    with _open(path, os.O_RDONLY) as file:
        try:
            fcntl.flock(
                file, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # shared: concurrent checks do not count as holders
        except OSError as error:
            return error.errno in _HELD
    return False


def _open(path: Path, flags: int) -> TextIO:
    """Open without blocking, whatever the type of the file."""
    with disk_errors(path):
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
        return os.fdopen(handle, "r")
