"""What a trainer tells the world: how far it has come, in small records for whoever listens.

The trainer knows nothing about tables, curves or terminals; they listen (see `metrics`, `console`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from slipstream.core.storage.resource_monitor import ResourceUsage

PREFIX = "episode/"  # of the names of an environment's own metrics
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
    """Seconds of scoring policies: validations, and what is scored at the end."""

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


Values: TypeAlias = Mapping[str, np.ndarray]
"""Metric name -> float array [members of the event]; NaN where a member has no value."""


@dataclass(frozen=True)
class Started:
    """Training begins, or begins again after a resume."""

    progress: Progress
    members: int
    num_envs: int
    """Copies per member."""
    shards: int
    backend: str
    device: str
    resumed: bool = False
    notes: tuple[str, ...] = ()
    """Sentences that the user must see (what loading did, what was chosen and why)."""
    best: float = -math.inf
    """Score of the best policy of the sessions before."""
    episodes: int | None = None
    """Of each member, where a curriculum's phases end after so many in all."""
    ended: int = 0
    """Episodes of all members in the sessions before."""


@dataclass(frozen=True)
class Entered:
    """Something begins that may take long: ``validating``, ``writing`` or ``testing``."""

    progress: Progress
    phase: str


@dataclass(frozen=True)
class Updated:
    """One iteration (a rollout and its update) of some members is done."""

    progress: Progress
    """A snapshot; its counts are per member."""
    members: tuple[int, ...]
    metrics: Values
    """Arrays [len(members)]; `score` is the mean return of recent training episodes."""
    nodes: Sequence[Mapping[str, Any]] = ()
    """The nodes of a cluster, see `RayCluster.standing`."""
    machine: ResourceUsage | None = None
    """What all processes of the run take; the same object until there is a new look."""
    eta: float | None = None
    """Seconds to the end of everything; None before it is known."""
    policy: Callable[[int], tuple[Any, Mapping[str, Any]]] | None = None
    """Tensors and manifest of a member's policy as it is now; asked while the event is told."""
    ended: Callable[[int], Sequence[Mapping[str, float]]] | None = None
    """A member's training episodes that ended in this iteration, see `RecentEpisodes.added`;
    asked while the event is told."""


@dataclass(frozen=True)
class Evaluated:
    """Members were evaluated on one split."""

    progress: Progress
    split: str
    members: tuple[int, ...]
    scores: np.ndarray
    """float64 [len(members)]; higher is better (mean log return, or mean episode return)."""
    metrics: Values = field(default_factory=dict)
    best: tuple[bool, ...] = ()
    """Which members set a new best with this evaluation."""


@dataclass(frozen=True)
class Checkpointed:
    """The whole state is safe on disk."""

    progress: Progress
    path: Path


@dataclass(frozen=True)
class Failed:
    """One member stopped alone (say a NaN in its weights); the others go on."""

    progress: Progress
    member: int
    reason: str


@dataclass(frozen=True)
class Finished:
    """The budget is spent and the result is written."""

    progress: Progress
    result: Mapping[str, Any]


Event: TypeAlias = Started | Entered | Updated | Evaluated | Checkpointed | Failed | Finished
Callback: TypeAlias = Callable[[Event], None]
