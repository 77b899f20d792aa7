"""How far a trial's score could be from what more days would show: for the eye, not for choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import MarketSpec
from slipstream.studies.engine.member import DailyReturns
from slipstream.studies.statistics.bootstrap import FEWEST_DAYS, stationary_rows
from slipstream.studies.statistics.objective import Objective, fold_score, trial_score

_DRAWS = 300
_LEVELS = (0.025, 0.975)


def score_interval(
    folds: Sequence[DailyReturns],
    market: MarketSpec | None,
    objective: Objective = "sharpe",
    penalty: float = 0.1,
) -> tuple[float, float] | None:
    """95 % interval of a trial's score by resampling days in blocks, the same days in all folds.

    Games: of the mean over folds, by resampling folds. None with fewer than 60 days or 2 folds.

    Args:
        folds: test passes of each.
        market: None for games.
        objective, penalty: of the study.
    """
    if market is None:
        means = np.array([fold.returns.mean() for fold in folds])
        if len(means) < 2:
            return None
        random = np.random.Generator(np.random.PCG64(0))
        rows = random.integers(0, len(means), (_DRAWS, len(means)))
        return _ends(means[rows].mean(axis=1))
    days = np.unique(np.concatenate([fold.days for fold in folds]))
    if len(days) < FEWEST_DAYS:
        return None
    places = [np.searchsorted(days, fold.days) for fold in folds]
    values = []
    for rows in stationary_rows(len(days), _DRAWS):
        times = np.bincount(rows, minlength=len(days))  # that each day was drawn
        drawn = [
            replace(
                fold,
                returns=np.repeat(fold.returns, times[place]),
                benchmark=np.repeat(fold.benchmark, times[place]),
            )
            for fold, place in zip(folds, places, strict=True)
        ]
        scores = [fold_score(one, market, objective).score for one in drawn]
        values.append(trial_score(scores, penalty))
    return _ends(np.array(values))


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.nanquantile(values, _LEVELS)  # NaN: no day of some fold was drawn
    return float(low), float(high)
