"""The numbers of one account that the report prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from slipstream.core.spec import MarketSpec
from slipstream.market.calendar import day_weekday
from slipstream.report.confidence import sharpe_interval
from slipstream.report.market.account import Account, account
from slipstream.report.statistics import (
    Floats,
    Ints,
    calmar,
    daily_equity,
    max_drawdown,
    sharpe,
    simple_returns,
    sortino,
    volatility,
)
from slipstream.training.record.track import Track

HOUR = 3_600


@dataclass(frozen=True)
class Performance:
    """Figures of one account; None prints as "n/a". Returns and exposures are fractions."""

    total_return: float
    sharpe: float | None
    interval: tuple[float, float] | None
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


@dataclass(frozen=True)
class Trading:
    """What was traded, over all symbols of a split.

    Attributes:
        trades, fills: positions closed, orders filled.
        win_rate: share of trades with a profit after costs; None without trades.
        profit_factor: gross profit over gross loss; None without a loss.
        mean_trade, mean_cost: account currency per closed trade, after costs; costs alone.
        turnover: traded notional over equity, summed, per trading day.
        holding_bars: mean length of a position.
        stops, targets, stop_outs, both_touched: exits by kind; those whose bar touched both levels.
    """

    trades: int
    fills: int
    win_rate: float | None
    profit_factor: float | None
    mean_trade: float | None
    mean_cost: float | None
    turnover: float
    holding_bars: float | None
    stops: int
    targets: int
    stop_outs: int
    both_touched: int


def performance(of: Account) -> Performance:
    """All figures; the daily Sharpe ratio is the headline, the per-bar one stands beside it."""
    daily, yearly = of.daily_returns, of.market.days_per_year
    deepest = max_drawdown(of.equity)
    costs = float(of.total_costs[-1])
    return Performance(
        total_return=of.total_return,
        sharpe=sharpe(daily, yearly),
        interval=sharpe_interval(daily, yearly),
        bar_sharpe=sharpe(of.bar_returns, of.market.bars_per_year),
        sortino=sortino(daily, yearly),
        calmar=calmar(daily, yearly, deepest),
        volatility=volatility(daily, yearly),
        max_drawdown=deepest,
        exposure=float(np.mean(of.gross_exposure)),
        time_in_market=float(np.mean(of.gross_exposure > 1e-9)),
        days=of.days,
        years=of.years,
        costs=costs,
        gross_return=(float(of.equity[-1]) + costs) / float(of.equity[0]) - 1.0,
    )


def total(tracks: Sequence[Track], name: str) -> float:
    """An episode metric of the kernel, over all passes."""
    return float(sum(track.metrics.get(name, 0.0) for track in tracks))


def trading(tracks: Sequence[Track], of: Account) -> Trading:
    """Counts from the episode metrics of the kernel; holding times from the traced exposure."""
    sums = partial(total, tracks)
    trades, profit, loss = int(sums("trades")), sums("gross_profit"), sums("gross_loss")
    costs = float(of.total_costs[-1])
    lengths = np.concatenate([holding_times(t.trace["exposure"].ravel()) for t in tracks])
    return Trading(
        trades=trades,
        fills=int(sums("fills")),
        win_rate=sums("wins") / trades if trades else None,
        profit_factor=profit / loss if loss > 0.0 else None,
        mean_trade=(profit - loss) / trades if trades else None,
        mean_cost=costs / trades if trades else None,
        turnover=sums("turnover") / max(of.days, 1) / max(len(tracks), 1),
        holding_bars=float(lengths.mean()) if len(lengths) else None,
        stops=int(sums("stop_exits")),
        targets=int(sums("target_exits")),
        stop_outs=int(sums("stop_outs")),
        both_touched=int(sums("both_touched")),
    )


def holding_times(exposure: Floats) -> Ints:
    """Bars of each stay on one side of the market, in order."""
    side = np.sign(np.where(np.abs(exposure) < 1e-9, 0.0, exposure))
    edges = np.flatnonzero(np.diff(side, prepend=np.nan, append=np.nan) != 0.0)
    return np.asarray(np.diff(edges)[side[edges[:-1]] != 0.0], np.int64)


@dataclass(frozen=True)
class Slice:
    """One row of the tables by symbol, weekday and hour."""

    name: str
    profit: (
        float  # fraction of the starting equity: of the symbol's own by symbol, else of the account
    )
    score: float | None  # Sharpe ratio by symbol, t value of the mean return by weekday and hour
    exposure: float
    bars: int


def t_value(returns: Floats) -> float | None:
    """Mean over its standard error."""
    return sharpe(returns, float(len(returns)))


def by_symbol(tracks: Sequence[Track], market: MarketSpec, time: Ints) -> list[Slice]:
    """One row per symbol, each on its own capital."""
    rows = []
    for track in tracks:
        own = account([track], market, time)
        rows.append(
            Slice(
                track.name,
                own.total_return,
                sharpe(own.daily_returns, market.days_per_year),
                float(np.mean(own.gross_exposure)),
                len(own.day),
            )
        )
    return rows


def by_weekday(of: Account) -> list[Slice]:
    """One row per weekday of the trading day."""
    closes = daily_equity(of.equity, of.day)
    days = np.unique(of.day)
    names = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    weekday, bar_weekday = day_weekday(days), day_weekday(of.day)
    returns, change = simple_returns(closes), np.diff(closes) / closes[0]
    return [
        _slice(
            name, change[weekday == k], returns[weekday == k], of.gross_exposure[bar_weekday == k]
        )
        for k, name in enumerate(names)
        if (weekday == k).any()
    ]


def by_hour(of: Account) -> list[Slice]:
    """One row per UTC hour in which a bar opens."""
    hour = of.time[1:] // HOUR % 24
    returns, change = of.bar_returns, np.diff(of.equity) / of.equity[0]
    return [
        _slice(f"{k:02d}:00", change[hour == k], returns[hour == k], of.gross_exposure[hour == k])
        for k in np.unique(hour)
    ]


def _slice(name: str, change: Floats, returns: Floats, exposure: Floats) -> Slice:
    """Of a part of the account: what it added, whether that is luck, its bars."""
    return Slice(name, float(change.sum()), t_value(returns), float(exposure.mean()), len(exposure))
