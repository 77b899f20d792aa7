"""The threads that work side by side: one per core."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread

# Threads hand the interpreter lock to each other between array operations of some 10 microseconds;
# Python's default of 5 ms would make the others wait for hundreds of them.
_SWITCH_SECONDS = 1e-4


class Crew:
    """Runs tasks side by side, on one thread each, which begins when it is first needed."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # A pool of the standard library takes twice as long to hand a task over.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Runs all tasks and waits for them; the first task's error, in their order, is raised.

        An interrupt of the caller's own task is raised at once: others may wait for what that task,
        or whoever called, is to tell them.
        """
        if self.workers == 1 or len(tasks) == 1:
            for task in tasks:
                task()
            return
        for k in range(1, 1 if self._threads else self.workers):
            self._threads.append(Thread(target=self._serve, name=f"slipstream_{k}", daemon=True))
            self._threads[-1].start()
        errors: dict[int, BaseException] = {}
        done: SimpleQueue[None] = SimpleQueue()

        def attempt(k: int) -> None:
            try:
                tasks[k]()
            except BaseException as error:
                errors[k] = error
            done.put(None)

        for k in range(1, len(tasks)):
            self._tasks.put(partial(attempt, k))
        # The caller takes the first one: nobody is woken for it, and nobody waits for that.
        attempt(0)
        if 0 in errors and not isinstance(errors[0], Exception):
            raise errors[0]
        for _ in tasks:
            done.get()
        if errors:
            raise errors[min(errors)]

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        sys.setswitchinterval(self._interval)
