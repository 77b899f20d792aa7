"""Pictures of a trading agent, one function each; a figure is held by nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from slipstream.markets.report.account import Account, bars
from slipstream.report.canvas import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    INK,
    LINES,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
    dates,
    growth_axis,
    legend,
    percent_axis,
    stamp,
    thin,
    time_axis,
)
from slipstream.report.inputs import Prices
from slipstream.report.statistics import Floats, Ints, drawdowns, rolling_sharpe
from slipstream.training.track import Track

_RECENT = 400  # bars, drawn larger


def equity(
    split: str, agent: Account, others: Mapping[str, Account], band: Sequence[Account] = ()
) -> Figure:
    """Return since the start above, fall from the peak below; other members as thin lines."""
    figure, (top, bottom) = canvas(f"Equity and drawdown, {split}", 3.9, (2.6, 1))
    for index, other in enumerate(band):
        label = "" if index else "other members"
        top.plot(*_gain(other), color=BLUE, linewidth=0.7, alpha=0.4, label=label)
    for (name, other), colour, dash in zip(others.items(), LINES, DASHES, strict=False):
        top.plot(*_gain(other), color=colour, linestyle=dash, label=name)
        bottom.plot(*_fall(other), color=colour, linestyle=dash, linewidth=0.8, alpha=0.8)
    top.plot(*_gain(agent), color=BLUE, linewidth=2.0, label="agent")
    top.axhline(0.0, color=INK, linewidth=0.8)
    when, fall = _fall(agent)
    bottom.fill_between(when, fall, 0.0, color=BLUE, alpha=0.3, linewidth=0)
    bottom.plot(when, fall, color=BLUE, linewidth=1.0)
    growth_axis(top)
    bottom.set_ylabel("drawdown")
    percent_axis(bottom)
    time_axis(bottom)
    legend(top, 3 if band else 4)
    return figure


def _gain(of: Account) -> tuple[NDArray[np.datetime64], Floats]:
    """Return since the start, thinned."""
    return _thinned(of.time, of.equity / of.equity[0] - 1.0)


def _fall(of: Account) -> tuple[NDArray[np.datetime64], Floats]:
    """Fall from the peak of daily closes, thinned."""
    return _thinned(of.daily_time, drawdowns(of.daily_equity))


def _thinned(time: Ints, curve: Floats) -> tuple[NDArray[np.datetime64], Floats]:
    rows = thin(curve)
    return dates(time)[rows], curve[rows]


def positions(track: Track, prices: Prices) -> Figure:
    """Price coloured by the position held: the whole pass, and its last bars."""
    rows = bars(track)
    held = track.trace["exposure"].ravel()
    title = f"{track.name}: price and position"
    figure, (whole, near, level) = canvas(title, 5.2, (1.5, 1.5, 0.7), share=False)
    part = slice(max(len(rows) - _RECENT, 0), None)
    keep = thin(prices.close[rows])
    whole.plot(dates(prices.time[rows[keep]]), prices.close[rows[keep]], color=INK, linewidth=0.7)
    _shade(whole, dates(prices.time[rows]), held)
    time_axis(whole)
    index = np.arange(len(rows))[part]
    near.plot(index, prices.close[rows[part]], color=INK, linewidth=0.9)
    _shade(near, index, held[part])
    near.set_title(f"the last {len(index)} bars", loc="left", fontsize=10.5)
    level.step(index, held[part], where="mid", color=BLUE, linewidth=1.1)
    level.axhline(0.0, color=INK, linewidth=0.6)
    level.set_ylabel("exposure")
    most = max(float(np.abs(held[part]).max(initial=0.0)), 1.0) * 1.15
    level.set_ylim(-most, most)
    level.sharex(near)
    near.tick_params(labelbottom=False)
    ticks = np.linspace(index[0], index[-1], 5).astype(int)
    level.set_xticks(ticks, [stamp(int(moment)) for moment in prices.time[rows[ticks]]])
    sides = (("long", BLUE, 0.35), ("short", ORANGE, 0.5))
    handles = [Patch(color=colour, alpha=alpha, label=side) for side, colour, alpha in sides]
    whole.legend(
        handles=handles,
        frameon=False,
        fontsize=9.5,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.99),
        ncols=2,
        borderaxespad=0.2,
    )
    return figure


def _shade(axes: Axes, x: NDArray[Any], held: Floats) -> None:
    """Background by the side of the market held: blue long, orange short."""
    axes.margins(x=0.0)
    for side, colour, alpha in ((1.0, BLUE, 0.3), (-1.0, ORANGE, 0.45)):
        axes.fill_between(
            x,
            0.0,
            1.0,
            where=list(np.sign(held) == side),
            step="mid",
            transform=axes.get_xaxis_transform(),
            color=colour,
            alpha=alpha,
            linewidth=0,
        )


def gross_and_net(split: str, agent: Account) -> Figure:
    """What was earned before costs, what was left, and where the difference went."""
    kinds = {k: v for k, v in agent.costs.items() if np.abs(v).max() > 0.0}
    figure, (top, bottom) = canvas(f"Gross, net and costs by kind, {split}", 4.4, (1.6, 1))
    start = agent.equity[0]
    gross, net = agent.gross_equity / start - 1.0, agent.equity / start - 1.0
    rows = thin(net)
    when = dates(agent.time)[rows]
    above, below = gross[rows], net[rows]
    top.fill_between(when, above, below, color=VERMILION, alpha=0.18, linewidth=0, label="costs")
    top.plot(when, above, color=GREEN, linestyle=DASHES[1], label="gross")
    top.plot(when, below, color=BLUE, linewidth=1.8, label="net")
    top.axhline(0.0, color=INK, linewidth=0.8)
    top.set_ylabel("return")
    legend(top)
    floor = np.zeros(len(rows))
    for (kind, paid), colour in zip(kinds.items(), (VERMILION, ORANGE, PURPLE, SKY), strict=False):
        layer = floor + paid[rows] / start
        label = kind.removeprefix("cost_")
        bottom.fill_between(when, floor, layer, color=colour, alpha=0.75, linewidth=0, label=label)
        floor = layer
    bottom.set_ylabel("costs paid")
    if kinds:
        bottom.legend(loc="upper left", ncols=4, borderaxespad=0.2, frameon=False, fontsize=9.5)
    else:
        words = "no costs were paid"
        bottom.text(0.5, 0.5, words, transform=bottom.transAxes, ha="center", color=GREY)
    for axes in (top, bottom):
        percent_axis(axes)
    time_axis(bottom)
    return figure


def daily_distribution(split: str, agent: Account) -> Figure:
    """Histogram of daily returns beside a normal curve of the same mean and deviation."""
    returns = agent.daily_returns
    figure, (axes,) = canvas(f"Daily returns, {split}", 3.2)
    bins = min(max(len(returns) // 6, 10), 60)
    _, edges, _ = axes.hist(
        returns, bins=bins, color=BLUE, alpha=0.75, edgecolor="white", linewidth=0.4
    )
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    if deviation > 1e-15:
        x = np.linspace(edges[0], edges[-1], 300)
        z = (x - returns.mean()) / deviation
        height = np.exp(-0.5 * z * z) / (deviation * np.sqrt(2.0 * np.pi))
        scale = len(returns) * (edges[1] - edges[0])
        axes.plot(x, height * scale, color=INK, linewidth=1.1, label="normal, same deviation")
        worst = float(np.quantile(returns, 0.05))
        label = f"worst 5 % of days: {100 * worst:.2f} %"
        axes.axvline(worst, color=VERMILION, linestyle=DASHES[1], label=label)
        legend(axes, 2)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlabel("daily return")
    axes.set_ylabel("days")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    percent_axis(axes, "x")
    return figure


def random_draws(split: str, agent: float, draws: Floats, others: Mapping[str, float]) -> Figure:
    """The agent among random traders with its own positions and holding times."""
    figure, (axes,) = canvas(f"Against random timing, {split}", 3.3)
    spread = float(np.ptp(draws))
    name = "matched random"
    if spread > 1e-9:
        axes.hist(draws, bins=25, color=PALE, edgecolor="white", linewidth=0.5, label=name)
    else:
        axes.axvline(float(draws[0]), color=GREY, linewidth=6.0, alpha=0.5, label=name)
    for (name, value), colour, dash in zip(others.items(), LINES, DASHES, strict=False):
        axes.axvline(value, color=colour, linestyle=dash, linewidth=1.5, label=name)
    axes.axvline(agent, color=BLUE, linewidth=2.6, label="agent")
    axes.set_xlabel("total return after costs")
    axes.set_ylabel(f"of {len(draws)} draws")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    percent_axis(axes, "x")
    legend(axes, 3)
    return figure


def rolling(split: str, agent: Account, window: int) -> Figure:
    """Sharpe ratio of the last `window` trading days."""
    figure, (axes,) = canvas(f"Rolling Sharpe of {window} trading days, {split}", 2.9)
    values = rolling_sharpe(agent.daily_returns, agent.market.days_per_year, window)
    closes = np.flatnonzero(np.diff(agent.day, append=agent.day[-1] + 1))
    when = dates(agent.time[1:][closes])
    axes.plot(when, values, color=BLUE, linewidth=1.6)
    fine = ~np.isnan(values)
    for side, colour, alpha in ((values > 0, BLUE, 0.15), (values < 0, VERMILION, 0.2)):
        axes.fill_between(
            when,
            values,
            0.0,
            where=list(fine & side),
            interpolate=True,  # up to the crossing, not to the day before it
            color=colour,
            alpha=alpha,
            linewidth=0,
        )
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.set_ylabel("annual Sharpe")
    time_axis(axes)
    return figure
