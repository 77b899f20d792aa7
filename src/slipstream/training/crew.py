"""The threads that work side by side: one per core."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

# Threads hand the interpreter lock to each other between array operations of some 10 microseconds;
# Python's default of 5 ms would make the others wait for hundreds of them.
_SWITCH_SECONDS = 1e-4


class Crew:
    """Runs tasks side by side, on one thread each."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers - 1, "slipstream") if workers > 1 else None
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Runs all tasks and waits for them; the first task's error, in their order, is raised."""
        if self._pool is None or len(tasks) == 1:
            for task in tasks:
                task()
            return
        futures = [self._pool.submit(task) for task in tasks[1:]]
        # The caller takes the first one: nobody is woken for it, and nobody waits for that.
        own: BaseException | None = None
        try:
            tasks[0]()
        except BaseException as error:
            own = error
        wait(futures)
        if own is not None:
            raise own
        for future in futures:
            future.result()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(self._interval)
