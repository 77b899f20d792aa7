"""Children that compile beside this process, on the cores that it leaves idle."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from slipstream.core.errors import ResourceError
from slipstream.core.process import PATIENCE_SECONDS
from slipstream.machine.cache import forget_unfinished
from slipstream.training.processes.child import THREADED, Child


@contextmanager
def compilers(cores: int, work: Callable[[], None], most: int) -> Iterator[None]:
    """At most so many children do `work` until they are done; none outlives the block.

    Args:
        cores: that this process may use, one of them by itself.
    """
    children: list[Child] = []
    # A daemonic process, of a user's pool say, may have no children.
    alone = multiprocessing.current_process().daemon or not THREADED.isdisjoint(sys.modules)
    patience = 0.0
    try:
        with suppress(ResourceError):  # then this process compiles alone
            for _ in range(0 if alone else min(cores - 1, most)):
                children.append(Child(lambda pipe: work(), "compiler", "compile with less beside"))
        yield
        patience = PATIENCE_SECONDS  # all is made: they are leaving
    finally:
        until = time.monotonic() + patience
        for child in children:
            child.end(max(0.0, until - time.monotonic()))
            forget_unfinished(child.pid)
