"""One row of a result: a figure of ours, a peer's beside it, and the goal."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_COMPARISONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Goal:
    """A figure that a row is to reach: ``Goal(">=", 100)``."""

    comparison: str
    figure: float

    def holds(self, value: float) -> bool:
        """Whether the value reaches the goal."""
        return bool(_COMPARISONS[self.comparison](value, self.figure))

    def __str__(self) -> str:
        return f"{self.comparison} {self.figure:g}"


@dataclass(frozen=True)
class Ratio:
    """Ours against the peer's over the alternating runs; above 1 means that ours is better."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        """Median and range of the runs' ratios."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One measured case.

    Attributes:
        case: name, as in the issue tracker and docs/performance.md.
        unit: unit of `ours` and `peer`, with what a reader must know to compare them.
        ours: median of our runs.
        peer: median of the peer's runs, None where there is none.
        peer_name: what the peer is and how it was set up.
        ratio: of the runs in pairs, None where there is no peer.
        runs: measured runs of each side, warm-up not counted.
        others_cpu: share of the machine that other processes used meanwhile, 0 to 1.
        goal: what `ratio` (or `ours` where there is no peer) is to reach.
        holds: whether it does; None where there is no goal or no figure.
        forecast: whether `ours` was extrapolated from a shorter measurement.
        cells: what the figures were made from, where each part was measured on its own.
    """

    case: str
    unit: str
    ours: float | None
    peer: float | None = None
    peer_name: str | None = None
    ratio: Ratio | None = None
    runs: int = 1
    others_cpu: float = 0.0
    goal: str | None = None
    holds: bool | None = None
    forecast: bool = False
    cells: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The row as the JSON file has it."""
        values = asdict(self)
        if not self.cells:
            del values["cells"]
        return values


def judged(goal: Goal | None, value: float | None) -> dict[str, Any]:
    """`goal` and `holds` of a row whose deciding figure is `value`."""
    if goal is None:
        return {"goal": None, "holds": None}
    return {"goal": str(goal), "holds": None if value is None else goal.holds(value)}
