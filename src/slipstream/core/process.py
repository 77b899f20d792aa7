"""Processes that work for another one: how they begin, whom they follow, how they end.

A run's shards, a study's workers and the workers that step copies of an environment are such.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from slipstream.core.errors import ResourceError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a training to stop: the one that was started by people decides, and checkpoints."""

PATIENCE_SECONDS = 10.0
"""Who was asked to end, and has nothing long to finish first, is killed after that."""

_PR_SET_PDEATHSIG = 1  # Linux: what a process gets when the one that forked it is gone


KEPT = "What was written before is kept; `slipstream resume` goes on with what had begun."


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
