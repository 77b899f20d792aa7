"""Safe reading of small files: regular files of bounded size, read completely, or a clear error.

Named pipes, devices, folders and endless files are rejected before a byte is read, so that nothing
blocks and memory stays bounded. Files that other libraries open (price tables, weights) are checked
by `regular_file` first.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from slipstream.core.errors import ConfigError, DataError, ResourceError, SlipstreamError
from slipstream.core.extras import pip_install_command

HASH_KEY = "sha256"  # a file's last key: see `seal`
TEXT_LIMIT = 1 << 20  # bytes of files that users write: configs, kernels
JSON_LIMIT = 1 << 28  # bytes of files that slipstream writes
_DIGITS = 40  # of an integer in JSON, such as a 128-bit key
_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a named pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


class UnreadableError(Exception):
    """Reason why a file cannot be read, as half a sentence; callers add the fix."""


def path_exists(path: Path) -> bool:
    """Return true if anything has this name; false for names that no file can have."""
    try:
        os.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def resolve_folder(folder: str) -> Path:
    """Return the path of a folder; ``package:NAME/sub`` is located without importing NAME."""
    if not folder.startswith("package:"):
        return Path(folder).expanduser()
    package, _, inside = folder.removeprefix("package:").partition("/")
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    if not locations:
        raise DataError(
            f"`folder: {folder}` needs the Python package {package!r}, which is not installed: "
            f"`{pip_install_command(package.replace('_', '-'))}`, or name a folder."
        )
    return Path(locations[0]) / inside


def regular_file(path: Path, limit: int | None = None) -> os.stat_result:
    """Return the stat result of a regular file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableError: not a regular file, too large, or not accessible.
    """
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_reason(error)) from error
    except ValueError as error:  # a NUL in the name
        raise UnreadableError(f"its name cannot be a file's ({error})") from error
    for is_kind, sentence in _KINDS:
        if is_kind(facts.st_mode):
            raise UnreadableError(f"{sentence}, not a file")
    if limit is not None and facts.st_size > limit:
        raise UnreadableError(f"it has {facts.st_size:,} bytes, and {limit:,} are the most")
    return facts


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Open a regular file of at most `limit` bytes for reading; never blocks.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableError: see `regular_file`; also if it may not be read.
    """
    regular_file(path, limit)
    try:  # non-blocking, in case it was replaced by a pipe meanwhile
        return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_reason(error)) from error


def read_bytes(path: Path, limit: int = JSON_LIMIT) -> bytes:
    """Return all bytes of a regular file.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableError: see `regular_file`; also if reading fails.
    """
    try:
        with open_regular(path, limit) as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_reason(error)) from error
    if len(content) > limit:
        raise UnreadableError(f"it is longer than {limit:,} bytes")
    return content


def read_text(path: Path, what: str) -> str:
    """Return UTF-8 text of a user's file.

    Args:
        path: of the file.
        what: its description in messages: ``"The config file"``.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_bytes(path, TEXT_LIMIT).decode("utf-8-sig")
    except FileNotFoundError:
        reason = "there is no such file"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except UnreadableError as problem:
        reason = str(problem)
    raise ConfigError(f"{what} {path} cannot be read: {reason}.")


class StrictDict(dict[str, Any]):
    """Mapping of a JSON file, at any depth. Reading a missing key raises an error about the file.

    Attributes:
        refuse: builds the error from half a sentence.
    """

    refuse: Callable[[str], SlipstreamError]

    def __missing__(self, key: str) -> Any:
        raise self.refuse(f"it is not what slipstream wrote: {key!r} is missing")

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def read_json(
    path: Path,
    error: type[SlipstreamError],
    remedy: str,
    shape: Any = None,
    sealed: Callable[[Mapping[str, Any]], bool] | None = None,
    limit: int = JSON_LIMIT,
) -> dict[str, Any] | None:
    """Return a mapping that slipstream wrote, its hash verified and removed; None without a file.

    Its mappings are `StrictDict`.

    Args:
        path: of the file.
        error: error class, raised if the file cannot be read or is invalid.
        remedy: last sentence of the message.
        shape: see `schema_mismatch`.
        sealed: returns true for values that must have a hash; by default none must.
        limit: maximum size in bytes.
    """

    def refuse(reason: str) -> SlipstreamError:
        return error(f"{path} cannot be read: {reason}. {remedy}")

    def facts(values: dict[str, Any]) -> StrictDict:
        mapping = StrictDict(values)
        mapping.refuse = refuse
        return mapping

    try:
        values = parse_json(read_bytes(path, limit).decode("utf-8"), facts)
        problem = schema_mismatch(values, {} if shape is None else shape)
        if problem is None:
            written = values.pop(HASH_KEY, None)
            if written is None and not (sealed and sealed(values)):
                return values  # type: ignore[no-any-return]
            if written == payload_hash(values):
                return values  # type: ignore[no-any-return]
            problem = "the hash that it carries is of other facts"
        reason = f"it is not what slipstream wrote: {problem}"
    except FileNotFoundError:
        return None
    except UnreadableError as problem:
        reason = str(problem)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as problem:  # of JSON or of UTF-8
        reason = str(problem)
    raise refuse(reason)


def parse_json(text: str, mapping: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Parse JSON text; integers beyond the range of floats are rejected.

    Args:
        text: JSON.
        mapping: constructor of mappings.

    Raises:
        ValueError: not JSON, or a number is too large; RecursionError: nested too deeply.
    """
    return json.loads(text, parse_int=_parse_int, object_hook=mapping)


