"""The tables of a market report, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from slipstream.core.percent import NOTHING, percent
from slipstream.core.spec import MarketSpec
from slipstream.report.canvas import MONTHS
from slipstream.report.inputs import Stress
from slipstream.report.market.account import Account
from slipstream.report.market.baselines import MATCHED_RANDOM
from slipstream.report.market.performance import Performance, Slice, Trading, performance, total
from slipstream.report.market.view import SplitView
from slipstream.report.market.wording import number, share
from slipstream.report.page import Table
from slipstream.report.statistics import Drawdown, Floats
from slipstream.training.record.track import Track


class NamedAccount(NamedTuple):
    """One row of the table of baselines."""

    name: str
    account: Account
    tracks: Sequence[Track]


def interval(values: tuple[float, float] | None) -> str:
    """ "-1.1 to 2.7"."""
    return NOTHING if values is None else f"{number(values[0])} to {number(values[1])}"


def fall(value: float, digits: int = 1) -> str:
    """A drawdown: never with a plus."""
    return f"{number(100.0 * value, digits)} %"


def by_split(splits: Mapping[str, Performance], market: MarketSpec, apart: bool) -> Table:
    """One column per split, the hold-out first.

    Args:
        splits: figures by name.
        market: annualisation and currency.
        apart: each symbol has its own capital.
    """
    of = list(splits.values())
    rows = [
        ["Total return, net", *(percent(p.total_return) for p in of)],
        ["Total return, gross", *(percent(p.gross_return) for p in of)],
        ["Sharpe, daily", *(number(p.sharpe, 2) for p in of)],
        ["95 % interval", *(interval(p.interval) for p in of)],
        ["Sharpe, per bar", *(number(p.bar_sharpe, 2) for p in of)],
        ["Sortino", *(number(p.sortino, 2) for p in of)],
        ["Calmar", *(number(p.calmar if p.years >= 1.0 else None, 2) for p in of)],
        ["Volatility a year", *(share(p.volatility, 1) for p in of)],
        ["Deepest drawdown", *(fall(p.max_drawdown) for p in of)],
        ["Mean exposure", *(number(p.exposure, 2) for p in of)],
        ["Time in the market", *(share(p.time_in_market) for p in of)],
        [f"Costs, {market.account_currency}", *(number(p.costs, 0) for p in of)],
        ["Trading days", *(number(p.days, 0) for p in of)],
    ]
    if any(p.years >= 1.0 for p in of):
        rows.append(["Years", *(number(p.years, 2) for p in of)])
    note = (
        f"Daily figures: days roll at {market.day_roll}, times the root of "
        f"{market.days_per_year:g}; per bar: times the root of {market.bars_per_year:,.0f}. Simple "
        "returns, flat bars included, risk-free rate 0, ddof 1. Interval: stationary block "
        "bootstrap of daily returns, mean block 10 days (Politis and Romano 1994)."
    )
    if any(p.years < 1.0 for p in of):
        note += (
            " Ratios and volatility of a split shorter than a year are stretched to one; a Calmar "
            "ratio, which needs a year's growth, is not computed there."
        )
    if apart and len(market.symbols) > 1:
        note += " Several symbols are one account, with equal capital in each at the start."
    return Table("", ("", *splits), rows, note=note)


def members(held: SplitView) -> Table:
    """One row per member, and the market beside them."""
    of, run, market = held.every, held.run, held.market_line
    rows = [
        [
            f"member {run.number(index)}",
            *_result(p),
            number(p.exposure, 2),
            number(held.net_exposure(index), 2),
            number(held.follows[index], 2),
        ]
        for index, p in enumerate(of)
    ]
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", "exposure", "net", "follows")
    note = "Exposure: mean of its size. Net: mean with its sign, shorts below 0."
    if market is not None:
        name, account = market
        found, net = performance(account), float(np.mean(account.net_exposure))
        rows.append([name, *_result(found), number(found.exposure, 2), number(net, 2), ""])
        note += f" Follows: correlation of its daily returns with those of {name}."
    return Table(f"Members, {held.name}", columns, rows, emphasis=run.member, note=note)


def _result(p: Performance) -> list[str]:
    return [
        percent(p.total_return),
        number(p.sharpe, 2),
        interval(p.interval),
        fall(p.max_drawdown),
    ]


def baselines(
    rows: Sequence[NamedAccount], draws: Floats, last: Sequence[NamedAccount], market: MarketSpec
) -> Table:
    """The agent first, then its rivals, random timing, and the upper bound."""
    lines = [_baseline(row) for row in rows]
    if len(draws):
        middle = percent(float(np.median(draws)))
        lines.append([f"{MATCHED_RANDOM} (median)", middle, *[""] * 5])
    lines += [_baseline(row) for row in last]
    money = f"costs, {market.account_currency}"
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", "fills", money)
    return Table("Same bars, same costs", columns, lines, emphasis=0)


def _baseline(row: NamedAccount) -> list[str]:
    found = performance(row.account)
    fills = total(row.tracks, "fills")
    return [row.name, *_result(found), number(fills, 0), number(found.costs, 0)]


def stress(of: Stress) -> Table:
    """The agent's decisions under other costs and one bar late."""
    rows = [[f"costs x {multiple:g}", percent(value)] for multiple, value in of.multiples]
    rows.append(["one extra bar of delay", percent(of.delayed)])
    if of.break_even is None:
        text = "none: loses without costs"
    elif np.isinf(of.break_even):
        text = "above 100"
    else:
        text = f"x {of.break_even:.2f}"
    rows.append(["break-even cost multiple", text])
    emphasis = next((k for k, (m, _) in enumerate(of.multiples) if m == 1.0), None)
    return Table(
        "The same decisions under other conditions", ("", "return"), rows, emphasis=emphasis
    )


