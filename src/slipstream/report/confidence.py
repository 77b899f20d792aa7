"""What the amount of data allows to conclude: the interval of a Sharpe ratio."""

from __future__ import annotations

import numpy as np

from slipstream.report.statistics import Floats
from slipstream.studies.statistics.bootstrap import DRAWS, FEWEST_DAYS, lower_bounds


def sharpe_interval(
    returns: Floats, periods: float, draws: int = DRAWS
) -> tuple[float, float] | None:
    """95 % interval of the annualised Sharpe ratio of daily returns: a bound from either side.

    None with fewer than 60 days or where the returns have no deviation.
    """
    if len(returns) < FEWEST_DAYS or not float(np.std(returns)) > 1e-15:
        return None
    low, high = lower_bounds([returns[None], -returns[None]], periods, 0.025, draws).lower
    return float(low), -float(high)
