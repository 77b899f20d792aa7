"""Errors that a user can act on: one paragraph with the problem, the value found and the fix."""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path
from typing import Any, ClassVar

from slipstream.core.field_names import options_to_arguments

# File names longer than any file system allows are shortened to keep messages readable.
_NAME = re.compile(r"([^\s/]{120})[^\s/]{180,}([^\s/]{40})")

_MOST_LETTERS = 30_000  # of a message; worker tracebacks are shorter

_PACKAGE = str(Path(__file__).parents[1])


class SlipstreamError(Exception):
    """Base class of user-correctable errors. The CLI prints the message and exits with status 2.

    Messages name CLI options. Python callers see them as arguments: ``--study-name`` becomes
    ``study_name=``. Quoted commands are unchanged.

    Attributes:
        on_command_line: true if the user ran a CLI command.
    """

    on_command_line: ClassVar[bool] = False

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _MOST_LETTERS:
            text = f"{text[: _MOST_LETTERS // 2]} ... {text[-_MOST_LETTERS // 2 :]}"
        text = _NAME.sub(r"\1...\2", text)
        return text if self.on_command_line else options_to_arguments(text)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the message without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(SlipstreamError):
    """Invalid configuration: unknown key, value out of range, impossible sizes."""


class BusyError(ConfigError):
    """Another process writes there. The same command works after that process has ended."""


class DataError(SlipstreamError):
    """Unusable market data or folder."""


class KernelError(SlipstreamError):
    """A kernel violates its contract or returned a number that training cannot use."""


class CheckpointError(SlipstreamError):
    """A checkpoint, policy or run directory is missing, corrupt or not slipstream's."""


class VersionError(CheckpointError):
    """A state was written by another version of slipstream and cannot be resumed."""


class TrustError(SlipstreamError):
    """A folder's config names code that no command of this user has run."""


class ResourceError(SlipstreamError):
    """The machine lacks a resource: memory, disk, a device, an optional package."""


def wrap_user_error(
    where: str, function: Any, error: BaseException, advice: str = ""
) -> KernelError:
    """Return a KernelError with file, line, failing expression, reason and fix.

    Args:
        where: owner of the code, such as ``Kernel `walk` ``.
        function: function of the kernel that was called; its file counts as the user's.
        error: the exception that it raised.
        advice: the fix; derived from the error by default.
    """
    place = _place(error, function)
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    name, what = getattr(function, "__name__", type(function).__name__), "raised"
    if place is not None:
        file, line, name, part = place
        where = f"{file}:{line}: {where}"
        what = f"`{part}` raised"
    return KernelError(
        f"{where}, in `{name}`: {what} {text.rstrip('.')}; {advice or _advice(error)}."
    )


def _place(error: BaseException, function: Any) -> tuple[str, int, str, str] | None:
    """Return file, line, function and text of the innermost failing place in the user's files."""
    frames = traceback.extract_tb(error.__traceback__)
    file = function.__code__.co_filename if hasattr(function, "__code__") else None
    for frame in reversed(frames):
        theirs = "site-packages" in frame.filename or frame.filename.startswith(("<", _PACKAGE))
        if frame.lineno is None or (theirs and frame.filename != file):
            continue
        line = linecache.getline(frame.filename, frame.lineno)
        part = line.strip()
        if frame.lineno == frame.end_lineno and frame.colno is not None:
            code = line.encode()[frame.colno : frame.end_colno].decode(errors="replace")
            part = code or part
        return frame.filename, frame.lineno, frame.name, part
    return None


def _advice(error: BaseException) -> str:
    if isinstance(error, IndexError):
        return "guard the index with `if`, or make the array larger"
    if isinstance(error, ZeroDivisionError | OverflowError | FloatingPointError):
        return "guard it with `if`"
    if "read-only" in str(error):
        return "Data is read-only: keep what changes in STATE"
    if isinstance(error, SystemExit):
        return "a kernel's file must not end the program"
    return "fix it there"
