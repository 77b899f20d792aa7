"""Files that are either whole or not there: every artefact of a run is written through here.

Three ways to write, and no others: `write_bytes` replaces a file, `whole_folder` a folder, and
`AppendedFile` grows one. What each keeps when the power fails stands at it. No durable file is
written through a shared map: whose pages reach the disk when, nobody could say. `take_lock` lets
one process at a time write in a folder.
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
from slipstream.core.safe_io import SEAL, is_there, regular_file, seal

_INTACT = "What was written before it is intact; "
_FULL = "The disk is full: {path} could not be written. " + _INTACT
_REMEDIES = {  # by what the system says; {path} is what was being written
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
_OTHER = "{path} may not be written ({reason}); choose another folder, or mend its permissions."
_PARTIAL = ".partial"
LOCK = ".lock"
_PATIENCE_SECONDS = 10.0  # the workers of a process that was just killed need a moment to follow it
_HELD = (errno.EAGAIN, errno.EACCES)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns what the system says against writing into a `ResourceError` that names the file."""
    try:
        yield
    except BrokenPipeError:  # of a pipe or socket, not of a disk
        raise
    except OSError as error:
        sentence = _REMEDIES.get(error.errno or 0, _OTHER)
        reason = error.strerror or str(error)
        raise ResourceError(sentence.format(path=path, reason=reason)) from error
    except ValueError as error:
        if "embedded null" not in str(error):  # in a name; other errors are not the disk's
            raise
        raise ResourceError(_OTHER.format(path=repr(str(path)), reason=error)) from error


def write_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """Replaces `path` by `content` in one step: a crash leaves the old bytes or the new ones.

    The one place where a file takes another one's name. The bytes are on the disk before they get
    the name, and the name is before this returns: a power cut at any moment leaves the old file or
    the new one, and none later takes the new one back. That costs two waits for the disk.

    Args:
        path: of the file; its folder is there, see `make_folder`.
        content: all of it.
        durable: False where nobody waits for the disk, because only living processes are to see it
            (`status.json`), or because whoever reads it notices damage and makes it again, to the
            same bits (states of a study's members under way). A kill still leaves old or new.
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
            sync_folder(path.parent)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Call `write_bytes` with UTF-8 text; file names that are not UTF-8 are written escaped."""
    write_bytes(path, text.encode(errors="backslashreplace"), durable)


def write_json(path: Path, values: Mapping[str, Any], durable: bool = True) -> None:
    """Indented JSON; NaN and infinity become null, so that any reader takes it."""
    write_text(path, json.dumps(plain(values), indent=2, allow_nan=False) + "\n", durable)


def write_sealed(path: Path, values: Mapping[str, Any], durable: bool = True) -> None:
    """`write_json` with a hash of the facts, which `read_json` verifies."""
    facts = plain(values)
    write_json(path, {**facts, SEAL: seal(facts)}, durable)


@contextmanager
def whole_folder(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """A folder that appears under its name only when the body has filled it without an error.

    Yields a hidden folder beside it. All files in it are on the disk before it has its name,
    however the body wrote them, and the name is before this returns. An existing `path` is
    replaced: for an instant it is absent, never half written. It is then `keep`, in place of what
    was there, or deleted.
    """
    with disk_errors(path):
        make_folder(path.parent)
        temporary = Path(tempfile.mkdtemp(_PARTIAL, _prefix(path), path.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_UMASK)
            for file in temporary.iterdir():
                _sync(file)
            sync_folder(temporary)
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
        sync_folder(path.parent)


def sweep(*folders: Path) -> None:
    """Removes what killed processes left half written; what living ones write is let alone."""
    for folder in folders:
        for leftover in folder.glob(f".*{_PARTIAL}"):
            writer = leftover.name.removesuffix(_PARTIAL).rsplit("-", 2)[-2:-1]
            number = int(writer[0]) if writer and writer[0].isdigit() else 0
            if number not in (0, os.getpid()) and psutil.pid_exists(number):
                continue
            remove(leftover)


def not_older(path: Path, other: Path) -> bool:
    """Whether there is a file, written after another one or with it."""
    try:
        return path.stat().st_mtime_ns >= other.stat().st_mtime_ns
    except OSError:
        return False


def is_partial(path: Path) -> bool:
    """Whether a name is that of something which was never finished."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def remove(path: Path) -> None:
    """Deletes a file or a folder, where that can be done."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    """Hidden, short enough for any name, and saying which process writes: `sweep` reads it."""
    return f".{path.name[:80]}-{os.getpid()}-"


class AppendedFile:
    """A file that grows, unbuffered: a full disk is noticed at once and only once.

    What is written survives a kill at once, and a power cut from the next `sync` on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._named = False  # its name is on the disk
        with disk_errors(path):  # a pipe that nobody reads is refused, not waited for
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
            self._file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
            if stat.S_ISFIFO(os.fstat(self._file.fileno()).st_mode):  # somebody reads it
                self._file.close()
                raise OSError(errno.EINVAL, "It is a named pipe, not a file", str(path))

    def write(self, content: bytes) -> None:
        """Appends all of `content`.

        Raises:
            ResourceError: the disk is full; a part may have been written.
        """
        left = memoryview(content)
        with disk_errors(self.path):
            while left:
                left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Waits until all that was written is on the disk.

        Raises:
            ResourceError: the disk is full, or reports an error.
        """
        with disk_errors(self.path):
            os.fsync(self._file.fileno())
            if not self._named:
                sync_folder(self.path.parent)
                self._named = True

    def close(self) -> None:
        """Closes it."""
        self._file.close()


def make_folder(path: Path, private: bool = False) -> None:
    """Makes a folder, and those above it that are missing; their names are on the disk.

    Args:
        path: of the folder; one that exists is left as it is.
        private: its mode is 0700 whatever the process's mask is.

    Raises:
        ResourceError: it cannot be made, or something else has the name.
    """
    with disk_errors(path):
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
        if private and path in missing:
            path.chmod(0o700)
    for one in missing:
        sync_folder(one.parent)


def sync_folder(path: Path) -> None:
    """Makes the names inside `path` durable, where the system can."""
    with suppress(OSError):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Hex digest of a regular file.

    Raises:
        UnreadableError: it is something else.
    """
    regular_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """JSON-able copy: NumPy scalars and arrays become plain, non-finite numbers None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
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
