"""Runs of two sides in turn, so that a change of the machine's mood meets both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.bench.machine import Neighbours
from slipstream.bench.row import Goal, Ratio, Row, judged

CONTENDED = 0.10  # share of the machine used by others from which a row is measured again

Side = Callable[[], float]


@dataclass(frozen=True)
class Alternated:
    """What alternating runs gave.

    Attributes:
        ours, peer: medians; `peer` is None where there is none.
        ratio: of the pairs; above 1 means that ours is better.
        runs: of each side.
        others_cpu: share of the machine that other processes used meanwhile.
    """

    ours: float
    peer: float | None
    ratio: Ratio | None
    runs: int
    others_cpu: float

    def row(self, case: str, unit: str, goal: Goal | None, peer_name: str | None = None) -> Row:
        """The row of a result; where there is a peer, the ratio decides about the goal."""
        return Row(
            case=case,
            unit=unit,
            ours=self.ours,
            peer=self.peer,
            peer_name=peer_name,
            ratio=self.ratio,
            runs=self.runs,
            others_cpu=self.others_cpu,
            **judged(goal, self.ours if self.ratio is None else self.ratio.median),
        )


def alternate(
    ours: Side,
    peer: Side | None = None,
    *,
    runs: int = 5,
    less_is_better: bool = False,
    until: float = math.inf,
) -> Alternated:
    """Medians of alternating runs; measured once more if the machine was contended.

    Both sides leave their own warm-up out of the figure that they return. Of two contended
    measurements the quieter one counts, and its `others_cpu` says that it was contended.

    Args:
        ours, peer: make one run and return its figure.
        runs: of each side.
        less_is_better: the figures are costs; the ratio is turned over.
        until: `time.monotonic()` by which a second measurement must be able to end.
    """
    began = time.monotonic()
    first = _measure(ours, peer, runs, less_is_better)
    ended = time.monotonic()
    if first.others_cpu <= CONTENDED or ended + (ended - began) > until:
        return first
    second = _measure(ours, peer, runs, less_is_better)
    return min(first, second, key=lambda measured: measured.others_cpu)


def _measure(ours: Side, peer: Side | None, runs: int, less_is_better: bool) -> Alternated:
    mine: list[float] = []
    theirs: list[float] = []
    with Neighbours() as neighbours:
        for run in range(runs):
            # Each side goes first in turn: the second one finds the caches and clocks warmed up.
            sides = [(ours, mine), (peer, theirs)]
            for side, figures in sides if run % 2 == 0 else reversed(sides):
                if side is not None:
                    figures.append(side())
    ratio = None
    if peer is not None:
        pairs = zip(mine, theirs, strict=True)
        ratio = Ratio.of([b / a if less_is_better else a / b for a, b in pairs])
    return Alternated(
        ours=statistics.median(mine),
        peer=statistics.median(theirs) if theirs else None,
        ratio=ratio,
        runs=runs,
        others_cpu=round(neighbours.share, 3),
    )
