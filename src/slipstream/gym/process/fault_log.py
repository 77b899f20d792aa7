"""What went wrong in copies and workers, how soon each is tried again, and when it is too much."""

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
_KEPT = 100  # faults that are remembered with their texts
_SPARED = 0.95  # of the rows since the first fault of a minute: where so many are real, it goes on
TRIES = 3  # of an evaluation's episode, after which it counts as lost
_ALL = slice(None)


class Fault(NamedTuple):
    """One failure.

    Attributes:
        kind: "raised", "hung" (the copy at hand), "lost" (the worker with all its copies), or
            "given up" (an episode of an evaluation, after so many `TRIES`).
        copy: number of the environment at fault; of a lost worker, the one at hand.
        worker, pid: of the process.
        episode, step: of the copy.
        action: its last one.
        text: what was raised or how it ended, with the worker's traceback.
        error: the exception itself, where it could travel.
    """

    kind: str
    copy: int
    worker: int
    pid: int
    episode: int
    step: int
    action: Sequence[float]
    text: str
    error: BaseException | None = None

    def __str__(self) -> str:
        who = f"environment {self.copy} (worker {self.worker}, process {self.pid})"
        if self.kind == "lost":
            who = f"worker {self.worker} (process {self.pid}; environment {self.copy} at hand)"
        return (
            f"{who}, episode {self.episode}, step {self.step}, last action {list(self.action)}: "
            f"{self.text.strip()}"
        )


class FaultLog:
    """All faults of a run's copies.

    Attributes:
        total: faults so far.
        fresh: those since `drain`.
    """

    def __init__(self, policy: FaultPolicy, num_envs: int, name: str) -> None:
        self.policy, self.name = policy, name
        self.total = 0
        self.fresh: deque[Fault] = deque(maxlen=_KEPT)
        self._times: deque[tuple[float, int, int]] = deque()  # and rows so far, real ones
        self._steps = self._real = 0  # rows since the first fault, and how many of them were real
        self._rows = np.zeros(num_envs, np.int64)  # in a row, by copy
        self._any = False  # of them is not 0
        self._lost: dict[int, int] = {}  # in a row, by worker
        self._latest: dict[int, Fault] = {}  # by copy
        self._reason: str | None = None
        self._worst: Fault | None = None

    def add(self, fault: Fault) -> None:
        """Counts a fault."""
        now = time.monotonic()
        self.total += 1
        self.fresh.append(fault)
        self._latest[fault.copy] = fault
        self._times.append((now, self._steps, self._real))
        while now - self._times[0][0] > _WINDOW_SECONDS:
            self._times.popleft()
        if fault.kind == "lost":
            self._lost[fault.worker] = in_a_row = self._lost.get(fault.worker, 0) + 1
        else:
            self._rows[fault.copy] += 1
            self._any = True
            in_a_row = int(self._rows[fault.copy])
        if self.policy.on_fault == "raise":
            self._stop(fault, "a fault is an error here (on_fault: raise)")
        elif in_a_row >= self.policy.max_consecutive_faults:
            self._stop(fault, f"it failed {in_a_row} times in a row")
        elif len(self._times) > self.policy.max_faults_per_minute:
            _, steps, real = self._times[0]
            steps, real = self._steps - steps, self._real - real
            if real < _SPARED * steps or not steps:
                cost = f"{steps - real:,} of {steps:,} steps are lost"
                many = f"more than {self.policy.max_faults_per_minute} faults in a minute"
                self._stop(fault, f"there were {many} (training.faults_per_minute), and {cost}")

    def give_up(self, copy: int) -> None:
        """Notes that a copy's episode counts as lost: its tries are one failure in a row."""
        last = self._latest[copy]
        text = f"failed {TRIES} times and counts as lost, the last time by this: {last.text}"
        self.fresh.append(last._replace(kind="given up", text=text))
        self._rows[copy] = max(0, self._rows[copy] - (TRIES - 1))

    def _stop(self, fault: Fault, reason: str) -> None:
        if self._reason is None:
            self._reason, self._worst = reason, fault

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies."""
        rows = np.zeros(num_envs, np.int64)
        common = min(num_envs, len(self._rows))
        rows[:common] = self._rows[:common]
        self._rows = rows

    def good(self, valid: NDArray[np.bool_], rows: slice | NDArray[np.int64] = _ALL) -> None:
        """Forgets what went wrong in a row for those of some copies that made a good step."""
        if self.total:
            self._steps += len(valid)
            self._real += int(np.count_nonzero(valid))
        if self._any:
            self._rows[np.arange(len(self._rows))[rows][valid]] = 0
            self._any = bool(self._rows.any())

    def worked(self, worker: int) -> None:
        """A worker did what it was told."""
        if self._lost:
            self._lost.pop(worker, None)

    def delay(self, worker: int) -> float:
        """Seconds until a lost worker is started again: at once, then longer and longer."""
        return backoff(self._lost.get(worker, 0))

    def check(self) -> None:
        """Raises where it is too much.

        Raises:
            KernelError: names the copy, its process, its last action and the worker's traceback;
                its cause is what the environment raised, where that could travel.
        """
        if self._reason is None:
            return
        reason, fault = self._reason, self._worst
        self._reason = self._worst = None
        assert fault is not None
        raise KernelError(
            f"{self.name}: {fault}\nStopped, for {reason}. Mend the environment there; with "
            "`training.backend: serial` it runs in this process, under a debugger if need be."
        ) from fault.error

    def check_any(self) -> None:
        """While copies are made one fault is too much, but for a process that somebody killed."""
        for fault in self.fresh:
            if isinstance(fault.error, ConfigError):  # of what was given, in whichever process
                raise ConfigError(str(fault.error)) from None
            if not (fault.kind == "lost" and "was killed by SIGKILL" in fault.text):
                raise KernelError(f"{self.name}: {fault}") from fault.error
        self.check()

    def drain(self) -> list[Fault]:
        """Faults since the last call, the newest 100 of them."""
        fresh = list(self.fresh)
        self.fresh.clear()
        return fresh


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 0, 0.1, 0.2, 0.4 ... 10."""
    if failures <= 1:
        return 0.0
    return float(min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (failures - 2)))
