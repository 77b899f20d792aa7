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
from slipstream.gym.process.env_worker import DOWN, EXIT, IDLE, PARK, UP, WorkerHandle
from slipstream.gym.process.launcher import Launcher
from slipstream.jit.cache import private_folder

_LEAVE_SECONDS = 2.0


class ProcessPool:
    """Worker processes that are started by one method.

    Args:
        method: "forkserver" or "spawn".
        max_idle: Number of idle processes kept for the next environment. They have already
            imported the modules of the last one.
    """

    def __init__(self, method: str = "forkserver", max_idle: int = 0) -> None:
        self._launcher = Launcher(method)
        self.max_idle = max_idle
        self._idle: list[WorkerHandle] = []
        self._busy: set[WorkerHandle] = set()
        self._lock = threading.RLock()

    def acquire(self) -> WorkerHandle:
        """Return an idle worker, or a handle without a process if there is none."""
        with self._lock:
            while self._idle:
                handle = self._idle.pop()
                if handle.pipe is not None and not handle.pipe.poll(0):  # else it has exited
                    break
                self._reap(handle)
            else:
                handle = WorkerHandle()
            self._busy.add(handle)
            return handle

    def start(self, handle: WorkerHandle) -> None:
        """Start a process for a worker handle without one.

        Raises:
            ResourceError: The system is out of processes, open files or memory.
        """
        with self._lock:
            try:
                handle.start(self._launcher.start)
            except OSError as error:
                raise worker_start_error(error, "give fewer workers") from error

    def ending(self, handle: WorkerHandle) -> str:
        """Describe the exit of a worker, for messages."""
        with self._lock:
            return self._launcher.ending(handle.pid)

    def give_back(self, handles: list[WorkerHandle]) -> None:
        """Take workers back: all close their environments.

        Up to `max_idle` workers stay alive; the rest are terminated.
        """
        free = self.max_idle - len(self._idle)
        staying = [handle for handle in handles if handle.state == UP][: max(0, free)]
        try:
            for handle in handles:
                if handle.state == UP:
                    handle.order(PARK if handle in staying else EXIT)
            until = time.monotonic() + _LEAVE_SECONDS
            for handle in handles:
                if (
                    handle.state == UP
                    and handle.pipe is not None
                    and _wait_until_parked(handle, until)
                ):
                    handle.state = IDLE
        finally:
            with self._lock:
                for handle in handles:
                    self._busy.discard(handle)
                    if handle.state == IDLE and handle in staying:
                        self._idle.append(handle)
                    else:
                        self._reap(handle)
                handles.clear()

    def _reap(self, handle: WorkerHandle) -> None:
        if handle.pipe is not None:
            handle.kill(signal.SIGKILL)
            self._launcher.ending(handle.pid)
        handle.state = DOWN
        handle.close()

    def reserve(self, num_envs: int, name: str) -> None:
        """Reserve sub-environments before they are created. A pool with a budget may refuse."""

    def started(self, num_envs: int, name: str, pids: list[int]) -> None:
        """Take note that these processes have created sub-environments."""

    def release(self, num_envs: int) -> None:
        """Release the reservation of closed sub-environments."""

    @property
    def all_pids(self) -> list[int]:
        """Process ids of all workers."""
        with self._lock:
            return [handle.pid for handle in (*self._busy, *self._idle) if handle.pipe is not None]

    @property
    def pids(self) -> list[int]:
        """Process ids of the idle workers."""
        return [handle.pid for handle in self._idle]

    def close(self) -> None:
        """Terminate the idle workers and the process that starts workers."""
        self.give_back([])
        with self._lock:
            while self._idle:
                self._reap(self._idle.pop())
            self._launcher.close()


def _wait_until_parked(handle: WorkerHandle, until: float) -> bool:
    """Wait for a worker that was sent PARK or EXIT and return true if it is parked."""
    assert handle.pipe is not None
    with suppress(EOFError, OSError):
        while handle.pipe.poll(max(0.0, until - time.monotonic())):
            if handle.pipe.recv()[0] == "resting":
                return True
    return False


_FILE = "leases.json"


