"""Unexpected errors, Ctrl-C handling, and output that survives closed pipes."""

from __future__ import annotations

import errno
import faulthandler
import os
import platform
import re
import shlex
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

from slipstream.core.child_process import RESUME_MESSAGE, exit_on_stop_signals
from slipstream.core.field_names import renamed
from slipstream.core.text import invalid_path_message, printable, validation_message
from slipstream.training.callbacks.output import Output

INTERNAL_ERROR, USER_ERROR, INTERRUPTED = 1, 2, 130


class CommandInterrupted(Exception):  # noqa: N818 - stopping on request is no error
    """Ctrl-C was pressed while there was nothing to save."""


def name_renamed(error: Exception) -> None:
    """Name the present name in a usage error about a former one, and reword invalid values."""
    message = getattr(error, "message", "")
    if isinstance(message, str) and re.match("(Value error|Input should|Value should)", message):
        error.message = f"{validation_message(message)}."  # type: ignore[attr-defined]
    command = re.match(r"No such command '(.+?)'", message) if isinstance(message, str) else None
    old = command[1] if command is not None else getattr(error, "option_name", None)
    new = renamed(old) if isinstance(old, str) else None
    if new is not None:
        error.message = f"`{old}` is called `{new}`."  # type: ignore[attr-defined]
        error.possibilities = None  # type: ignore[attr-defined]
    elif command is not None and "Did you mean" not in message:
        group = getattr(getattr(error, "ctx", None), "info_name", None)
        new = renamed(f"{group} NAME")  # the group was a command
        if new is not None:
            used = new.replace("NAME", shlex.quote(printable(command[1])))
            error.message = f"{message} Use `slipstream {used}`."  # type: ignore[attr-defined]


class InterruptHandler:
    """Records Ctrl-C even if a library swallows the KeyboardInterrupt.

    Attributes:
        requested: Ctrl-C was pressed; an `Interruption` that starts later sees it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None
        self._hook: Any = None

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.requested:  # the first Ctrl-C takes too long
            exit_on_stop_signals()
            os.kill(os.getpid(), number)
        self.requested = True
        raise KeyboardInterrupt

    def _swallowed(self, unraisable: Any) -> None:
        """Deliver a KeyboardInterrupt again that a finalizer or weak reference swallowed."""
        if unraisable.exc_type is not KeyboardInterrupt or not self.requested:
            self._hook(unraisable)
            return
        self.requested = False
        leaving = threading.Event()

        def again() -> None:
            leaving.wait()  # an exception raised before that would be swallowed as well
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=again, daemon=True).start()
        leaving.set()

    def __enter__(self) -> InterruptHandler:
        main = threading.current_thread() is threading.main_thread()  # may set signal handlers
        if main and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._press)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._hook


def adapt_suggestions(text: str, arguments: Sequence[str]) -> str:
    """Replace suggested options that conflict with the command line by an equivalent.

    Args:
        text: an error message that suggests ``give --device VALUE``.
        arguments: command line after `slipstream`.
    """
    words = " ".join(arguments)
    gpu = re.search(r"--gpu[ =]\d+", words)
    setting = re.search(r"(?:--set[ =])?training\.device=\S+", words)

    def instead(match: re.Match[str]) -> str:
        device = match[1]
        if device == "cpu" and (named := gpu or setting):
            return f"leave out {named[0]}"
        if gpu:
            return f"give --gpu {device.removeprefix('cuda:')}"
        if setting or arguments[:1] == ["best-response"]:  # has no --device
            return f"give --set training.device={device}"
        return match[0]

    return re.sub(r"give --device (cpu|cuda:\d+)", instead, text)


def print_error(text: str) -> None:
    """Print one paragraph to standard error."""
    print(printable(" ".join(text.split())), file=sys.stderr, flush=True)


@contextmanager
def resilient_output(works: bool) -> Iterator[Output]:
    """Replace standard output and error by streams that survive closed pipes.

    Args:
        works: the command produces files, so losing standard output is reported and ignored.
    """
    for handle in range(3):  # otherwise the next opened file would become standard output
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if not faulthandler.is_enabled():  # prints the location of a crash in an environment
        faulthandler.enable(2, all_threads=False)
    before = sys.stdout, sys.stderr

    def report_loss(error: OSError) -> None:
        if works:
            print_error(
                f"Standard output is lost ({error.strerror or error}). The work continues; further "
                "output is discarded."
            )

    output = Output(before[0], report_loss)
    sys.stdout, sys.stderr = output, Output(before[1])
    try:
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        output.on_loss = None  # a library may flush a stored reference when Python exits
        sys.stdout, sys.stderr = before


def report_internal_error(error: Exception) -> int:
    """Report an unexpected error, with the traceback in a file; return the exit code."""
    if _was_interrupted(error):
        print_error(f"Interrupted. {RESUME_MESSAGE}")
        return INTERRUPTED
    if isinstance(error, OSError | UnicodeEncodeError) and (message := _plain_cause(error)):
        print_error(message)
        return USER_ERROR
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    what = what if len(what) <= 500 else f"{what[:500]} ..."
    details = _write_details(error)
    if isinstance(error, MemoryError):
        print_error(
            f"There is not enough memory ({what}). Reduce num_envs, members, the rollout length or "
            f"the amount of data. {details}"
        )
        return USER_ERROR
    if isinstance(error, OSError):
        print_error(
            f"The operating system refused an operation ({what}). Check permissions, disk space "
            f"and the limits of this process. {details}"
        )
        return USER_ERROR
    print_error(
        f"Internal error of slipstream ({what}). {details} Please report it with that file, the "
        "command and its config."
    )
    return INTERNAL_ERROR


def _plain_cause(error: OSError | UnicodeEncodeError) -> str:
    """Return a message for errors whose traceback is not needed; empty for all others."""
    if isinstance(error, UnicodeEncodeError):
        part = error.object[error.start : error.end]
        lone = any("\ud800" <= c <= "\udfff" for c in part)
        of_path = lone or error.encoding == sys.getfilesystemencoding()
        return invalid_path_message(error.object) if of_path else ""
    if error.errno == errno.ENAMETOOLONG:
        name = str(error.filename or "")
        short_name = name if len(name) <= 120 else f"{name[:60]}...{name[-40:]}"
        return f"The file name is too long for this system: {short_name}. Give a shorter one."
    try:
        os.getcwd()
    except FileNotFoundError:
        return "The working directory was deleted. `cd` to an existing one, and try again."
    return ""


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error, for example while a library was being imported."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_details(error: Exception) -> str:
    """Write the traceback to a file and return a sentence that names it; print it if that fails."""
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
    return "The traceback is above: no temporary directory is writable."
