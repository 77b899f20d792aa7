"""Standing: where a study stands at a moment. It imports nothing, so that looking is cheap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Standing:
    """A study at a moment.

    Attributes:
        phase: ``search``, ``confirmation``, or ``final training``.
        trials: asked at most; complete, pruned, failed, running: of those asked; inactive: of the
            complete ones those that hardly traded in some fold, and cannot win.
        members, members_done: of the phase after the search.
        trials_per_hour, steps_per_second: of this session; None before the first outcome.
        eta: seconds to the end of everything; None before the first outcome.
        best: score of the best complete trial that is active in every fold, its number, and its
            95 % interval.
        shares: of the workers' time by env, policy, update, evaluate, overhead.
        machine: what all processes take, fields of `Machine`; empty before it is known.
        elapsed: seconds of this session.
        nodes: of a cluster, see `slipstream.training.processes.cluster.Cluster.standing`.
    """

    phase: str
    trials: int = 0
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    inactive: int = 0
    members: int = 0
    members_done: int = 0
    trials_per_hour: float | None = None
    steps_per_second: float | None = None
    eta: float | None = None
    best: float | None = None
    best_trial: int | None = None
    best_low: float | None = None
    best_high: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    elapsed: float = 0.0
    nodes: Sequence[Mapping[str, Any]] = ()

    def as_dict(self) -> dict[str, Any]:
        """For `status.json`."""
        return asdict(self)
