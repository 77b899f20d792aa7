"""Children that compile beside this process, on the cores that it leaves idle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from slipstream.core.errors import ResourceError
from slipstream.core.process import PATIENCE_SECONDS
from slipstream.training.processes.child import Child

_THREADED = {"jax", "ray", "tensorflow"}  # whose threads do not outlive a fork, nor bear one


@contextmanager
def compilers(cores: int, work: Callable[[], None], most: int) -> Iterator[None]:
    """At most so many children do `work` until they are done; none outlives the block.

    Args:
        cores: that this process may use, one of them by itself.
    """
    children: list[Child] = []
    patience, alone = 0.0, not _THREADED.isdisjoint(sys.modules)
    try:
        with suppress(ResourceError):  # then this process compiles alone
            for _ in range(0 if alone else min(cores - 1, most)):
                children.append(Child(lambda pipe: work(), "compiler", "compile with less beside"))
        yield
        patience = PATIENCE_SECONDS  # all is made: they are leaving
    finally:
        for child in children:
            child.end(patience)
