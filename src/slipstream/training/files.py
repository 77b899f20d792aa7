"""Files that are either whole or not there: every artefact of a run is written through here."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slipstream.core.errors import ResourceError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_IMPOSSIBLE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns a full or unwritable disk into a `ResourceError` that says what was being written."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(
                f"The disk is full: {path} could not be written. What was written before it is "
                "intact; free some space on that disk and resume."
            ) from error
        if error.errno in _REFUSED + _IMPOSSIBLE:
            raise ResourceError(
                f"{path} may not be written ({error.strerror}); choose another folder, "
                "or mend its permissions."
            ) from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step: a crash leaves the old bytes or the new ones."""
    with disk_errors(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_UMASK)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Indented JSON; NaN and infinity become null, so that any reader takes it."""
    write_text(path, json.dumps(plain(values), indent=2, allow_nan=False) + "\n")


@contextmanager
def whole_folder(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """A folder that appears under its name only when the body has filled it without an error.

    Yields a hidden folder beside it. An existing `path` is replaced: for an instant it is absent,
    never half written. It is then `keep`, in place of what was there, or deleted.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_UMASK)
            sync_folder(temporary)
            if path.exists():
                old = keep or temporary.with_name(temporary.name + ".old")
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


class AppendedFile:
    """A file that grows, unbuffered: a full disk is noticed at once and only once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            self._file = path.open("ab", buffering=0)

    def write(self, content: bytes) -> None:
        """Appends all of `content`.

        Raises:
            ResourceError: the disk is full; a part may have been written.
        """
        left = memoryview(content)
        with disk_errors(self.path):
            while left:
                left = left[self._file.write(left) :]

    def close(self) -> None:
        """Closes it."""
        self._file.close()


def sync_folder(path: Path) -> None:
    """Makes renames inside `path` durable, where the system can."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
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
