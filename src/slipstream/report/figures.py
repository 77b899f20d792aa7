"""The report's pictures, one function each; each returns a Matplotlib figure that nobody else holds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from slipstream.report.account import Account
from slipstream.report.inputs import Curve, Prices
from slipstream.report.statistics import Floats, Ints, drawdowns, rolling_sharpe

if TYPE_CHECKING:
    from slipstream.training.track import Track

# Okabe and Ito's palette: told apart with every common kind of colour blindness, and in grey.
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)
INK, GREY, PALE = "#222222", "#8A8F98", "#D9DCE1"
LINES = (ORANGE, GREEN, PURPLE, SKY)
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
WIDTH = 6.8  # inches; a phone shows it at half its size, so letters are large
MOST_POINTS = 3_000
DPI = 160

_STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": mpl.cycler(color=[BLUE, *LINES]),
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "path.simplify": True,
}


def canvas(
    height: float, rows: int = 1, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """An empty figure in the house style with one column of panels that share the x axis."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        FigureCanvasAgg(figure)
        grid = figure.subplots(
            rows, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios or [1] * rows}
        )
    return figure, [grid[row, 0] for row in range(rows)]


def png(figure: Figure) -> bytes:
    """The picture's bytes, without a time stamp: the same report is the same file."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": "slipstream"})
    return buffer.getvalue()


def thin(values: Floats, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Indices of at most about `most` points that keep each stretch's lowest and highest value."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        part = values[low:high]
        kept.add(low + int(np.nanargmin(part)) if not np.isnan(part).all() else low)
        kept.add(low + int(np.nanargmax(part)) if not np.isnan(part).all() else low)
    return np.array(sorted(kept))


def dates(time: Ints) -> NDArray[np.datetime64]:
    """UTC seconds as Matplotlib takes them."""
    return time.astype("datetime64[s]")


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _percent_axis(axes: Axes, axis: str = "y") -> None:
    """Values are fractions, labels percent."""
    target = axes.yaxis if axis == "y" else axes.xaxis
    target.set_major_formatter(FuncFormatter(lambda v, _: f"{100.0 * v:.4g} %"))


def _legend(axes: Axes, columns: int = 4) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=columns, borderaxespad=0.2)


def equity(
    split: str, agent: Account, others: Mapping[str, Account], band: Sequence[Account] = ()
) -> Figure:
    """Return since the start above, fall from the peak below; other members as thin lines."""
    figure, (top, bottom) = canvas(4.6, 2, (2.6, 1))
    for other in band:
        curve = other.equity / other.equity[0] - 1.0
        rows = thin(curve)
        top.plot(dates(other.time)[rows], curve[rows], color=BLUE, linewidth=0.6, alpha=0.35)
    for (name, other), colour, dash in zip(others.items(), LINES, DASHES, strict=False):
        curve = other.equity / other.equity[0] - 1.0
        rows = thin(curve)
        top.plot(dates(other.time)[rows], curve[rows], color=colour, linestyle=dash, label=name)
        fall = drawdowns(other.equity)
        rows = thin(fall)
        bottom.plot(
            dates(other.time)[rows],
            fall[rows],
            color=colour,
            linestyle=dash,
            linewidth=0.8,
            alpha=0.8,
        )
    curve = agent.equity / agent.equity[0] - 1.0
    rows = thin(curve)
    top.plot(dates(agent.time)[rows], curve[rows], color=BLUE, linewidth=2.0, label="agent")
    top.axhline(0.0, color=INK, linewidth=0.8)
    fall = drawdowns(agent.equity)
    rows = thin(fall)
    bottom.fill_between(
        dates(agent.time)[rows], fall[rows], 0.0, color=BLUE, alpha=0.3, linewidth=0
    )
    bottom.plot(dates(agent.time)[rows], fall[rows], color=BLUE, linewidth=1.0)
    top.set_ylabel("return")
    bottom.set_ylabel("drawdown")
    _percent_axis(top)
    _percent_axis(bottom)
    _time_axis(bottom)
    _legend(top, 5)
    figure.suptitle(f"Equity, {split}", x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def positions(track: Track, prices: Prices, recent: int = 400) -> Figure:
    """Price coloured by the position held: the whole pass, and its last bars."""
    rows = track.trace["bar"].astype(np.int64).ravel()
    held = track.trace["exposure"].ravel()
    figure = canvas(5.2)[0]
    figure.clear()
    with mpl.rc_context(_STYLE):
        whole, near, level = figure.subplots(3, 1, gridspec_kw={"height_ratios": [1.5, 1.5, 0.7]})
    part = slice(max(len(rows) - recent, 0), None)
    keep = thin(prices.close[rows])
    whole.plot(dates(prices.time[rows[keep]]), prices.close[rows[keep]], color=INK, linewidth=0.7)
    _shade(whole, dates(prices.time[rows]), held)
    whole.set_title(f"{track.name}: price and position")
    _time_axis(whole)
    index = np.arange(len(rows))[part]
    near.plot(index, prices.close[rows[part]], color=INK, linewidth=0.9)
    _shade(near, index, held[part])
    near.set_title(f"the last {len(index)} bars")
    level.step(index, held[part], where="mid", color=BLUE, linewidth=1.1)
    level.axhline(0.0, color=INK, linewidth=0.6)
    level.set_ylabel("exposure")
    most = max(float(np.abs(held[part]).max(initial=0.0)), 1.0) * 1.15
    level.set_ylim(-most, most)
    level.sharex(near)
    near.tick_params(labelbottom=False)
    ticks = np.linspace(index[0], index[-1], 5).astype(int)
    stamps = dates(prices.time[rows[ticks]]).astype("datetime64[m]")
    level.set_xticks(ticks, [str(s)[5:].replace("T", "\n") for s in stamps])
    handles = [
        mpl.patches.Patch(color=BLUE, alpha=0.35, label="long"),
        mpl.patches.Patch(color=ORANGE, alpha=0.5, label="short"),
    ]
    whole.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2, borderaxespad=0.2
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
    figure, (top, bottom) = canvas(4.4, 2, (1.6, 1))
    start = agent.equity[0]
    gross, net = agent.gross_equity / start - 1.0, agent.equity / start - 1.0
    rows = thin(net)
    when = dates(agent.time)[rows]
    top.fill_between(
        when, gross[rows], net[rows], color=VERMILION, alpha=0.18, linewidth=0, label="costs"
    )
    top.plot(when, gross[rows], color=GREEN, linestyle=DASHES[1], label="gross")
    top.plot(when, net[rows], color=BLUE, linewidth=1.8, label="net")
    top.axhline(0.0, color=INK, linewidth=0.8)
    top.set_ylabel("return")
    _legend(top)
    floor = np.zeros(len(rows))
    for (kind, paid), colour in zip(kinds.items(), (VERMILION, ORANGE, PURPLE, SKY), strict=False):
        layer = floor + paid[rows] / start
        label = kind.removeprefix("cost_")
        bottom.fill_between(when, floor, layer, color=colour, alpha=0.75, linewidth=0, label=label)
        floor = layer
    bottom.set_ylabel("costs paid")
    if kinds:
        bottom.legend(loc="upper left", ncols=4, borderaxespad=0.2)
    else:
        bottom.text(
            0.5, 0.5, "no costs were paid", transform=bottom.transAxes, ha="center", color=GREY
        )
    for axes in (top, bottom):
        _percent_axis(axes)
    _time_axis(bottom)
    figure.suptitle(
        f"Gross, net and costs by kind, {split}",
        x=0.01,
        ha="left",
        fontsize=11.5,
        fontweight="bold",
    )
    return figure


def daily_distribution(split: str, agent: Account) -> Figure:
    """Histogram of daily returns beside a normal curve of the same mean and deviation."""
    returns = agent.daily_returns
    figure, (axes,) = canvas(3.2)
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
        axes.axvline(
            worst,
            color=VERMILION,
            linestyle=DASHES[1],
            label=f"worst 5 % of days: {100 * worst:.2f} %",
        )
        _legend(axes, 2)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlabel("daily return")
    axes.set_ylabel("days")
    _percent_axis(axes, "x")
    figure.suptitle(f"Daily returns, {split}", x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def random_draws(split: str, agent: float, draws: Floats, others: Mapping[str, float]) -> Figure:
    """The agent among random traders with its own positions and holding times."""
    figure, (axes,) = canvas(3.2)
    spread = float(np.ptp(draws))
    if spread > 1e-9:
        axes.hist(
            draws, bins=25, color=PALE, edgecolor="white", linewidth=0.5, label="matched random"
        )
    else:
        axes.axvline(float(draws[0]), color=GREY, linewidth=6.0, alpha=0.5, label="matched random")
    for (name, value), colour, dash in zip(others.items(), LINES, DASHES, strict=False):
        axes.axvline(value, color=colour, linestyle=dash, linewidth=1.5, label=name)
    axes.axvline(agent, color=BLUE, linewidth=2.6, label="agent")
    axes.set_xlabel("total return after costs")
    axes.set_ylabel(f"of {len(draws)} draws")
    _percent_axis(axes, "x")
    _legend(axes, 5)
    figure.suptitle(
        f"Against random timing, {split}", x=0.01, ha="left", fontsize=11.5, fontweight="bold"
    )
    return figure


def rolling(split: str, agent: Account, window: int) -> Figure:
    """Sharpe ratio of the last `window` trading days."""
    figure, (axes,) = canvas(2.9)
    values = rolling_sharpe(agent.daily_returns, agent.market.days_per_year, window)
    closes = np.flatnonzero(np.diff(agent.day, append=agent.day[-1] + 1))
    when = dates(agent.time[1:][closes])
    axes.plot(when, values, color=BLUE, linewidth=1.6)
    fine = ~np.isnan(values)
    axes.fill_between(
        when, values, 0.0, where=list(fine & (values > 0)), color=BLUE, alpha=0.15, linewidth=0
    )
    axes.fill_between(
        when, values, 0.0, where=list(fine & (values < 0)), color=VERMILION, alpha=0.2, linewidth=0
    )
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.set_ylabel("annual Sharpe")
    _time_axis(axes)
    axes.set_title(f"Rolling Sharpe of {window} trading days, {split}")
    return figure


def monthly(returns: Mapping[tuple[int, int], float]) -> Figure:
    """Heat table of monthly returns: years down, months across."""
    years = sorted({year for year, _ in returns})
    table = np.full((len(years), 12), np.nan)
    for (year, month), value in returns.items():
        table[years.index(year), month - 1] = 100.0 * value
    most = max(float(np.nanmax(np.abs(table))), 1e-9)
    figure, (axes,) = canvas(1.1 + 0.36 * len(years))
    axes.grid(False)
    axes.imshow(table, cmap="RdBu", vmin=-1.6 * most, vmax=1.6 * most, aspect="auto")
    for row, column in np.argwhere(~np.isnan(table)):
        axes.text(
            column,
            row,
            f"{table[row, column]:.1f}",
            ha="center",
            va="center",
            color=INK,
            fontsize=9.5,
        )
    axes.set_xticks(range(12), list("JFMAMJJASOND"))
    axes.set_yticks(range(len(years)), [str(y) for y in years])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("Monthly returns, %")
    return figure


def learning(curves: Sequence[Curve], score: str) -> Figure:
    """Scores over steps: members thin, their mean strong."""
    figure, (axes,) = canvas(3.2)
    colours = {"training": GREY, "validation": BLUE}
    for curve in curves:
        colour = colours.get(curve.name, ORANGE)
        mark = "o" if len(curve.steps) <= 40 else None
        if curve.score.shape[1] > 1:
            axes.plot(curve.steps, curve.score, color=colour, linewidth=0.6, alpha=0.4)
        seen = ~np.isnan(curve.score).all(axis=1)
        axes.plot(
            curve.steps[seen],
            np.nanmean(curve.score[seen], axis=1),
            color=colour,
            linewidth=1.8,
            marker=mark,
            markersize=4,
            label=curve.name if curve.score.shape[1] == 1 else f"{curve.name}, mean of members",
        )
    axes.set_xlabel("steps per member")
    axes.set_ylabel(score)
    axes.xaxis.set_major_formatter(FuncFormatter(_count))
    _legend(axes)
    figure.suptitle("Learning curve", x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def _count(value: float, _: object) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def episode_returns(agent: Floats, random: Floats) -> Figure:
    """Histogram of episode returns beside those of a random policy."""
    figure, (axes,) = canvas(3.2)
    both = np.concatenate([agent, random])
    low, high = float(both.min()), float(both.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 31)
    if len(random):
        axes.hist(
            random,
            bins=list(edges),
            color=GREY,
            alpha=0.6,
            label="random policy",
            weights=np.full(len(random), 1 / len(random)),
        )
    axes.hist(
        agent,
        bins=list(edges),
        color=BLUE,
        alpha=0.75,
        label="agent",
        weights=np.full(len(agent), 1 / len(agent)),
    )
    axes.set_xlabel("episode return")
    axes.set_ylabel("share of episodes")
    _percent_axis(axes)
    _legend(axes)
    figure.suptitle("Episode returns", x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure
