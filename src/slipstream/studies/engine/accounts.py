"""From equity after every bar to a member's daily returns, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import MarketSpec
from slipstream.market.calendar import DayRoll, day_number
from slipstream.studies.engine.member import DailyReturns

Floats = NDArray[np.float64]
_ADDED = ("count", "account currency", "bars")  # units of what is added up; others are averaged


class PassGrowth(NamedTuple):
    """One test pass of one account.

    Attributes:
        symbols: what it trades.
        days: int64 [n], day numbers.
        growth, benchmark: float64 [n], factors by which equity and equal weight grew on each day;
            all 1, cash's, where the environment has no equal weight.
        metrics: the environment's, at the end.
        steps: bars.
    """

    symbols: tuple[str, ...]
    days: NDArray[np.int64]
    growth: Floats
    benchmark: Floats
    metrics: Mapping[str, float]
    steps: int


def pass_growth(
    time: NDArray[np.int64],
    values: Mapping[str, Floats],
    market: MarketSpec,
    metrics: Mapping[str, float],
    steps: int,
) -> PassGrowth:
    """Marks equity where days end. No day is left out, also after an account was closed.

    Args:
        time: int64 [n], UTC seconds at which the bars of the pass end.
        values: `equity` and perhaps `benchmark` after each step, [k], k <= n.
        market: capital at the start, and when days end.
        metrics: at the end.
        steps: k.
    """
    # A bar that ends where the day does belongs to that day.
    day = day_number(time - 1, cast(DayRoll, market.day_roll))
    last = np.flatnonzero(np.diff(day, append=day[-1] + 1))
    marks = np.minimum(last, steps - 1)

    def growth(name: str) -> Floats:
        if name not in values:
            return np.ones(len(last))
        return _factors(np.concatenate([[market.initial_equity], values[name][marks]]))

    return PassGrowth(
        market.symbols, day[last], growth("equity"), growth("benchmark"), metrics, steps
    )


def join_passes(
    accounts: Sequence[PassGrowth], groups: Sequence[int], units: Mapping[str, str]
) -> DailyReturns:
    """All passes of a member, group by group.

    Passes of one account follow each other within a group; accounts of other symbols run beside
    it, begin the group with equal capital and are added up.

    Args:
        accounts: the passes; groups: the tested group of each.
        units: of the metrics, by name.
    """
    parts, facts, numbers = [], [], []
    for number in sorted(set(groups)):
        own = [one for one, group in zip(accounts, groups, strict=True) if group == number]
        days = np.unique(np.concatenate([one.days for one in own]))
        growth = _together(days, own, [one.growth for one in own])
        benchmark = _together(days, own, [one.benchmark for one in own])
        parts.append((days, growth - 1.0, benchmark - 1.0))
        numbers.append(np.full(len(days), number, np.int64))
        facts.append(_combined(own, growth, benchmark, units))
    return DailyReturns(
        days=np.concatenate([part[0] for part in parts]),
        returns=np.concatenate([part[1] for part in parts]),
        benchmark=np.concatenate([part[2] for part in parts]),
        group=np.concatenate(numbers),
        metrics=facts,
    )


def _together(
    days: NDArray[np.int64], accounts: Sequence[PassGrowth], factors: Sequence[Floats]
) -> Floats:
    """Daily factors of all accounts' sum."""
    each = {one.symbols: np.ones(len(days)) for one in accounts}
    for one, own in zip(accounts, factors, strict=True):
        each[one.symbols][np.searchsorted(days, one.days)] *= own
    if len(each) == 1:
        return next(iter(each.values()))
    worth = np.mean([np.cumprod(column) for column in each.values()], axis=0)
    return _factors(np.concatenate([[1.0], worth]))


def _factors(worth: Floats) -> Floats:
    """Ratio of each value to the one before; 1 once there is nothing left that could grow."""
    before, after = worth[:-1], worth[1:]
    return np.divide(after, before, out=np.ones(len(after)), where=before > 0.0)


def _combined(
    accounts: Sequence[PassGrowth], growth: Floats, benchmark: Floats, units: Mapping[str, str]
) -> dict[str, float]:
    """Metrics of a group: counts and money are added, the others averaged by their steps."""
    if len(accounts) == 1:
        return dict(accounts[0].metrics)
    found = {}
    for name in accounts[0].metrics:
        values = [one.metrics[name] for one in accounts]
        if units.get(name) in _ADDED:
            found[name] = float(np.sum(values))
        else:
            found[name] = float(np.average(values, weights=[one.steps for one in accounts]))
    for name, factors in (("total_return", growth), ("benchmark_return", benchmark)):
        if name in found:
            found[name] = float(np.prod(factors) - 1.0)
    return found
