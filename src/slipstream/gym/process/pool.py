"""A pool of worker processes that several environments share, and what all of them may take."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from slipstream.core.bounds import check_count
from slipstream.core.capacity import memory_of, total_memory, usable_cores
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.gym.process.crowd import Crowd
from slipstream.jit.cache import private_folder

_FILE = "leases.json"


class Budget:
    """Leases of copies, in a file that every process of the user reads and writes under a lock.

    What a process had that is gone no longer counts.

    Args:
        folder: of the file; in the cache folder unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = (folder or private_folder("leases")) / _FILE

    def take(self, copies: int, most: int | None) -> tuple[bool, int]:
        """Leases copies to this process unless there would be more than `most` in all.

        Returns:
            Whether it did, and how many others have.
        """
        with self._leases() as leases:
            taken = sum(lease["copies"] for lease in leases)
            if most is not None and taken + copies > most:
                return False, taken
            own = [lease for lease in leases if lease["pid"] == os.getpid()]
            if own:
                own[0]["copies"] += copies
            else:
                leases.append(_me() | {"copies": copies})
            return True, taken

    def give(self, copies: int) -> None:
        """Gives copies back."""
        with self._leases() as leases:
            for lease in leases:
                if lease["pid"] == os.getpid():
                    lease["copies"] = max(0, lease["copies"] - copies)

    @property
    def taken(self) -> int:
        """Copies that are leased now."""
        with self._leases() as leases:
            return sum(lease["copies"] for lease in leases)

    @contextmanager
    def _leases(self) -> Iterator[list[dict[str, Any]]]:
        with open(self._path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                leases = json.load(file)
            except ValueError:  # new, or cut off by a kill
                leases = []
            leases = [lease for lease in leases if _lives(lease)]
            yield leases
            file.seek(0)
            file.truncate()
            json.dump([lease for lease in leases if lease["copies"]], file)


def _me() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def _lives(lease: dict[str, Any]) -> bool:
    """Whether the process that a lease names is the one that took it."""
    try:
        return bool(psutil.Process(lease["pid"]).create_time() == lease["started"])
    except (psutil.Error, KeyError):
        return False


_LOOK_SECONDS = 0.1
_SHARE = 0.8  # of the memory there is, where nothing else is said


class WorkerPool(Crowd):
    """Workers that environments lease and give back; they stay warm in between.

    ::

        with WorkerPool(max_concurrent_envs=64):
            slipstream.train("gym:Acrobot-v1", backend="process")
            slipstream.train("gym:CartPole-v1", backend="process")  # by the same processes

    While it is open, trainings in this process (in threads of it, too) take their workers here.

    Args:
        max_concurrent_envs: copies at a time, of all trainings of this user on this machine that
            have such a bound; None: no bound.
        memory_mib: of all its workers together; four fifths of what the machine or container has
            unless given.
        workers: processes that are kept between leases; one a core unless given, by affinity and
            the container's share.
        method: how they are started.
        wait: seconds for which a lease waits until others give theirs back.
        budget: where leases are counted.
    """

    _current: ClassVar[WorkerPool | None] = None

    def __init__(
        self,
        *,
        max_concurrent_envs: int | None = None,
        memory_mib: float | None = None,
        workers: int | None = None,
        method: str = "forkserver",
        wait: float = 60.0,
        budget: Budget | None = None,
    ) -> None:
        for name, count in (("workers", workers), ("max_concurrent_envs", max_concurrent_envs)):
            if count is not None:
                check_count(name, count)
        for name, much in (("memory_mib", memory_mib), ("wait", wait)):
            if much is not None and not (isinstance(much, (int, float)) and much >= 0):
                raise ConfigError(f"`{name}` takes a number from 0 on, not {much!r}.")
        super().__init__(method, kept=workers or usable_cores())
        self.max_concurrent_envs, self.wait = max_concurrent_envs, wait
        self.memory = _SHARE * total_memory() if memory_mib is None else memory_mib * 2**20
        self._budget = budget or Budget()
        self._each: dict[str, float] = {}  # bytes of a copy, by environment
        self._mine = 0
        self._pid = os.getpid()

    @classmethod
    def current(cls) -> WorkerPool | None:
        """The pool that is open in this process."""
        pool = cls._current
        return pool if pool is not None and pool._pid == os.getpid() else None

    def claim(self, copies: int, name: str) -> None:
        """Leases so many copies of an environment; waits for others to give theirs back.

        Raises:
            ResourceError: they did not, or there is too little memory.
        """
        until = time.monotonic() + self.wait
        while True:
            given, taken = self._budget.take(copies, self.max_concurrent_envs)
            if given:
                break
            if time.monotonic() > until or copies > (self.max_concurrent_envs or copies):
                raise ResourceError(
                    f"{copies} copies of {name} were asked for, {taken} are leased on this machine "
                    f"(some by this process: {self._mine}), and there may be "
                    f"{self.max_concurrent_envs} at a time. End other trainings, lower num_envs, "
                    "or raise max_concurrent_envs."
                )
            time.sleep(_LOOK_SECONDS)
        self._mine += copies
        try:
            self.check_memory(copies, name)
        except BaseException:
            self.release(copies)
            raise

    def check_memory(self, copies: int, name: str) -> None:
        """Refuses more copies than its memory has room for.

        Raises:
            ResourceError: by what copies of that environment took before.
        """
        expected = self.used + copies * self._each.get(name, 0.0)
        if expected > self.memory:
            raise ResourceError(
                f"{copies} more copies of {name} would take about {expected / 2**20:,.0f} MiB with "
                f"all that run, and the pool may take {self.memory / 2**20:,.0f}. Lower num_envs, "
                "or give the pool more memory_mib."
            )

    def started(self, copies: int, name: str, pids: list[int]) -> None:
        """Measures what copies take that have just been made."""
        self._each[name] = sum(map(memory_of, pids)) / copies

    def release(self, copies: int) -> None:
        """Gives copies back."""
        self._mine -= copies
        self._budget.give(copies)

    def beside(self) -> Crowd:
        """Its workers for copies that step only while those of a lease wait: they are not counted.

        An evaluation is such: a training of as many copies as there may be could never have one.
        """
        return _Beside(self)

    @property
    def used(self) -> float:
        """Bytes of its workers now."""
        return float(sum(map(memory_of, self.all_pids)))

    def __enter__(self) -> Self:
        WorkerPool._current = self
        return self

    def __exit__(self, *_: object) -> None:
        WorkerPool._current = None
        self.close()


class _Beside(Crowd):
    """A pool without its count; see `WorkerPool.beside`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.take, self.start = pool.take, pool.start  # type: ignore[method-assign]
        self.ending, self.give_back = pool.ending, pool.give_back  # type: ignore[method-assign]

    def claim(self, copies: int, name: str) -> None:
        self._pool.check_memory(copies, name)
