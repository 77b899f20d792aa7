"""What chance alone would show: the best of many skill-less trials, and the deflated Sharpe ratio.

Source: Bailey and Lopez de Prado 2014, "The Deflated Sharpe Ratio". Ratios are of daily returns and
not annualised unless a name says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.studies.overfitting import NotComputed

Floats = NDArray[np.float64]

FEWEST_DAYS = 20
FEWEST_TRIALS = 2
INDICATOR = "An indicator: the sampler's trials are not independent."
_EULER = 0.5772156649015329
_NORMAL = NormalDist()
_YEAR = 365.25 * 86_400  # seconds


@dataclass(frozen=True)
class Deflated:
    """How sure a Sharpe ratio is to be above what the best of N skill-less trials would show.

    Attributes:
        sharpe: the chosen trial's, daily.
        days: it was measured on.
        skew, kurtosis: of its daily returns (a normal distribution has 0 and 3).
        deviation: of the Sharpe ratios over finished trials, daily.
        trials: N, all that were started: the headline.
        expected: Sharpe ratio that the best of them is expected to show without skill.
        value: probability that the true ratio is above `expected`.
        effective_trials: rho + (1 - rho) N, with rho the trials' mean correlation.
        effective_expected, effective_value: the same with that number.
    """

    sharpe: float
    days: int
    skew: float
    kurtosis: float
    deviation: float
    trials: float
    expected: float
    value: float
    effective_trials: float
    effective_expected: float
    effective_value: float


def expected_maximum(trials: float) -> float:
    """Highest of N independent standard normal numbers, expected: (1-g) Z(1-1/N) + g Z(1-1/(Ne)).

    Z is the inverse of the normal distribution, g Euler's constant; 0 for a single trial.
    """
    if trials <= 1.0:
        return 0.0
    z = _NORMAL.inv_cdf
    best = (1.0 - _EULER) * z(1.0 - 1.0 / trials) + _EULER * z(1.0 - 1.0 / (trials * math.e))
    return max(best, 0.0)


def smallest_confirmable(years: float) -> float | None:
    """Annual Sharpe ratio whose one-sided 5 % test would just reject zero after so many years.

    The estimate of a skill-less strategy's ratio has a deviation of about 1 / sqrt(years).
    """
    return _NORMAL.inv_cdf(0.95) / math.sqrt(years) if years > 0.0 else None


def tested_years(folds: Mapping[str, Any]) -> dict[str, float]:
    """Years of test data: ``folds``, groups counted once however many folds test them; ``holdout``.

    Args:
        folds: ``provenance["environment"]["folds"]``; see `market.folds.fold_facts`.
    """
    tested = {group for fold in folds["folds"] for group in fold["groups"]}
    seconds = {
        "folds": sum(high - low for low, high in (folds["groups"][k] for k in tested)),
        "holdout": folds["holdout"][1] - folds["holdout"][0],
    }
    return {name: span / _YEAR for name, span in seconds.items()}


def findable(years: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """For each span of test data its `years` and the smallest `sharpe` that it can confirm."""
    return {name: {"years": y, "sharpe": smallest_confirmable(y)} for name, y in years.items()}


def expected_best(trials: int, years: float) -> float | None:
    """Annual Sharpe ratio that the best of N skill-less trials is expected to show."""
    if trials < FEWEST_TRIALS or years <= 0.0:
        return None
    return expected_maximum(trials) / math.sqrt(years)


def probabilistic_sharpe(
    sharpe: float, against: float, days: int, skew: float = 0.0, kurtosis: float = 3.0
) -> float:
    """Probability that the true ratio is above `against`, given its estimate on so many days."""
    variance = 1.0 - skew * sharpe + 0.25 * (kurtosis - 1.0) * sharpe * sharpe
    gap = (sharpe - against) * math.sqrt(days - 1)
    return float(_NORMAL.cdf(gap / math.sqrt(max(variance, 1e-12))))


def effective_trials(matrix: Floats, trials: float) -> float:
    """rho + (1 - rho) N with rho the mean correlation of pairs of columns, in [0, 1].

    Args:
        matrix: daily returns [days, finished trials].
        trials: N.
    """
    moving = matrix[:, matrix.std(axis=0) > 1e-15]
    count = moving.shape[1]
    if count < 2:
        return float(trials)
    scaled = moving - moving.mean(axis=0)
    scaled /= np.sqrt(np.mean(scaled * scaled, axis=0))
    total = float(np.mean(scaled.sum(axis=1) ** 2))  # sum of the correlation matrix
    rho = min(max((total - count) / (count * (count - 1)), 0.0), 1.0)
    return float(rho + (1.0 - rho) * trials)


def deflated_sharpe(matrix: Floats, chosen: int, started: int) -> Deflated | NotComputed:
    """Deflates the Sharpe ratio of the trial that was chosen.

    Args:
        matrix: daily returns of the finished trials [days, trials].
        chosen: its column.
        started: all trials that were started, pruned and failed ones included.
    """
    days, columns = matrix.shape
    if columns < FEWEST_TRIALS:
        return NotComputed(f"{columns} trials finished, at least {FEWEST_TRIALS} are needed")
    if days < FEWEST_DAYS:
        return NotComputed(f"{days} days, at least {FEWEST_DAYS} are needed")
    returns = matrix[:, chosen]
    deviation = float(returns.std(ddof=1))
    if not deviation > 1e-15:
        return NotComputed("the trial's returns have no deviation")
    ratio = float(returns.mean()) / deviation
    scaled = (returns - returns.mean()) / returns.std()
    skew, kurtosis = float(np.mean(scaled**3)), float(np.mean(scaled**4))
    spread = matrix.std(axis=0, ddof=1)
    every = np.where(spread > 1e-15, matrix.mean(axis=0) / np.where(spread > 0.0, spread, 1.0), 0.0)
    between = float(every.std(ddof=1))
    fewer = effective_trials(matrix, started)

    def judged(trials: float) -> tuple[float, float]:
        bar = between * expected_maximum(trials)
        return bar, probabilistic_sharpe(ratio, bar, days, skew, kurtosis)

    return Deflated(
        ratio, days, skew, kurtosis, between, started, *judged(started), fewer, *judged(fewer)
    )
