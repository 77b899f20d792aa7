"""How far a trial's score could be from what more days would show: for the eye, not for choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import MarketSpec
from slipstream.studies.bootstrap import stationary_rows
from slipstream.studies.member import Passes
from slipstream.studies.paths import by_day, daily_mix

_DRAWS = 500
_LEVELS = (0.025, 0.975)
_FEWEST_DAYS = 20


def score_interval(
    folds: Sequence[Passes], market: MarketSpec | None
) -> tuple[float, float] | None:
    """95 % interval by resampling days: of the Sharpe ratio minus equal weight's.

    The returns are those of an equal-capital mix of the fold policies. Games: of the mean over
    folds, by resampling folds. None with fewer than 20 days or 2 folds.
    """
    if market is None:
        means = np.array([fold.returns.mean() for fold in folds])
        if len(means) < 2:
            return None
        random = np.random.Generator(np.random.PCG64(0))
        rows = random.integers(0, len(means), (_DRAWS, len(means)))
        return _ends(means[rows].mean(axis=1))
    days, mine = daily_mix(folds)
    other = _benchmark(folds, days)
    if len(days) < _FEWEST_DAYS:
        return None
    rows = stationary_rows(len(days), _DRAWS)
    return _ends(_sharpe(mine[rows], market) - _sharpe(other[rows], market))


def _benchmark(folds: Sequence[Passes], days: NDArray[np.int64]) -> NDArray[np.float64]:
    found = np.zeros(len(days))
    for fold in folds:
        stamps, returns = by_day(fold.days, fold.benchmark)
        found[np.searchsorted(days, stamps)] = returns
    return found


def _sharpe(samples: NDArray[np.float64], market: MarketSpec) -> NDArray[Any]:
    """Annual, of each row."""
    deviation = samples.std(axis=1, ddof=1)
    fine = deviation > 1e-15
    ratio = samples.mean(axis=1) / np.where(fine, deviation, 1.0)
    return np.where(fine, ratio, 0.0) * math.sqrt(market.days_per_year)


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, _LEVELS)
    return float(low), float(high)
