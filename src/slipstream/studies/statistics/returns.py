"""Returns of a trial's folds: fold scores, trial scores and daily series.

See docs/explanation/statistics.md, sections 11 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import MarketSpec
from slipstream.training.population.member import DailyReturns

Floats = NDArray[np.float64]
Days = NDArray[np.int64]
Objective = Literal["sharpe", "information_ratio", "log_growth"]

MIN_EXPOSURE = 0.01  # mean gross exposure, share of equity; below it a fold is inactive
MIN_FILLS = 10
MIN_STD = 1e-15
_MIN_GROWTH = 1e-6  # of a day's start, as in the log reward: a lost account has no logarithm


class FoldResult(NamedTuple):
    """Score of a fold and its components.

    Attributes:
        score: by the objective; 0 if the fold is inactive, NaN if a return is not a number.
        sharpe: annual Sharpe ratio of daily returns; games: 0.
        benchmark_sharpe: Sharpe ratio of equal weight on the same days; None without it.
        inactive: almost no positions or trades, so that the score is not that of a strategy.
        growth: compounded return over the fold's days, a fraction; games: 0.
        benchmark_growth: compounded return of equal weight; None without it.
        exposure: mean gross exposure, share of equity; games: 0.
        fills: orders filled; games: 0.
        days: days of all backtests; games: episodes.
        net_exposure: mean exposure, shorts below 0; None if it was not recorded.
        market_growth: return of the market, each symbol bought once; None if it was not recorded.
        market_correlation: correlation of daily returns with the market's, which is equal weight's
            if there is a benchmark; None if it was not recorded or a series is constant.
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
    net_exposure: float | None = None
    market_growth: float | None = None
    market_correlation: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def sharpe(returns: Floats, periods: float) -> float:
    """Return mean / standard deviation (ddof 1) * sqrt(periods); 0 without deviation.

    Args:
        returns: of one policy, or of many policies [R, n]; excess returns give the information
            ratio.
        periods: periods a year.
    """
    if returns.size < 2:
        return 0.0
    deviation = float(np.std(returns, ddof=1))
    if not deviation > MIN_STD:
        return 0.0
    return float(np.mean(returns)) / deviation * math.sqrt(periods)


def correlation(first: Floats, second: Floats) -> float | None:
    """Return the correlation of two return series; None with fewer than 3 or a constant series."""
    if len(first) < 3 or not min(float(np.std(first)), float(np.std(second))) > MIN_STD:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def compound_return(returns: Floats) -> float:
    """Return the compound of simple returns, a fraction."""
    return float(np.prod(1.0 + returns)) - 1.0


def log_growth(returns: Floats, periods: float) -> float:
    """Return the mean log return times periods a year."""
    if not len(returns):
        return 0.0
    return float(np.mean(np.log(np.maximum(1.0 + returns, _MIN_GROWTH)))) * periods


def fold_score(
    backtests: DailyReturns, market: MarketSpec | None, objective: Objective = "sharpe"
) -> FoldResult:
    """Score a fold over all its backtests.

    Args:
        backtests: daily returns and equal weight's, and `mean_exposure` and `fills` of each group.
        market: for annualisation; None for games, whose score is the mean episode return.
        objective: `sharpe` is Sharpe(policy) - Sharpe(equal weight); `information_ratio` is the
            Sharpe ratio of the daily differences; `log_growth` is the policy's minus equal
            weight's. Without equal weight, cash replaces it: 0 on all days.
    """
    own_returns, other = backtests.returns, backtests.benchmark
    if not (len(own_returns) and np.isfinite(own_returns).all() and np.isfinite(other).all()):
        return FoldResult(math.nan, days=len(own_returns))
    if market is None:
        return FoldResult(float(np.mean(own_returns)), days=len(own_returns))
    periods = market.days_per_year
    moved = other if market.benchmark else backtests.market
    exposures = [metrics.get("net_exposure") for metrics in backtests.metrics]
    if market.benchmark:  # it holds no shorts
        exposures = [metrics["mean_exposure"] for metrics in backtests.metrics]
    known = [exposure for exposure in exposures if exposure is not None]
    result = FoldResult(
        score=0.0,
        sharpe=sharpe(own_returns, periods),
        benchmark_sharpe=sharpe(other, periods) if market.benchmark else None,
        growth=compound_return(own_returns),
        benchmark_growth=compound_return(other) if market.benchmark else None,
        exposure=float(np.mean([metrics["mean_exposure"] for metrics in backtests.metrics])),
        fills=float(sum(metrics["fills"] for metrics in backtests.metrics)),
        days=len(own_returns),
        net_exposure=float(np.mean(known)) if known else None,
        market_growth=None if backtests.market is None else compound_return(backtests.market),
        market_correlation=None if moved is None else correlation(own_returns, moved),
    )
    if result.exposure < MIN_EXPOSURE or result.fills < MIN_FILLS:
        return result._replace(inactive=True)  # against cash: 0 - 0
    if objective == "information_ratio":
        return result._replace(score=sharpe(own_returns - other, periods))
    if objective == "log_growth":
        return result._replace(score=log_growth(own_returns, periods) - log_growth(other, periods))
    return result._replace(score=result.sharpe - (result.benchmark_sharpe or 0.0))


