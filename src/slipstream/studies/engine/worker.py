"""One worker process of a pool, seen from both sides of its pipe."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from slipstream.core.errors import ResourceError, SlipstreamError
from slipstream.studies.engine.member import Outcome
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.engine.state import LiveStates
from slipstream.studies.engine.stretch import Task, run_stretch

_PR_SET_PDEATHSIG = 1  # Linux: what a process gets when the one that forked it is gone
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGE = 4 * 2**20
PATIENCE_SECONDS = 60.0  # for the iteration or the test pass under way, of who is asked to leave
Answer = list[Outcome] | Exception


class Worker:
    """A forked process that runs one stretch at a time.

    It shares all data that were loaded before it was forked, and ends when this process does.

    Args:
        source: of environments.
        live: where states are kept.
        inherited: ends of other workers' pipes, which the child must not hold open.

    Attributes:
        generation: of the source when it was forked.
    """

    gone = False  # another one is forked in its place

    def __init__(
        self, source: EnvironmentSource, live: LiveStates, inherited: Sequence[Connection]
    ) -> None:
        context = multiprocessing.get_context("fork")
        self.generation = source.generation
        torch.set_num_threads(1)  # a forked child must not inherit a pool that it cannot use
        try:
            self.pipe, theirs = context.Pipe()
            self._process = context.Process(
                target=_serve,
                args=(theirs, [*inherited, self.pipe], source, live, os.getpid()),
                daemon=True,
                name="slipstream study worker",
            )
            with theirs:
                self._process.start()
        except OSError as error:
            raise ResourceError(
                f"A worker process could not be started ({error.strerror}): the system allows no "
                "more processes, open files or memory (see `ulimit -u`, `ulimit -n`). Raise the "
                "limit, or give fewer --workers; results do not depend on them."
            ) from error

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, tasks: Sequence[Task]) -> bool:
        """Hands it a stretch; False where it is gone."""
        try:
            self.pipe.send(list(tasks))
        except (BrokenPipeError, ConnectionError):
            return False
        return True

    def receive(self) -> Answer | None:
        """What came of its stretch; None where it is gone."""
        try:
            answer: Answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            return None
        return answer

    def ask_to_leave(self) -> None:
        """It saves the members under way after their iteration, and ends."""
        with suppress(OSError):
            self.pipe.send(None)

    def end(self, patience: float) -> str:
        """Waits for its end, kills it after `patience` seconds; says how it ended."""
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()
        code = self._process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            return how + (" (out of memory?)" if -code == signal.SIGKILL else "")
        return f"ended with exit code {code}"


class _Leave(BaseException):
    """The pool wants no more, or is gone."""


def _serve(
    pipe: Connection,
    inherited: Sequence[Connection],
    source: EnvironmentSource,
    live: LiveStates,
    parent: int,
) -> None:
    """The child: runs stretches until told to stop or until its parent is gone."""
    _die_with(parent)
    for end in inherited:
        end.close()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the parent decides when to stop
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)
    _keep_memory()
    gc.freeze()  # what was inherited stays: `gc.collect` below need not look at it

    def go_on() -> None:
        if pipe.poll() or os.getppid() != parent:
            raise _Leave

    with suppress(_Leave, EOFError, ConnectionError):
        while (tasks := pipe.recv()) is not None:
            pipe.send(_answer(tasks, source, live, go_on))
            gc.collect()  # populations are cyclic: they would wait for one another
    os._exit(0)  # nothing of the parent's may be flushed or closed twice


def _answer(
    tasks: Sequence[Task], source: EnvironmentSource, live: LiveStates, go_on: Any
) -> Answer:
    try:
        return run_stretch(tasks, source, live, go_on)
    except SlipstreamError as error:
        return error
    except MemoryError:
        os._exit(1)  # as the system would: the stretch is tried again with fewer members
    except Exception:
        return RuntimeError(f"worker process {os.getpid()}:\n{traceback.format_exc()}")


def _keep_memory() -> None:
    """Asks glibc to keep what is freed: the next stretch needs as much, and new pages are slow.

    Measured with 48 members: 0.12 instead of 0.32 seconds of CPU to assemble a population. Blocks
    from `_LARGE` bytes on are given back: kept, they leave holes, and a worker grew from 440 to
    700 MB in five stretches, where it now stays below 390.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _LARGE)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _die_with(parent: int) -> None:
    """Asks the system to kill this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
