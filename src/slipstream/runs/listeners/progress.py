"""How far a training has come: the numbers that every event carries."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

_MARKS = 256  # iterations remembered by `StepClock`


@dataclass
class Progress:
    """Where a shard (or the whole run) stands.

    Every count is per member, as is the budget; seconds are wall-clock seconds summed over all
    sessions of the run, so that a resumed run carries on counting.
    """

    budget: int
    """Environment steps that each member may spend."""
    steps: int = 0
    """Environment steps that each member has spent."""
    iterations: int = 0
    """Collect-and-update rounds."""
    updates: int = 0
    """Optimiser updates of each member."""
    seconds_env: float = 0.0
    seconds_policy: float = 0.0
    seconds_update: float = 0.0
    wall: float = 0.0
    seconds_validate: float = 0.0
    """Of scoring policies: validations, and what is scored at the end."""

    def advance(self, steps: int, updates: int = 0) -> None:
        """Count one iteration of `steps` environment steps and `updates` optimiser updates."""
        self.steps += steps
        self.updates += updates
        self.iterations += 1

    @property
    def finished(self) -> bool:
        """True from the first whole iteration at or past the budget."""
        return self.steps >= self.budget

    @property
    def fraction(self) -> float:
        """Share of the budget that is spent, at most 1."""
        return min(1.0, self.steps / self.budget) if self.budget > 0 else 1.0

    def snapshot(self) -> Progress:
        """A copy that later advances do not change; what events carry."""
        return dataclasses.replace(self)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain numbers, for a checkpoint's manifest."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        """The inverse of `as_dict`."""
        return cls(**values)


class StepClock:
    """Seconds of training that a step takes, validations apart, over the last half of a session.

    The first iteration that learns compiles what is not cached, and counts in nothing.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []  # steps, seconds of training

    def add(self, progress: Progress) -> None:
        """After an iteration."""
        if progress.updates > 0:
            self._marks.append((progress.steps, progress.wall - progress.seconds_validate))
        if len(self._marks) > _MARKS:  # long since: every second one will do
            self._marks[:-1] = self._marks[:-1:2]

    @property
    def seconds_per_step(self) -> float | None:
        """None before the second iteration that learns."""
        if len(self._marks) < 2:
            return None
        (s0, t0), (s1, t1) = self._marks[len(self._marks) // 2 - 1], self._marks[-1]
        return (t1 - t0) / (s1 - s0)
