"""One worker process of a pool, seen from both sides of its pipe."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from slipstream.core.process import orphaned
from slipstream.training.cluster.cluster import Lost
from slipstream.training.population.member import Outcome
from slipstream.training.population.source import EnvironmentSource
from slipstream.training.population.state import LiveStates
from slipstream.training.population.stretch import Task, run_stretch
from slipstream.training.processes.child import Child, portable, torch_threads

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGE = 4 * 2**20
PATIENCE_SECONDS = 60.0  # for the iteration or the test pass under way, of who is asked to leave
Answer = list[Outcome] | Exception


class Worker(Child):
    """A child that runs one stretch at a time.

    Args:
        source: of environments.
        live: where states are kept.

    Attributes:
        generation: of the source when it was forked.
    """

    gone = False  # another one is forked in its place

    def __init__(self, source: EnvironmentSource, live: LiveStates) -> None:
        self.generation = source.generation
        torch_threads(1)
        serve = partial(_serve, source, live)
        super().__init__(serve, "study worker", "give fewer --workers")

    def receive(self) -> Answer | Lost:
        """What came of its stretch."""
        answer: Answer | None = super().receive()
        return Lost(self.end(1.0), "died") if answer is None else answer


class _Leave(BaseException):
    """The pool wants no more, or is gone."""


def _serve(source: EnvironmentSource, live: LiveStates, pipe: Connection) -> None:
    """The child: runs stretches until told to stop."""
    keep_memory()
    gc.freeze()  # what was inherited stays: `gc.collect` below need not look at it
    parent = os.getppid()

    def check_stop() -> None:
        if pipe.poll() or orphaned(parent):
            raise _Leave

    first = True
    with suppress(_Leave):
        while (tasks := pipe.recv()) is not None:
            pipe.send(_answer(tasks, source, live, check_stop))
            gc.collect()  # populations are cyclic: they would wait for one another
            if first:
                gc.freeze()  # modules and compiled loops that the first stretch brought
                first = False


def _answer(
    tasks: Sequence[Task],
    source: EnvironmentSource,
    live: LiveStates,
    check_stop: Callable[[], None],
) -> Answer:
    try:
        return run_stretch(tasks, source, live, check_stop)
    except MemoryError:
        os._exit(1)  # as the system would: the stretch is tried again with fewer members
    except Exception as error:
        return portable(error)


def keep_memory() -> None:
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
