"""The one way in for small files: a regular file of bounded size, read whole, or a clear error.

A named pipe, a device, a folder or a file without end is refused before a byte is read, so that
nothing hangs and no memory is filled. What other libraries open (tables of prices, weights) is
checked by `regular_file` first.
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
from slipstream.core.extras import pip_install

SEAL = "sha256"  # a file's last key: see `seal`
TEXT_LIMIT = 1 << 20  # bytes of what people write: configs, kernels
JSON_LIMIT = 1 << 28  # bytes of what slipstream writes
_DIGITS = 40  # of a whole number in JSON, such as a key of 128 bits
_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a named pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


class UnreadableError(Exception):
    """Why a file cannot be read, as half a sentence; callers say what to do."""


def is_there(path: Path) -> bool:
    """Whether anything has this name; false where no file could have it."""
    try:
        os.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def resolve_folder(folder: str) -> Path:
    """Return the path of a folder; ``package:NAME/sub`` is found without importing NAME."""
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
            f"`{pip_install(package.replace('_', '-'))}`, or name a folder."
        )
    return Path(locations[0]) / inside


def regular_file(path: Path, limit: int | None = None) -> os.stat_result:
    """What the system knows about a regular file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is nothing.
        UnreadableError: it is no regular file, too large, or may not be looked at.
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
    """Open a regular file of at most `limit` bytes for reading, without waiting for a writer.

    Raises:
        FileNotFoundError: there is nothing.
        UnreadableError: see `regular_file`; also if it may not be read.
    """
    regular_file(path, limit)
    try:  # were it exchanged for a pipe meanwhile, opening it would not wait
        return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_reason(error)) from error


def content(path: Path, limit: int = JSON_LIMIT) -> bytes:
    """All bytes of a regular file.

    Raises:
        FileNotFoundError: there is nothing.
        UnreadableError: see `regular_file`; also where reading fails.
    """
    try:
        with open_regular(path, limit) as file:
            found = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_reason(error)) from error
    if len(found) > limit:
        raise UnreadableError(f"it is longer than {limit:,} bytes")
    return found


def read_text(path: Path, what: str) -> str:
    """Return UTF-8 text that a person wrote.

    Args:
        path: of the file.
        what: it is, in messages: ``"The config file"``.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return content(path, TEXT_LIMIT).decode("utf-8-sig")
    except FileNotFoundError:
        reason = "there is no such file"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except UnreadableError as problem:
        reason = str(problem)
    raise ConfigError(f"{what} {path} cannot be read: {reason}.")


class Facts(dict[str, Any]):
    """A mapping of a JSON file, at any depth; a key that is asked for and missing is refused.

    Attributes:
        refuse: makes the error from half a sentence.
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
    """A mapping that slipstream wrote, its seal verified and taken off; None without a file.

    Its mappings are `Facts`.

    Args:
        path: of the file.
        error: raised with one paragraph where it cannot be read or is something else.
        remedy: the paragraph's last sentence.
        shape: see `misfit`.
        sealed: whether such facts must carry a seal; by default none need to.
        limit: bytes that it may have.
    """

    def refuse(reason: str) -> SlipstreamError:
        return error(f"{path} cannot be read: {reason}. {remedy}")

    def facts(values: dict[str, Any]) -> Facts:
        found = Facts(values)
        found.refuse = refuse
        return found

    try:
        values = parse_json(content(path, limit).decode("utf-8"), facts)
        problem = misfit(values, {} if shape is None else shape)
        if problem is None:
            written = values.pop(SEAL, None)
            if written is None and not (sealed and sealed(values)):
                return values  # type: ignore[no-any-return]
            if written == seal(values):
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
    """Return the value of JSON text without numbers that no computer calculates with.

    Args:
        text: JSON.
        mapping: makes each mapping.

    Raises:
        ValueError: it is not JSON, or has such a number; RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=_whole, object_hook=mapping)


def _whole(digits: str) -> int:
    """A whole number that a float can nearly be, as all that we write are."""
    if len(digits) > _DIGITS:
        raise ValueError(f"the number {digits[:_DIGITS]}... is too large")
    return int(digits)


def seal(values: Mapping[str, Any]) -> str:
    """sha256 of the facts of a JSON file, whatever their order and spacing: its `SEAL`."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def misfit(value: Any, shape: Any, where: str = "it", exact: bool = False) -> str | None:
    """How a JSON value departs from a shape; None where it fits.

    Args:
        value: as `json.loads` gives it.
        shape: a type or a tuple of types; a mapping of keys to shapes, optional ones with a ``?``
            at their end, ``*`` for all values; a list of one shape, which all items have.
        where: what the value is called.
        exact: mappings hold no other keys; ``{}`` is any mapping all the same.
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return f"{where} is {named(value)}, not a mapping"
        for key, below in shape.items():
            if key == "*":
                found = misfit(list(value.values()), [below], where)
                if found is not None:
                    return found
                continue
            name = key.removesuffix("?")
            if name not in value:
                if key.endswith("?"):
                    continue
                return f"{where} lacks {name!r}" if where != "it" else f"{name!r} is missing"
            found = misfit(value[name], below, f"`{name}`", exact)
            if found is not None:
                return found
        more = sorted({str(key) for key in value} - {key.removesuffix("?") for key in shape})
        return f"{where} has the unknown key {more[0]!r}" if exact and shape and more else None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is {named(value)}, not a list"
        items = (misfit(one, shape[0], f"{where}, item {k},", exact) for k, one in enumerate(value))
        return next((one for one in items if one is not None), None)
    wanted = shape if isinstance(shape, tuple) else (shape,)
    if isinstance(value, bool) and bool not in wanted:
        return f"{where} is {named(value)}"
    endless = isinstance(value, int) and abs(value) >= 2**63  # no count of anything
    return None if isinstance(value, wanted) and not endless else f"{where} is {named(value)}"


def named(value: Any) -> str:
    """Return what a value of JSON or of a database is, in words."""
    text = f"{len(value)} bytes" if isinstance(value, bytes) else json.dumps(value)
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return text if len(text) <= 40 else f"{text[:40]}..."


def make_private(folder: Path) -> None:
    """With mode 0700 whatever the process's mask is; a folder that exists is left as it is."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)


def refuse_strangers(
    folder: Path,
    what: str = "cache folder",
    why: str = "compiled code is loaded from it",
    variable: str = "SLIPSTREAM_CACHE",
) -> None:
    """Raises a ResourceError where somebody else owns or may write a folder.

    Args:
        folder: of the user.
        what, why, variable: for the message: what it is, why that matters, what names another one.
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
