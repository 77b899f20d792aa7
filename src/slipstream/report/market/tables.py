"""The tables of a market report, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np

from slipstream.core.text import percent
from slipstream.files.track import Track
from slipstream.report.canvas import MONTHS
from slipstream.report.inputs import MATCHED_RANDOM, Stress
from slipstream.report.market.account import (
    Account,
    Performance,
    Slice,
    holding_times,
    performance,
    total,
)
from slipstream.report.market.view import SplitView
from slipstream.report.numbers import interval, number, share
from slipstream.report.page import Table
from slipstream.report.statistics import Drawdown


def by_split(splits: Sequence[SplitView]) -> Table:
    """One column per split, the hold-out first."""
    of, held = [split.found for split in splits], splits[0]
    market = held.market
    rows = [
        ["Total return, net", *(percent(p.total_return) for p in of)],
        ["Total return, gross", *(percent(p.gross_return) for p in of)],
        ["Sharpe, daily", *(number(p.sharpe, 2) for p in of)],
        ["95 % interval", *(interval(p.interval) for p in of)],
        ["Sharpe, per bar", *(number(p.bar_sharpe, 2) for p in of)],
        ["Sortino", *(number(p.sortino, 2) for p in of)],
        ["Calmar", *(number(p.calmar if p.years >= 1.0 else None, 2) for p in of)],
        ["Volatility a year", *(share(p.volatility, 1) for p in of)],
        ["Deepest drawdown", *(share(p.max_drawdown, 1) for p in of)],
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
    if held.run.holdings is None and len(market.symbols) > 1:
        note += " Several symbols are one account, with equal capital in each at the start."
    return Table("", ("", *(split.name for split in splits)), rows, note=note)


def members(held: SplitView) -> Table:
    """One row per member, and the market beside them."""
    of, run, market = held.every, held.run, held.market_line
    rows = []
    for index, p in enumerate(of):
        sizes = (p.exposure, held.net_exposure(index), held.follows[index])
        cells = [number(size, 2) for size in sizes]
        rows.append([f"member {run.number(index)}", *_result(p), *cells])
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", "exposure", "net", "follows")
    note = "Exposure: mean of its size. Net: mean with its sign, shorts below 0."
    if market is not None:
        name, account = market
        found, net = performance(account), float(np.mean(account.net_exposure))
        rows.append([name, *_result(found), number(found.exposure, 2), number(net, 2), ""])
        note += f" Follows: correlation of its daily returns with those of {name}."
    return Table(f"Members, {held.name}", columns, rows, emphasis=run.member, note=note)


def _result(p: Performance) -> list[str]:
    bounds, deepest = interval(p.interval), share(p.max_drawdown, 1)
    return [percent(p.total_return), number(p.sharpe, 2), bounds, deepest]


def baselines(held: SplitView) -> Table:
    """The agent first, then its rivals, each asset held, random timing, and the upper bound."""
    comparison = held.comparison
    assert comparison is not None
    rows = [_baseline("agent", held.agent, held.tracks)]
    rows += [_baseline(n, one, comparison.tracks[n]) for n, one in held.rivals.items()]
    rows += [_baseline(f"{n} held", one, comparison.assets[n]) for n, one in held.assets.items()]
    if len(held.draws):
        middle = percent(float(np.median(held.draws)))
        rows.append([f"{MATCHED_RANDOM} (median)", middle, *[""] * 5])
    rows += [_baseline(n, one, comparison.tracks[n]) for n, one in held.bound.items()]
    money = f"costs, {held.market.account_currency}"
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", "fills", money)
    return Table("Same bars, same costs", columns, rows, emphasis=0)


def _baseline(name: str, account: Account, tracks: Sequence[Track]) -> list[str]:
    found = performance(account)
    return [name, *_result(found), number(total(tracks, "fills"), 0), number(found.costs, 0)]


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


def trades(held: SplitView) -> Table:
    """What was traded and how: counts are metrics of the kernel, holding times are traced."""
    mine, money, sums = held.agent, held.market.account_currency, partial(total, held.tracks)
    closed, profit, loss = sums("trades"), sums("gross_profit"), sums("gross_loss")
    lengths = [holding_times(track.trace["exposure"].ravel()) for track in held.tracks]
    held_for = np.concatenate(lengths)
    per_day = sums("turnover") / max(mine.days, 1) / max(len(held.tracks), 1)

    def of_trades(value: float) -> float | None:
        """A closed trade's share."""
        return value / closed if closed else None

    exits = {
        "Stop-loss exits": "stop_exits",
        "Take-profit exits": "target_exits",
        "Margin stop-outs": "stop_outs",
        "Exits whose bar touched both levels": "both_touched",
    }
    rows = [
        ["Trades closed", number(closed, 0)],
        ["Fills", number(sums("fills"), 0)],
        ["Win rate", share(of_trades(sums("wins")))],
        ["Profit factor", number(profit / loss if loss > 0.0 else None, 2)],
        [f"Mean trade after costs, {money}", number(of_trades(profit - loss), 2)],
        [f"Mean cost of a trade, {money}", number(of_trades(float(mine.total_costs[-1])), 2)],
        holding_time(float(held_for.mean()) if len(held_for) else None, held.market.bar_seconds),
        ["Mean exposure", number(held.found.exposure, 2)],
        ["Turnover per day, times equity", number(per_day, 2)],
        *([label, number(sums(metric), 0)] for label, metric in exits.items()),
    ]
    return Table("Trades", ("", "value"), rows)


def costs(of: Account) -> Table:
    """Costs by kind, in money, against the start and against gross profit."""
    start, total = float(of.equity[0]), float(of.total_costs[-1])
    gross = float(of.gross_equity[-1]) - start
    rows = [
        [name.removeprefix("cost_"), number(float(paid[-1]), 0), share(float(paid[-1]) / start, 2)]
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
    rows = []
    for d in of:
        recovered = "not yet" if d.recovered is None else str(d.recovered)
        rows.append([share(d.depth, 2), str(d.peak), str(d.trough), recovered])
    return Table("Five worst drawdowns", ("depth", "peak", "trough", "recovered"), rows)


def slices(caption: str, score: str, of: Sequence[Slice]) -> Table:
    """A row a slice; `score` names its figure beside the result."""
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
