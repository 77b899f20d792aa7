"""Processes that work for another one: how they begin, whom they follow, how they end.

A run's shards, a study's workers and the workers that step copies of an environment are such.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from slipstream.core.errors import ResourceError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a training to stop: the one that was started by people decides, and checkpoints."""

PATIENCE_SECONDS = 10.0
"""Who was asked to end, and has nothing long to finish first, is killed after that."""

PULSE_WORDS, AT, BEAT = 16, 2, 3
"""A pulse is 16 uint64 that a parent reads to see if a call hangs: `AT` is the sub-environment at
hand, `BEAT` the number of calls begun and ended, odd during a call."""
PULSES: list[Any] = []
"""Free pulses of this process, if its parent watches it."""

JOB_VARIABLE = "SLIPSTREAM_JOB"
"""Environment variable of a job's process: ``FOLDER:ID``, its queue and its number there."""
BUSY = 75
"""Exit code for a queue, in place of 2: another process works in the job's folder."""
OVER = 76
"""Exit code for a queue, in place of 130: the job's time budget ended."""

_PR_SET_PDEATHSIG = 1  # Linux: what a process gets when the one that forked it is gone


KEPT = "What was written before is kept; `slipstream resume` goes on with what had begun."


class FaultPolicy(NamedTuple):
    """What happens when a copy or a worker fails.

    Attributes:
        on_fault: "restart" it, or "raise" an error at once.
        hang_seconds: of one call of one copy, after which it is given up.
        per_minute: faults in all, more of which end the run where they cost more than a twentieth
            of its steps.
        in_a_row: faults of one copy, or losses of one worker, without a good step in between.
    """

    on_fault: Literal["restart", "raise"] = "restart"
    hang_seconds: float = 60.0
    per_minute: int = 100
    in_a_row: int = 8


def leave_in_words() -> None:
    """From now on a stop signal ends this process by that signal, after one sentence.

    A signal that is ignored stays ignored. Processes that are forked from this one say nothing.
    """
    own = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:
            with suppress(OSError):
                os.write(2, f"Stopped by {signal.Signals(number).name}. {KEPT}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)


def ignore_stops() -> None:
    """From now on people's signals pass this process by: its parent decides."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def stops_held_back() -> Iterator[None]:
    """Hold stop signals back from a process that the body starts, until its `ignore_stops`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work_for(parent: int) -> None:
    """Begins the life of a process that was forked to work for this parent.

    It takes no notice of people's signals, and the system kills it when the thread that forked it
    ends, however that ends. Elsewhere than on Linux it notices the end of its pipe.
    """
    ignore_stops()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if orphaned(parent):
        os._exit(0)


def orphaned(parent: int) -> bool:
    """Whether the process that this one works for is gone."""
    return os.getppid() != parent


def not_started(error: OSError, remedy: str) -> ResourceError:
    """What to raise where the system starts no more processes.

    Args:
        remedy: what a user may do besides: ``give fewer --workers``.
    """
    return ResourceError(
        f"A worker process could not be started ({error.strerror or error}): the system allows no "
        "more processes, open files or memory (see `ulimit -u`, `ulimit -n`). Raise the limit, or "
        f"{remedy}; results do not depend on it."
    )


def ending(code: int | None) -> str:
    """How a process ended, by its exit code; to stand behind its name."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    how = f"was killed by {signal.Signals(-code).name}"
    return how + (" (out of memory?)" if -code == signal.SIGKILL else "")


START_SECONDS = 120.0  # of imports and the first constructor, at least
patience: ContextVar[float] = ContextVar("patience", default=0.0)
"""`training.hang_seconds` of the newest config of this process."""


def start_seconds() -> float:
    """Return how long the import of an environment's module and its constructor may take."""
    return max(START_SECONDS, patience.get())


class OverdueError(BaseException):
    """Foreign code took longer than `time_limit` allows; raised inside it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End foreign code that takes longer, if it runs in the main thread and a signal can end it.

    A debugger has no limit, and neither does code that uses the timer itself.

    Raises:
        OverdueError: it took longer.
    """

    def overdue(_number: int, _frame: FrameType | None) -> None:
        if sys.gettrace() is None:
            raise OverdueError

    alone = threading.current_thread() is threading.main_thread()
    if not alone or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, overdue)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGALRM) is overdue:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_forked = False


def _end_if_it_returns() -> None:
    """End a process that foreign code forked as soon as it returns into slipstream.

    It would go on beside the process that called this code: train a second time, write the same
    files and fork again. A trace on the innermost frame of slipstream costs nothing elsewhere.
    """
    fork = frame = sys._getframe(1)
    if not _foreign(fork):
        return
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return
    where = f"{fork.f_code.co_filename}:{fork.f_lineno}"

    def end(*_: object) -> None:
        if not _forked:
            os.write(2, f"{where} {_RETURNED}\n".encode(errors="replace"))
        os._exit(1)

    sys.settrace(lambda *_: None)
    frame.f_trace = end


_RETURNED = (
    "forked the process, and the new process returned into slipstream, where it was ended: it "
    "would have repeated everything beside the first one. Let it call os._exit before it returns, "
    "or start it with subprocess or multiprocessing. Further ones are ended without a message."
)


def _note_fork() -> None:
    global _forked
    _forked = _forked or _foreign(sys._getframe(1))


def _foreign(fork: FrameType) -> bool:
    """Return False for a process of slipstream's own, or one that never returns."""
    file = fork.f_code.co_filename
    library = f"{os.sep}multiprocessing{os.sep}" in file or file.endswith(f"{os.sep}subprocess.py")
    return not file.startswith(_PACKAGE) and not library


os.register_at_fork(after_in_child=_end_if_it_returns, after_in_parent=_note_fork)
