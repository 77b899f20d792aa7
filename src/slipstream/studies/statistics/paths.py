"""Paths: the test passes of a trial's folds as one series of days.

See docs/rules.md, sections 11 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.studies.engine.member import DailyReturns

Floats = NDArray[np.float64]
Days = NDArray[np.int64]


class FoldMap(NamedTuple):
    """Which fold tests what.

    Attributes:
        groups: for each fold the numbers of its tested groups, in the order of its passes.
        paths: for each backtest path and each group, the fold that tests it there.
    """

    groups: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> FoldMap:
        """The map in ``provenance["environment"]["folds"]``; see `market.folds.fold_facts`."""
        return cls(
            tuple(tuple(fold["groups"]) for fold in facts["folds"]),
            tuple(tuple(path) for path in facts["paths"]),
        )


class Paths(NamedTuple):
    """Backtest paths of one trial: every group tested once in each.

    Attributes:
        days: UTC day numbers [n], ascending.
        returns: daily net returns [paths, n].
        benchmark: equal weight's [n]; it is the same on all paths.
    """

    days: Days
    returns: Floats
    benchmark: Floats

    @property
    def mean(self) -> Floats:
        """Averaged over the paths [n]."""
        return np.asarray(self.returns.mean(axis=0))

    @property
    def excess(self) -> Floats:
        """Daily returns minus equal weight's, averaged over the paths [n]."""
        return self.mean - self.benchmark


def backtest_paths(folds: Sequence[DailyReturns], layout: FoldMap) -> Paths:
    """The paths of a trial whose folds have all been tested.

    A day that two groups share (one ends in it, the next begins) has both parts compounded.

    Args:
        folds: test passes by fold.
        layout: which fold tests what.
    """
    lines = []
    for path in layout.paths:
        days, mine, other = [], [], []
        for group, fold in enumerate(path):
            passes = folds[fold]
            rows = passes.group == layout.groups[fold].index(group)
            days.append(passes.days[rows])
            mine.append(passes.returns[rows])
            other.append(passes.benchmark[rows])
        stamps = np.concatenate(days)
        unique, returns = by_day(stamps, np.concatenate(mine))
        lines.append((unique, returns, by_day(stamps, np.concatenate(other))[1]))
    unique, _, benchmark = lines[0]
    return Paths(unique, np.array([returns for _, returns, _ in lines]), benchmark)


def by_day(days: Days, returns: Floats) -> tuple[Days, Floats]:
    """Days once each, ascending, with all their returns compounded."""
    unique, place = np.unique(days, return_inverse=True)
    growth = np.ones(len(unique))
    np.multiply.at(growth, place, 1.0 + returns)
    return unique, growth - 1.0


def daily_mix(folds: Sequence[DailyReturns]) -> tuple[Days, Floats]:
    """A trial's return on every tested day.

    That of an equal-capital mix of the fold policies for which the day is a test day: the mean of
    what each of them made of it.
    """
    return _mix([by_day(passes.days, passes.returns) for passes in folds])


def _mix(parts: Sequence[tuple[Days, Floats]]) -> tuple[Days, Floats]:
    unique, place = np.unique(np.concatenate([days for days, _ in parts]), return_inverse=True)
    total = np.bincount(place, np.concatenate([returns for _, returns in parts]), len(unique))
    return unique, total / np.bincount(place, minlength=len(unique))


def daily_matrix(trials: Sequence[Sequence[DailyReturns]]) -> tuple[Days, Floats]:
    """Days [n] and daily returns [n, trials] of trials that finished all folds at full budget.

    A trial that has nothing on a day, because its account was closed before, earns 0 there.

    Args:
        trials: each one's test passes by fold; pruned and failed trials are left out by the caller.
    """
    mixes = [daily_mix(folds) for folds in trials]
    if not mixes:
        return np.empty(0, np.int64), np.empty((0, 0))
    days = np.unique(np.concatenate([mine for mine, _ in mixes]))
    matrix = np.zeros((len(days), len(mixes)))
    for column, (mine, returns) in enumerate(mixes):
        matrix[np.searchsorted(days, mine), column] = returns
    return days, matrix


def daily_benchmark(trials: Sequence[Sequence[DailyReturns]], days: Days) -> Floats:
    """What the benchmark returned on each of these days [n]: mixed as the trials' returns are.

    Args:
        trials: as for `daily_matrix`; the first one that lived to see a day tells of it.
        days: of the matrix.
    """
    found = np.zeros(len(days))
    for folds in reversed(trials):
        mine, returns = _mix([by_day(passes.days, passes.benchmark) for passes in folds])
        found[np.searchsorted(days, mine)] = returns
    return found


def side_by_side(series: Sequence[tuple[Days, Floats, Floats]]) -> tuple[Days, Floats, Floats]:
    """R series on all days of any: days [n], returns in excess [R, n], and the benchmark's [n].

    On a day that a policy did not live to see, it earns nothing.

    Args:
        series: each one's days, daily returns minus the benchmark's, and the benchmark's.
    """
    days = np.unique(np.concatenate([own for own, _, _ in series]))
    benchmark = np.zeros(len(days))
    for own, _, rival in reversed(series):  # the first one that has a day decides
        benchmark[np.searchsorted(days, own)] = rival
    excess = np.tile(-benchmark, (len(series), 1))
    for row, (own, returns, _) in enumerate(series):
        excess[row, np.searchsorted(days, own)] = returns
    return days, excess, benchmark
