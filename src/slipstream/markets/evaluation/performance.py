"""Performance: evaluation tracks as one account on one clock, and its figures for reports.

`SplitView` holds one split of a run as accounts: the shown member, the others, the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from slipstream.core.timeline import DayRoll, day_closes, day_number
from slipstream.kernels.spec import MarketSpec
from slipstream.markets.data.calendar import day_weekday
from slipstream.markets.evaluation.market_backtest import percentile
from slipstream.report import inputs
from slipstream.report import statistics as st
from slipstream.report.inputs import Baselines, Prices, RunEvaluation
from slipstream.report.statistics import Floats, Ints
from slipstream.training.episode_result import EpisodeResult

_HOUR = 3_600
FLOOR = 1e-6  # of the initial equity, as in the log reward: returns need a positive base


@dataclass(frozen=True)
class Account:
    """Equal capital in the symbols of a split, never rebalanced, marked at every bar.

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
        return st.simple_returns(self.equity)

    @property
    def daily_equity(self) -> Floats:
        """The start, then the last mark of every trading day [days + 1]; basis of drawdowns."""
        return st.daily_equity(self.equity, self.day)

    @property
    def daily_time(self) -> Ints:
        """UTC seconds of the marks of `daily_equity` [days + 1]."""
        return np.concatenate([self.time[:1], self.time[1:][day_closes(self.day)]])

    @property
    def daily_returns(self) -> Floats:
        """Simple returns per trading day [days]."""
        return st.simple_returns(self.daily_equity)

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
        """Return of the account, a fraction of the start."""
        return float(self.equity[-1] / self.equity[0]) - 1.0

    @property
    def total_costs(self) -> Floats:
        """Sum of all cost kinds, cumulative [n + 1]."""
        return (
            np.sum(list(self.costs.values()), axis=0) if self.costs else np.zeros(len(self.equity))
        )

    @property
    def gross_equity(self) -> Floats:
        """Equity plus the costs paid so far [n + 1]."""
        return self.equity + self.total_costs


def bar_rows(track: EpisodeResult) -> Ints:
    """Return the rows of the data that a pass stepped into, one per decision [n]."""
    return np.asarray(track.trace["bar"].astype(np.int64).ravel())


def build_account(
    tracks: Sequence[EpisodeResult], market: MarketSpec, time: Ints, clock: Ints | None = None
) -> Account:
    """Combine one track per symbol into an account.

    A symbol without a bar at some time, or one that ended early, keeps its last mark.

    Args:
        tracks: one continuous pass per symbol; the trace has `bar`, `equity`, `exposure`.
        market: the kernel's `EnvSpec.market`.
        time: UTC seconds of every row of `Data.bars`.
        clock: times of the marks, such as another account's `time`; by default the tracks' own.
    """
    tracks = [t for t in tracks if len(t.trace["bar"])]
    rows = [bar_rows(t) for t in tracks]
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
    """Return the earliest bar decided on, then every bar stepped into, in order."""
    grid = np.unique(np.concatenate([time[r] for r in rows]))
    start = min(int(time[max(r[0] - 1, 0)]) for r in rows)
    return np.concatenate([[min(start, int(grid[0]) - bar_seconds)], grid])


def build_chained_account(
    tracks: Sequence[EpisodeResult], market: MarketSpec, time: Ints
) -> Account:
    """Combine sequential passes: each begins with the final equity of the one before.

    Between two of them, in a hole of the data, everything is in cash.

    Args:
        tracks: in the order of time; the trace has `bar`, `equity` and `exposure`.
        market: the kernel's `EnvSpec.market`.
        time: UTC seconds of every row of the data.
    """
    first = int(bar_rows(tracks[0])[0])
    stamps, equity = [time[first - 1 : first]], [np.array([market.initial_equity])]
    costs = {name: [np.zeros(1)] for name in market.cost_fields}
    exposure = []
    for track in tracks:
        scale = float(equity[-1][-1]) / market.initial_equity
        stamps.append(time[bar_rows(track)])
        equity.append(scale * track.trace["equity"].ravel())
        exposure.append(track.trace["exposure"].ravel())
        for name, paid in costs.items():
            paid.append(paid[-1][-1] + scale * track.trace[name].ravel())
    grid, marks = np.concatenate(stamps), np.concatenate(equity)
    share = np.concatenate(exposure)
    return Account(
        time=grid,
        equity=np.maximum(marks, FLOOR * marks[0]),
        net_exposure=share,
        gross_exposure=share,
        costs={name: np.concatenate(paid) for name, paid in costs.items()},
        day=day_number(grid[1:], cast(DayRoll, market.day_roll)),
        market=market,
    )


