"""One paragraph about an exception that a kernel's own code raised."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import Any

from slipstream.core.errors import KernelError

_PACKAGE = str(Path(__file__).parents[1])


def raised(where: str, function: Any, error: BaseException, advice: str = "") -> KernelError:
    """What to raise instead: file, line, the part of the line that failed, why, and what to do.

    Args:
        where: whose code it is, such as ``Kernel `walk` ``.
        function: of the kernel, the one that was called; its file counts as the user's.
        error: what came out of it.
        advice: what to do; by default it follows from the error.
    """
    place = _place(error, function)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    name, what = function.__name__, "raised"
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