def check_constraints(constraints: Iterable[str], available: Sequence[str], reporter: str) -> None:
    """Check that constrained metrics are reported.

    Args:
        constraints: constrained metrics.
        available: reported metrics.
        reporter: name of what reports them.

    Raises:
        ConfigError: a metric is not reported; with those that are.
    """
    odd = next((constraint for constraint in constraints if constraint not in available), None)
    if odd is not None:
        raise ConfigError(
            f"`study.constraints` names `{odd}`, which {reporter} does not report. It reports "
            f"{', '.join(available) or 'no metrics, so that no constraint can be put on it'}."
        )


def constraint_values(
    backtests: DailyReturns, constraints: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the largest value of each constrained metric over tested blocks, and its limit.

    Each block is a separate account (games: their mean episode). A mean over blocks would let a
    quiet block compensate for a ruinous one.
    """
    return {
        name: (float(np.max([metric[name] for metric in backtests.metrics])), float(most))
        for name, most in constraints.items()
    }


def largest_values(
    values: Iterable[Mapping[str, Sequence[float]]],
) -> dict[str, tuple[float, float]]:
    """Return the largest value of each constrained metric over several folds, and its limit."""
    largest: dict[str, tuple[float, float]] = {}
    for figures in values:
        for name, (figure, most) in figures.items():
            largest[name] = max(largest.get(name, (-math.inf, most)), (figure, most))
    return largest


def describe_violations(figures: Mapping[str, Sequence[float]]) -> str:
    """Describe violated constraints; empty without violations."""
    return ", ".join(
        f"{name} is {figure:.4g} (at most {most:.4g})"
        for name, (figure, most) in figures.items()
        if figure > most
    )


def describe_nearest_violation(trials: Mapping[int, Mapping[str, Sequence[float]]]) -> str:
    """Describe the trial with the smallest violation of a constraint; empty without any.

    Args:
        trials: by number the values of `largest_values`; a metric is compared relative to its
            limit.
    """
    over = {
        number: max((figure - most) / (abs(most) or 1.0) for figure, most in figures.values())
        for number, figures in trials.items()
        if describe_violations(figures)
    }
    if not over:
        return ""
    nearest = min(over, key=over.__getitem__)
    return f"trial {nearest} comes closest, whose {describe_violations(trials[nearest])}"


def trial_score(scores: Sequence[float], penalty: float = 0.1) -> float:
    """Return mean - penalty * standard deviation (ddof 1) over folds; NaN if a fold has no score.

    It is not divided by the root of the number of folds: four groups give at most four independent
    pieces, however many folds are made of them.
    """
    values = np.asarray(scores, np.float64)
    if len(values) == 1:
        return float(values[0])
    return float(np.mean(values) - penalty * np.std(values, ddof=1))


class FoldMap(NamedTuple):
    """Tested groups of the folds.

    Attributes:
        groups: for each fold the numbers of its tested groups, in the order of its backtests.
        paths: for each backtest path and each group, the fold that tests it there.
    """

    groups: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def from_metadata(cls, facts: Mapping[str, Any]) -> FoldMap:
        """Return the map in ``provenance["environment"]["folds"]``; see `markets/folds.py`."""
        return cls(
            tuple(tuple(fold["groups"]) for fold in facts["folds"]),
            tuple(tuple(path) for path in facts["paths"]),
        )


class BacktestPaths(NamedTuple):
    """Backtest paths of a trial; each tests every group once.

    Attributes:
        days: UTC day numbers [n], ascending.
        returns: daily net returns [paths, n].
        benchmark: equal weight's [n]; the same on all paths.
        timing: daily returns minus mean net exposure times the market's, averaged over the paths
            [n]; None if a fold has none.
    """

    days: Days
    returns: Floats
    benchmark: Floats
    timing: Floats | None = None

    @property
    def mean(self) -> Floats:
        """Daily returns averaged over the paths [n]."""
        return np.asarray(self.returns.mean(axis=0))

    @property
    def excess(self) -> Floats:
        """Daily returns minus equal weight's, averaged over the paths [n]."""
        return self.mean - self.benchmark


def backtest_paths(folds: Sequence[DailyReturns], fold_map: FoldMap) -> BacktestPaths:
    """Return the backtest paths of a trial whose folds have all been tested.

    The two parts of a day that two groups share are compounded.

    Args:
        folds: backtests by fold.
        fold_map: tested groups of the folds.
    """
    lines = []
    for path in fold_map.paths:
        rows = [
            (folds[fold], folds[fold].group == fold_map.groups[fold].index(group))
            for group, fold in enumerate(path)
        ]
        stamps = np.concatenate([backtests.days[row] for backtests, row in rows])

        def line(name: str, stamps: Days = stamps, rows: Any = rows) -> Floats | None:
            """The series of that name along the path; None if a fold has none."""
            parts = [getattr(backtests, name) for backtests, _ in rows]
            if any(part is None for part in parts):
                return None
            row = [part[place] for part, (_, place) in zip(parts, rows, strict=True)]
            return compound_by_day(stamps, np.concatenate(row))[1]

        lines.append((line("returns"), line("benchmark"), line("timing")))
    returns, benchmarks, timings = zip(*lines, strict=True)
    known = [timing for timing in timings if timing is not None]
    timing = np.mean(known, axis=0) if len(known) == len(lines) else None
    return BacktestPaths(np.unique(stamps), np.array(returns), benchmarks[0], timing)


def compound_by_day(days: Days, returns: Floats) -> tuple[Days, Floats]:
    """Return unique days, ascending, and the compounded returns of each."""
    unique, place = np.unique(days, return_inverse=True)
    growth = np.ones(len(unique))
    np.multiply.at(growth, place, 1.0 + returns)
    return unique, growth - 1.0


def mean_daily_returns(
    folds: Sequence[DailyReturns], series: Literal["returns", "timing"] = "returns"
) -> tuple[Days, Floats]:
    """Return a trial's return on every tested day.

    It is that of an equal-capital mix of the fold policies for which the day is a test day: their
    mean.
    """
    return _mean_by_day(
        [compound_by_day(backtests.days, getattr(backtests, series)) for backtests in folds]
    )


def _mean_by_day(parts: Sequence[tuple[Days, Floats]]) -> tuple[Days, Floats]:
    unique, place = np.unique(np.concatenate([days for days, _ in parts]), return_inverse=True)
    total = np.bincount(place, np.concatenate([returns for _, returns in parts]), len(unique))
    return unique, total / np.bincount(place, minlength=len(unique))


def daily_return_matrix(
    trials: Sequence[Sequence[DailyReturns]], series: Literal["returns", "timing"] = "returns"
) -> tuple[Days, Floats]:
    """Return days [n] and daily returns [n, trials] of trials that finished all folds.

    A trial without a return on a day, because its account was closed before, earns 0 there.

    Args:
        trials: backtests by fold of each trial; without pruned and failed trials.
        series: kind of returns; `timing` requires `has_timing`.
    """
    mixes = [mean_daily_returns(folds, series) for folds in trials]
    if not mixes:
        return np.empty(0, np.int64), np.empty((0, 0))
    days = np.unique(np.concatenate([mine for mine, _ in mixes]))
    matrix = np.zeros((len(days), len(mixes)))
    for column, (mine, returns) in enumerate(mixes):
        matrix[np.searchsorted(days, mine), column] = returns
    return days, matrix


def has_timing(trials: Iterable[Sequence[DailyReturns]]) -> bool:
    """Return whether every pass of every trial has its timing."""
    return all(backtests.timing is not None for folds in trials for backtests in folds)


def daily_benchmark_returns(trials: Sequence[Sequence[DailyReturns]], days: Days) -> Floats:
    """Return the benchmark's returns on these days [n], mixed like the trials' returns.

    Args:
        trials: as for `daily_return_matrix`; the first trial with a day provides its value.
        days: days of the matrix.
    """
    daily = np.zeros(len(days))
    for folds in reversed(trials):
        mine, returns = _mean_by_day(
            [compound_by_day(backtests.days, backtests.benchmark) for backtests in folds]
        )
        daily[np.searchsorted(days, mine)] = returns
    return daily


def align_series(series: Sequence[tuple[Days, Floats, Floats]]) -> tuple[Days, Floats, Floats]:
    """Align R series on the union of days: days [n], excess returns [R, n], benchmark [n].

    A policy earns nothing on days after its end.

    Args:
        series: days, daily returns minus the benchmark's, and the benchmark's, of each series.
    """
    days = np.unique(np.concatenate([values for values, _, _ in series]))
    benchmark = np.zeros(len(days))
    for values, _, rival in reversed(series):  # the first one that has a day decides
        benchmark[np.searchsorted(days, values)] = rival
    excess = np.tile(-benchmark, (len(series), 1))
    for row, (values, returns, _) in enumerate(series):
        excess[row, np.searchsorted(days, values)] = returns
    return days, excess, benchmark