@dataclass(frozen=True)
class Performance:
    """Figures of one account; None prints as "n/a". Returns and exposures are fractions."""

    total_return: float
    sharpe: float | None
    interval: st.Interval | None
    bar_sharpe: float | None
    sortino: float | None
    calmar: float | None
    volatility: float | None
    max_drawdown: float
    exposure: float
    time_in_market: float
    days: int
    years: float
    costs: float
    gross_return: float


def compute_performance(account: Account) -> Performance:
    """Compute all figures; the daily Sharpe ratio is the headline, next to the per-bar one."""
    daily, yearly = account.daily_returns, account.market.days_per_year
    deepest = st.max_drawdown(account.daily_equity)
    costs = float(account.total_costs[-1])
    return Performance(
        total_return=account.total_return,
        sharpe=st.sharpe(daily, yearly),
        interval=st.sharpe_interval(daily, yearly),
        bar_sharpe=st.sharpe(account.bar_returns, account.market.bars_per_year),
        sortino=st.sortino(daily, yearly),
        calmar=st.calmar(daily, yearly, deepest),
        volatility=st.volatility(daily, yearly),
        max_drawdown=deepest,
        exposure=float(np.mean(account.gross_exposure)),
        time_in_market=float(np.mean(account.gross_exposure > 1e-9)),
        days=account.days,
        years=account.years,
        costs=costs,
        gross_return=(float(account.equity[-1]) + costs) / float(account.equity[0]) - 1.0,
    )


def sum_metric(tracks: Sequence[EpisodeResult], name: str) -> float:
    """Return the sum of an episode metric of the kernel over all passes."""
    return float(sum(track.metrics.get(name, 0.0) for track in tracks))


def holding_times(exposure: Floats) -> Ints:
    """Return the number of bars of each stay on one side of the market, in order."""
    side = np.sign(np.where(np.abs(exposure) < 1e-9, 0.0, exposure))
    edges = np.flatnonzero(np.diff(side, prepend=np.nan, append=np.nan) != 0.0)
    return np.asarray(np.diff(edges)[side[edges[:-1]] != 0.0], np.int64)


@dataclass(frozen=True)
class Slice:
    """One row of the tables by symbol, weekday and hour.

    Attributes:
        profit: fraction of the starting equity: of the symbol's own by symbol, else of the account.
        score: Sharpe ratio by symbol, t value of the mean return by weekday and hour.
        exposure: mean of its size.
    """

    name: str
    profit: float
    score: float | None
    exposure: float
    bars: int


def t_value(returns: Floats) -> float | None:
    """Return the t value of returns: their mean over its standard error."""
    return st.sharpe(returns, float(len(returns)))


def slice_by_symbol(tracks: Sequence[EpisodeResult], market: MarketSpec, time: Ints) -> list[Slice]:
    """Return one row per symbol, each on its own capital."""
    rows = []
    for track in tracks:
        account = build_account([track], market, time)
        ratio = st.sharpe(account.daily_returns, market.days_per_year)
        exposure = float(np.mean(account.gross_exposure))
        rows.append(Slice(track.name, account.total_return, ratio, exposure, len(account.day)))
    return rows


def slice_by_weekday(account: Account) -> list[Slice]:
    """Return one row per weekday of the trading day."""
    closes = account.daily_equity
    days = np.unique(account.day)
    names = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    weekday, bar_weekday = day_weekday(days), day_weekday(account.day)
    returns, change = st.simple_returns(closes), np.diff(closes) / closes[0]
    held = [account.gross_exposure[bar_weekday == k] for k in range(len(names))]
    return [
        _slice(name, change[weekday == k], returns[weekday == k], held[k])
        for k, name in enumerate(names)
        if (weekday == k).any()
    ]


def slice_by_hour(account: Account) -> list[Slice]:
    """Return one row per UTC hour in which a bar opens."""
    hour = account.time[1:] // _HOUR % 24
    returns, change = account.bar_returns, np.diff(account.equity) / account.equity[0]
    return [
        _slice(
            f"{k:02d}:00", change[hour == k], returns[hour == k], account.gross_exposure[hour == k]
        )
        for k in np.unique(hour)
    ]


