"""The threads that work: one per core, each with PyTorch at one thread of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType

import torch

# Threads hand the interpreter lock to each other between array operations of some 10 microseconds;
# Python's default of 5 ms would make the others wait for hundreds of them.
_SWITCH_SECONDS = 1e-4


class Crew:
    """Runs tasks side by side; PyTorch is held at one thread while it exists.

    One thread per task, because threads of PyTorch's own wait for each other by spinning: beside a
    busy neighbour an update took fifty times as long with two.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, "slipstream", _one_thread) if workers > 1 else None
        self._threads, self._interval = torch.get_num_threads(), sys.getswitchinterval()
        torch.set_num_threads(1)
        sys.setswitchinterval(_SWITCH_SECONDS)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Runs all tasks and waits for them; the first task's error, in their order, is raised."""
        if self._pool is None or len(tasks) == 1:
            for task in tasks:
                task()
            return
        futures = [self._pool.submit(task) for task in tasks]
        wait(futures)
        for future in futures:
            future.result()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads and gives PyTorch its own back."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self._threads)
        sys.setswitchinterval(self._interval)


def _one_thread() -> None:
    torch.set_num_threads(1)
