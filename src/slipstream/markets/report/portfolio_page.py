"""Page of a portfolio run: comparison with cash, equal weight and each asset.

See docs/explanation/statistics.md, section 15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from slipstream.core.text import percent
from slipstream.markets.evaluation.performance import SplitView, bar_rows, sum_metric
from slipstream.markets.report import market_sections as sections
from slipstream.markets.report.market_page import build_market_page, opening_sentences, split_views
from slipstream.report import summary_text
from slipstream.report.inputs import Prices, RoundTripCost, RunEvaluation
from slipstream.report.number_format import format_number, format_percent
from slipstream.report.page import Page, Section, Table, make_picture
from slipstream.report.plot_style import PALE, dates, legend, new_figure, percent_axis, time_axis
from slipstream.report.statistics import Floats, Ints
from slipstream.studies.statistics.returns import MIN_EXPOSURE, MIN_FILLS
from slipstream.training.episode_result import EpisodeResult

_COST_NOTE = (
    "Other costs leave other amounts to trade with, and other orders pass the band and the "
    "smallest order: the return without costs is a replay, not this one with its costs added."
)
_MAX_PIECES = 400  # segments of the weights figure
# Palette of Okabe and Ito with lighter shades, for twelve assets; further assets repeat it.
_SHADES = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#66AAD1", "#F0C566", "#66C5AB", "#E0AFCA", "#E69E66"),
)


def portfolio_page(run: RunEvaluation) -> Page:
    """Build the page; the hold-out comes first everywhere."""
    splits = split_views(run)
    view = splits[0]
    middle = [
        sections.baseline_section(view, _comparison_rules(view), "draws", (_COST_NOTE,)),
        sections.trade_section(view, _trade_table(view)),
        _asset_section(view),
        sections.calendar_section(view),
    ]
    sentences = opening_sentences(
        view, _random_timing(view), _round_trips(run.round_trips), _idle_warning(view)
    )
    return build_market_page(splits, sentences, middle)


def _random_timing(view: SplitView) -> list[str]:
    """Rank the agent among single assets, and among its own decisions at other times."""
    better = sum(account.total_return < view.agent.total_return for account in view.assets.values())
    timing = [
        f"Of {len(view.assets)} assets bought and held, {better} end below the agent and "
        f"{len(view.assets) - better} do not."
    ]
    if view.percentile is not None:
        is_unproven = view.percentile < summary_text.BETTER_THAN_RANDOM
        timing.append(
            f"Its return is at percentile {format_number(view.percentile, 0)} of "
            f"{len(view.random_returns)} draws of "
            "its own decisions at other times and in other assets"
            + (": its choices are not shown to be better than theirs." if is_unproven else ".")
        )
    return timing


def _idle_warning(view: SplitView) -> list[str]:
    """Warn that an agent hardly trades, and what its figures then resemble."""
    fills, exposure = sum_metric(view.tracks, "fills"), view.performance.exposure
    if exposure >= MIN_EXPOSURE and fills >= MIN_FILLS:
        return []
    like = "cash" if exposure < MIN_EXPOSURE else "what it bought, held"
    return [
        f"It hardly trades: mean exposure {format_percent(exposure, 1)} of equity, "
        f"{format_number(fills, 0)} fills. Its figures are about those of {like}."
    ]


def _round_trips(trips: Sequence[RoundTripCost]) -> list[str]:
    """Report the cost of buying and selling each asset."""
    costs = [format_number(trip.basis_points) for trip in trips]
    if len(trips) > 1 and len(set(costs)) == 1:
        return [f"Round trip: {costs[0]} bp in each of {len(trips)} assets."]
    trip_texts = [f"{trip.symbol} {cost} bp" for trip, cost in zip(trips, costs, strict=True)]
    return [f"Round trip: {', '.join(trip_texts)}."] if trip_texts else []


def _comparison_rules(view: SplitView) -> list[str]:
    """Describe how portfolios are compared."""
    oracle = (
        "There is no oracle: with fees that follow volume, a reserve, or assets that come and go, "
        "the best plan is not a simple programme."
    )
    if view.oracle:
        oracle = (
            "The oracle uses all future prices and holds one asset or cash: an upper bound, not a "
            "rival."
        )
    return [
        "All baselines pay the same costs, keep the same reserve and are sold at the end; they "
        "fill at the next open and follow none of the agent's other rules. Equal weight is bought "
        "once with equal capital and never rebalanced.",
        oracle,
    ]


def _trade_table(view: SplitView) -> Table:
    """Return the table of trades."""
    account, sums = view.agent, partial(sum_metric, view.tracks)
    fills, paid = sums("fills"), float(account.total_costs[-1])
    cost = format_number(paid / fills if fills else None, 2)
    rows = [
        ["Fills", format_number(fills, 0)],
        ["Holdings closed", format_number(sums("trades"), 0)],
        sections.holding_time(_holding_bars(view), view.market.bar_seconds),
        [
            "Turnover per day, times equity",
            format_number(sums("turnover") / max(account.days, 1), 2),
        ],
        ["Mean exposure", format_number(view.performance.exposure, 2)],
        [f"Mean cost of a fill, {view.market.account_currency}", cost],
    ]
    return Table("Trades", ("", "value"), rows)


def _holding_bars(view: SplitView) -> float | None:
    """Return the mean number of bars that an asset is held."""
    lengths = []
    for track in view.tracks:
        inside = np.pad(track.trace["units"] > 0.0, ((1, 1), (0, 0))).astype(np.int8)
        for turns in np.diff(inside, axis=0).T:
            lengths.append(np.flatnonzero(turns == -1) - np.flatnonzero(turns == 1))
    every = np.concatenate(lengths)
    return float(every.mean()) if len(every) else None


def _asset_section(view: SplitView) -> Section:
    """Return the contribution of each asset, and the weights over time."""
    rows = [
        [
            of.name,
            percent(of.profit, 2),
            format_number(of.weight, 2),
            format_percent(of.held),
            percent(of.change),
        ]
        for of in asset_shares(view.tracks, view.prices, view.market.initial_equity)
    ]
    columns = ("", "result before costs", "mean weight", "bars held", "its price")
    note = (
        "Result: fraction of initial equity. The price's change is over the same bars, without "
        "costs."
    )
    drawn = weights_figure(view.name, view.tracks, view.prices)
    caption = f"Weights of assets and cash on the {view.name} split"
    table = Table("By asset", columns, rows, note=note)
    return Section("By asset", (), [table], [make_picture("weights", caption, drawn)])


def weights_figure(split: str, tracks: Sequence[EpisodeResult], prices: Prices) -> Figure:
    """Plot stacked weights of assets and cash; means over neighbouring bars."""
    rows = np.concatenate([bar_rows(t) for t in tracks])
    value = np.concatenate([t.trace["units"] * prices.close[bar_rows(t)] for t in tracks])
    equity = np.concatenate([t.trace["equity"].ravel() for t in tracks])
    share = value / np.maximum(equity, 1e-12)[:, None]
    edges = np.unique(np.linspace(0, len(rows), min(_MAX_PIECES, len(rows)) + 1).astype(np.int64))
    means = np.add.reduceat(share, edges[:-1], axis=0) / np.diff(edges)[:, None]
    figure, (axes,) = new_figure(f"Weights, {split}", 3.6)
    colours = [_SHADES[k % len(_SHADES)] for k in range(len(prices.assets))]
    axes.stackplot(
        dates(prices.time[rows[edges[:-1]]]),
        *means.T,
        np.clip(1.0 - means.sum(axis=1), 0.0, None),
        labels=[*prices.assets, "cash"],
        colors=[*colours, PALE],
        linewidth=0,
    )
    axes.set_ylim(0.0, 1.0)
    axes.set_ylabel("share of equity")
    axes.margins(x=0.0)
    percent_axis(axes)
    time_axis(axes)
    legend(axes, 6)
    return figure


@dataclass(frozen=True)
class AssetShare:
    """Contribution of one asset to a portfolio.

    Attributes:
        name: name of the asset.
        profit: profit before costs, relative to the initial equity of the first pass.
        weight: mean weight after each bar.
        held: fraction of bars after which the asset is held.
        change: relative change of its price over the passes.
    """

    name: str
    profit: float
    weight: float
    held: float
    change: float


def asset_shares(
    tracks: Sequence[EpisodeResult], prices: Prices, initial: float
) -> list[AssetShare]:
    """Return the contribution of each asset."""
    count = len(prices.assets)
    profit, weight, held = np.zeros(count), np.zeros(count), np.zeros(count)
    change, steps, scale = np.ones(count), 0, 1.0
    for track in tracks:
        rows = bar_rows(track)
        units, equity = track.trace["units"], track.trace["equity"].ravel()
        profit += scale * asset_gains(units, rows, prices).sum(axis=0)
        weight += (units * prices.close[rows] / equity[:, None]).sum(axis=0)
        held += np.count_nonzero(units > 0.0, axis=0)
        steps += len(rows)
        before, after = prices.close[rows[0] - 1], prices.close[rows[-1]]
        change *= np.where((before > 0.0) & (after > 0.0), after / np.maximum(before, 1e-300), 1.0)
        scale *= float(equity[-1]) / initial
    columns = (profit / initial, weight / steps, held / steps, change - 1.0)
    asset_rows = zip(prices.assets, *(column.tolist() for column in columns), strict=True)
    return [AssetShare(*shares) for shares in asset_rows]


def asset_gains(units: Floats, rows: Ints, prices: Prices) -> Floats:
    """Return the profit per bar and asset before costs, account currency [n, A].

    Previous units earn from close to close, changes of units from their fill to the close. The last
    bar sells everything at its close; trades at its open are not separated.
    """
    close = prices.close
    before = np.concatenate([np.zeros((1, units.shape[1])), units[:-1]])
    fill = prices.fill[rows].copy()
    fill[-1] = close[rows[-1]]
    price_gains = before * (close[rows] - close[rows - 1])
    return np.asarray(price_gains + (units - before) * (close[rows] - fill))
