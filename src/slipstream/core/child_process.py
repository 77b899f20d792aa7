"""Child processes: start, stop signals, time limits.

Used by a run's shards, a study's workers and the workers that step sub-environments.
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
"""Signals that stop training. The process that a user started handles them and checkpoints."""

TERMINATE_SECONDS = 10.0
"""Time from the request to end a process until it is killed."""

HEARTBEAT_WORDS, AT, BEAT = 16, 2, 3
"""A heartbeat is 16 uint64 that a parent reads to detect hanging calls. `AT` is the current
sub-environment, `BEAT` the number of calls started and ended, odd during a call."""
HEARTBEATS: list[Any] = []
"""Unused heartbeats of this process, if its parent monitors it."""

JOB_VARIABLE = "SLIPSTREAM_JOB"
"""Environment variable of a job's process: ``FOLDER:ID``, its queue and its id there."""
EXIT_BUSY = 75
"""Exit code in a queue, in place of 2: another process works in the job's folder."""
EXIT_TIME_BUDGET = 76
"""Exit code in a queue, in place of 130: the job's time budget ended."""

_PR_SET_PDEATHSIG = 1  # Linux: signal sent to a process when its parent ends


RESUME_MESSAGE = "Data written so far are kept; `slipstream resume` continues unfinished work."


class FaultPolicy(NamedTuple):
    """Handling of faults of an environment or a worker.

    Attributes:
        on_fault: "restart", or "raise" an error immediately.
        hang_seconds: time limit of one call of one environment.
        max_faults_per_minute: a higher rate ends the run if faults cost more than a twentieth of
            its steps.
        max_consecutive_faults: faults of one environment, or losses of one worker, without a valid
            step in between.
    """

    on_fault: Literal["restart", "raise"] = "restart"
    hang_seconds: float = 60.0
    max_faults_per_minute: int = 100
    max_consecutive_faults: int = 8


def exit_on_stop_signals() -> None:
    """End this process on a stop signal, by that signal, after printing one sentence.

    Ignored signals stay ignored. Processes forked from this one print nothing.
    """
    pid = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() == pid:
            with suppress(OSError):
                os.write(
                    2, f"Stopped by {signal.Signals(number).name}. {RESUME_MESSAGE}\n".encode()
                )
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)


def ignore_stop_signals() -> None:
    """Ignore stop signals from now on: the parent process handles them."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def block_stop_signals() -> Iterator[None]:
    """Block stop signals for a process started in the body, until its `ignore_stop_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent(parent: int) -> None:
    """Set up a process that was forked to work for this parent.

    It ignores stop signals, and the system kills it when the thread that forked it ends. On other
    systems than Linux it notices the end of its pipe.
    """
    ignore_stop_signals()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if is_orphaned(parent):
        os._exit(0)


def is_orphaned(parent: int) -> bool:
    """Return true if the parent process has ended."""
    return os.getppid() != parent


def worker_start_error(error: OSError, remedy: str) -> ResourceError:
    """Return the error for a worker process that could not be started.

    Args:
        remedy: an additional suggestion: ``give fewer --workers``.
    """
    return ResourceError(
        f"A worker process could not be started ({error.strerror or error}): the system allows no "
        "more processes, open files or memory (see `ulimit -u`, `ulimit -n`). Raise the limit, or "
        f"{remedy}; results do not depend on it."
    )


def describe_exit(code: int | None) -> str:
    """Describe an exit code; follows the name of the process in messages."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    how = f"was killed by {signal.Signals(-code).name}"
    return how + (" (out of memory?)" if -code == signal.SIGKILL else "")


START_SECONDS = 120.0  # minimum time limit of imports and the first constructor
hang_timeout: ContextVar[float] = ContextVar("patience", default=0.0)
"""`training.hang_seconds` of the newest config of this process."""


def start_timeout() -> float:
    """Return the time limit of importing an environment's module and calling its constructor."""
    return max(START_SECONDS, hang_timeout.get())


class TimeLimitError(BaseException):
    """Foreign code exceeded `time_limit`; raised inside it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Abort foreign code after a time limit, in the main thread if a signal can interrupt it.

    There is no limit in a debugger or for code that uses the timer itself.

    Raises:
        TimeLimitError: the limit was exceeded.
    """

    def overdue(_number: int, _frame: FrameType | None) -> None:
        if sys.gettrace() is None:
            raise TimeLimitError

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

    Otherwise it would run in parallel to the process that called this code: train a second time,
    write the same files and fork again. A trace on the innermost frame of slipstream costs nothing
    elsewhere.
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
    """Return False for processes of slipstream, and for those that never return."""
    file = fork.f_code.co_filename
    library = f"{os.sep}multiprocessing{os.sep}" in file or file.endswith(f"{os.sep}subprocess.py")
    return not file.startswith(_PACKAGE) and not library


os.register_at_fork(after_in_child=_end_if_it_returns, after_in_parent=_note_fork)
