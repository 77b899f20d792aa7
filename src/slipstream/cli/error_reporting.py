"""The last line of defence: whatever goes wrong is one paragraph, and nothing is said in vain."""

from __future__ import annotations

import errno
import faulthandler
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from slipstream.core.child_process import KEPT, leave_in_words
from slipstream.core.text import printable, refuse_path
from slipstream.training.callbacks.output import Output

FAULT, USER_ERROR, INTERRUPTED = 1, 2, 130


class Stopped(Exception):  # noqa: N818 - stopping on request is no error
    """Ctrl-C, where nothing had to be kept."""


class InterruptHandler:
    """Remembers that it was pressed, whatever libraries make of the exception that it raises.

    Attributes:
        requested: it was; an `Interruption` that begins later hears of it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None
        self._hook: Any = None

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.requested:  # what the first one ended takes too long
            leave_in_words()
            os.kill(os.getpid(), number)
        self.requested = True
        raise KeyboardInterrupt

    def _swallowed(self, unraisable: Any) -> None:
        """Raise again a moment later what a finalizer or a weak reference's callback swallowed."""
        if unraisable.exc_type is not KeyboardInterrupt or not self.requested:
            self._hook(unraisable)
            return
        self.requested = False
        leaving = threading.Event()

        def again() -> None:
            leaving.wait()  # what is raised in here is swallowed as well
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=again, daemon=True).start()
        leaving.set()

    def __enter__(self) -> InterruptHandler:
        main = threading.current_thread() is threading.main_thread()  # only it may set handlers
        if main and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._press)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._hook


def fitted(text: str, arguments: Sequence[str]) -> str:
    """Replace suggested options that the command line excludes by what works beside it.

    Args:
        text: an error's message, which suggests ``give --device VALUE``.
        arguments: the command line behind `slipstream`.
    """
    words = " ".join(arguments)
    gpu = re.search(r"--gpu[ =]\d+", words)
    setting = re.search(r"(?:--set[ =])?training\.device=\S+", words)

    def instead(found: re.Match[str]) -> str:
        device = found[1]
        if device == "cpu" and (named := gpu or setting):
            return f"leave out {named[0]}"
        if gpu:
            return f"give --gpu {device.removeprefix('cuda:')}"
        if setting or arguments[:1] == ["exploit"]:  # has no --device
            return f"give --set training.device={device}"
        return found[0]

    return re.sub(r"give --device (cpu|cuda:\d+)", instead, text)


def complain(text: str) -> None:
    """One paragraph on standard error."""
    print(printable(" ".join(text.split())), file=sys.stderr, flush=True)


@contextmanager
def resilient_output(works: bool) -> Iterator[Output]:
    """Standard output and error that survive their readers, while the body runs.

    Args:
        works: say when standard output is lost that the work goes on.
    """
    for handle in range(3):  # else the next file that is opened would be standard output
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if not faulthandler.is_enabled():  # a crash in an environment's own code says where
        faulthandler.enable(2, all_threads=False)
    before = sys.stdout, sys.stderr

    def tell(error: OSError) -> None:
        if works:
            complain(
                f"Standard output is lost ({error.strerror or error}); the work goes on, and what "
                "it says from here on is not shown."
            )

    output = Output(before[0], tell)
    sys.stdout, sys.stderr = output, Output(before[1])
    try:
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        output.on_loss = None  # a library may keep it and look at it when Python exits
        sys.stdout, sys.stderr = before


def report_internal_error(error: Exception) -> int:
    """Says what nobody expected in one paragraph, with its traceback in a file; the exit code."""
    if _was_interrupted(error):
        complain(f"Interrupted. {KEPT}")
        return INTERRUPTED
    if isinstance(error, OSError | UnicodeEncodeError) and (found := _plain_cause(error)):
        complain(found)
        return USER_ERROR
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    what = what if len(what) <= 500 else f"{what[:500]} ..."
    details = _write_details(error)
    if isinstance(error, MemoryError):
        complain(
            f"There is not enough memory ({what}). Ask for less: fewer copies, members or steps of "
            f"a rollout, a shorter stretch of data. {details}"
        )
        return USER_ERROR
    if isinstance(error, OSError):
        complain(
            f"The system refused something that slipstream needed ({what}). Mend what it names: "
            f"permissions, space, a limit of this process. {details}"
        )
        return USER_ERROR
    complain(
        f"slipstream failed in a way that it should not ({what}). {details} Please report it to "
        "whoever gave you slipstream, with that file, the command and its config."
    )
    return FAULT


def _plain_cause(error: OSError | UnicodeEncodeError) -> str:
    """What went wrong where a traceback would tell nothing more; empty where it might."""
    if isinstance(error, UnicodeEncodeError):
        part = error.object[error.start : error.end]
        lone = any("\ud800" <= c <= "\udfff" for c in part)
        of_path = lone or error.encoding == sys.getfilesystemencoding()
        return refuse_path(error.object) if of_path else ""
    if error.errno == errno.ENAMETOOLONG:
        name = str(error.filename or "")
        shown = name if len(name) <= 120 else f"{name[:60]}...{name[-40:]}"
        return f"This system has no room for so long a name: {shown}. Give a shorter one."
    try:
        os.getcwd()
    except FileNotFoundError:
        return "The working folder has been deleted: `cd` into one that exists, and try again."
    return ""


def _was_interrupted(error: BaseException | None) -> bool:
    """Ctrl-C while a library was loaded may come out as an error of that library."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_details(error: Exception) -> str:
    """Where the traceback is, as a sentence; it is shown where it can be written nowhere."""
    from slipstream.core.version import __version__

    trace = "".join(traceback.format_exception(error))
    head = (
        f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{' '.join(sys.argv)}\n"
        f"slipstream {__version__}, Python {platform.python_version()}, {platform.platform()}\n\n"
    )
    name = ""
    with suppress(OSError):
        handle, name = tempfile.mkstemp(".txt", "slipstream-error-")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(head + trace)
        return f"The details are in {name}."
    if name:
        with suppress(OSError):
            os.unlink(name)
    print(trace, file=sys.stderr)
    return "The details stand above: no folder for temporary files can be written."
