"""Errors a user can act on: one paragraph of what was expected, what came, and what to do."""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path
from typing import Any, ClassVar

from slipstream.core.field_names import as_arguments

# A name that no file can have; without its middle the sentence around it can be read.
_NAME = re.compile(r"([^\s/]{120})[^\s/]{180,}([^\s/]{40})")

_MOST_LETTERS = 30_000  # of a message; tracebacks of workers are shorter

_PACKAGE = str(Path(__file__).parents[1])


class SlipstreamError(Exception):
    """Base of every error that is the user's to mend; the command line prints it, exit code 2.

    Messages name a command's options; to a caller from Python they read as its arguments:
    ``--study-name`` as ``study_name=``. What stands in a quoted command stays.

    Attributes:
        on_command_line: whether a command is what the user gave.
    """

    on_command_line: ClassVar[bool] = False

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _MOST_LETTERS:
            text = f"{text[: _MOST_LETTERS // 2]} ... {text[-_MOST_LETTERS // 2 :]}"
        text = _NAME.sub(r"\1...\2", text)
        return text if self.on_command_line else as_arguments(text)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the paragraph, without the frames that lead to it."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(SlipstreamError):
    """A configuration that cannot be run: unknown key, value out of range, impossible sizes."""


class BusyError(ConfigError):
    """Another process writes there: the same command works once that one has ended."""


class DataError(SlipstreamError):
    """Market data or a folder that cannot be used as it is."""


class KernelError(SlipstreamError):
    """A kernel that breaks the contract, or that returned a number nobody can train on."""


class CheckpointError(SlipstreamError):
    """A checkpoint, policy or run directory that is missing, corrupt or foreign."""


class VersionError(CheckpointError):
    """A state that another version of slipstream wrote, from which this one cannot go on."""


class TrustError(SlipstreamError):
    """A folder whose config names code that no command of this user ran for it."""


class ResourceError(SlipstreamError):
    """The machine lacks what was asked for: memory, disk, a device, an optional package."""


def wrap_user_error(
    where: str, function: Any, error: BaseException, advice: str = ""
) -> KernelError:
    """What to raise instead: file, line, the part of the line that failed, why, and what to do.

    Args:
        where: whose code it is, such as ``Kernel `walk` ``.
        function: of the kernel, the one that was called; its file counts as the user's.
        error: what came out of it.
        advice: what to do; by default it follows from the error.
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
    """File, line, function and text of what failed: the innermost place in the user's files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = function.__code__.co_filename if hasattr(function, "__code__") else None
    for frame in reversed(frames):
        theirs = "site-packages" in frame.filename or frame.filename.startswith(("<", _PACKAGE))
        if frame.lineno is None or (theirs and frame.filename != own):
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
    return "mend it there"
