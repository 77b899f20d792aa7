"""Events of a trainer: small records of its progress, passed to callbacks.

The trainer is independent of tables, curves and terminals; callbacks write them (see `metrics`,
`console`).
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

PREFIX = "episode/"  # prefix of an environment's own metrics
_MARKS = 256  # iterations stored by `StepClock`


@dataclass
class Progress:
    """Progress of a shard or of the whole run.

    Every count is per member, as is the budget. Seconds are wall-clock seconds summed over all
    sessions of the run.
    """

    budget: int
    """Environment steps per member in total."""
    steps: int = 0
    """Environment steps per member so far."""
    iterations: int = 0
    """Collect-and-update rounds."""
    updates: int = 0
    """Optimizer updates per member so far."""
    seconds_env: float = 0.0
    seconds_policy: float = 0.0
    seconds_update: float = 0.0
    wall: float = 0.0
    seconds_validate: float = 0.0
    """Seconds of validations and of the final test."""

    def advance(self, steps: int, updates: int = 0) -> None:
        """Count one iteration of `steps` environment steps and `updates` optimizer updates."""
        self.steps += steps
        self.updates += updates
        self.iterations += 1

    @property
    def finished(self) -> bool:
        """True if the budget is reached at the end of an iteration."""
        return self.steps >= self.budget

    @property
    def fraction(self) -> float:
        """Fraction of the budget that is spent, at most 1."""
        return min(1.0, self.steps / self.budget) if self.budget > 0 else 1.0

    def snapshot(self) -> Progress:
        """Return a copy for an event, which later updates do not change."""
        return dataclasses.replace(self)


class StepClock:
    """Seconds of training per step, without validations, over the last half of a session.

    The first iteration with an update is ignored, because it compiles code that is not cached.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []  # steps and seconds of training

    def add(self, progress: Progress) -> None:
        """Add the progress after an iteration."""
        if progress.updates > 0:
            self._marks.append((progress.steps, progress.wall - progress.seconds_validate))
        if len(self._marks) > _MARKS:  # halves the resolution
            self._marks[:-1] = self._marks[:-1:2]

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds per step; None before the second iteration with an update."""
        if len(self._marks) < 2:
            return None
        (s0, t0), (s1, t1) = self._marks[len(self._marks) // 2 - 1], self._marks[-1]
        return (t1 - t0) / (s1 - s0)


Values: TypeAlias = Mapping[str, np.ndarray]
"""Metric name -> float array [members of the event]; NaN where a member has no value."""


@dataclass(frozen=True)
class Started:
    """Training has started or was resumed."""

    progress: Progress
    members: int
    num_envs: int
    """Sub-environments per member."""
    shards: int
    backend: str
    device: str
    resumed: bool = False
    notes: tuple[str, ...] = ()
    """Notices about loading and automatic choices."""
    best: float = -math.inf
    """Score of the best policy of earlier sessions."""
    episodes: int | None = None
    """Episodes per member at which the curriculum ends, or None."""
    ended: int = 0
    """Episodes of all members in earlier sessions."""


@dataclass(frozen=True)
class Entered:
    """A phase that may take long has started: ``validating``, ``writing`` or ``testing``."""

    progress: Progress
    phase: str


@dataclass(frozen=True)
class Updated:
    """Some members completed one iteration (a rollout and its update)."""

    progress: Progress
    """A snapshot; its counts are per member."""
    members: tuple[int, ...]
    metrics: Values
    """Arrays [len(members)]; `score` is the mean return of recent training episodes."""
    nodes: Sequence[Mapping[str, Any]] = ()
    """Nodes of a cluster, see `RayCluster.status`."""
    machine: ResourceUsage | None = None
    """Resource usage of all processes; the same object until the next measurement."""
    eta: float | None = None
    """Estimated seconds to the end of the run; None before it is known."""
    policy: Callable[[int], tuple[Any, Mapping[str, Any]]] | None = None
    """Returns tensors and manifest of a member's policy; callable during the event."""
    ended: Callable[[int], Sequence[Mapping[str, float]]] | None = None
    """Returns a member's training episodes of this iteration, see `RecentEpisodes.latest`;
    callable during the event."""


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
    """A checkpoint is on disk."""

    progress: Progress
    path: Path


@dataclass(frozen=True)
class Failed:
    """A member stopped, for example because of NaN in its gradient; the others continue."""

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
