"""Confidence bounds by resampling seeds and days, and who wins by them.

Sources: Politis and Romano 1994, "The Stationary Bootstrap" (blocks of geometric length keep the
dependence between neighbouring days); Mertens 2002 and Opdyke 2007 (the standard error of a Sharpe
ratio); Hansen 2005, "A Test for Superior Predictive Ability"; docs/rules.md, section 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import MarketSpec
from slipstream.studies.engine.member import DailyReturns
from slipstream.studies.statistics.returns import (
    NO_DEVIATION,
    Objective,
    fold_score,
    sharpe,
    trial_score,
)

Floats = NDArray[np.float64]

MEAN_BLOCK = 10.0  # days
DRAWS = 2_000
SEED = 20_260_101  # fixed: the same returns always have the same bound
LEVEL = 0.05  # of the bounds, shared among the candidates
FEWEST_DAYS = 60  # below it no bound holds its level, and none is given
_DRAWS = 300
_LEVELS = (0.025, 0.975)


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
    rows = (np.take_along_axis(start, block, axis=1) + column - block) % days
    return np.asarray(rows, np.int64)


@dataclass(frozen=True)
class Bounds:
    """Annualised information ratios of some candidates and their lower confidence bounds.

    Attributes:
        ratio: of all seeds and days, [K].
        lower: the lower of the resampled ratios' quantile and of `normal_bound`, [K]; NaN, which is
            not above 0, where there are too few days.
    """

    ratio: Floats
    lower: Floats


def lower_bounds(
    excess: Sequence[Floats],
    periods: float,
    level: float,
    draws: int = DRAWS,
    mean_block: float = MEAN_BLOCK,
    seed: int = SEED,
) -> Bounds:
    """Bounds over seeds and days: the stricter of two, none of fewer than `FEWEST_DAYS`.

    A resample draws a candidate's seeds with replacement, and days in stationary blocks: the same
    days for all candidates. Its ratio is that of one policy, a seed drawn at random, and not that
    of the mean over seeds, whose deviation nobody who deploys one seed would see.

    Args:
        excess: for each candidate the daily returns to judge [R, n], the same days for all.
        periods: days a year.
        level: of the bound: how often it may lie above the truth.
        draws: resamples.
        mean_block: days.
        seed: of the resampling.
    """
    days = excess[0].shape[1]
    if days < FEWEST_DAYS:
        known = np.array([sharpe(one, periods) for one in excess])
        return Bounds(known, np.full(len(excess), np.nan))
    weight = day_weights(days, draws, mean_block, seed)
    random = np.random.Generator(np.random.PCG64([seed, 1]))
    ratio, lower = [], []
    for one in excess:
        seeds = len(one)
        drawn = random.multinomial(seeds, np.full(seeds, 1.0 / seeds), draws)
        ratio.append(sharpe(one, periods))
        resampled = float(np.quantile(_ratios(one, weight, drawn, periods), level))
        lower.append(min(resampled, normal_bound(one, periods, level)))
    return Bounds(np.array(ratio), np.array(lower))


def day_weights(days: int, draws: int, mean_block: float, seed: int) -> Floats:
    """How often each stationary resample has each day, [draws, days]."""
    rows = stationary_rows(days, draws, mean_block, seed)
    flat = (rows + days * np.arange(draws)[:, None]).ravel()
    return np.bincount(flat, minlength=draws * days).reshape(draws, days).astype(np.float64)


def normal_bound(excess: Floats, periods: float, level: float) -> float:
    """SR - z sqrt((1 - skew SR + (kurtosis - 1)/4 SR^2) / days + variance over seeds / R), annual.

    SR is of a day, moments are those of all seeds' days [R, n] together, and kurtosis is not in
    excess. A skew does not take the first term below 1: of heavy tails the skew that comes with a
    lucky mean would make the bound of few days twice as often too high as its level says.
    """
    ratio, (seeds, days) = sharpe(excess, 1.0), excess.shape
    if ratio == 0.0:
        return 0.0
    scaled = (excess - excess.mean()) / excess.std()
    skew, kurtosis = float(np.mean(scaled**3)), float(np.mean(scaled**4))
    variance = max(1.0 - skew * ratio + 0.25 * (kurtosis - 1.0) * ratio**2, 1.0) / days
    if seeds > 1:
        each = [sharpe(one[None], 1.0) for one in excess]
        variance += float(np.var(each, ddof=1)) / seeds
    error = NormalDist().inv_cdf(1.0 - level) * math.sqrt(variance)
    return (ratio - error) * math.sqrt(periods)


def _ratios(
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
    fine = variance > NO_DEVIATION**2
    deviation = np.sqrt(np.where(fine, variance, 1.0))
    return np.asarray(np.where(fine, (mean + shift) / deviation, 0.0) * math.sqrt(periods))


@dataclass(frozen=True)
class Choice:
    """Who wins among candidates, equal weight and cash.

    Attributes:
        bounds: of the candidates, against equal weight.
        own: lower bounds of their own Sharpe ratios at the same level [K].
        cash: lower bound of holding cash, against equal weight; equal weight's own is 0.
        best: index of the candidate with the highest lower bound; without bounds, ratio.
        winner: of the candidates that beat equal weight, cash and zero by all these bounds the one
            with the highest; None where there is none.
        reason: why there is no winner.
    """

    bounds: Bounds
    own: Floats
    cash: float
    best: int
    winner: int | None
    reason: str


def choose_winner(
    excess: Sequence[Floats],
    benchmark: Floats,
    periods: float,
    level: float = LEVEL,
    draws: int = DRAWS,
    mean_block: float = MEAN_BLOCK,
    seed: int = SEED,
    rival: str = "equal weight",
) -> Choice:
    """Chooses the candidate with the highest lower bound, if it beats equal weight and cash.

    To beat equal weight is not enough where equal weight loses: the candidate's own Sharpe ratio
    must be above zero by the same bound. The bounds rank; they do not undo that the candidates were
    chosen among many trials on the same days.

    Args:
        excess: for each of K candidates its daily net returns minus equal weight's, averaged over
            the backtest paths, [R, n].
        benchmark: equal weight's daily returns on those days [n].
        periods: days a year.
        level: the bound is the level / K quantile.
        draws, mean_block, seed: of the bootstrap.
        rival: what the benchmark is called; where it is cash, its returns are 0.
    """
    shared = level / len(excess)
    found = lower_bounds([*excess, -benchmark[None]], periods, shared, draws, mean_block, seed)
    bounds = Bounds(found.ratio[:-1], found.lower[:-1])
    own = bounds.lower
    if benchmark.any():  # drawn as above: the same seeds and days
        mine = [one + benchmark for one in excess]
        own = lower_bounds(mine, periods, shared, draws, mean_block, seed).lower
    cash, best = float(found.lower[-1]), int(np.argmax(bounds.lower))
    days = len(benchmark)
    if days < FEWEST_DAYS:
        reason = f"{days} days are too few for a lower bound, which needs {FEWEST_DAYS}"
        return Choice(bounds, own, cash, int(np.argmax(bounds.ratio)), None, reason)
    highest = float(bounds.lower[best])
    able = (bounds.lower > max(cash, 0.0)) & (own > 0.0)
    if able.any():
        winner = int(np.argmax(np.where(able, bounds.lower, -np.inf)))
        return Choice(bounds, own, cash, best, winner, "")
    if highest <= 0.0:
        reason = f"the highest lower bound against {rival} is {highest:.2f}, not above 0"
    elif highest <= cash:
        reason = f"the highest lower bound is {highest:.2f}, and that of cash is {cash:.2f}"
    else:
        reason = (
            f"the best candidate beats {rival}, but the lower bound of its own Sharpe ratio is "
            f"{own[best]:.2f}, not above 0"
        )
    return Choice(bounds, own, cash, best, None, reason)


def chance_of_as_much(returns: Floats, chosen: int, weight: Floats) -> float:
    """p value of Hansen's test of superior predictive ability, for one of many trials.

    The share of resamples in which the best of trials without skill reaches the studentised mean
    of the chosen one. Trials that are far below zero are not lifted to it (consistent recentring).
    A deviation counts as at least that of independent days: of few days in blocks the resampled
    one is too small, and the test rejected 10 % of studies without skill at a level of 5 %.

    Args:
        returns: daily returns [n, trials], over the rival's.
        chosen: whose.
        weight: of `day_weights`, [draws, n].
    """
    days, spread = len(returns), returns.std(axis=0, ddof=1)
    if not spread[chosen] > NO_DEVIATION:
        return 1.0
    known = spread > NO_DEVIATION  # who never traded is never the best by luck
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