def _slice(name: str, change: Floats, returns: Floats, exposure: Floats) -> Slice:
    """Return a row of one part of the account: its profit, t value and number of bars."""
    return Slice(name, float(change.sum()), t_value(returns), float(exposure.mean()), len(exposure))


@dataclass(frozen=True)
class SplitView:
    """One split of a run as accounts, all marked on the clock of the full passes."""

    name: str
    run: RunEvaluation

    @property
    def market(self) -> MarketSpec:
        """Market of the split: annualisation and currency."""
        assert self.run.market is not None
        return self.run.market

    @property
    def prices(self) -> Prices:
        """Clock and closes of all symbols."""
        assert self.run.prices is not None
        return self.run.prices

    @property
    def tracks(self) -> Sequence[EpisodeResult]:
        """Pass of the shown member."""
        return self.run.tracks[self.name][self.run.member]

    @property
    def comparison(self) -> Baselines | None:
        """Baselines, if there are any."""
        return self.run.baselines.get(self.name)

    @property
    def random_returns(self) -> Floats:
        """Total returns of the matched random traders."""
        return self.comparison.random_returns if self.comparison else np.empty(0)

    @property
    def percentile(self) -> float | None:
        """Percentile of the agent's return among the random traders; None without them."""
        return percentile(self.agent.total_return, self.random_returns)

    @cached_property
    def members(self) -> list[Account]:
        """One account per member."""
        return [self._account(tracks) for tracks in self.run.tracks[self.name]]

    @property
    def agent(self) -> Account:
        """Account of the shown member."""
        return self.members[self.run.member]

    @cached_property
    def baselines(self) -> Mapping[str, Account]:
        """Accounts of all baselines by name."""
        if self.comparison is None:
            return {}
        return {name: self._account(tracks) for name, tracks in self.comparison.tracks.items()}

    @property
    def rule_baselines(self) -> Mapping[str, Account]:
        """Baselines that a trader could have followed."""
        return {name: rival for name, rival in self.baselines.items() if name != inputs.ORACLE}

    @property
    def oracle(self) -> Mapping[str, Account]:
        """Baselines that need hindsight."""
        return {name: account for name, account in self.baselines.items() if name == inputs.ORACLE}

    @property
    def plotted_baselines(self) -> Mapping[str, Account]:
        """Baselines with a line in figures; flat and cash are the axis."""
        return {
            name: account
            for name, account in self.rule_baselines.items()
            if name not in (inputs.FLAT, inputs.CASH)
        }

    @cached_property
    def assets(self) -> Mapping[str, Account]:
        """Buy and hold of each asset of a portfolio."""
        tracks = self.comparison.assets if self.comparison else {}
        return {name: self._account(episodes) for name, episodes in tracks.items()}

    @property
    def market_line(self) -> tuple[str, Account] | None:
        """The market itself: buy and hold, or equal weight bought once."""
        for name in (inputs.BUY_AND_HOLD, inputs.EQUAL_WEIGHT):
            if name in self.baselines:
                return name, self.baselines[name]
        return None

    @cached_property
    def market_correlations(self) -> list[float | None]:
        """Correlation of each member's daily returns with the market's own; None without one."""
        market = self.market_line
        if market is None:
            return [None] * len(self.members)
        return [
            st.correlation(member.daily_returns, market[1].daily_returns) for member in self.members
        ]

    def net_exposure(self, member: int) -> float:
        """Return the mean signed exposure of one member over all bars."""
        return float(np.mean(self.members[member].net_exposure))

    @cached_property
    def performances(self) -> list[Performance]:
        """Figures of each member."""
        return [compute_performance(member) for member in self.members]

    @property
    def performance(self) -> Performance:
        """Figures of the shown member."""
        return self.performances[self.run.member]

    def _account(self, tracks: Sequence[EpisodeResult]) -> Account:
        if self.run.is_portfolio:
            return build_chained_account(tracks, self.market, self.prices.time)
        full = self.comparison.tracks.get(inputs.FLAT) if self.comparison else None
        clock = build_account(full, self.market, self.prices.time).time if full else None
        return build_account(tracks, self.market, self.prices.time, clock)
