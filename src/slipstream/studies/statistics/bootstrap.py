"""Confidence bounds by resampling seeds and days, and the selection of a winner.

Sources: Politis and Romano 1994, "The Stationary Bootstrap" (blocks of geometric length keep the
dependence between neighbouring days); Mertens 2002 and Opdyke 2007 (the standard error of a Sharpe
ratio); Lo 2002 and Ledoit and Wolf 2008 (the same under autocorrelation), with Newey and West's
weights and lag (1994) and Andrews and Monahan's prewhitening (1992); Hansen 2005, "A Test for
Superior Predictive Ability"; docs/explanation/statistics.md, section 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import MarketSpec
from slipstream.studies.statistics.returns import (
    MIN_STD,
    Objective,
    fold_score,
    sharpe,
    trial_score,
)
from slipstream.training.population.member import DailyReturns

Floats = NDArray[np.float64]

MEAN_BLOCK = 10.0  # days
NUM_RESAMPLES = 2_000
SEED = 20_260_101  # fixed: the same returns always have the same bound
LEVEL = 0.05  # of the bounds, shared among the candidates
MIN_BOUND_DAYS = 60  # below it no bound holds its level, and none is given
_INTERVAL_RESAMPLES = 300
_INTERVAL_QUANTILES = (0.025, 0.975)
_MAX_AUTOCORRELATION = 0.97  # of neighbouring days; beyond it an error has no limit
# Methods of a bound, as pages name them.
RESAMPLED, MERTENS, NEWEY_WEST = "stationary bootstrap", "Mertens' error", "Newey-West error"


def stationary_bootstrap_rows(
    days: int, draws: int = NUM_RESAMPLES, mean_block: float = MEAN_BLOCK, seed: int = SEED
) -> NDArray[np.int64]:
    """Return rows [draws, days] resampled in circular blocks of geometric length."""
    random = np.random.Generator(np.random.PCG64(seed))
    fresh = random.random((draws, days)) < 1.0 / mean_block
    fresh[:, 0] = True
    start = random.integers(0, days, (draws, days))
    column = np.arange(days)
    block = np.maximum.accumulate(np.where(fresh, column, 0), axis=1)
    rows = (np.take_along_axis(start, block, axis=1) + column - block) % days
    return np.asarray(rows, np.int64)


@dataclass(frozen=True)
class Bounds:
    """Annualised information ratios of candidates and their lower confidence bounds.

    Attributes:
        ratio: over all seeds and days, [K].
        lower: the lowest of the bootstrap quantile, `mertens_bound` and `newey_west_bound`, [K];
            NaN with too few days.
        methods: method that gave each bound; empty with too few days.
    """

    ratio: Floats
    lower: Floats
    methods: tuple[str, ...] = ()


def lower_bounds(
    excess: Sequence[Floats],
    periods: float,
    level: float,
    draws: int = NUM_RESAMPLES,
    mean_block: float = MEAN_BLOCK,
    seed: int = SEED,
) -> Bounds:
    """Compute lower bounds over seeds and days: the strictest of three methods.

    A resample draws a candidate's seeds with replacement, and days in stationary blocks, the same
    days for all candidates. Its ratio is that of one policy with a random seed. The mean over seeds
    has a smaller deviation than the one seed that is deployed. With fewer than `MIN_BOUND_DAYS`
    there are no bounds.

    Args:
        excess: for each candidate the daily returns to test [R, n], the same days for all.
        periods: days a year.
        level: probability that a bound is above the true value.
        draws: number of resamples.
        mean_block: mean block length, days.
        seed: seed of the resampling.
    """
    days = excess[0].shape[1]
    if days < MIN_BOUND_DAYS:
        known = np.array([sharpe(path, periods) for path in excess])
        return Bounds(known, np.full(len(excess), np.nan))
    weight = day_weights(days, draws, mean_block, seed)
    random = np.random.Generator(np.random.PCG64([seed, 1]))
    ratio, lower, methods = [], [], []
    for paths in excess:
        seeds = len(paths)
        drawn = random.multinomial(seeds, np.full(seeds, 1.0 / seeds), draws)
        ratio.append(sharpe(paths, periods))
        bounds = {
            RESAMPLED: float(np.quantile(_resampled_ratios(paths, weight, drawn, periods), level)),
            MERTENS: mertens_bound(paths, periods, level),
            NEWEY_WEST: newey_west_bound(paths, periods, level),
        }
        method = min(bounds, key=bounds.__getitem__)
        lower.append(bounds[method])
        methods.append(method)
    return Bounds(np.array(ratio), np.array(lower), tuple(methods))


def day_weights(days: int, draws: int, mean_block: float, seed: int) -> Floats:
    """Return how often each stationary resample contains each day, [draws, days]."""
    rows = stationary_bootstrap_rows(days, draws, mean_block, seed)
    flat = (rows + days * np.arange(draws)[:, None]).ravel()
    return np.bincount(flat, minlength=draws * days).reshape(draws, days).astype(np.float64)


def mertens_bound(excess: Floats, periods: float, level: float) -> float:
    """SR - z sqrt((1 - skew SR + (kurtosis - 1)/4 SR^2) / days + variance over seeds / R), annual.

    SR is daily, moments are those of all seeds' days [R, n] together, and kurtosis is not in
    excess. The first term is at least 1: with heavy tails, the skew that comes with a lucky mean
    would make the bound of few days too high twice as often as its level allows.
    """
    ratio, scaled = _standardize(excess)
    skew, kurtosis = float(np.mean(scaled**3)), float(np.mean(scaled**4))
    variance = max(1.0 - skew * ratio + 0.25 * (kurtosis - 1.0) * ratio**2, 1.0)
    return _normal_quantile_bound(variance, ratio, excess, periods, level)


def newey_west_bound(excess: Floats, periods: float, level: float) -> float:
    """Compute `mertens_bound` with the long-run variance of the ratio instead of its first term.

    It is that of the ratio's influence, z - SR (z^2 - 1)/2 with z the standardised return, a mean
    over seeds.
    """
    ratio, scaled = _standardize(excess)
    influence = scaled - 0.5 * ratio * (scaled**2 - 1.0)
    variance = float(np.mean([long_run_variance(values) for values in influence]))
    return _normal_quantile_bound(variance, ratio, excess, periods, level)


def _standardize(excess: Floats) -> tuple[float, Floats]:
    """Return the daily ratio, and the returns over their deviation; zeros without one."""
    ratio = sharpe(excess, 1.0)
    if ratio == 0.0:
        return 0.0, np.zeros(excess.shape)
    return ratio, (excess - excess.mean()) / excess.std()


def _normal_quantile_bound(
    variance: float, ratio: float, excess: Floats, periods: float, level: float
) -> float:
    """Return the annual lower bound of a daily ratio whose variance is `variance` over the days."""
    if ratio == 0.0:
        return 0.0
    seeds, days = excess.shape
    sharpes = [sharpe(path[None], 1.0) for path in excess]
    between = float(np.var(sharpes, ddof=1)) / seeds if seeds > 1 else 0.0
    error = NormalDist().inv_cdf(1.0 - level) * math.sqrt(variance / days + between)
    return (ratio - error) * math.sqrt(periods)


def long_run_variance(series: Floats) -> float:
    """Estimate the variance of the mean of a series [n] times n, whatever its autocorrelation.

    The series is prewhitened by an autoregression of one lag, whose coefficient is corrected for
    its bias in small samples, (1 + 3 rho) / n (Kendall 1954). The rest is weighted by Bartlett's
    kernel up to the lag 4 (n / 100)^(2/9).
    """
    days = len(series)
    centred = series - series.mean()
    before, after = centred[:-1], centred[1:]
    square = float(before @ before)
    if not square > 0.0:
        return 0.0
    rho = float(after @ before) / square
    rho += (1.0 + 3.0 * rho) / days
    rho = min(max(rho, -_MAX_AUTOCORRELATION), _MAX_AUTOCORRELATION)
    rest = after - rho * before
    lags = int(4.0 * (days / 100.0) ** (2.0 / 9.0))
    total = float(rest @ rest)
    for lag in range(1, lags + 1):
        total += 2.0 * (1.0 - lag / (lags + 1.0)) * float(rest[lag:] @ rest[:-lag])
    return max(total, 0.0) / len(rest) / (1.0 - rho) ** 2


def _resampled_ratios(
    excess: Floats, weight: Floats, drawn: NDArray[np.int64], periods: float
) -> NDArray[np.float64]:
    """Annualised ratios [draws] from day weights [draws, n] and seed counts [draws, R]."""
    seeds, days = excess.shape
    count = seeds * days
    shift = float(excess.mean())
    centred = excess - shift
    sums = np.einsum("br,br->b", weight @ centred.T, drawn)
    squares = np.einsum("br,br->b", weight @ (centred * centred).T, drawn)
    mean = sums / count
    variance = (squares - count * mean * mean) / max(count - 1, 1)
    fine = variance > MIN_STD**2
    deviation = np.sqrt(np.where(fine, variance, 1.0))
    return np.asarray(np.where(fine, (mean + shift) / deviation, 0.0) * math.sqrt(periods))


@dataclass(frozen=True)
class WinnerSelection:
    """Result of comparing candidates, equal weight and cash.

    Attributes:
        bounds: bounds of the candidates, against equal weight.
        own: lower bounds of their own Sharpe ratios at the same level [K].
        timing: lower bounds of their timing [K]; None if it is not tested.
        cash: lower bound of holding cash, against equal weight; equal weight's own is 0.
        best: index of the candidate with the highest lower bound; without bounds, ratio.
        winner: index of the best candidate whose bounds all beat equal weight, cash and zero; None
            without one.
        reason: why there is no winner.
    """

    bounds: Bounds
    own: Floats
    timing: Floats | None
    cash: float
    best: int
    winner: int | None
    reason: str


def select_winner(
    excess: Sequence[Floats],
    benchmark: Floats,
    periods: float,
    level: float = LEVEL,
    draws: int = NUM_RESAMPLES,
    mean_block: float = MEAN_BLOCK,
    seed: int = SEED,
    rival: str = "equal weight",
    timing: Sequence[Floats] | None = None,
) -> WinnerSelection:
    """Select the candidate with the highest lower bound, if it beats equal weight and cash.

    Three bounds must hold. Beating equal weight is not enough if equal weight loses: the
    candidate's own Sharpe ratio must be above zero by the same bound. Beating cash is not enough if
    the market rises or falls: the returns without the candidate's mean exposure must be above zero.
    The bounds rank; they do not correct for the selection of candidates among many trials on the
    same days.

    Args:
        excess: for each of K candidates its daily net returns minus equal weight's, averaged over
            the backtest paths, [R, n].
        benchmark: equal weight's daily returns on those days [n].
        periods: days a year.
        level: the bound is the level / K quantile.
        draws, mean_block, seed: of the bootstrap.
        rival: name of the benchmark; if it is cash, its returns are 0.
        timing: each candidate's daily returns minus its mean net exposure times the market's, [R,
            n]; None if they are not tested.
    """
    shared = level / len(excess)
    bounds_with_benchmark = lower_bounds(
        [*excess, -benchmark[None]], periods, shared, draws, mean_block, seed
    )
    bounds = Bounds(bounds_with_benchmark.ratio[:-1], bounds_with_benchmark.lower[:-1])
    lower = bounds.lower
    if benchmark.any():  # drawn as above: the same seeds and days
        mine = [path + benchmark for path in excess]
        lower = lower_bounds(mine, periods, shared, draws, mean_block, seed).lower
    timed = None
    if timing is not None:
        timed = lower_bounds(timing, periods, shared, draws, mean_block, seed).lower
    cash, best = float(bounds_with_benchmark.lower[-1]), int(np.argmax(bounds.lower))
    highest, days, winner = float(bounds.lower[best]), len(benchmark), None
    able = (bounds.lower > max(cash, 0.0)) & (lower > 0.0)
    shown = able if timed is None else able & (timed > 0.0)
    if days < MIN_BOUND_DAYS:
        best = int(np.argmax(bounds.ratio))
        reason = f"{days} days are too few for a lower bound, which needs {MIN_BOUND_DAYS}"
    elif shown.any():
        winner, reason = int(np.argmax(np.where(shown, bounds.lower, -np.inf))), ""
    elif timed is not None and able.any():
        best = int(np.argmax(np.where(able, bounds.lower, -np.inf)))
        reason = (
            f"the best candidate beats {rival} by its direction, not shown by its timing: the "
            "lower bound of its returns minus its mean net exposure times the market's is "
            f"{timed[best]:.2f}, not above 0"
        )
    elif highest <= 0.0:
        reason = f"the highest lower bound against {rival} is {highest:.2f}, not above 0"
    elif highest <= cash:
        reason = f"the highest lower bound is {highest:.2f}, and that of cash is {cash:.2f}"
    else:
        reason = (
            f"the best candidate beats {rival}, but the lower bound of its own Sharpe ratio is "
            f"{lower[best]:.2f}, not above 0"
        )
    return WinnerSelection(bounds, lower, timed, cash, best, winner, reason)


def spa_p_value(returns: Floats, chosen: int, weight: Floats) -> float:
    """Return the p-value of Hansen's test of superior predictive ability for one of many trials.

    It is the share of resamples in which the best of trials without skill reaches the studentised
    mean of the selected trial. Trials far below zero are not lifted to it (consistent recentring).
    A deviation is at least that of independent days: with few days in blocks the resampled
    deviation is too small, and the test rejected 10 % of studies without skill at a level of 5 %.

    Args:
        returns: daily returns [n, trials], in excess of the benchmark.
        chosen: column of the selected trial.
        weight: `day_weights`, [draws, n].
    """
    days, spread = len(returns), returns.std(axis=0, ddof=1)
    if not spread[chosen] > MIN_STD:
        return 1.0
    known = spread > MIN_STD  # who never traded is never the best by luck
    mean = returns[:, known].mean(axis=0)
    root = math.sqrt(days)
    drawn = weight @ (returns[:, known] - mean) / root
    deviation = np.sqrt(np.mean(drawn * drawn, axis=0))
    score = root * mean / np.maximum(deviation, spread[known])
    poor = -math.sqrt(2.0 * math.log(math.log(days)))
    highest = np.max(drawn / deviation + np.where(score < poor, score, 0.0), axis=1)
    return float(np.mean(np.maximum(highest, 0.0) >= score[np.count_nonzero(known[:chosen])]))


def score_interval(
    folds: Sequence[DailyReturns],
    market: MarketSpec | None,
    objective: Objective = "sharpe",
    penalty: float = 0.1,
) -> tuple[float, float] | None:
    """Return the 95 % interval of a trial's score by resampling days in blocks.

    All folds resample the same days. Games: interval of the mean over folds, by resampling folds.
    None with fewer than 60 days or 2 folds.

    Args:
        folds: backtests of each fold.
        market: None for games.
        objective, penalty: of the study.
    """
    if market is None:
        means = np.array([fold.returns.mean() for fold in folds])
        if len(means) < 2:
            return None
        random = np.random.Generator(np.random.PCG64(0))
        rows = random.integers(0, len(means), (_INTERVAL_RESAMPLES, len(means)))
        return _interval(means[rows].mean(axis=1))
    days = np.unique(np.concatenate([fold.days for fold in folds]))
    if len(days) < MIN_BOUND_DAYS:
        return None
    places = [np.searchsorted(days, fold.days) for fold in folds]
    values = []
    for rows in stationary_bootstrap_rows(len(days), _INTERVAL_RESAMPLES):
        times = np.bincount(rows, minlength=len(days))  # that each day was drawn
        drawn = [
            replace(
                fold,
                returns=np.repeat(fold.returns, times[place]),
                benchmark=np.repeat(fold.benchmark, times[place]),
                market=None,  # no score needs it
            )
            for fold, place in zip(folds, places, strict=True)
        ]
        scores = [fold_score(backtest, market, objective).score for backtest in drawn]
        values.append(trial_score(scores, penalty))
    return _interval(np.array(values))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.nanquantile(values, _INTERVAL_QUANTILES)  # NaN: no day of some fold was drawn
    return float(low), float(high)
