"""The parts of a portfolio's page that differ from those of one symbol at a time."""

from __future__ import annotations

from functools import partial

import numpy as np

from slipstream.core.percent import percent
from slipstream.report.market import tables as market_tables
from slipstream.report.market import wording
from slipstream.report.market.performance import total
from slipstream.report.market.sections import (
    baselines,
    promise,
    random_timing,
    slope,
    trades_and_costs,
)
from slipstream.report.market.view import SplitView
from slipstream.report.market.wording import number, share
from slipstream.report.page import Section, Table, picture
from slipstream.report.portfolio import figures as portfolio_figures
from slipstream.report.portfolio.account import by_asset


def against(held: SplitView) -> Section:
    """Baselines, the agent's own decisions at random places, other costs."""
    comparison, stress = held.comparison, held.run.stress
    assert comparison is not None and stress is not None
    sentences = [
        "All baselines pay the same costs, keep the same reserve and are sold at the end; they "
        "fill at the next open and follow none of the agent's other rules. Equal weight is bought "
        "once with equal capital and never rebalanced.",
    ]
    if held.bound:
        sentences.append(
            "The oracle knows all future prices and holds one asset or cash: an upper bound, not a "
            "rival."
        )
    else:
        sentences.append(
            "There is no oracle: with fees that follow volume, a reserve, or assets that come and "
            "go, the best plan is not a simple programme."
        )
    sentences += [*slope(held), *promise(held), wording.breaks_even(stress.break_even)]
    sentences.append(
        "Other costs leave other amounts to trade with, and other orders pass the band and the "
        "smallest order: the return without costs is a replay, not this one with its costs added."
    )
    tables = [baselines(held, comparison), market_tables.stress(stress)]
    pictures = random_timing(held, "draws")
    return Section("Against baselines and other costs", sentences, tables, pictures)


def trades(held: SplitView) -> Section:
    """What was traded and what it cost."""
    mine, sums = held.agent, partial(total, held.tracks)
    fills, paid = sums("fills"), float(mine.total_costs[-1])
    rows = [
        ["Fills", number(fills, 0)],
        ["Holdings closed", number(sums("trades"), 0)],
        market_tables.holding_time(_holding_bars(held), held.market.bar_seconds),
        ["Turnover per day, times equity", number(sums("turnover") / max(mine.days, 1), 2)],
        ["Mean exposure", number(held.found.exposure, 2)],
        [
            f"Mean cost of a fill, {held.market.account_currency}",
            number(paid / fills if fills else None, 2),
        ],
    ]
    return trades_and_costs(held, Table("Trades", ("", "value"), rows))


def _holding_bars(held: SplitView) -> float | None:
    """Mean bars of each stay in an asset."""
    lengths = []
    for track in held.tracks:
        inside = np.pad(track.trace["units"] > 0.0, ((1, 1), (0, 0))).astype(np.int8)
        turns = np.diff(inside, axis=0)
        for asset in range(turns.shape[1]):
            starts, ends = (np.flatnonzero(turns[:, asset] == sign) for sign in (1, -1))
            lengths.append(ends - starts)
    every = np.concatenate(lengths)
    return float(every.mean()) if len(every) else None


def assets(held: SplitView) -> Section:
    """What each asset contributed, and the weights over time."""
    holdings = held.run.holdings
    assert holdings is not None
    rows = [
        [
            one.name,
            percent(one.profit, 2),
            number(one.weight, 2),
            share(one.held),
            percent(one.change),
        ]
        for one in by_asset(held.tracks, holdings, held.market.initial_equity)
    ]
    columns = ("", "result before costs", "mean weight", "bars held", "its price")
    note = "Result: of the start. The price's change is over the same bars, without costs."
    drawn = portfolio_figures.weights(held.name, held.tracks, holdings, held.prices.time)
    return Section(
        "By asset",
        (),
        [Table("By asset", columns, rows, note=note)],
        [picture("weights", f"Weights of assets and cash on the {held.name} split", drawn)],
    )
