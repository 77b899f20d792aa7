"""One row of a result: a figure of ours, a peer's beside it, and the goal."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
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
        if self.ratio is not None:  # JSON has no infinity: where the peer never reached its score
            bounds = values["ratio"].items()
            values["ratio"] = {name: x if math.isfinite(x) else None for name, x in bounds}
        if not self.cells:
            del values["cells"]
        return values


def judged(goal: Goal | None, value: float | None) -> dict[str, Any]:
    """`goal` and `holds` of a row whose deciding figure is `value`."""
    if goal is None:
        return {"goal": None, "holds": None}
    return {"goal": str(goal), "holds": None if value is None else goal.holds(value)}


def race_row(
    case: str,
    unit: str,
    goal: Goal,
    mine: Sequence[Mapping[str, Any]],
    theirs: Sequence[Mapping[str, Any]] = (),
    peer_name: str | None = None,
    others_cpu: float = 0.0,
    cells: tuple[dict[str, Any], ...] = (),
) -> Row:
    """A row of seconds to a score, seed by seed: a seed that never reached it took for ever.

    The budget's seconds of a seed that missed the score are no seconds to it. Where the median of a
    side is infinite it has no figure, and there is no ratio; of a pair in which ours missed the
    ratio is 0. The goal is missed wherever ours misses more seeds than the peer.

    Args:
        case, unit, goal, peer_name, others_cpu, cells: of the row; `unit` without the misses.
        mine, theirs: answers by seed, with `seconds` and `reached`; none of a peer: the goal is
            one of our seconds.
    """
    sides = [
        [float(one["seconds"]) if one["reached"] else math.inf for one in side]
        for side in (mine, theirs)
    ]
    missed = [side.count(math.inf) for side in sides]
    known = [statistics.median(side) if side else math.inf for side in sides]
    ours, peer = (value if math.isfinite(value) else None for value in known)
    pairs = zip(*sides, strict=True) if theirs else ()
    ratios = [b / a if math.isfinite(a) else 0.0 for a, b in pairs]
    ratio = Ratio.of(ratios) if ours is not None and peer is not None else None
    if ours is None or (theirs and missed[0] > missed[1]):
        holds = False
    elif theirs:  # a peer that never arrives is slower than any goal asks for
        holds = ratio is None or goal.holds(ratio.median)
    else:
        holds = goal.holds(ours)
    if any(missed):
        said = f"{missed[0]} of our {len(mine)} seeds"
        unit += f"; never reached by {said}" + f", {missed[1]} of the peer's" * bool(theirs)
    return Row(
        case=case,
        unit=unit,
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        ratio=ratio,
        runs=len(mine),
        others_cpu=others_cpu,
        goal=str(goal),
        holds=holds,
        cells=cells,
    )
