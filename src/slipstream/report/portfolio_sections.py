"""The parts of a portfolio's page that differ from those of one symbol at a time."""

from __future__ import annotations

import numpy as np

from slipstream.core.percent import percent
from slipstream.report import market_figures, market_tables, portfolio_figures, wording
from slipstream.report.baselines import ORACLE
from slipstream.report.market_sections import promise, slope
from slipstream.report.market_tables import NamedAccount
from slipstream.report.page import Picture, Section, Table, picture
from slipstream.report.portfolio_account import by_asset
from slipstream.report.split_view import SplitView
from slipstream.report.wording import number, share


def against(held: SplitView) -> Section:
    """Baselines, the agent's own decisions at random places, other costs."""
    comparison, stress = held.comparison, held.run.stress
    assert comparison is not None and stress is not None
    rows = [NamedAccount("agent", held.agent, held.tracks)]
    rows += [NamedAccount(name, one, comparison.tracks[name]) for name, one in held.rivals.items()]
    rows += [
        NamedAccount(f"{name} held", one, comparison.assets[name])
        for name, one in held.assets.items()
    ]
    bound = [
        NamedAccount(name, held.baselines[name], tracks)
        for name, tracks in comparison.tracks.items()
        if name == ORACLE
    ]
    sentences = [
        "All baselines pay the same costs, keep the same reserve and are sold at the end; they "
        "fill at the next open and follow none of the agent's other rules. Equal weight is bought "
        "once with equal capital and never rebalanced.",
    ]
    if bound:
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
    tables = [
        market_tables.baselines(rows, held.draws, bound, held.market),
        market_tables.stress(stress),
    ]
    pictures: list[Picture] = []
    if len(held.draws):
        shown = {name: one.total_return for name, one in held.lines.items()}
        drawn = market_figures.random_draws(held.name, held.agent.total_return, held.draws, shown)
        words = f"Total return of the agent among {len(held.draws)} random draws"
        pictures.append(picture("random_timing", words, drawn))
    return Section("Against baselines and other costs", sentences, tables, pictures)


def trades(held: SplitView) -> Section:
    """What was traded and what it cost."""
    mine = held.agent

    def total(name: str) -> float:
        return float(sum(track.metrics.get(name, 0.0) for track in held.tracks))

    bars = _holding_bars(held)
    hours = None if bars is None else bars * held.market.bar_seconds / 3_600.0
    fills, paid = total("fills"), float(mine.total_costs[-1])
    rows = [
        ["Fills", number(fills, 0)],
        ["Holdings closed", number(total("trades"), 0)],
        ["Mean holding time", f"{number(bars)} bars ({number(hours)} h)"],
        ["Turnover per day, times equity", number(total("turnover") / max(mine.days, 1), 2)],
        ["Mean exposure", number(held.found.exposure, 2)],
        [
            f"Mean cost of a fill, {held.market.account_currency}",
            number(paid / fills if fills else None, 2),
        ],
    ]
    drawn = picture(
        "costs",
        f"Return before and after costs, and costs by kind, on the {held.name} split",
        market_figures.gross_and_net(held.name, mine),
    )
    tables = [Table("Trades", ("", "value"), rows), market_tables.costs(mine)]
    return Section("Trades and costs", (), tables, [drawn])


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
