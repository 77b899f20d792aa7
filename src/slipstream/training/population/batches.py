"""Batching of members by shape, memory and measured speed.

Larger batches are assembled less often, smaller ones fit nearer caches. Which is faster depends on
networks and machine, so it is measured during the study. Results do not depend on it: a member's
weights are the same in any batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.training.population.member import Member
from slipstream.training.population.training_segment import Task

SIZES = (64, 32, 16)  # candidate batch sizes, largest first: more than 64 was never faster
_TRIES = 3  # batches of a size before the next smaller one is tried
_MIN_ITERATIONS = 8  # minimum iterations of a measurement; assembling dominates shorter batches
_NEAR_BEST = 0.95  # fraction of the best speed; the largest size above it is used
_MAX_SPEED_RATIO = 4.0  # a machine's speed over the mean speed is clipped to 1/4..4
_MIN_MEMBERS = 6  # smaller batches are slower per step
_MAX_BYTES = 512 * 2**20  # memory limit of a worker's batch


class SpeedModel:
    """Measured training speeds by machine, shape and batch size."""

    def __init__(self) -> None:
        self._speeds: dict[tuple[str, str], dict[int, list[float]]] = {}

    def add(
        self, machine: str, shape: str, members: int, iterations: int, steps: int, seconds: float
    ) -> None:
        """Add the measurement of a trained batch.

        Args:
            machine: machine of the worker.
            shape: shape of the members.
            members: number of members.
            iterations: fewest iterations of any member.
            steps: steps of all members together.
            seconds: training time, including assembling and saving.
        """
        size = next((size for size in reversed(SIZES) if members <= size), None)
        if size is None or members <= size // 2 or iterations < _MIN_ITERATIONS or seconds <= 0.0:
            return
        speeds = self._speeds.setdefault((machine, shape), {size: [] for size in SIZES})
        speeds[size].append(steps / seconds)

    def most(self, machine: str, shape: str) -> int:
        """Return the maximum number of members in the next batch of a shape."""
        speeds_by_size = self._speeds.get((machine, shape), {})
        for size in SIZES:
            if len(speeds_by_size.get(size, ())) < _TRIES:
                return size
        # The fastest of each: slow outliers are usually caused by other processes.
        best = {size: max(speeds) for size, speeds in speeds_by_size.items()}
        fastest = max(best.values())
        return next(size for size in SIZES if best[size] >= _NEAR_BEST * fastest)


class WorkerSpeeds:
    """Steps per second of a worker, by machine."""

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}

    def add(self, machine: str, speed: float) -> None:
        """Add the speed of a completed batch."""
        before = self._speeds.get(machine)
        self._speeds[machine] = speed if before is None else 0.5 * (before + speed)

    def get(self, machine: str) -> float | None:
        """Return the smoothed speed of a machine; the mean of all machines before its first
        batch.
        """
        if machine in self._speeds or not self._speeds:
            return self._speeds.get(machine)
        return sum(self._speeds.values()) / len(self._speeds)

    def workers(self, machine: str, machines: Sequence[str]) -> float:
        """Return the number of workers on these machines, in units of a worker on `machine`."""
        speed = self.get(machine)
        if speed is None:
            return float(len(machines))
        ratios = [(self.get(other) or speed) / speed for other in machines]
        return sum(min(_MAX_SPEED_RATIO, max(1 / _MAX_SPEED_RATIO, ratio)) for ratio in ratios)


@dataclass
class QueuedTask:
    """A queued task.

    Attributes:
        task: the task.
        shape: members of equal shape can be trained together.
        load: environment steps to do; scoring counts as one iteration.
        memory: bytes during training.
        generation: generation of the source that contains its data.
        iterations: training iterations to do.
    """

    task: Task
    shape: str
    load: int
    memory: int
    generation: int
    iterations: int = 0

    @property
    def member(self) -> Member:
        """Member of the task."""
        return self.task.member

    @property
    def steps(self) -> int:
        """Environment steps of training."""
        parts = self.iterations + (self.member.test is not None)
        return self.load * self.iterations // parts if parts else 0


@dataclass
class MemberBatch:
    """Queued tasks of one shape that a worker runs together.

    Attributes:
        jobs: the tasks.
        deaths: number of workers that died with them.
        lost: number of times their machine was lost.
        began: start time in seconds of the monotonic clock.
    """

    jobs: list[QueuedTask]
    deaths: int = 0
    lost: int = 0
    began: float = 0.0

    @property
    def load(self) -> int:
        """Environment steps of all tasks."""
        return sum(job.load for job in self.jobs)

    def load_left(self, speed: float | None) -> float:
        """Return the remaining load at `speed` steps per second; the whole load if it is None."""
        done = 0.0 if speed is None else speed * (time.monotonic() - self.began)
        return max(0.0, self.load - done)

    def halves(self) -> list[MemberBatch]:
        """Split into two smaller batches."""
        middle = (len(self.jobs) + 1) // 2
        parts = [self.jobs[:middle], self.jobs[middle:]]
        return [MemberBatch(part, self.deaths, self.lost) for part in parts if part]


def next_batch(
    waiting: Sequence[QueuedTask],
    others: Sequence[float],
    workers: float,
    group_size: int | None,
    max_by_speed: Callable[[str], int] = lambda shape: SIZES[0],
) -> MemberBatch | None:
    """Return the next batch of an idle worker, sized so that all workers finish together.

    The shape with the largest waiting load is used, in the order of submission. The batch takes as
    many tasks as bring its load nearest to a fair share of all waiting and running work. A single
    remaining member would otherwise be trained alone at the end while all other workers are idle.

    Args:
        waiting: queued tasks.
        others: remaining load of the running batches.
        workers: number of workers, in units of this worker's speed.
        group_size: maximum number of members; None for a limit by memory and speed.
        max_by_speed: function from a shape to its maximum number of members by measured speed.
    """
    if not waiting:
        return None
    by_shape: dict[str, list[QueuedTask]] = {}
    for job in waiting:
        by_shape.setdefault(job.shape, []).append(job)
    jobs = max(by_shape.values(), key=_load)
    fair_load = (_load(waiting) + sum(others)) / workers
    memory_limit = max_members(max(job.memory for job in jobs))
    most = group_size or min(max_by_speed(jobs[0].shape), memory_limit)
    taken: list[QueuedTask] = []
    for job in jobs[:most]:
        if len(taken) >= _MIN_MEMBERS and _load(taken) + job.load / 2 > fair_load * (1 + 1e-9):
            break
        taken.append(job)
    return MemberBatch(taken)


def max_members(size: int) -> int:
    """Return the maximum number of members in a batch if each takes `size` bytes."""
    return max(1, min(SIZES[0], _MAX_BYTES // max(1, size)))


def effective_members(members: int, workers: int) -> float:
    """Return a number of members, increased if there are too few to give each worker a batch."""
    return members * workers / min(workers, max(1, members // _MIN_MEMBERS))


def _load(jobs: Sequence[QueuedTask]) -> float:
    return math.fsum(job.load for job in jobs)
