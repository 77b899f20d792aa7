"""Overfitting of the best of many trials: PBO and the deflated Sharpe ratio.

Sources: Bailey, Borwein, Lopez de Prado and Zhu 2017, "The Probability of Backtest Overfitting"
(PBO); Bailey and Lopez de Prado 2014, "The Deflated Sharpe Ratio". For PBO the days are cut into
blocks. Each half of the blocks selects the trial with the best Sharpe ratio; its rank is measured
in the other half. The moments of a half are sums of its blocks' moments, so 12,870 halves of 500
trials are a few matrix products. Ratios are of daily returns, in excess of the benchmark if there
is one, and annualised only if the name contains `annual`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.text import span
from slipstream.core.timeline import DAY
from slipstream.studies.statistics.bootstrap import LEVEL, MIN_BOUND_DAYS

Floats = NDArray[np.float64]

BLOCKS = 16
MIN_TRIALS_FOR_PBO = 20
MIN_DAYS_PER_BLOCK = 5  # per block
PBO_NOISE_NOTE = "One PBO has a standard deviation of about 0.16 even on pure noise."
_HALVES_PER_BATCH = 1_024  # halves
_TIE = 1e-12  # Sharpe ratios closer than this are equal: a product's rounding decides no rank
MIN_DAYS = 20
MIN_TRIALS = 2
_EULER = 0.5772156649015329
MIN_DSR, MAX_PBO = 0.95, 0.2  # required for a deployment
_MAX_DAYS = 10**7
_NORMAL = NormalDist()
_YEAR = 365.25 * DAY  # seconds


@dataclass(frozen=True)
class PBO:
    """Probability of backtest overfitting.

    Attributes:
        value: share of halves whose best trial has at most the middle rank in the other half.
        columns, days, blocks: numbers of trials, days and blocks.
        logits: log(w / (1 - w)) with w = rank / (columns + 1), one for each half.
        in_sample: daily Sharpe ratio of the selected trial in its half.
        out_of_sample: daily Sharpe ratio of the selected trial in the other half.
    """

    value: float
    columns: int
    days: int
    blocks: int
    logits: Floats
    in_sample: Floats
    out_of_sample: Floats

    @property
    def probability_of_loss(self) -> float:
        """Share of halves whose best trial loses money in the other half."""
        return float(np.mean(self.out_of_sample < 0.0))


@dataclass(frozen=True)
class NotComputed:
    """A value that requires more data, with the reason."""

    reason: str


def compute_pbo(matrix: Floats, blocks: int = BLOCKS) -> PBO | NotComputed:
    """Compute PBO over finished trials.

    Args:
        matrix: daily returns [days, trials]; rows as in `daily_return_matrix`.
        blocks: number of blocks, even; their lengths differ by at most one day.

    Raises:
        ValueError: a return is not a number, or `blocks` is odd.
    """
    days, columns = matrix.shape
    if blocks < 2 or blocks % 2:
        raise ValueError(f"blocks must be even and at least 2, not {blocks}")
    if columns < MIN_TRIALS_FOR_PBO:
        return NotComputed(f"{columns} trials finished, at least {MIN_TRIALS_FOR_PBO} are needed")
    if days < MIN_DAYS_PER_BLOCK * blocks:
        return NotComputed(
            f"{days} days are fewer than {blocks} blocks of {MIN_DAYS_PER_BLOCK}: "
            f"{MIN_DAYS_PER_BLOCK * blocks}"
        )
    if not np.isfinite(matrix).all():
        raise ValueError("every day of every trial needs a return")
    counts, sums, squares, shift = _block_moments(matrix, blocks)
    # Only halves with the first block: the rest are their complements, judged the other way round.
    chosen = np.array([(0, *rest) for rest in combinations(range(1, blocks), blocks // 2 - 1)])
    halves = np.zeros((len(chosen), blocks))
    np.put_along_axis(halves, chosen, 1.0, axis=1)
    ranks, inside, outside = [], [], []
    for start in range(0, len(halves), _HALVES_PER_BATCH):
        part = halves[start : start + _HALVES_PER_BATCH]
        one = _sharpe_of_halves(part, counts, sums, squares, shift)
        two = _sharpe_of_halves(1.0 - part, counts, sums, squares, shift)
        for in_sample, out_of_sample in ((one, two), (two, one)):
            best = _argmax_first(in_sample)
            mine = np.take_along_axis(out_of_sample, best[:, None], axis=1)
            below = np.count_nonzero(out_of_sample < mine - _TIE, axis=1)
            tied = np.count_nonzero(np.abs(out_of_sample - mine) <= _TIE, axis=1)
            ranks.append(below + 0.5 * (tied + 1))
            inside.append(np.take_along_axis(in_sample, best[:, None], axis=1)[:, 0])
            outside.append(mine[:, 0])
    share = np.concatenate(ranks) / (columns + 1)
    return PBO(
        value=float(np.mean(share <= 0.5)),
        columns=columns,
        days=days,
        blocks=blocks,
        logits=np.log(share / (1.0 - share)),
        in_sample=np.concatenate(inside),
        out_of_sample=np.concatenate(outside),
    )


def _block_moments(matrix: Floats, blocks: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return days [blocks], sums and sums of squares [blocks, trials], and column means [trials].

    Sums are about the column means.
    """
    shift = matrix.mean(axis=0)
    edges = np.linspace(0, len(matrix), blocks + 1).astype(np.int64)
    centred = matrix - shift  # no cancellation where means are large beside deviations
    sums = np.add.reduceat(centred, edges[:-1], axis=0)
    squares = np.add.reduceat(centred * centred, edges[:-1], axis=0)
    return np.diff(edges).astype(np.float64), sums, squares, shift


