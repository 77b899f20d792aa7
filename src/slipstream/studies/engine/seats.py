"""Seats: the workers of a pool, what each one does, and how fast its machine is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from slipstream.studies.engine.batches import MemberBatch
from slipstream.studies.engine.stretch import Task

_UNLIKE = 4.0  # no machine counts as more times faster or slower than the mean


class AnyWorker(Protocol):
    """Who does one stretch at a time: a forked process, or an actor of a cluster.

    Attributes:
        pipe: readable when an answer has come.
        generation: of the source that it knows.
        gone: nobody will sit in its seat again.
    """

    @property
    def pipe(self) -> Connection: ...

    @property
    def generation(self) -> int: ...

    @property
    def gone(self) -> bool: ...

    def send(self, tasks: Sequence[Task]) -> bool:
        """Hands it a stretch; False where it is gone."""

    def receive(self) -> Any:
        """Outcomes, an error, or `Lost` where it is gone; None: it saved states and goes on."""

    def ask_to_leave(self) -> None:
        """It saves the members under way after their iteration, and ends."""

    def end(self, patience: float) -> str:
        """Waits for it so many seconds; says how it ended."""


@dataclass(eq=False)
class WorkerSeat:
    """A worker's place in a pool.

    Attributes:
        worker: who sits there; a local one that is gone is replaced, a remote one takes its seat
            with it.
        batch: what it does.
        machine: the node of a cluster where it is; empty for this machine's own.
    """

    worker: AnyWorker | None = None
    batch: MemberBatch | None = None
    machine: str = ""

    @property
    def lost(self) -> bool:
        """Nobody will sit there again."""
        return self.worker is not None and self.worker.gone and self.batch is None


class Speeds:
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

    def workers(self, machine: str, seats: Sequence[WorkerSeat]) -> float:
        """All seats, counted in workers as fast as those of `machine`."""
        own = self.get(machine)
        if own is None:
            return float(len(seats))
        ratios = [(self.get(seat.machine) or own) / own for seat in seats]
        return sum(min(_UNLIKE, max(1 / _UNLIKE, ratio)) for ratio in ratios)
