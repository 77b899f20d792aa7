"""What a trainer tells the world: small records, handed to whoever listens.

The trainer knows nothing about tables, curves or terminals; they listen (see `metrics`, `console`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from slipstream.files.machine import Machine
from slipstream.runs.listeners.progress import Progress

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
    """Of a cluster, see `slipstream.training.processes.cluster.Cluster.standing`."""
    machine: Machine | None = None
    """What all processes of the run take; the same object until there is a new look."""
    eta: float | None = None
    """Seconds to the end of everything; None before it is known."""


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
Listener: TypeAlias = Callable[[Event], None]


class Events:
    """Hands each event to every listener, in order, one event at a time.

    Shards emit from their own threads; the lock keeps listeners free of concurrency.
    """

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners: tuple[Listener, ...] = tuple(listeners)
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Tell every listener; an exception of a listener reaches the emitter."""
        with self._lock:
            for listener in self._listeners:
                listener(event)