class Budget:
    """Leases of sub-environments, in a locked file shared by all processes of the user.

    Leases of processes that have exited do not count.

    Args:
        folder: Folder of the file. None uses the cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = (folder or private_folder("leases")) / _FILE

    def acquire(self, num_envs: int, most: int | None) -> tuple[bool, int]:
        """Lease sub-environments to this process unless the total would exceed `most`.

        Returns:
            True if they are leased, and the number leased before.
        """
        with self._leases() as leases:
            reserved = sum(lease["num_envs"] for lease in leases)
            if most is not None and reserved + num_envs > most:
                return False, reserved
            mine = [lease for lease in leases if lease["pid"] == os.getpid()]
            if mine:
                mine[0]["num_envs"] += num_envs
            else:
                leases.append(_own_lease() | {"num_envs": num_envs})
            return True, reserved

    def release(self, num_envs: int) -> None:
        """Release leased sub-environments."""
        with self._leases() as leases:
            for lease in leases:
                if lease["pid"] == os.getpid():
                    lease["num_envs"] = max(0, lease["num_envs"] - num_envs)

    @property
    def reserved(self) -> int:
        """Number of leased sub-environments."""
        with self._leases() as leases:
            return sum(lease["num_envs"] for lease in leases)

    @contextmanager
    def _leases(self) -> Iterator[list[dict[str, Any]]]:
        with open(self._path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                leases = json.load(file)
            except ValueError:  # new, or truncated by a kill
                leases = []
            leases = [lease for lease in leases if _is_alive(lease)]
            yield leases
            file.seek(0)
            file.truncate()
            json.dump([lease for lease in leases if lease["num_envs"]], file)


def _own_lease() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def _is_alive(lease: dict[str, Any]) -> bool:
    """Return true if the process that took a lease still runs."""
    try:
        return bool(psutil.Process(lease["pid"]).create_time() == lease["started"])
    except (psutil.Error, KeyError):
        return False


_LOOK_SECONDS = 0.1
_SHARE = 0.8  # of total memory, by default


class WorkerPool(ProcessPool):
    """Pool of workers that environments share; workers stay alive between leases.

    ::

        with WorkerPool(max_concurrent_envs=64):
            slipstream.train("gym:Acrobot-v1", backend="process")
            slipstream.train("gym:CartPole-v1", backend="process")  # uses the same processes

    While it is open, training runs in this process, including its threads, use its workers.

    Args:
        max_concurrent_envs: Maximum number of sub-environments at a time, over all runs of this
            user on this machine that set this limit. None disables it.
        memory_mib: Maximum memory of all workers. None uses 80 % of the memory of the machine or
            container.
        workers: Number of idle processes to keep. None uses one per available core.
        method: Start method, "forkserver" or "spawn".
        wait: Seconds to wait until other runs release their leases.
        budget: Where leases are counted.
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
                raise ConfigError(f"`{name}` must be a non-negative number, got {much!r}.")
        super().__init__(method, max_idle=workers or usable_cores())
        self.max_concurrent_envs, self.wait = max_concurrent_envs, wait
        self.memory = _SHARE * total_memory() if memory_mib is None else memory_mib * 2**20
        self._budget = budget or Budget()
        self._env_bytes: dict[str, float] = {}  # bytes per sub-environment, by environment
        self._reserved, self._counted = 0, True
        self._pid = os.getpid()

    @classmethod
    def current(cls) -> WorkerPool | None:
        """Return the open pool of this process, if any."""
        pool = cls._current
        return pool if pool is not None and pool._pid == os.getpid() else None

    def reserve(self, num_envs: int, name: str) -> None:
        """Lease sub-environments and wait for other runs to release theirs if necessary.

        Raises:
            ResourceError: The limit is still reached after `wait` seconds, or memory is too low.
        """
        if not self._counted:
            self.check_memory(num_envs, name)
            return
        until = time.monotonic() + self.wait
        while True:
            is_leased, reserved = self._budget.acquire(num_envs, self.max_concurrent_envs)
            if is_leased:
                break
            if time.monotonic() > until or num_envs > (self.max_concurrent_envs or num_envs):
                raise ResourceError(
                    f"{num_envs} environments {name} exceed max_concurrent_envs="
                    f"{self.max_concurrent_envs}: {reserved} are leased on this machine, "
                    f"{self._reserved} of them by this process. Stop other runs, lower num_envs, "
                    "or raise max_concurrent_envs."
                )
            time.sleep(_LOOK_SECONDS)
        self._reserved += num_envs
        try:
            self.check_memory(num_envs, name)
        except BaseException:
            self.release(num_envs)
            raise

    def check_memory(self, num_envs: int, name: str) -> None:
        """Check that further sub-environments fit into the memory limit.

        The estimate uses the measured memory of earlier sub-environments of that name.

        Raises:
            ResourceError: They do not fit.
        """
        expected = self.used + num_envs * self._env_bytes.get(name, 0.0)
        if expected > self.memory:
            raise ResourceError(
                f"{num_envs} more environments {name} need about {expected / 2**20:,.0f} MiB in "
                f"total, and the limit of the pool is {self.memory / 2**20:,.0f} MiB. Lower "
                "num_envs or raise memory_mib."
            )

    def started(self, num_envs: int, name: str, pids: list[int]) -> None:
        """Measure the memory of sub-environments that were just created."""
        if self._counted:
            self._env_bytes[name] = sum(map(process_memory, pids)) / num_envs

    def release(self, num_envs: int) -> None:
        """Release leased sub-environments."""
        if self._counted:
            self._reserved -= num_envs
            self._budget.release(num_envs)

    def uncounted(self) -> ProcessPool:
        """Return a pool with the same workers that does not count sub-environments.

        For evaluations: they step only while training waits, and a run that uses the whole limit
        must still be able to evaluate.
        """
        pool = copy.copy(self)
        pool._counted = False
        return pool

    @property
    def used(self) -> float:
        """Bytes used by the workers now."""
        return float(sum(map(process_memory, self.all_pids)))

    def __enter__(self) -> Self:
        WorkerPool._current = self
        return self

    def __exit__(self, *_: object) -> None:
        WorkerPool._current = None
        self.close()
