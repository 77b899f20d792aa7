"""torch at one thread, while it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Holds torch at one thread in the block, and gives it its own back.

    Threads of torch's own wait for each other by spinning: beside a busy neighbour an update took
    fifty times as long with two. A forked child cannot use those of its parent at all.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