def _sharpe_of_halves(
    halves: Floats, counts: Floats, sums: Floats, squares: Floats, shift: Floats
) -> Floats:
    """Return daily Sharpe ratios [halves, trials]; 0 without deviation."""
    n = (halves @ counts)[:, None]
    mean = halves @ sums / n
    variance = (halves @ squares - n * mean * mean) / (n - 1.0)
    fine = variance > 1e-30
    deviation = np.sqrt(np.where(fine, variance, 1.0))
    return np.asarray(np.where(fine, (mean + shift) / deviation, 0.0))


def _argmax_first(values: Floats) -> NDArray[np.int64]:
    """Return the column of the highest value of each row; the first of equal values."""
    best = values >= values.max(axis=1, keepdims=True) - _TIE
    return np.asarray(np.argmax(best, axis=1), np.int64)


@dataclass(frozen=True)
class DeflatedSharpe:
    """Deflated Sharpe ratio of the selected trial.

    Attributes:
        sharpe: daily Sharpe ratio of the selected trial.
        days: number of days.
        skew, kurtosis: of its daily returns (0 and 3 for a normal distribution).
        deviation: standard deviation of the daily Sharpe ratios over finished trials; at least
            1 / sqrt(days), which chance alone gives independent trials.
        measured_deviation: the same without the lower limit. Trials that survived pruning, and
            variations of one strategy, are more alike than independent trials.
        trials: N, the number of trials started.
        expected: expected Sharpe ratio of the best of N trials without skill.
        value: probability that the true ratio is above `expected`.
        effective_trials: rho + (1 - rho) N, with rho the mean correlation of trials.
        effective_expected, effective_value: `expected` and `value` with `effective_trials`.
    """

    sharpe: float
    days: int
    skew: float
    kurtosis: float
    deviation: float
    measured_deviation: float
    trials: float
    expected: float
    value: float
    effective_trials: float
    effective_expected: float
    effective_value: float


