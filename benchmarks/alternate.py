"""Alternating runs of two sides, so that both meet the same changes in machine load."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.machine import Neighbours
from benchmarks.row import CONTENDED, Ratio, Row

Side = Callable[[], float]


def alternate(
    ours: Side,
    peer: Side | None = None,
    *,
    runs: int = 5,
    less_is_better: bool = False,
    until: float = math.inf,
) -> Row:
    """Return a row, without texts, of alternating runs. Contended rows are measured twice.

    Both sides exclude their own warm-up from the figure that they return. Of two contended
    measurements the less contended one counts; its `others_cpu` records the contention.

    Args:
        ours, peer: make one run and return its figure.
        runs: number of runs of each side.
        less_is_better: the figures are costs; the ratio is inverted.
        until: value of `time.monotonic()` by which a second measurement must be able to end.
    """
    began = time.monotonic()
    first = _measure(ours, peer, runs, less_is_better)
    ended = time.monotonic()
    if first.others_cpu <= CONTENDED or ended + (ended - began) > until:
        return first
    second = _measure(ours, peer, runs, less_is_better)
    return min(first, second, key=lambda measured: measured.others_cpu)


def _measure(ours: Side, peer: Side | None, runs: int, less_is_better: bool) -> Row:
    mine: list[float] = []
    theirs: list[float] = []
    with Neighbours() as neighbours:
        for run in range(runs):
            # The sides alternate in order, because the second one finds warm caches and clocks.
            sides = [(ours, mine), (peer, theirs)]
            for side, figures in sides if run % 2 == 0 else reversed(sides):
                if side is not None:
                    figures.append(side())
    row = Row(ours=statistics.median(mine), runs=runs, others_cpu=neighbours.share)
    if peer is None:
        return row
    pairs = zip(mine, theirs, strict=True)
    ratio = Ratio.of([b / a if less_is_better else a / b for a, b in pairs])
    return replace(row, peer=statistics.median(theirs), ratio=ratio)
