"""Pools of worker processes: start, lease, return, terminate.

A `ProcessPool` belongs to one environment. A `WorkerPool` is shared by several: its workers stay
alive between leases, and a `Budget` counts the sub-environments in all pools of a user.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from slipstream.core.bounds import check_count
from slipstream.core.capacity import process_memory, total_memory, usable_cores
from slipstream.core.child_process import worker_start_error
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.gym.process.env_worker import DOWN, IDLE, LEAVE, REST, UP, WorkerHandle
from slipstream.gym.process.launcher import Launcher
from slipstream.jit.cache import private_folder

_LEAVE_SECONDS = 2.0


class ProcessPool:
    """Worker processes of one way to start them.

    Args:
        method: "forkserver" or "spawn".
        kept: processes without work that are kept for the next environment; they have imported
            what the last one needed.
    """

    def __init__(self, method: str = "forkserver", kept: int = 0) -> None:
        self._launcher = Launcher(method)
        self.kept = kept
        self._idle: list[WorkerHandle] = []
        self._busy: set[WorkerHandle] = set()
        self._lock = threading.RLock()

    def take(self) -> WorkerHandle:
        """A worker without a job: one that is there, or the place of one to be started."""
        with self._lock:
            while self._idle:
                link = self._idle.pop()
                if link.pipe is not None and not link.pipe.poll(0):  # else it has ended
                    break
                self._bury(link)
            else:
                link = WorkerHandle()
            self._busy.add(link)
            return link

    def start(self, link: WorkerHandle) -> None:
        """Starts a process for a worker that has none.

        Raises:
            ResourceError: the system allows no more processes, open files or memory.
        """
        with self._lock:
            try:
                link.start(self._launcher.start)
            except OSError as error:
                raise worker_start_error(error, "give fewer workers") from error

    def ending(self, link: WorkerHandle) -> str:
        """How a worker ended that is gone or was killed."""
        with self._lock:
            return self._launcher.ending(link.pid)

    def give_back(self, links: list[WorkerHandle]) -> None:
        """Takes workers back: all are asked to close their copies; some are kept, none is left."""
        wanted = self.kept - len(self._idle)
        staying = [link for link in links if link.state == UP][: max(0, wanted)]
        try:
            for link in links:
                if link.state == UP:
                    link.order(REST if link in staying else LEAVE)
            until = time.monotonic() + _LEAVE_SECONDS
            for link in links:
                if link.state == UP and link.pipe is not None and _rested(link, until):
                    link.state = IDLE
        finally:
            with self._lock:
                for link in links:
                    self._busy.discard(link)
                    if link.state == IDLE and link in staying:
                        self._idle.append(link)
                    else:
                        self._bury(link)
                links.clear()

    def _bury(self, link: WorkerHandle) -> None:
        if link.pipe is not None:
            link.kill(signal.SIGKILL)
            self._launcher.ending(link.pid)
        link.state = DOWN
        link.close()

    def claim(self, copies: int, name: str) -> None:
        """Is called before copies are made; a pool with a budget may refuse."""

    def started(self, copies: int, name: str, pids: list[int]) -> None:
        """Is called when copies were made by these processes."""

    def release(self, copies: int) -> None:
        """Is called when copies are closed."""

    @property
    def all_pids(self) -> list[int]:
        """Numbers of all its processes."""
        with self._lock:
            return [link.pid for link in (*self._busy, *self._idle) if link.pipe is not None]

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes without work."""
        return [link.pid for link in self._idle]

    def close(self) -> None:
        """Ends the processes without work, and who starts them."""
        self.give_back([])
        with self._lock:
            while self._idle:
                self._bury(self._idle.pop())
            self._launcher.close()


def _rested(link: WorkerHandle, until: float) -> bool:
    """Waits for a worker that was asked to rest or leave; whether it rests."""
    assert link.pipe is not None
    with suppress(EOFError, OSError):
        while link.pipe.poll(max(0.0, until - time.monotonic())):
            if link.pipe.recv()[0] == "resting":
                return True
    return False


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
    """Return true if the process that a lease names is the one that took it."""
    try:
        return bool(psutil.Process(lease["pid"]).create_time() == lease["started"])
    except (psutil.Error, KeyError):
        return False


_LOOK_SECONDS = 0.1
_SHARE = 0.8  # of the memory there is, where nothing else is said


class WorkerPool(ProcessPool):
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
        self._mine, self._counted = 0, True
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
        if not self._counted:
            self.check_memory(copies, name)
            return
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
        if self._counted:
            self._each[name] = sum(map(process_memory, pids)) / copies

    def release(self, copies: int) -> None:
        """Gives copies back."""
        if self._counted:
            self._mine -= copies
            self._budget.give(copies)

    def beside(self) -> ProcessPool:
        """Its workers for copies that step only while those of a lease wait: they are not counted.

        An evaluation is such: a training of as many copies as there may be could never have one.
        """
        beside = copy.copy(self)
        beside._counted = False
        return beside

    @property
    def used(self) -> float:
        """Bytes of its workers now."""
        return float(sum(map(process_memory, self.all_pids)))

    def __enter__(self) -> Self:
        WorkerPool._current = self
        return self

    def __exit__(self, *_: object) -> None:
        WorkerPool._current = None
        self.close()