def expected_maximum(num_trials: float) -> float:
    """Return the expected maximum of N standard normals: (1-g) Z(1-1/N) + g Z(1-1/(Ne)).

    Z is the inverse of the normal distribution, g Euler's constant; 0 for a single trial.
    """
    if num_trials <= 1.0:
        return 0.0
    z = _NORMAL.inv_cdf
    best = (1.0 - _EULER) * z(1.0 - 1.0 / num_trials) + _EULER * z(
        1.0 - 1.0 / (num_trials * math.e)
    )
    return max(best, 0.0)


def min_detectable_sharpe(days: int, periods: float, level: float = LEVEL) -> float | None:
    """Return the annual Sharpe ratio whose `mertens_bound` on normal returns is just above 0.

    Args:
        days: number of test days; None is returned if they are too few for a bound.
        periods: days a year.
        level: level of the bound; each of K candidates uses level / K.
    """
    z = _NORMAL.inv_cdf(1.0 - level)
    return z * math.sqrt(periods / (days - 0.5 * z * z)) if days >= MIN_BOUND_DAYS else None


def tested_years(folds: Mapping[str, Any]) -> dict[str, float]:
    """Return years of test data of ``folds`` (each group counted once) and ``holdout``.

    Args:
        folds: ``provenance["environment"]["folds"]``; see `markets/folds.py`.
    """
    tested = {group for fold in folds["folds"] for group in fold["groups"]}
    seconds = {
        "folds": sum(high - low for low, high in (folds["groups"][k] for k in tested)),
        "holdout": folds["holdout"][1] - folds["holdout"][0],
    }
    return {name: span / _YEAR for name, span in seconds.items()}


def detectable_sharpe(
    years: Mapping[str, float], candidates: int, per_year: float, level: float = LEVEL
) -> dict[str, dict[str, Any]]:
    """Return `years` and the smallest detectable `sharpe` of each part of the test data.

    `span` is the length as text: days if it is less than a year.

    Args:
        years: of ``folds`` and ``holdout``.
        candidates: K, the number of candidates that share the level on the folds; the hold-out is
            used for one.
        per_year: trading days a year.
        level: level of the bounds.
    """
    shared = {"folds": max(candidates, 1), "holdout": 1}
    return {
        name: {
            "years": num_years,
            "span": span(round(num_years * per_year), per_year),
            "candidates": shared[name],
            "sharpe": min_detectable_sharpe(
                round(num_years * per_year), per_year, level / shared[name]
            ),
        }
        for name, num_years in years.items()
    }


def describe_detectable(values: Mapping[str, Any] | None) -> str:
    """Describe the smallest effect that the test data can confirm.

    Args:
        values: `span`, `candidates` and `sharpe` of ``folds`` and ``holdout``; None: empty.
    """
    if values is None:
        return ""
    folds, holdout = values["folds"], values["holdout"]
    return (
        "The smallest annual Sharpe ratio that the test data can confirm: "
        f"{format_detectable(folds)} on the folds for {describe_candidates(folds['candidates'])} "
        f"({folds['span']}), {format_detectable(holdout)} on the hold-out ({holdout['span']})."
    )


def format_detectable(values: Mapping[str, Any]) -> str:
    """Format the Sharpe ratio of a part of `detectable_sharpe`."""
    return "none" if values["sharpe"] is None else f"{values['sharpe']:.1f}"


def describe_candidates(candidates: int) -> str:
    """Describe how many candidates share the level of a bound."""
    return "the only candidate" if candidates == 1 else f"one of {candidates} candidates"


def expected_best_sharpe(trials: int, years: float) -> float | None:
    """Return the expected annual Sharpe ratio of the best of N trials without skill."""
    if trials < MIN_TRIALS or years <= 0.0:
        return None
    return expected_maximum(trials) / math.sqrt(years)


def probabilistic_sharpe(
    sharpe: float, against: float, days: int, skew: float = 0.0, kurtosis: float = 3.0
) -> float:
    """Return the probability that the true ratio is above `against`, given its estimate."""
    variance = 1.0 - skew * sharpe + 0.25 * (kurtosis - 1.0) * sharpe * sharpe
    gap = (sharpe - against) * math.sqrt(days - 1)
    return float(_NORMAL.cdf(gap / math.sqrt(max(variance, 1e-12))))


