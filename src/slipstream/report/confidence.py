"""What the amount of data allows to conclude: the interval of a Sharpe ratio."""

from __future__ import annotations

import math

import numpy as np

from slipstream.report.statistics import Floats
from slipstream.studies.statistics.bootstrap import DRAWS, SEED, stationary_rows

FEWEST_DAYS = 20  # below this a bootstrap says nothing


def sharpe_interval(
    returns: Floats, periods: float, draws: int = DRAWS
) -> tuple[float, float] | None:
    """95 % percentile interval of the annualised Sharpe ratio of daily returns.

    None with fewer than 20 days or where (almost) all resamples have no deviation.
    """
    if len(returns) < FEWEST_DAYS or not float(np.std(returns)) > 1e-15:
        return None
    sample = returns[stationary_rows(len(returns), draws, seed=SEED)]
    deviation = sample.std(axis=1, ddof=1)
    fine = deviation > 1e-15
    if fine.mean() < 0.5:
        return None
    values = sample.mean(axis=1)[fine] / deviation[fine] * math.sqrt(periods)
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
