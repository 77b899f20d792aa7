"""Splits of a timeline: train, validation and test, or folds.

Folds are walk-forward, purged k-fold or combinatorial purged. See section 9 of
docs/explanation/market-rules.md and section 11 of docs/explanation/statistics.md.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from slipstream.core.bounds import Fraction, Share
from slipstream.core.config import Config
from slipstream.core.errors import DataError
from slipstream.core.text import date_text
from slipstream.core.timeline import (
    DEVELOPMENT,
    EVERYTHING,
    FOLD,
    HOLDOUT,
    FoldPlan,
    test_split,
    train_split,
)

if TYPE_CHECKING:  # plans of folds do not need the price readers
    from slipstream.markets.data.market import Market

MIN_EPISODE_BARS = 200  # bars that a random training start should leave in its segment
PURGE = 1  # bars a reward reaches ahead
_LEAST_TESTED = 2  # bars of every tested group and of the hold-out
_LEAST = 2  # bars that at least one symbol must have in every split

Range = tuple[int, int]  # half-open, rows of a timeline


class Fold(NamedTuple):
    """One division into training and test.

    Attributes:
        train: segments to train on, oldest first; never stepped across.
        test: one range per tested group, oldest first.
        groups: numbers of the tested groups.
    """

    train: tuple[Range, ...]
    test: tuple[Range, ...]
    groups: tuple[int, ...]


class FoldSplit(NamedTuple):
    """All folds of a timeline.

    Attributes:
        folds: in the lexicographic order of their tested groups.
        groups: the tested groups, oldest first, of equal length up to one bar.
        development: every bar that a study may use before the hold-out is opened.
        holdout: the last bars.
        paths: for each backtest path and each group, the fold that tests it there. Each tested
            group of each fold belongs to exactly one path.
        embargo: bars left out after a tested group, and before the hold-out.
        purge: bars left out before a tested group.
    """

    folds: tuple[Fold, ...]
    groups: tuple[Range, ...]
    development: Range
    holdout: Range
    paths: tuple[tuple[int, ...], ...]
    embargo: int
    purge: int

    def ranges(self) -> dict[str, tuple[Range, ...]]:
        """Return the ranges of every split of a study, by the names of `core/timeline.py`."""
        ranges = {}
        for k, fold in enumerate(self.folds):
            ranges[train_split(f"{FOLD}{k}")] = fold.train
            ranges[test_split(f"{FOLD}{k}")] = fold.test
        ranges[train_split(DEVELOPMENT)] = (self.development,)
        ranges[HOLDOUT] = (self.holdout,)
        ranges[train_split(EVERYTHING)] = ((0, self.holdout[1]),)
        return ranges


def make_folds(
    rows: int,
    plan: FoldPlan,
    embargo: int,
    purge: int = PURGE,
    min_train: int = MIN_EPISODE_BARS + 1,
    memory_note: str = "",
) -> FoldSplit:
    """Divide a timeline of `rows` bars.

    The hold-out and the embargo before it are cut off first; the remaining bars are the development
    range, and its groups are the tested ones. Training leaves out `purge` bars before a tested
    group, because their reward reaches into it, and `embargo` bars after it, because their features
    contain it.

    Args:
        rows: bars of the timeline.
        plan: method, groups and hold-out.
        embargo: memory of an observation: lookback + longest warm-up.
        purge: bars a reward reaches ahead.
        min_train: fewest bars of a training segment.
        memory_note: reason for the length of the embargo, for messages.

    Raises:
        DataError: a group, a training segment or the hold-out has too few bars.
    """
    reserved = round(plan.holdout * rows)
    shorten = "shorten the lookback and the features' memory"
    shorten += f" ({memory_note})." if memory_note else "."
    development = (0, rows - reserved - embargo)
    if reserved < _LEAST_TESTED or development[1] < 1:
        raise DataError(
            f"A hold-out of {plan.holdout:g} and an embargo of {embargo:,} bars before it must "
            f"leave at least {_LEAST_TESTED} bars to hold out and 1 to develop on; of {rows:,} "
            f"bars they leave {reserved:,} and {max(development[1], 0):,}: load more bars, or "
            f"{shorten}"
        )
    blocks = _blocks(development[1], plan.groups + (plan.method == "walk_forward"))
    groups = blocks[-plan.groups :]
    combos = list(combinations(range(plan.groups), plan.test_groups))
    folds = tuple(
        Fold(
            train=_training(development, groups, tested, plan, embargo, purge),
            test=tuple(groups[number] for number in tested),
            groups=tested,
        )
        for tested in combos
    )
    split = FoldSplit(
        folds,
        groups,
        development,
        (rows - reserved, rows),
        _paths(combos, plan.groups),
        embargo,
        purge,
    )
    _refuse_short(split, plan, min_train, shorten)
    return split


def _blocks(rows: int, count: int) -> tuple[Range, ...]:
    """Return `count` neighbouring ranges that cover `rows` and differ by at most one bar."""
    edges = [rows * k // count for k in range(count + 1)]
    return tuple(pairwise(edges))


def _training(
    development: Range,
    groups: tuple[Range, ...],
    tested: tuple[int, ...],
    plan: FoldPlan,
    embargo: int,
    purge: int,
) -> tuple[Range, ...]:
    """Return the training segments of the development range around the tested groups."""
    segments = []
    start, end = development
    for number in tested:
        low, high = groups[number]
        if number - 1 not in tested and low > 0:
            segments.append((start, low - purge))
        start = high + embargo
    if plan.method != "walk_forward" and tested[-1] != len(groups) - 1:
        segments.append((start, end))
    return tuple(segments)


def _paths(combos: list[tuple[int, ...]], groups: int) -> tuple[tuple[int, ...], ...]:
    """Return the paths: path k takes, for each group, the k-th of the folds that test it."""
    testing = [
        [fold for fold, tested in enumerate(combos) if group in tested] for group in range(groups)
    ]
    return tuple(zip(*testing, strict=True))


def _refuse_short(split: FoldSplit, plan: FoldPlan, min_train: int, shorten: str) -> None:
    smallest = min(high - low for low, high in split.groups)
    left = min(high - low for fold in split.folds for low, high in fold.train)
    advice = f"use fewer `groups`, load more bars, or {shorten}"
    if smallest < _LEAST_TESTED:
        raise DataError(
            f"Every tested group must have at least {_LEAST_TESTED} bars; {plan.groups} groups of "
            f"the {split.development[1]:,} bars before the hold-out have {smallest:,}: {advice}"
        )
    if left < min_train:
        raise DataError(
            f"Every training segment must have at least {min_train:,} bars (a start leaves as "
            f"many as it can use); beside a tested group, less a purge of {split.purge:,} and an "
            f"embargo of {split.embargo:,} bars, a segment has {max(left, 0):,}: the "
            f"{plan.groups} groups have {smallest:,} bars each, so {advice}"
        )


def fold_metadata(
    split: FoldSplit, plan: FoldPlan, time: NDArray[np.int64], bar_seconds: int
) -> dict[str, Any]:
    """Return the metadata of folds in results, ready for JSON.

    Args:
        split: the folds.
        plan: plan of the folds.
        time: int64 [rows], UTC seconds at which the timeline's bars open.
        bar_seconds: length of a bar.

    Returns:
        Ranges are half-open in UTC seconds, from the first bar's open to the last bar's end.
    """

    def moments(rows: Range) -> list[int]:
        return [int(time[rows[0]]), int(time[rows[1] - 1]) + bar_seconds]

    def each(ranges: tuple[Range, ...]) -> list[list[int]]:
        return [moments(rows) for rows in ranges]

    return {
        "plan": plan.model_dump(),
        "bars": len(time),
        "embargo_bars": split.embargo,
        "purge_bars": split.purge,
        "groups": each(split.groups),
        "group_bars": [high - low for low, high in split.groups],
        "development": moments(split.development),
        "development_bars": split.development[1] - split.development[0],
        "holdout": moments(split.holdout),
        "holdout_bars": split.holdout[1] - split.holdout[0],
        "folds": [
            {
                "groups": list(fold.groups),
                "train": each(fold.train),
                "train_bars": sum(high - low for low, high in fold.train),
                "test": each(fold.test),
            }
            for fold in split.folds
        ],
        "paths": [list(path) for path in split.paths],
    }


class SplitConfig(Config):
    """Fractions of the time range, oldest first. They sum to 1; validation and test may be 0."""

    train: Share = 0.6
    validation: Fraction = 0.2
    test: Fraction = 0.2

    @model_validator(mode="after")
    def _sums_to_one(self) -> SplitConfig:
        total = self.train + self.validation + self.test
        if abs(total - 1.0) > 1e-9:
            raise ValueError(
                f"train + validation + test must be 1, they sum to {total:g} "
                f"({self.train:g} + {self.validation:g} + {self.test:g})"
            )
        return self


def split_times(
    market: Market, split: SplitConfig, embargo_bars: int, memory_note: str = ""
) -> dict[str, tuple[int, int]]:
    """Return half-open UTC second ranges of the splits, the same for all symbols.

    Boundaries are times of the whole market's range, so one symbol's training never overlaps
    another's test. After a boundary, `embargo_bars` bars of every symbol are left out.

    Args:
        market: the market to split.
        split: the fractions; a split of fraction 0 is absent from the result.
        embargo_bars: bars between two splits: lookback plus the features' warm-up.
        memory_note: reason for the length of the embargo, for messages.

    Raises:
        DataError: a split has too few bars.
    """
    start = min(int(bars.time[0]) for bars in market.bars)
    stop = max(int(bars.time[-1]) for bars in market.bars) + market.bar_seconds
    shares = {"train": split.train, "validation": split.validation, "test": split.test}
    shares = {name: fraction for name, fraction in shares.items() if fraction > 0.0}
    edges = start + np.rint(np.cumsum([0.0, *shares.values()]) * (stop - start)).astype(np.int64)
    times: dict[str, tuple[int, int]] = {}
    for index, name in enumerate(shares):
        first, last = int(edges[index]), int(edges[index + 1])
        if index > 0:
            first = _after_embargo(market, first, embargo_bars)
        times[name] = (first, last)
        count = max(_count(bars.time, first, last) for bars in market.bars)
        if count < _LEAST:
            first = int(edges[index])
            num_bars = max(_count(bars.time, first, last) for bars in market.bars)
            raise DataError(
                f"Split `{name}` ({date_text(first)} to {date_text(last)}) must hold at least "
                f"{_LEAST} bars of a symbol after an embargo of {embargo_bars:,} bars; all its "
                f"bars are {num_bars:,}: give it a larger share, load more data, or shorten the "
                f"lookback and the features' warm-up{memory_note and f' ({memory_note})'}."
            )
    return times


def _after_embargo(market: Market, boundary: int, embargo_bars: int) -> int:
    """Return the first time that is `embargo_bars` bars of every symbol after `boundary`."""
    moment = boundary
    for bars in market.bars:
        row = int(np.searchsorted(bars.time, boundary))
        if row == 0 or row == len(bars.time):
            continue  # this symbol starts later or has ended
        row += embargo_bars
        beyond = row >= len(bars.time)
        moment = max(moment, int(bars.time[-1]) + 1 if beyond else int(bars.time[row]))
    return moment


def _count(time: np.ndarray, first: int, last: int) -> int:
    low, high = np.searchsorted(time, [first, last])
    return max(int(high - low), 0)