def holding_time(bars: float | None, bar_seconds: int) -> list[str]:
    """The row of it."""
    hours = None if bars is None else bars * bar_seconds / 3_600.0
    return ["Mean holding time", f"{number(bars)} bars ({number(hours)} h)"]


def trades(of: Trading, found: Performance, bar_seconds: int, currency: str) -> Table:
    """What was traded and how."""
    rows = [
        ["Trades closed", number(of.trades, 0)],
        ["Fills", number(of.fills, 0)],
        ["Win rate", share(of.win_rate)],
        ["Profit factor", number(of.profit_factor, 2)],
        [f"Mean trade after costs, {currency}", number(of.mean_trade, 2)],
        [f"Mean cost of a trade, {currency}", number(of.mean_cost, 2)],
        holding_time(of.holding_bars, bar_seconds),
        ["Mean exposure", number(found.exposure, 2)],
        ["Turnover per day, times equity", number(of.turnover, 2)],
        ["Stop-loss exits", number(of.stops, 0)],
        ["Take-profit exits", number(of.targets, 0)],
        ["Margin stop-outs", number(of.stop_outs, 0)],
        ["Exits whose bar touched both levels", number(of.both_touched, 0)],
    ]
    return Table("Trades", ("", "value"), rows)


def costs(of: Account) -> Table:
    """Costs by kind, in money, against the start and against gross profit."""
    start, total = float(of.equity[0]), float(of.total_costs[-1])
    gross = float(of.gross_equity[-1]) - start
    rows = [
        [
            name.removeprefix("cost_"),
            number(float(paid[-1]), 0),
            share(float(paid[-1]) / start, 2),
        ]
        for name, paid in of.costs.items()
    ]
    rows += [
        ["all costs", number(total, 0), share(total / start, 2)],
        ["gross result", number(gross, 0), percent(gross / start, 2)],
        ["net result", number(gross - total, 0), percent((gross - total) / start, 2)],
    ]
    return Table("Gross against net", ("", of.market.account_currency, "of the start"), rows)


def months(returns: Mapping[tuple[int, int], float]) -> Table:
    """Years down, months across, percent."""
    rows = []
    for year in sorted({year for year, _ in returns}):
        cells = [returns.get((year, month)) for month in range(1, 13)]
        whole = float(np.prod([1.0 + c for c in cells if c is not None])) - 1.0
        rows.append(
            [str(year), *("" if c is None else number(100 * c) for c in cells), number(100 * whole)]
        )
    return Table("Monthly returns, %", ("", *MONTHS, "year"), rows)


def drawdowns(of: Sequence[Drawdown]) -> Table:
    """Deepest first."""
    rows = [
        [
            fall(d.depth, 2),
            str(d.peak),
            str(d.trough),
            "not yet" if d.recovered is None else str(d.recovered),
        ]
        for d in of
    ]
    return Table("Five worst drawdowns", ("depth", "peak", "trough", "recovered"), rows)


def by_symbol(of: Sequence[Slice]) -> Table:
    """Each symbol on its own capital."""
    return _slices("By symbol", "Sharpe", of)


def by_weekday(of: Sequence[Slice]) -> Table:
    """Weekdays of the trading day, which begins at the roll before."""
    return _slices("By weekday", "t value", of)


def _slices(caption: str, score: str, of: Sequence[Slice]) -> Table:
    rows = [[*_cells(s), number(s.bars, 0)] for s in of]
    return Table(caption, ("", "result", score, "exposure", "bars"), rows)


def by_hour(of: Sequence[Slice]) -> Table:
    """Two hours a row: the table stays short."""
    half = (len(of) + 1) // 2
    rows = []
    for first, second in zip_longest(of[:half], of[half:]):
        rows.append([*_cells(first), *(_cells(second) if second else [""] * 4)])
    names = ("result", "t value", "exposure")
    return Table("By hour in which a bar opens (UTC)", ("", *names, "", *names), rows)


def _cells(of: Slice) -> list[str]:
    return [of.name, percent(of.profit, 2), number(of.score, 2), number(of.exposure, 2)]
