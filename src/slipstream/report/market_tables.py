"""The tables of a market report, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slipstream.core.spec import MarketSpec
from slipstream.report.account import Account
from slipstream.report.baselines import MATCHED_RANDOM
from slipstream.report.inputs import Stress
from slipstream.report.page import Table
from slipstream.report.performance import Performance, Slice, Trading, performance
from slipstream.report.statistics import Drawdown, Floats
from slipstream.report.wording import NOTHING, number, percent, share

if TYPE_CHECKING:
    from slipstream.training.track import Track

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class NamedAccount(NamedTuple):
    """One row of the table of baselines."""

    name: str
    account: Account
    tracks: Sequence[Track]


def interval(values: tuple[float, float] | None) -> str:
    """ "-1.1 to 2.7"."""
    return NOTHING if values is None else f"{number(values[0])} to {number(values[1])}"


def by_split(splits: Mapping[str, Performance], market: MarketSpec) -> Table:
    """One column per split, the hold-out first."""
    of = list(splits.values())
    rows = [
        ["Total return, net", *(percent(p.total_return) for p in of)],
        ["Total return, gross", *(percent(p.gross_return) for p in of)],
        ["Sharpe, daily", *(number(p.sharpe, 2) for p in of)],
        ["95 % interval", *(interval(p.interval) for p in of)],
        ["Sharpe, per bar", *(number(p.bar_sharpe, 2) for p in of)],
        ["Sortino", *(number(p.sortino, 2) for p in of)],
        ["Calmar", *(number(p.calmar, 2) for p in of)],
        ["Volatility a year", *(share(p.volatility, 1) for p in of)],
        ["Deepest drawdown", *(percent(p.max_drawdown) if p.max_drawdown else "0.0 %" for p in of)],
        ["Mean exposure", *(number(p.exposure, 2) for p in of)],
        ["Time in the market", *(share(p.time_in_market) for p in of)],
        [f"Costs, {market.account_currency}", *(number(p.costs, 0) for p in of)],
        ["Trading days", *(number(p.days, 0) for p in of)],
        ["Years", *(number(p.years, 2) for p in of)],
    ]
    note = (
        f"Daily figures: days roll at {market.day_roll}, times the root of {market.days_per_year:g}; per bar: "
        f"times the root of {market.bars_per_year:,.0f}. Simple returns, flat bars included, risk-free rate 0, "
        "ddof 1. Interval: stationary block bootstrap of daily returns, mean block 10 days (Politis and Romano 1994)."
    )
    if len(market.symbols) > 1:
        note += " Several symbols are one account with equal capital in each at the start, not rebalanced."
    return Table("", ("", *splits), rows, note=note)


def members(of: Sequence[Performance], shown: int, split: str) -> Table:
    """One row per member."""
    rows = [
        [
            f"member {index}",
            percent(p.total_return),
            number(p.sharpe, 2),
            interval(p.interval),
            percent(p.max_drawdown),
            number(p.exposure, 2),
        ]
        for index, p in enumerate(of)
    ]
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", "exposure")
    return Table(f"Members, {split}", columns, rows, emphasis=shown)


def baselines(
    rows: Sequence[NamedAccount], draws: Floats, last: Sequence[NamedAccount], market: MarketSpec
) -> Table:
    """The agent first, then its rivals, random timing, and the upper bound."""
    lines = [_baseline(row) for row in rows]
    if len(draws):
        low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95])
        spread = f"5-95 %: {percent(float(low))} to {percent(float(high))}"
        lines.append([f"{MATCHED_RANDOM}, median", percent(float(middle)), "", spread, "", "", ""])
    lines += [_baseline(row) for row in last]
    columns = (
        "",
        "return",
        "Sharpe",
        "95 % interval",
        "drawdown",
        "fills",
        f"costs, {market.account_currency}",
    )
    return Table("Same bars, same costs", columns, lines, emphasis=0)


def _baseline(row: NamedAccount) -> list[str]:
    found = performance(row.account)
    fills = sum(t.metrics.get("fills", 0.0) for t in row.tracks)
    return [
        row.name,
        percent(found.total_return),
        number(found.sharpe, 2),
        interval(found.interval),
        percent(found.max_drawdown) if found.max_drawdown else "0.0 %",
        number(fills, 0),
        number(found.costs, 0),
    ]


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


def trades(of: Trading, found: Performance, bar_seconds: int, currency: str) -> Table:
    """What was traded and how."""
    hours = None if of.holding_bars is None else of.holding_bars * bar_seconds / 3_600.0
    rows = [
        ["Trades closed", number(of.trades, 0)],
        ["Fills", number(of.fills, 0)],
        ["Win rate", share(of.win_rate)],
        ["Profit factor", number(of.profit_factor, 2)],
        [f"Mean trade after costs, {currency}", number(of.mean_trade, 2)],
        [f"Mean cost of a trade, {currency}", number(of.mean_cost, 2)],
        ["Mean holding time", f"{number(of.holding_bars)} bars ({number(hours)} h)"],
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
            percent(float(paid[-1]) / start, 2),
        ]
        for name, paid in of.costs.items()
    ]
    rows += [
        ["all costs", number(total, 0), percent(total / start, 2)],
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
    return Table("Monthly returns, %", ("", *_MONTHS, "year"), rows)


def drawdowns(of: Sequence[Drawdown]) -> Table:
    """Deepest first."""
    rows = [
        [
            percent(d.depth),
            str(d.peak),
            str(d.trough),
            "not yet" if d.recovered is None else str(d.recovered),
        ]
        for d in of
    ]
    return Table("Five worst drawdowns", ("depth", "peak", "trough", "recovered"), rows)


def slices(caption: str, score: str, of: Sequence[Slice]) -> Table:
    """By symbol, weekday or hour."""
    rows = [
        [s.name, percent(s.profit, 2), number(s.score, 2), number(s.exposure, 2), number(s.bars, 0)]
        for s in of
    ]
    return Table(caption, ("", "result", score, "exposure", "bars"), rows)