def effective_trials(matrix: Floats, trials: float) -> float:
    """Return rho + (1 - rho) N with rho the mean correlation of pairs of columns, in [0, 1].

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


def deflated_sharpe(matrix: Floats, chosen: int, started: int) -> DeflatedSharpe | NotComputed:
    """Compute the deflated Sharpe ratio of the selected trial.

    Args:
        matrix: daily returns of the finished trials [days, trials], in excess of the benchmark if
            there is one: a rising market is no skill.
        chosen: column of the selected trial.
        started: number of trials started, including pruned and failed trials.
    """
    days, columns = matrix.shape
    if columns < MIN_TRIALS:
        return NotComputed(f"{columns} trials finished, at least {MIN_TRIALS} are needed")
    if days < MIN_DAYS:
        return NotComputed(f"{days} days, at least {MIN_DAYS} are needed")
    returns = matrix[:, chosen]
    deviation = float(returns.std(ddof=1))
    if not deviation > 1e-15:
        return NotComputed("the trial's returns have no deviation")
    ratio = float(returns.mean()) / deviation
    scaled = (returns - returns.mean()) / returns.std()
    skew, kurtosis = float(np.mean(scaled**3)), float(np.mean(scaled**4))
    spread = matrix.std(axis=0, ddof=1)
    every = np.where(spread > 1e-15, matrix.mean(axis=0) / np.where(spread > 0.0, spread, 1.0), 0.0)
    measured = float(every.std(ddof=1))
    between = max(measured, 1.0 / math.sqrt(days))
    fewer = effective_trials(matrix, started)

    def judged(trials: float) -> tuple[float, float]:
        bar = between * expected_maximum(trials)
        return bar, probabilistic_sharpe(ratio, bar, days, skew, kurtosis)

    (bar, value), (fewer_bar, fewer_value) = judged(started), judged(fewer)
    return DeflatedSharpe(
        sharpe=ratio,
        days=days,
        skew=skew,
        kurtosis=kurtosis,
        deviation=between,
        measured_deviation=measured,
        trials=started,
        expected=bar,
        value=value,
        effective_trials=fewer,
        effective_expected=fewer_bar,
        effective_value=fewer_value,
    )


def days_to_min_dsr(values: Mapping[str, Any]) -> int | None:
    """Return the number of days at which the ratio reaches `MIN_DSR`; None if it never does.

    Args:
        values: fields of `DeflatedSharpe`; ratio, skew, kurtosis and number of trials are kept.
    """
    low, high = int(values["days"]), 2 * int(values["days"])
    while _deflated_value(values, values["sharpe"], high) < MIN_DSR:
        low, high = high, 2 * high
        if high > _MAX_DAYS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = _deflated_value(values, values["sharpe"], middle) >= MIN_DSR
        low, high = (low, middle) if enough else (middle, high)
    return high


def sharpe_to_min_dsr(values: Mapping[str, Any]) -> float | None:
    """Return the daily ratio that reaches `MIN_DSR` on the same days; None if none does."""
    days, low = int(values["days"]), float(values["sharpe"])
    high = max(1.0, 2.0 * low)
    if _deflated_value(values, high, days) < MIN_DSR:
        return None
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = _deflated_value(values, middle, days) >= MIN_DSR
        low, high = (low, middle) if enough else (middle, high)
    return high


def _deflated_value(values: Mapping[str, Any], ratio: float, days: int) -> float:
    """Return the deflated Sharpe ratio for another daily ratio or number of days."""
    measured = values.get("measured_deviation", values["deviation"])
    bar = max(measured, 1.0 / math.sqrt(days)) * expected_maximum(values["trials"])
    return probabilistic_sharpe(ratio, bar, days, values["skew"], values["kurtosis"])
