"""Which members are trained side by side next, by their shapes, memory and measured speeds.

Larger batches are assembled more rarely, smaller ones stay in nearer memory; which is faster
depends on networks and machine, so it is measured while the study runs. Results do not depend on
it: a member's numbers are the same in any company.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.training.population.member import Member
from slipstream.training.population.training_segment import Task

SIZES = (64, 32, 16)  # members at most, the largest first: more than 64 were nowhere faster
_TRIES = 3  # batches of a size before the next smaller one is tried
_ENOUGH = 8  # iterations of a batch that say something: in fewer, assembling it is what counts
_NEAR = 0.95  # of the best speed: what comes so close is as good, and the largest such is taken
_UNLIKE = 4.0  # a machine's speed over the mean speed is clipped to 1/4..4
_LEAST = 6  # fewer are slower per step, so that it does not pay to leave some to others
_BYTES = 512 * 2**20  # of a worker's batch


class SpeedModel:
    """Remembers speeds by machine, shape and size."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], dict[int, list[float]]] = {}

    def add(
        self, machine: str, shape: str, members: int, iterations: int, steps: int, seconds: float
    ) -> None:
        """A batch was trained.

        Args:
            machine: where.
            shape: of its members.
            members: how many they were.
            iterations: of the one that did fewest.
            steps: of all members together.
            seconds: spent on training them, the time to assemble and save them among it.
        """
        size = next((size for size in reversed(SIZES) if members <= size), None)
        if size is None or members <= size // 2 or iterations < _ENOUGH or seconds <= 0.0:
            return
        found = self._known.setdefault((machine, shape), {size: [] for size in SIZES})
        found[size].append(steps / seconds)

    def most(self, machine: str, shape: str) -> int:
        """Members of the next batch of a shape at most."""
        found = self._known.get((machine, shape), {})
        for size in SIZES:
            if len(found.get(size, ())) < _TRIES:
                return size
        # The fastest of each: what slows one batch down is mostly somebody else at work.
        best = {size: max(speeds) for size, speeds in found.items()}
        fastest = max(best.values())
        return next(size for size in SIZES if best[size] >= _NEAR * fastest)


class WorkerSpeeds:
    """Steps per second of a worker, by machine."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def add(self, machine: str, speed: float) -> None:
        """A batch was done."""
        before = self._known.get(machine)
        self._known[machine] = speed if before is None else 0.5 * (before + speed)

    def get(self, machine: str) -> float | None:
        """The last batches' mean; of any machine where this one did none yet."""
        if machine in self._known or not self._known:
            return self._known.get(machine)
        return sum(self._known.values()) / len(self._known)

    def workers(self, machine: str, machines: Sequence[str]) -> float:
        """Workers on these machines, counted in workers as fast as those of `machine`."""
        own = self.get(machine)
        if own is None:
            return float(len(machines))
        ratios = [(self.get(one) or own) / own for one in machines]
        return sum(min(_UNLIKE, max(1 / _UNLIKE, ratio)) for ratio in ratios)


@dataclass
class Job:
    """A task that waits.

    Attributes:
        task: what to do.
        shape: members of equal shape can be trained side by side.
        load: environment steps to do; being scored counts like an iteration.
        memory: bytes while it is trained.
        generation: of the source, with the data that it needs.
        iterations: of training to do.
    """

    task: Task
    shape: str
    load: int
    memory: int
    generation: int
    iterations: int = 0

    @property
    def member(self) -> Member:
        """Whose."""
        return self.task.member

    @property
    def steps(self) -> int:
        """Environment steps of training."""
        parts = self.iterations + (self.member.test is not None)
        return self.load * self.iterations // parts if parts else 0


@dataclass
class MemberBatch:
    """Jobs of one shape that a worker does together.

    Attributes:
        jobs: which.
        deaths: of workers that had them.
        lost: how often a machine that had them went away.
        began: when it was handed out, seconds of the monotonic clock.
    """

    jobs: list[Job]
    deaths: int = 0
    lost: int = 0
    began: float = 0.0

    @property
    def load(self) -> int:
        """Environment steps of all jobs."""
        return sum(job.load for job in self.jobs)

    def load_left(self, speed: float | None) -> float:
        """Load still to do at `speed` steps per second; all of it where that is not known."""
        done = 0.0 if speed is None else speed * (time.monotonic() - self.began)
        return max(0.0, self.load - done)

    def halves(self) -> list[MemberBatch]:
        """Two smaller ones."""
        middle = (len(self.jobs) + 1) // 2
        parts = [self.jobs[:middle], self.jobs[middle:]]
        return [MemberBatch(part, self.deaths, self.lost) for part in parts if part]


def next_batch(
    waiting: Sequence[Job],
    others: Sequence[float],
    workers: float,
    group_size: int | None,
    pace: Callable[[str], int] = lambda shape: SIZES[0],
) -> MemberBatch | None:
    """What an idle worker does next, so that all workers come to an end together.

    It takes of the shape of which most is waiting, in the order of submission, as many as bring
    its load nearest to a fair part of everything that is waiting or under way: one member left
    over would be trained alone at the end, while everybody else waits for it.

    Args:
        waiting: jobs.
        others: load left of the batches under way.
        workers: how many there are, in workers as fast as this one.
        group_size: members at most; None: by memory and pace.
        pace: members of a shape at most, by measured speed.
    """
    if not waiting:
        return None
    by_shape: dict[str, list[Job]] = {}
    for job in waiting:
        by_shape.setdefault(job.shape, []).append(job)
    jobs = max(by_shape.values(), key=_load)
    fair = (_load(waiting) + sum(others)) / workers
    room = max_members(max(job.memory for job in jobs))
    most = group_size or min(pace(jobs[0].shape), room)
    taken: list[Job] = []
    for job in jobs[:most]:
        if len(taken) >= _LEAST and _load(taken) + job.load / 2 > fair * (1 + 1e-9):
            break
        taken.append(job)
    return MemberBatch(taken)


def max_members(size: int) -> int:
    """Members of a batch at most, each of which takes so many bytes while it is trained."""
    return max(1, min(SIZES[0], _BYTES // max(1, size)))


def effective_members(members: int, workers: int) -> float:
    """Return a number of members, more if they are too few to give each worker a batch."""
    return members * workers / min(workers, max(1, members // _LEAST))


def _load(jobs: Sequence[Job]) -> float:
    return math.fsum(job.load for job in jobs)
