"""What a trial is worth: a score per fold, and one per trial (docs/rules.md, section 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import MarketSpec
from slipstream.studies.engine.member import DailyReturns

Floats = NDArray[np.float64]
Objective = Literal["sharpe", "information_ratio", "log_growth"]

LEAST_EXPOSURE = 0.01  # mean gross exposure, share of equity; below it a fold is inactive
LEAST_FILLS = 10
NO_DEVIATION = 1e-15
_FLOOR = 1e-6  # of a day's start, as in the log reward: a lost account has no logarithm


class FoldResult(NamedTuple):
    """A fold's score and what it is made of.

    Attributes:
        score: by the objective; 0 where the fold is inactive, NaN where a return is not a number.
        sharpe: annual Sharpe ratio of daily returns; games: 0.
        benchmark_sharpe: of equal weight on the same days; None where there is none.
        inactive: hardly invested or hardly traded, so that its score is not one of a strategy.
        growth: compounded return over the fold's days, a fraction; games: 0.
        benchmark_growth: of equal weight; None where there is none.
        exposure: mean gross exposure, share of equity; games: 0.
        fills: orders filled; games: 0.
        days: of all test passes; games: episodes.
    """

    score: float
    sharpe: float = 0.0
    benchmark_sharpe: float | None = None
    inactive: bool = False
    growth: float = 0.0
    benchmark_growth: float | None = None
    exposure: float = 0.0
    fills: float = 0.0
    days: int = 0

    def facts(self) -> dict[str, Any]:
        """What is there, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def sharpe(returns: Floats, periods: float) -> float:
    """Mean over deviation (ddof 1) times the root of periods a year; 0 without a deviation.

    Args:
        returns: of one policy, or of a day of many policies [R, n]; in excess of a rival's it is
            the information ratio.
        periods: of a year.
    """
    if returns.size < 2:
        return 0.0
    deviation = float(np.std(returns, ddof=1))
    if not deviation > NO_DEVIATION:
        return 0.0
    return float(np.mean(returns)) / deviation * math.sqrt(periods)


def log_growth(returns: Floats, periods: float) -> float:
    """Mean log return times periods a year."""
    if not len(returns):
        return 0.0
    return float(np.mean(np.log(np.maximum(1.0 + returns, _FLOOR)))) * periods


def fold_score(
    passes: DailyReturns, market: MarketSpec | None, objective: Objective = "sharpe"
) -> FoldResult:
    """Scores a fold by all its test passes together; no return lies between two of them.

    Args:
        passes: daily returns and equal weight's, and `mean_exposure` and `fills` of each group.
        market: for annualisation; None for games, whose score is the mean episode return.
        objective: `sharpe` is Sharpe(policy) - Sharpe(equal weight); `information_ratio` is the
            Sharpe ratio of the daily differences; `log_growth` is that of the policy minus equal
            weight's. Where there is no equal weight, cash takes its place: 0 on all days.
    """
    mine, other = passes.returns, passes.benchmark
    if not (len(mine) and np.isfinite(mine).all() and np.isfinite(other).all()):
        return FoldResult(math.nan, days=len(mine))
    if market is None:
        return FoldResult(float(np.mean(mine)), days=len(mine))
    periods = market.days_per_year
    found = FoldResult(
        score=0.0,
        sharpe=sharpe(mine, periods),
        benchmark_sharpe=sharpe(other, periods) if market.benchmark else None,
        growth=float(np.prod(1.0 + mine) - 1.0),
        benchmark_growth=float(np.prod(1.0 + other) - 1.0) if market.benchmark else None,
        exposure=float(np.mean([one["mean_exposure"] for one in passes.metrics])),
        fills=float(sum(one["fills"] for one in passes.metrics)),
        days=len(mine),
    )
    if found.exposure < LEAST_EXPOSURE or found.fills < LEAST_FILLS:
        return found._replace(inactive=True)  # against cash: 0 - 0
    if objective == "information_ratio":
        return found._replace(score=sharpe(mine - other, periods))
    if objective == "log_growth":
        return found._replace(score=log_growth(mine, periods) - log_growth(other, periods))
    return found._replace(score=found.sharpe - (found.benchmark_sharpe or 0.0))


def trial_score(scores: Sequence[float], penalty: float = 0.1) -> float:
    """Mean over folds - penalty x deviation over folds (ddof 1); NaN where a fold has none.

    Not divided by the root of the number of folds: four groups give at most four independent
    pieces, however many folds are made of them.
    """
    values = np.asarray(scores, np.float64)
    if len(values) == 1:
        return float(values[0])
    return float(np.mean(values) - penalty * np.std(values, ddof=1))
