"""What the amount of data allows to conclude: bootstrap intervals and what chance alone would show.

Sources: Politis and Romano 1994, "The Stationary Bootstrap" (blocks of geometric length keep the
dependence between neighbouring days); Bailey and Lopez de Prado 2014, "The Deflated Sharpe Ratio"
(the expected maximum over trials without skill).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slipstream.report.statistics import Floats

MEAN_BLOCK = 10.0  # days
DRAWS = 2_000
SEED = 20_260_101  # fixed: the same track always has the same interval
FEWEST_DAYS = 20  # below this a bootstrap says nothing
_EULER = 0.5772156649015329


def stationary_rows(
    days: int, draws: int = DRAWS, mean_block: float = MEAN_BLOCK, seed: int = SEED
) -> NDArray[np.int64]:
    """Rows [draws, days] resampled in circular blocks of geometric length with the given mean."""
    random = np.random.Generator(np.random.PCG64(seed))
    fresh = random.random((draws, days)) < 1.0 / mean_block
    fresh[:, 0] = True
    start = random.integers(0, days, (draws, days))
    column = np.arange(days)
    block = np.maximum.accumulate(np.where(fresh, column, 0), axis=1)
    return (np.take_along_axis(start, block, axis=1) + column - block) % days


def sharpe_interval(
    returns: Floats, periods: float, level: float = 0.95, draws: int = DRAWS, seed: int = SEED
) -> tuple[float, float] | None:
    """Percentile interval of the annualised Sharpe ratio of daily returns.

    None with fewer than 20 days or where (almost) all resamples have no deviation.
    """
    if len(returns) < FEWEST_DAYS or not float(np.std(returns)) > 1e-15:
        return None
    sample = returns[stationary_rows(len(returns), draws, seed=seed)]
    deviation = sample.std(axis=1, ddof=1)
    fine = deviation > 1e-15
    if fine.mean() < 0.5:
        return None
    values = sample.mean(axis=1)[fine] / deviation[fine] * math.sqrt(periods)
    low, high = np.quantile(values, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def smallest_confirmable(years: float) -> float | None:
    """Annual Sharpe whose one-sided 5 % test would just reject zero after this many years.

    The Sharpe estimate of a skill-less strategy has a deviation of about 1 / sqrt(years).
    """
    return NormalDist().inv_cdf(0.95) / math.sqrt(years) if years > 0.0 else None


def expected_best(trials: int, years: float) -> float | None:
    """Annual Sharpe that the best of N skill-less trials is expected to show.

    Bailey and Lopez de Prado 2014: sqrt(V) ((1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e))) with
    V = 1 / years and g Euler's constant.
    """
    if trials < 2 or years <= 0.0:
        return None
    z = NormalDist().inv_cdf
    best = (1.0 - _EULER) * z(1.0 - 1.0 / trials) + _EULER * z(1.0 - 1.0 / (trials * math.e))
    return best / math.sqrt(years)
