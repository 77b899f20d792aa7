"""Probability of backtest overfitting by combinatorially symmetric cross-validation.

Source: Bailey, Borwein, Lopez de Prado and Zhu 2017, "The Probability of Backtest Overfitting".
The days are cut into blocks; every half of the blocks picks the trial with the best Sharpe ratio,
and the other half tells what rank that trial has there. The moments of a half are sums of its
blocks' moments, so 12,870 halves of 500 trials are a few matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCKS = 16
FEWEST_COLUMNS = 20
FEWEST_ROWS = 5  # per block
ON_NOISE = "One PBO has a standard deviation of about 0.16 even on pure noise."
_AT_ONCE = 1_024  # halves
_TIE = 1e-12  # Sharpe ratios closer than this are equal: a product's rounding decides no rank


@dataclass(frozen=True)
class PBO:
    """How often the trial that is best on one half of the days is no better than most on the other.

    Attributes:
        value: share of halves whose best trial has at most the middle rank in the other half.
        columns, days, blocks: trials, rows and blocks it was computed with.
        logits: log(w / (1 - w)) with w = rank / (columns + 1), one for each half.
        inside, outside: daily Sharpe ratio of the chosen trial in its half and in the other one.
    """

    value: float
    columns: int
    days: int
    blocks: int
    logits: Floats
    inside: Floats
    outside: Floats

    @property
    def loses(self) -> float:
        """Share of halves whose best trial loses money in the other half."""
        return float(np.mean(self.outside < 0.0))


@dataclass(frozen=True)
class NotComputed:
    """A figure that there is too little data for, and why."""

    reason: str


def pbo(matrix: Floats, blocks: int = BLOCKS) -> PBO | NotComputed:
    """PBO of finished trials.

    Args:
        matrix: daily returns [days, trials]; rows as in `statistics.paths.daily_matrix`.
        blocks: of days, even; their lengths differ by one day at most.

    Raises:
        ValueError: a return is not a number, or `blocks` is odd.
    """
    days, columns = matrix.shape
    if blocks < 2 or blocks % 2:
        raise ValueError(f"blocks must be even and at least 2, not {blocks}")
    if columns < FEWEST_COLUMNS:
        return NotComputed(f"{columns} trials finished, at least {FEWEST_COLUMNS} are needed")
    if days < FEWEST_ROWS * blocks:
        return NotComputed(
            f"{days} days are fewer than {blocks} blocks of {FEWEST_ROWS}: {FEWEST_ROWS * blocks}"
        )
    if not np.isfinite(matrix).all():
        raise ValueError("every day of every trial needs a return")
    counts, sums, squares, shift = _moments(matrix, blocks)
    # Only halves with the first block: the rest are their complements, judged the other way round.
    chosen = np.array([(0, *rest) for rest in combinations(range(1, blocks), blocks // 2 - 1)])
    halves = np.zeros((len(chosen), blocks))
    np.put_along_axis(halves, chosen, 1.0, axis=1)
    ranks, inside, outside = [], [], []
    for start in range(0, len(halves), _AT_ONCE):
        part = halves[start : start + _AT_ONCE]
        one = _sharpe(part, counts, sums, squares, shift)
        two = _sharpe(1.0 - part, counts, sums, squares, shift)
        for here, there in ((one, two), (two, one)):
            best = _first_best(here)
            mine = np.take_along_axis(there, best[:, None], axis=1)
            below = np.count_nonzero(there < mine - _TIE, axis=1)
            tied = np.count_nonzero(np.abs(there - mine) <= _TIE, axis=1)
            ranks.append(below + 0.5 * (tied + 1))
            inside.append(np.take_along_axis(here, best[:, None], axis=1)[:, 0])
            outside.append(mine[:, 0])
    share = np.concatenate(ranks) / (columns + 1)
    return PBO(
        value=float(np.mean(share <= 0.5)),
        columns=columns,
        days=days,
        blocks=blocks,
        logits=np.log(share / (1.0 - share)),
        inside=np.concatenate(inside),
        outside=np.concatenate(outside),
    )


def _moments(matrix: Floats, blocks: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Days [blocks], sums and sums of squares [blocks, trials] about a column's mean [trials]."""
    shift = matrix.mean(axis=0)
    edges = np.linspace(0, len(matrix), blocks + 1).astype(np.int64)
    centred = matrix - shift  # no cancellation where means are large beside deviations
    sums = np.add.reduceat(centred, edges[:-1], axis=0)
    squares = np.add.reduceat(centred * centred, edges[:-1], axis=0)
    return np.diff(edges).astype(np.float64), sums, squares, shift


def _sharpe(halves: Floats, counts: Floats, sums: Floats, squares: Floats, shift: Floats) -> Floats:
    """Daily Sharpe ratios [halves, trials]; 0 without a deviation."""
    n = (halves @ counts)[:, None]
    mean = halves @ sums / n
    variance = (halves @ squares - n * mean * mean) / (n - 1.0)
    fine = variance > 1e-30
    deviation = np.sqrt(np.where(fine, variance, 1.0))
    return np.asarray(np.where(fine, (mean + shift) / deviation, 0.0))


def _first_best(values: Floats) -> NDArray[np.int64]:
    """Column of the highest value of each row; the first of equal ones."""
    best = values >= values.max(axis=1, keepdims=True) - _TIE
    return np.asarray(np.argmax(best, axis=1), np.int64)
