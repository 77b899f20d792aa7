"""Faults of sub-environments and workers: log, restart delays and limits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError, KernelError

_WINDOW_SECONDS = 60.0
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0
_MAX_STORED = 100  # faults stored with their texts
_MIN_VALID_SHARE = 0.95  # of the rows since the first fault of a minute; training continues above
MAX_ATTEMPTS = 3  # of an episode of an evaluation; then it counts as lost
_ALL = slice(None)


class Fault(NamedTuple):
    """One failure.

    Attributes:
        kind: "raised" or "hung" (the current sub-environment), "lost" (the worker with all its
            sub-environments), or "given up" (an episode of an evaluation, after `MAX_ATTEMPTS`).
        env_id: Index of the sub-environment. For a lost worker, the current one.
        worker, pid: Index and process id of the worker.
        episode, step: Position of the sub-environment.
        action: Its last action.
        text: Error message or exit status, with the worker's traceback.
        error: The exception, if it can be pickled.
    """

    kind: str
    env_id: int
    worker: int
    pid: int
    episode: int
    step: int
    action: Sequence[float]
    text: str
    error: BaseException | None = None

    def __str__(self) -> str:
        who = f"environment {self.env_id} (worker {self.worker}, process {self.pid})"
        if self.kind == "lost":
            who = f"worker {self.worker} (process {self.pid}; current environment {self.env_id})"
        return (
            f"{who}, episode {self.episode}, step {self.step}, last action {list(self.action)}: "
            f"{self.text.strip()}"
        )


class FaultLog:
    """Log of the faults of a run's sub-environments.

    Attributes:
        total: Number of faults so far.
        fresh: Faults since the last `drain`.
    """

    def __init__(self, policy: FaultPolicy, num_envs: int, name: str) -> None:
        self.policy, self.name = policy, name
        self.total = 0
        self.fresh: deque[Fault] = deque(maxlen=_MAX_STORED)
        self._times: deque[tuple[float, int, int]] = deque()  # with total and valid rows
        self._steps = self._real = 0  # rows since the first fault: all, valid
        self._rows = np.zeros(num_envs, np.int64)  # consecutive faults by sub-environment
        self._any = False  # of `_rows` is not 0
        self._lost: dict[int, int] = {}  # consecutive losses by worker
        self._latest: dict[int, Fault] = {}  # by sub-environment
        self._reason: str | None = None
        self._worst: Fault | None = None

    def add(self, fault: Fault) -> None:
        """Count a fault."""
        now = time.monotonic()
        self.total += 1
        self.fresh.append(fault)
        self._latest[fault.env_id] = fault
        self._times.append((now, self._steps, self._real))
        while now - self._times[0][0] > _WINDOW_SECONDS:
            self._times.popleft()
        if fault.kind == "lost":
            self._lost[fault.worker] = in_a_row = self._lost.get(fault.worker, 0) + 1
        else:
            self._rows[fault.env_id] += 1
            self._any = True
            in_a_row = int(self._rows[fault.env_id])
        if self.policy.on_fault == "raise":
            self._stop(fault, "faults are errors (on_fault: raise)")
        elif in_a_row >= self.policy.max_consecutive_faults:
            self._stop(fault, f"it failed {in_a_row} times in a row")
        elif len(self._times) > self.policy.max_faults_per_minute:
            _, steps, real = self._times[0]
            steps, real = self._steps - steps, self._real - real
            if real < _MIN_VALID_SHARE * steps or not steps:
                cost = f"{steps - real:,} of {steps:,} steps are lost"
                many = f"more than {self.policy.max_faults_per_minute} faults in a minute"
                self._stop(fault, f"there were {many} (training.faults_per_minute), and {cost}")

    def give_up(self, env_id: int) -> None:
        """Count an episode as lost; its attempts count as one consecutive fault."""
        last = self._latest[env_id]
        text = f"failed {MAX_ATTEMPTS} times and counts as lost. The last error: {last.text}"
        self.fresh.append(last._replace(kind="given up", text=text))
        self._rows[env_id] = max(0, self._rows[env_id] - (MAX_ATTEMPTS - 1))

    def _stop(self, fault: Fault, reason: str) -> None:
        if self._reason is None:
            self._reason, self._worst = reason, fault

    def resize(self, num_envs: int) -> None:
        """Change the number of sub-environments."""
        rows = np.zeros(num_envs, np.int64)
        common = min(num_envs, len(self._rows))
        rows[:common] = self._rows[:common]
        self._rows = rows

    def record_valid(
        self, valid: NDArray[np.bool_], rows: slice | NDArray[np.int64] = _ALL
    ) -> None:
        """Reset the consecutive faults of sub-environments whose step is valid."""
        if self.total:
            self._steps += len(valid)
            self._real += int(np.count_nonzero(valid))
        if self._any:
            self._rows[np.arange(len(self._rows))[rows][valid]] = 0
            self._any = bool(self._rows.any())

    def record_response(self, worker: int) -> None:
        """Reset the consecutive losses of a worker that completed a command."""
        if self._lost:
            self._lost.pop(worker, None)

    def delay(self, worker: int) -> float:
        """Return the seconds until a lost worker is restarted, with exponential backoff."""
        return backoff(self._lost.get(worker, 0))

    def check(self) -> None:
        """Raise if there are too many faults.

        Raises:
            KernelError: The message has the sub-environment, its process, its last action and the
                worker's traceback. The cause is the error of the environment, if picklable.
        """
        if self._reason is None:
            return
        reason, fault = self._reason, self._worst
        self._reason = self._worst = None
        assert fault is not None
        raise KernelError(
            f"{self.name}: {fault}\nStopped because {reason}. Fix the environment there. With "
            "`training.backend: serial` it runs in this process, where a debugger can be used."
        ) from fault.error

    def check_startup(self) -> None:
        """Raise for any fault at start-up, except a worker killed by SIGKILL from outside."""
        for fault in self.fresh:
            if isinstance(fault.error, ConfigError):  # an error in the configuration
                raise ConfigError(str(fault.error)) from None
            if not (fault.kind == "lost" and "was killed by SIGKILL" in fault.text):
                raise KernelError(f"{self.name}: {fault}") from fault.error
        self.check()

    def drain(self) -> list[Fault]:
        """Return the faults since the last call, at most the newest 100."""
        fresh = list(self.fresh)
        self.fresh.clear()
        return fresh


def backoff(failures: int) -> float:
    """Return the seconds to wait after consecutive failures: 0, 0.1, 0.2, 0.4 ... 10."""
    if failures <= 1:
        return 0.0
    return float(min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (failures - 2)))
