"""Figures of an equity curve: Sharpe, drawdowns, monthly returns, alpha and beta.

Returns are simple, the risk-free rate is 0, deviations use ddof 1. An undefined figure (a
deviation of zero, too few days) is None and is printed as "n/a".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.core.timeline import day_closes
from slipstream.studies.statistics import returns as study_returns
from slipstream.studies.statistics.bootstrap import MIN_BOUND_DAYS, NUM_RESAMPLES, lower_bounds
from slipstream.studies.statistics.returns import compound_return as compound_return
from slipstream.studies.statistics.returns import correlation as correlation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LARGE_LOSS = 3.0  # factor of the mean absolute daily return


@dataclass(frozen=True)
class Drawdown:
    """Drawdown: depth (negative fraction) and its days as datetime64[D]."""

    depth: float
    peak: np.datetime64
    trough: np.datetime64
    recovered: np.datetime64 | None


def simple_returns(equity: Floats) -> Floats:
    """Compute returns [n] of an equity curve [n + 1]."""
    return equity[1:] / equity[:-1] - 1.0


def daily_equity(equity: Floats, day: Ints) -> Floats:
    """Return equity [days + 1]: the start, then the last mark of each trading day.

    Args:
        equity: marks [n + 1], the first before the first bar.
        day: trading-day id of each bar [n].
    """
    return np.concatenate([equity[:1], equity[1:][day_closes(day)]])


def sharpe(returns: Floats, periods: float) -> float | None:
    """Compute mean / standard deviation x sqrt(periods per year); None if the deviation is zero."""
    moves = len(returns) > 1 and float(np.std(returns, ddof=1)) > study_returns.MIN_STD
    return study_returns.sharpe(returns, periods) if moves else None


class Interval(tuple[float, float]):
    """Ends of a confidence interval.

    Attributes:
        methods: names of the methods of the lower and the upper end.
    """

    methods: tuple[str, str]

    @property
    def method(self) -> str:
        """Text of both methods: "stationary bootstrap below, Mertens' error above"."""
        low, high = self.methods
        return low if low == high else f"{low} below, {high} above"


def has_no_large_loss(returns: Floats) -> bool:
    """Return True if daily returns contain no large loss, so its cost cannot be estimated.

    A loss is large if it is at least three times the mean absolute return.
    """
    size = float(np.mean(np.abs(returns))) if len(returns) else 0.0
    return size > 0.0 and -float(np.min(returns)) < LARGE_LOSS * size


def sharpe_interval(returns: Floats, periods: float, draws: int = NUM_RESAMPLES) -> Interval | None:
    """Return the 95 % interval of the annualised Sharpe ratio of daily returns.

    None with fewer than 60 days, or if the returns are constant.
    """
    if len(returns) < MIN_BOUND_DAYS or not float(np.std(returns)) > 1e-15:
        return None
    bounds = lower_bounds([returns[None], -returns[None]], periods, 0.025, draws)
    low, high = bounds.lower.tolist()
    interval = Interval((low, -high))
    interval.methods = (bounds.methods[0], bounds.methods[1])
    return interval


def sortino(returns: Floats, periods: float) -> float | None:
    """Compute the Sortino ratio: downside deviation over all returns (gains count as 0)."""
    if len(returns) < 2:
        return None
    downside = math.sqrt(float(np.mean(np.minimum(returns, 0.0) ** 2)))
    if not downside > 1e-15:
        return None
    return float(np.mean(returns)) / downside * math.sqrt(periods)


def volatility(returns: Floats, periods: float) -> float | None:
    """Compute the annualised standard deviation; None with fewer than two returns."""
    return float(np.std(returns, ddof=1)) * math.sqrt(periods) if len(returns) > 1 else None


def annual_growth(returns: Floats, periods: float) -> float | None:
    """Compute the compound annual growth rate."""
    if not len(returns):
        return None
    growth = float(np.sum(np.log1p(np.maximum(returns, -1.0 + 1e-12))))
    return math.expm1(min(growth * periods / len(returns), 700.0))


def drawdowns(equity: Floats) -> Floats:
    """Compute the fraction below the running maximum [n], 0 or negative."""
    return equity / np.maximum.accumulate(equity) - 1.0


def max_drawdown(equity: Floats) -> float:
    """Compute the maximum drawdown as a negative fraction."""
    return float(drawdowns(equity).min()) if len(equity) else 0.0


def calmar(returns: Floats, periods: float, deepest: float | None = None) -> float | None:
    """Compute the Calmar ratio: annual growth / maximum drawdown (default: of these returns)."""
    growth = annual_growth(returns, periods)
    if deepest is None:
        deepest = max_drawdown(np.concatenate([[1.0], np.cumprod(1.0 + returns)]))
    return None if growth is None or deepest == 0.0 else growth / abs(deepest)


def worst_drawdowns(equity: Floats, time: Ints, count: int = 5) -> list[Drawdown]:
    """Return the deepest separate drawdowns, deepest first.

    Args:
        equity: marks [n].
        time: UTC seconds of each mark [n].
        count: maximum number of drawdowns.
    """
    below = drawdowns(equity) < 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], below, [False]]).astype(np.int8)))
    days = time.astype("datetime64[s]").astype("datetime64[D]")
    fall = drawdowns(equity)
    worst = []
    for first, past in zip(edges[::2], edges[1::2], strict=True):
        low = first + int(np.argmin(fall[first:past]))
        back = days[past] if past < len(equity) else None
        worst.append(Drawdown(float(fall[low]), days[first - 1], days[low], back))
    return sorted(worst, key=lambda d: d.depth)[:count]


def monthly_returns(equity: Floats, time: Ints) -> dict[tuple[int, int], float]:
    """Compute the return of each calendar month (UTC), by (year, month).

    Args:
        equity: marks [n + 1], the first before the first bar.
        time: UTC seconds of each bar [n].
    """
    months = time.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
    closes = daily_equity(equity, months)
    names = months[day_closes(months)]
    return {
        (1970 + int(m) // 12, int(m) % 12 + 1): float(r)
        for m, r in zip(names, simple_returns(closes), strict=True)
    }


def rolling_sharpe(returns: Floats, periods: float, window: int) -> Floats:
    """Compute the rolling Sharpe ratio [n] of the last `window` returns; NaN at the beginning."""
    out = np.full(len(returns), np.nan)
    if window < 2 or len(returns) < window:
        return out
    views = np.lib.stride_tricks.sliding_window_view(returns, window)
    deviation = views.std(axis=1, ddof=1)
    fine = deviation > 1e-15
    out[window - 1 :][fine] = views.mean(axis=1)[fine] / deviation[fine] * math.sqrt(periods)
    return out


def alpha_beta(returns: Floats, market: Floats, periods: float) -> tuple[float, float] | None:
    """Fit a least-squares line to daily returns; return annualised intercept (simple) and slope."""
    if len(returns) < 3 or not float(np.var(market)) > 1e-30:
        return None
    beta = float(np.cov(returns, market, ddof=1)[0, 1] / np.var(market, ddof=1))
    return float(np.mean(returns) - beta * np.mean(market)) * periods, beta
