"""Evaluation tracks as one account on one clock: what all figures and tables are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from slipstream.core.spec import MarketSpec
from slipstream.market.calendar import DayRoll, day_number
from slipstream.report.statistics import Floats, Ints, daily_equity, simple_returns
from slipstream.training.record.track import Track

FLOOR = 1e-6  # of the initial equity, as in the log reward: returns need a positive base


@dataclass(frozen=True)
class Account:
    """Equal capitals in the symbols of a split, never rebalanced, marked at every bar.

    Attributes:
        time: UTC seconds, [n + 1]: first the bar decided on, then every symbol's bars (opens).
        equity: sum over symbols, account currency [n + 1], floored at a millionth of the start.
        net_exposure, gross_exposure: signed and absolute notional over equity after each bar [n].
        costs: cumulative by kind, account currency [n + 1].
        day: trading-day id of each bar [n].
        market: annualisation and currency.
    """

    time: Ints
    equity: Floats
    net_exposure: Floats
    gross_exposure: Floats
    costs: Mapping[str, Floats]
    day: Ints
    market: MarketSpec

    @property
    def bar_returns(self) -> Floats:
        """Simple returns [n]."""
        return simple_returns(self.equity)

    @property
    def daily_returns(self) -> Floats:
        """Simple returns per trading day [days]."""
        return simple_returns(daily_equity(self.equity, self.day))

    @property
    def days(self) -> int:
        """Trading days that have a bar."""
        return len(np.unique(self.day))

    @property
    def years(self) -> float:
        """Trading days over trading days a year."""
        return self.days / self.market.days_per_year

    @property
    def total_return(self) -> float:
        """Fraction of the start."""
        return float(self.equity[-1] / self.equity[0]) - 1.0

    @property
    def total_costs(self) -> Floats:
        """All kinds, cumulative [n + 1]."""
        return (
            np.sum(list(self.costs.values()), axis=0) if self.costs else np.zeros(len(self.equity))
        )

    @property
    def gross_equity(self) -> Floats:
        """Equity with the costs paid so far added back [n + 1]."""
        return self.equity + self.total_costs


def bars(track: Track) -> Ints:
    """Rows of the data that a pass stepped into, one a decision [n]."""
    return np.asarray(track.trace["bar"].astype(np.int64).ravel())


def account(
    tracks: Sequence[Track], market: MarketSpec, time: Ints, clock: Ints | None = None
) -> Account:
    """Joins one track per symbol.

    A symbol without a bar at some time, or one that ended early, keeps its last mark.

    Args:
        tracks: one continuous pass per symbol; the trace has `bar`, `equity`, `exposure`.
        market: the kernel's `Spec.market`.
        time: UTC seconds of every row of `Data.bars`.
        clock: marks at these times, as in another account's `time`; by default at the tracks' own.
    """
    tracks = [t for t in tracks if len(t.trace["bar"])]
    rows = [bars(t) for t in tracks]
    grid = _own_clock(rows, time, market.bar_seconds) if clock is None else clock
    equity, net, gross = (np.zeros(len(grid)) for _ in range(3))
    costs = {name: np.zeros(len(grid)) for name in market.cost_fields}
    for track, row in zip(tracks, rows, strict=True):
        at = np.searchsorted(time[row], grid, side="right")  # 0 before its first bar
        mark = np.concatenate([[market.initial_equity], track.trace["equity"].ravel()])[at]
        notional = mark * np.concatenate([[0.0], track.trace["exposure"].ravel()])[at]
        equity += mark
        net += notional
        gross += np.abs(notional)
        for name in costs:
            if name in track.trace:
                costs[name] += np.concatenate([[0.0], track.trace[name].ravel()])[at]
    floored = np.maximum(equity, FLOOR * equity[0])
    return Account(
        time=grid,
        equity=floored,
        net_exposure=(net / floored)[1:],
        gross_exposure=(gross / floored)[1:],
        costs=costs,
        day=day_number(grid[1:], cast(DayRoll, market.day_roll)),
        market=market,
    )


def _own_clock(rows: Sequence[Ints], time: Ints, bar_seconds: int) -> Ints:
    """The earliest bar decided on, then every bar stepped into, in order."""
    grid = np.unique(np.concatenate([time[r] for r in rows]))
    start = min(int(time[max(r[0] - 1, 0)]) for r in rows)
    return np.concatenate([[min(start, int(grid[0]) - bar_seconds)], grid])