def _parse_int(digits: str) -> int:
    """Parse an integer in the range of floats."""
    if len(digits) > _DIGITS:
        raise ValueError(f"the number {digits[:_DIGITS]}... is too large")
    return int(digits)


def payload_hash(values: Mapping[str, Any]) -> str:
    """Return the sha256 of a JSON mapping, independent of key order and spacing: its `HASH_KEY`."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def schema_mismatch(value: Any, shape: Any, where: str = "it", exact: bool = False) -> str | None:
    """Describe how a JSON value violates a schema; None if it is valid.

    Args:
        value: result of `json.loads`.
        shape: a type or a tuple of types; a mapping of keys to schemas, optional ones with a ``?``
            at their end, ``*`` for all values; a list of one schema for all items.
        where: name of the value in messages.
        exact: reject other keys; ``{}`` still accepts any mapping.
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return f"{where} is {describe_json(value)}, not a mapping"
        for key, below in shape.items():
            if key == "*":
                mismatch = schema_mismatch(list(value.values()), [below], where)
                if mismatch is not None:
                    return mismatch
                continue
            name = key.removesuffix("?")
            if name not in value:
                if key.endswith("?"):
                    continue
                return f"{where} lacks {name!r}" if where != "it" else f"{name!r} is missing"
            mismatch = schema_mismatch(value[name], below, f"`{name}`", exact)
            if mismatch is not None:
                return mismatch
        more = sorted({str(key) for key in value} - {key.removesuffix("?") for key in shape})
        return f"{where} has the unknown key {more[0]!r}" if exact and shape and more else None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is {describe_json(value)}, not a list"
        items = (
            schema_mismatch(item, shape[0], f"{where}, item {k},", exact)
            for k, item in enumerate(value)
        )
        return next((item for item in items if item is not None), None)
    types = shape if isinstance(shape, tuple) else (shape,)
    if isinstance(value, bool) and bool not in types:
        return f"{where} is {describe_json(value)}"
    endless = isinstance(value, int) and abs(value) >= 2**63  # no count of anything
    return (
        None if isinstance(value, types) and not endless else f"{where} is {describe_json(value)}"
    )


def describe_json(value: Any) -> str:
    """Describe a value of JSON or of a database for messages."""
    text = f"{len(value)} bytes" if isinstance(value, bytes) else json.dumps(value)
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return text if len(text) <= 40 else f"{text[:40]}..."


def make_private_folder(folder: Path) -> None:
    """Create a folder with mode 0700, independent of the umask; an existing one is unchanged."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)


def check_private(
    folder: Path,
    what: str = "cache folder",
    why: str = "compiled code is loaded from it",
    variable: str = "SLIPSTREAM_CACHE",
) -> None:
    """Raise a ResourceError if another user owns a folder or may write it.

    Args:
        folder: of the user.
        what, why, variable: for the message: description, reason, variable that selects another
            folder.
    """
    if os.name != "posix":
        return
    facts = folder.stat()
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
        raise ResourceError(
            f"The {what} {folder} must belong to you and be writable by you alone, because {why}; "
            f"run `chmod 700 {folder}` or set {variable} to another folder."
        )


def _reason(error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return "its name is too long"
    return (error.strerror or type(error).__name__).lower()
