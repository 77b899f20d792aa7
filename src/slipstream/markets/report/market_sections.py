"""Sections of a market page, with their tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from slipstream.core.text import percent, span
from slipstream.markets.data.symbols import FIAT, extract_pair, pip_size
from slipstream.markets.evaluation.performance import (
    Account,
    Performance,
    Slice,
    SplitView,
    bar_rows,
    compute_performance,
    holding_times,
    slice_by_hour,
    slice_by_symbol,
    slice_by_weekday,
    sum_metric,
)
from slipstream.report import history, summary_text
from slipstream.report.inputs import MATCHED_RANDOM, ORACLE, Prices, RunEvaluation, StressTest
from slipstream.report.number_format import format_interval, format_number, format_percent
from slipstream.report.page import Picture, Section, Table, make_picture
from slipstream.report.plot_style import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    INK,
    LINES,
    MONTHS,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    dates,
    downsample,
    growth_axis,
    legend,
    new_figure,
    percent_axis,
    time_axis,
    two_line_date,
)
from slipstream.report.statistics import (
    Drawdown,
    Floats,
    Ints,
    alpha_beta,
    drawdowns,
    monthly_returns,
    rolling_sharpe,
    worst_drawdowns,
)
from slipstream.report.summary_text import interval_note
from slipstream.training.episode_result import EpisodeResult

DEEPEST_DRAWDOWN = "Maximum drawdown (daily closes)"
_MAX_PICTURES = 8  # of positions; further symbols are only in the tables
ROLLING_DAYS = 60  # of the rolling Sharpe ratio; fewer days show only noise
_RECENT_BARS = 400  # bars in the detailed figure


def result_section(splits: Sequence[SplitView]) -> Section:
    """Return the section with the figures of all splits and members."""
    members = [_member_table(splits[0])] if len(splits[0].members) > 1 else []
    return Section("Result", (), [_split_table(splits), *members])


def _split_table(splits: Sequence[SplitView]) -> Table:
    """Return a table with one column per split, the hold-out first."""
    of, view = [split.performance for split in splits], splits[0]
    market = view.market
    rows = [
        ["Total return, net", *(percent(p.total_return) for p in of)],
        ["Total return, gross", *(percent(p.gross_return) for p in of)],
        ["Sharpe, daily", *(format_number(p.sharpe, 2) for p in of)],
        ["95 % interval", *(format_interval(p.interval) for p in of)],
        ["Sharpe, per bar", *(format_number(p.bar_sharpe, 2) for p in of)],
        ["Sortino", *(format_number(p.sortino, 2) for p in of)],
        ["Calmar", *(format_number(p.calmar if p.years >= 1.0 else None, 2) for p in of)],
        ["Annual volatility", *(format_percent(p.volatility, 1) for p in of)],
        [DEEPEST_DRAWDOWN, *(format_percent(p.max_drawdown, 1) for p in of)],
        ["Mean exposure", *(format_number(p.exposure, 2) for p in of)],
        ["Time in the market", *(format_percent(p.time_in_market) for p in of)],
        [f"Costs, {market.account_currency}", *(format_number(p.costs, 0) for p in of)],
        ["Trading days", *(format_number(p.days, 0) for p in of)],
    ]
    if any(p.years >= 1.0 for p in of):
        rows.append(["Years", *(format_number(p.years, 2) for p in of)])
    note = (
        f"Daily figures: days end at {market.day_roll}, annualised by "
        f"sqrt({market.days_per_year:g}). Per bar: by sqrt({market.bars_per_year:,.0f}). Simple "
        "returns, flat bars included, risk-free rate 0, ddof 1."
    )
    if by := interval_note({split.name: split.performance.interval for split in splits}):
        note += f" {by}"
    if any(p.years < 1.0 for p in of):
        note += (
            " Ratios and volatility of a split shorter than a year are annualised; a Calmar "
            "ratio, which requires a year's growth, is not computed."
        )
    if not view.run.is_portfolio and len(market.symbols) > 1:
        note += " Several symbols are one account, with equal capital in each at the start."
    return Table("", ("", *(split.name for split in splits)), rows, note=note)


def _member_table(view: SplitView) -> Table:
    """Return a table with one row per member, and the market below them."""
    of, run, market = view.performances, view.run, view.market_line
    rows = []
    for index, p in enumerate(of):
        sizes = (p.exposure, view.net_exposure(index), view.market_correlations[index])
        cells = [format_number(size, 2) for size in sizes]
        rows.append([f"member {run.number(index)}", *_result_cells(p), *cells])
    columns = (
        "",
        "return",
        "Sharpe",
        "95 % interval",
        "drawdown",
        "exposure",
        "net exposure",
        "correlation",
    )
    note = (
        f"{summary_text.DRAWDOWN} Exposure: mean absolute exposure. "
        "Net exposure: signed mean, shorts count as negative."
    )
    intervals = {f"member {run.number(k)}": p.interval for k, p in enumerate(of)}
    if market is not None:
        name, account = market
        performance, net = compute_performance(account), float(np.mean(account.net_exposure))
        rows.append(
            [
                name,
                *_result_cells(performance),
                format_number(performance.exposure, 2),
                format_number(net, 2),
                "",
            ]
        )
        note += f" Correlation: of daily returns with those of {name}."
        intervals[name] = performance.interval
    note += f" {interval_note(intervals)}"
    return Table(f"Members, {view.name}", columns, rows, emphasis=run.member, note=note)


def _result_cells(p: Performance) -> list[str]:
    bounds, deepest = format_interval(p.interval), format_percent(p.max_drawdown, 1)
    return [percent(p.total_return), format_number(p.sharpe, 2), bounds, deepest]


def equity_picture(view: SplitView) -> Picture:
    """Return the first picture of a page: the agent with its baselines and the other members."""
    band = [m for index, m in enumerate(view.members) if index != view.run.member]
    return make_picture(
        f"equity_{view.name}",
        f"Equity and drawdown of the agent and its baselines on the {view.name} split",
        equity_figure(view.name, view.agent, view.plotted_baselines, band),
    )


def baseline_section(
    view: SplitView, rules: Sequence[str] = (), draws: str = "traders", costs: Sequence[str] = ()
) -> Section:
    """Return the section of baselines, random timing and other costs.

    Args:
        view: the hold-out.
        rules: trading rules of the baselines; those of single positions by default.
        draws: name of the random baselines.
        costs: further sentences about other costs.
    """
    title, stress = "Against baselines and other costs", view.run.stress
    if view.comparison is None:
        return Section(title, ("There are no baselines for these actions.",))
    sentences = [*(rules or _comparison_rules(view)), *_alpha_and_beta(view), *_oracle_gap(view)]
    tables = [_baseline_table(view)]
    if stress:
        sentences += [break_even_sentence(stress.break_even), *costs]
        tables.append(_stress_table(stress))
    pictures = []
    if len(view.random_returns):
        lines = {name: baseline.total_return for name, baseline in view.plotted_baselines.items()}
        drawn = random_timing_figure(view.name, view.agent.total_return, view.random_returns, lines)
        caption = f"Total return of the agent among {len(view.random_returns)} random {draws}"
        pictures.append(make_picture("random_timing", caption, drawn))
    return Section(title, sentences, tables, pictures)


def _comparison_rules(view: SplitView) -> list[str]:
    """Describe how single positions are compared."""
    text = (
        "All baselines trade the same bars under the same rules and pay the same costs, at "
        "exposure 1 and without the agent's own stops and limits. The oracle uses all future "
        "prices: it is an upper bound, not a competitor."
    )
    if not len(view.random_returns):
        return [text]
    low, high = (percent(float(v)) for v in np.quantile(view.random_returns, [0.05, 0.95]))
    return [
        text,
        f"Matched random: {len(view.random_returns)} draws with the agent's own positions and "
        f"holding times at random times; 90 % of them return {low} to {high}.",
    ]


def _alpha_and_beta(view: SplitView) -> list[str]:
    """Report alpha and beta against the market; alpha per year, or per split if shorter."""
    if view.market_line is None:
        return []
    name, market = view.market_line
    days, yearly = view.performance.days, view.market.days_per_year
    line = alpha_beta(view.agent.daily_returns, market.daily_returns, min(yearly, float(days)))
    if line is None:
        return []
    over = "a year" if days >= yearly else f"over the {span(days, yearly)}"
    return [f"Against {name}: beta {format_number(line[1], 2)}, alpha {percent(line[0])} {over}."]


def _oracle_gap(view: SplitView) -> list[str]:
    """Report a difference between the replay of the oracle's actions and its computed growth."""
    planned = view.comparison.oracle_growth if view.comparison else None
    if planned is None:
        return []
    replayed = 1.0 + view.baselines[ORACLE].total_return
    if abs(np.log(replayed / planned)) <= 1e-2:
        return []
    return [
        f"The oracle's plan computed {percent(planned - 1.0)}. Swaps, clock rules or rounding, "
        "which the plan ignores, make its replay in the table differ."
    ]


def _baseline_table(view: SplitView) -> Table:
    """Return the agent, its baselines, each asset held, random timing, and the upper bound."""
    comparison = view.comparison
    assert comparison is not None
    accounts = {
        **view.rule_baselines,
        **{f"{n} held": account for n, account in view.assets.items()},
        **view.oracle,
    }
    tracks = {
        **comparison.tracks,
        **{f"{n} held": episodes for n, episodes in comparison.assets.items()},
    }
    results = {
        "agent": view.performance,
        **{n: compute_performance(account) for n, account in accounts.items()},
    }
    row_of = {
        name: _baseline_row(name, performance, tracks.get(name, view.tracks))
        for name, performance in results.items()
    }
    rows = [row for name, row in row_of.items() if name not in view.oracle]
    if len(view.random_returns):
        middle = percent(float(np.median(view.random_returns)))
        rows.append([f"{MATCHED_RANDOM} (median)", middle, *[""] * 5])
    rows += [row_of[name] for name in view.oracle]
    money = f"costs, {view.market.account_currency}"
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", "fills", money)
    intervals = interval_note({name: performance.interval for name, performance in results.items()})
    note = f"{summary_text.DRAWDOWN} {intervals}"
    return Table("Same bars, same costs", columns, rows, emphasis=0, note=note)


def _baseline_row(
    name: str, performance: Performance, tracks: Sequence[EpisodeResult]
) -> list[str]:
    return [
        name,
        *_result_cells(performance),
        format_number(sum_metric(tracks, "fills"), 0),
        format_number(performance.costs, 0),
    ]


def _stress_table(of: StressTest) -> Table:
    """Return the agent's decisions with other costs and with one bar of delay."""
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
        "The same decisions with other costs and delay", ("", "return"), rows, emphasis=emphasis
    )


def trade_section(view: SplitView, traded: Table | None = None) -> Section:
    """Return the section of trades and costs by kind."""
    drawn = make_picture(
        "costs",
        f"Return before and after costs, and costs by kind, on the {view.name} split",
        gross_and_net_figure(view.name, view.agent),
    )
    tables = [traded or _trade_table(view), _cost_table(view.agent)]
    return Section("Trades and costs", (), tables, [drawn])


def _trade_table(view: SplitView) -> Table:
    """Return the table of trades; counts are kernel metrics, holding times come from the trace."""
    account, money, sums = (
        view.agent,
        view.market.account_currency,
        partial(sum_metric, view.tracks),
    )
    closed, profit, loss = sums("trades"), sums("gross_profit"), sums("gross_loss")
    lengths = [holding_times(track.trace["exposure"].ravel()) for track in view.tracks]
    held_for = np.concatenate(lengths)
    per_day = sums("turnover") / max(account.days, 1) / max(len(view.tracks), 1)

    def of_trades(value: float) -> float | None:
        """Return a value per closed trade."""
        return value / closed if closed else None

    exits = {
        "Stop-loss exits": "stop_exits",
        "Take-profit exits": "target_exits",
        "Margin stop-outs": "stop_outs",
        "Exits in bars that touched stop and target": "both_touched",
    }
    rows = [
        ["Trades closed", format_number(closed, 0)],
        ["Fills", format_number(sums("fills"), 0)],
        ["Win rate", format_percent(of_trades(sums("wins")))],
        ["Profit factor", format_number(profit / loss if loss > 0.0 else None, 2)],
        [f"Mean trade after costs, {money}", format_number(of_trades(profit - loss), 2)],
        [
            f"Mean cost of a trade, {money}",
            format_number(of_trades(float(account.total_costs[-1])), 2),
        ],
        holding_time(float(held_for.mean()) if len(held_for) else None, view.market.bar_seconds),
        ["Mean exposure", format_number(view.performance.exposure, 2)],
        ["Turnover per day, times equity", format_number(per_day, 2)],
        *([label, format_number(sums(metric), 0)] for label, metric in exits.items()),
    ]
    return Table("Trades", ("", "value"), rows)


def holding_time(bars: float | None, bar_seconds: int) -> list[str]:
    """Return the table row of the mean holding time."""
    hours = None if bars is None else bars * bar_seconds / 3_600.0
    return ["Mean holding time", f"{format_number(bars)} bars ({format_number(hours)} h)"]


def _cost_table(of: Account) -> Table:
    """Return costs by kind, in money, relative to the initial equity and to gross profit."""
    start, total = float(of.equity[0]), float(of.total_costs[-1])
    gross = float(of.gross_equity[-1]) - start
    rows = [
        [
            name.removeprefix("cost_"),
            format_number(float(paid[-1]), 0),
            format_percent(float(paid[-1]) / start, 2),
        ]
        for name, paid in of.costs.items()
    ]
    rows += [
        ["all costs", format_number(total, 0), format_percent(total / start, 2)],
        ["gross result", format_number(gross, 0), percent(gross / start, 2)],
        ["net result", format_number(gross - total, 0), percent((gross - total) / start, 2)],
    ]
    return Table(
        "Gross and net result", ("", of.market.account_currency, "of initial equity"), rows
    )


def calendar_section(view: SplitView) -> Section:
    """Return the section of months, drawdowns, symbols, weekdays and hours."""
    account = view.agent
    weekdays, hours = slice_by_weekday(account), slice_by_hour(account)
    tables = [
        _month_table(monthly_returns(account.equity, account.time[1:])),
        _drawdown_table(worst_drawdowns(account.daily_equity, account.daily_time)),
    ]
    if not view.run.is_portfolio:
        by_symbol = slice_by_symbol(view.tracks, view.market, view.prices.time)
        tables.append(_slice_table("By symbol", "Sharpe", by_symbol))
    tables += [_slice_table("By weekday", "t value", weekdays), _hour_table(hours)]
    sentences = largest_t_value("weekday", [weekday.score for weekday in weekdays])
    sentences += largest_t_value("hour", [hour.score for hour in hours])
    days = daily_return_figure(view.name, account)
    pictures = [make_picture("daily_returns", "Distribution of daily returns", days)]
    if account.days >= 2 * ROLLING_DAYS:
        drawn = rolling_sharpe_figure(view.name, account, ROLLING_DAYS)
        caption = f"Sharpe ratio of the last {ROLLING_DAYS} trading days"
        pictures.insert(0, make_picture("rolling_sharpe", caption, drawn))
    else:
        sentences.append(
            f"A rolling Sharpe ratio is not shown: it requires {2 * ROLLING_DAYS} trading days, "
            "and "
            f"the {view.name} split has {account.days}."
        )
    return Section("Results by time", sentences, tables, pictures)


def _month_table(returns: Mapping[tuple[int, int], float]) -> Table:
    """Return the table of monthly returns in percent: years as rows, months as columns."""
    rows = []
    for year in sorted({year for year, _ in returns}):
        cells = [returns.get((year, month)) for month in range(1, 13)]
        year_return = float(np.prod([1.0 + c for c in cells if c is not None])) - 1.0
        rows.append(
            [
                str(year),
                *("" if c is None else format_number(100 * c) for c in cells),
                format_number(100 * year_return),
            ]
        )
    return Table("Monthly returns, %", ("", *MONTHS, "year"), rows)


def _drawdown_table(of: Sequence[Drawdown]) -> Table:
    """Return the table of the worst drawdowns, deepest first."""
    rows = []
    for d in of:
        recovered = "not yet" if d.recovered is None else str(d.recovered)
        rows.append([format_percent(d.depth, 2), str(d.peak), str(d.trough), recovered])
    return Table(
        "Five worst drawdowns, of daily closes", ("depth", "peak", "trough", "recovered"), rows
    )


def _slice_table(caption: str, score: str, of: Sequence[Slice]) -> Table:
    """Return a table with one row per slice; `score` is the name of its score column."""
    rows = [[*_slice_cells(s), format_number(s.bars, 0)] for s in of]
    return Table(caption, ("", "result", score, "exposure", "bars"), rows)


def _hour_table(of: Sequence[Slice]) -> Table:
    """Return the table by hour with two hours per row, to keep it short."""
    half = (len(of) + 1) // 2
    rows = []
    for first, second in zip_longest(of[:half], of[half:]):
        rows.append([*_slice_cells(first), *(_slice_cells(second) if second else [""] * 4)])
    names = ("result", "t value", "exposure")
    return Table("By hour in which a bar opens (UTC)", ("", *names, "", *names), rows)


def _slice_cells(of: Slice) -> list[str]:
    return [
        of.name,
        percent(of.profit, 2),
        format_number(of.score, 2),
        format_number(of.exposure, 2),
    ]


def position_section(view: SplitView) -> Section:
    """Return the section of positions, with one picture per symbol."""
    pictures = [
        make_picture(
            f"positions_{''.join(c if c.isalnum() else '_' for c in track.name)}",
            f"Price and position of {track.name} on the {view.name} split",
            positions_figure(track, view.prices),
        )
        for track in view.tracks[:_MAX_PICTURES]
        if len(track.trace["bar"])
    ]
    left = len(view.tracks) - _MAX_PICTURES
    more = (f"{left} more symbols are not shown.",) if left > 0 else ()
    return Section("Positions", more, (), pictures)


def training_section(run: RunEvaluation, views: Sequence[SplitView]) -> Section:
    """Return the learning curve, and equity on the bars used for training and selection."""
    pictures = []
    if run.curves:
        drawn = history.draw_learning_curves(run.curves)
        pictures.append(make_picture("learning_curve", "Score over training", drawn))
    for split in views:
        drawn = equity_figure(split.name, split.agent, split.plotted_baselines)
        caption = f"Equity and drawdown on the {split.name} split"
        pictures.append(make_picture(f"equity_{split.name}", caption, drawn))
    sentence = (
        "The agent was trained on the training split and selected on the validation split. Results "
        "on these splits are no evidence."
    )
    title = "Training and validation"
    return Section(title, (sentence,) if views else (), (), pictures)


def break_even_sentence(multiple: float | None) -> str:
    """Describe the cost multiple at which nothing is gained."""
    if multiple is None:
        return "These decisions lose even without any costs."
    if math.isinf(multiple):
        return "These decisions keep a gain at any cost multiple up to 100 (or never trade)."
    return f"The return falls to zero at {format_number(multiple, 2)} times the costs."


def largest_t_value(what: str, scores: Sequence[float | None]) -> list[str]:
    """Report the largest of several t values with its probability by chance among all of them."""
    magnitudes = [abs(score) for score in scores if score is not None and not math.isnan(score)]
    if len(magnitudes) < 2:
        return []
    alone = math.erfc(max(magnitudes) / math.sqrt(2.0))
    among = 1.0 - (1.0 - alone) ** len(magnitudes)
    return [
        f"By {what} the largest t value is {format_number(max(magnitudes), 2)}, of "
        f"{len(magnitudes)} tries: without any effect, {format_percent(among, 1)} of such tables "
        "have one as large."
    ]


def round_trip_sentences(trips: Mapping[str, tuple[float, float]]) -> list[str]:
    """Report the cost of opening and closing in basis points, and in pips for currencies."""
    parts = []
    for name, (pips, points) in trips.items():
        pair = extract_pair(name)
        cost = f"{format_number(pips, 2)} pips"
        if pair is not None and pair.base not in FIAT:  # such as an ounce or a coin
            cost = f"{pips * pip_size(name):.3g} {pair.quote}"
        parts.append(f"{name} {cost} ({format_number(points, 2)} bp)")
    return [f"Round trip: {', '.join(parts)}."] if parts else []


def equity_figure(
    split: str, agent: Account, others: Mapping[str, Account], band: Sequence[Account] = ()
) -> Figure:
    """Plot return since the start, and drawdown below it; other members as thin lines."""
    figure, (top, bottom) = new_figure(f"Equity and drawdown, {split}", 3.9, (2.6, 1))
    for index, other in enumerate(band):
        label = "" if index else "other members"
        top.plot(*_return_curve(other), color=BLUE, linewidth=0.7, alpha=0.4, label=label)
    for (name, other), colour, dash in zip(others.items(), LINES, DASHES, strict=False):
        top.plot(*_return_curve(other), color=colour, linestyle=dash, label=name)
        bottom.plot(*_drawdown_curve(other), color=colour, linestyle=dash, linewidth=0.8, alpha=0.8)
    top.plot(*_return_curve(agent), color=BLUE, linewidth=2.0, label="agent")
    top.axhline(0.0, color=INK, linewidth=0.8)
    when, fall = _drawdown_curve(agent)
    bottom.fill_between(when, fall, 0.0, color=BLUE, alpha=0.3, linewidth=0)
    bottom.plot(when, fall, color=BLUE, linewidth=1.0)
    growth_axis(top)
    bottom.set_ylabel("drawdown")
    percent_axis(bottom)
    time_axis(bottom)
    legend(top, 3 if band else 4)
    return figure


def _return_curve(of: Account) -> tuple[NDArray[np.datetime64], Floats]:
    """Return the thinned return since the start."""
    return _thin_curve(of.time, of.equity / of.equity[0] - 1.0)


def _drawdown_curve(of: Account) -> tuple[NDArray[np.datetime64], Floats]:
    """Return the thinned drawdown of daily closes."""
    return _thin_curve(of.daily_time, drawdowns(of.daily_equity))


def _thin_curve(time: Ints, curve: Floats) -> tuple[NDArray[np.datetime64], Floats]:
    rows = downsample(curve)
    return dates(time)[rows], curve[rows]


def positions_figure(track: EpisodeResult, prices: Prices) -> Figure:
    """Plot the price, coloured by position: the whole pass, and its last bars."""
    rows = bar_rows(track)
    held = track.trace["exposure"].ravel()
    title = f"{track.name}: price and position"
    figure, (overview, detail, level) = new_figure(title, 5.2, (1.5, 1.5, 0.7), share=False)
    part = slice(max(len(rows) - _RECENT_BARS, 0), None)
    keep = downsample(prices.close[rows])
    overview.plot(
        dates(prices.time[rows[keep]]), prices.close[rows[keep]], color=INK, linewidth=0.7
    )
    _shade(overview, dates(prices.time[rows]), held)
    time_axis(overview)
    index = np.arange(len(rows))[part]
    detail.plot(index, prices.close[rows[part]], color=INK, linewidth=0.9)
    _shade(detail, index, held[part])
    detail.set_title(f"the last {len(index)} bars", loc="left", fontsize=10.5)
    level.step(index, held[part], where="mid", color=BLUE, linewidth=1.1)
    level.axhline(0.0, color=INK, linewidth=0.6)
    level.set_ylabel("exposure")
    limit = max(float(np.abs(held[part]).max(initial=0.0)), 1.0) * 1.15
    level.set_ylim(-limit, limit)
    level.sharex(detail)
    detail.tick_params(labelbottom=False)
    ticks = np.linspace(index[0], index[-1], 5).astype(int)
    level.set_xticks(ticks, [two_line_date(int(moment)) for moment in prices.time[rows[ticks]]])
    sides = (("long", BLUE, 0.35), ("short", ORANGE, 0.5))
    handles = [Patch(color=colour, alpha=alpha, label=side) for side, colour, alpha in sides]
    overview.legend(
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
    """Colour the background by position: blue long, orange short."""
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


def gross_and_net_figure(split: str, agent: Account) -> Figure:
    """Plot the return before and after costs, and the costs by kind."""
    kinds = {k: v for k, v in agent.costs.items() if np.abs(v).max() > 0.0}
    figure, (top, bottom) = new_figure(f"Gross, net and costs by kind, {split}", 4.4, (1.6, 1))
    start = agent.equity[0]
    gross, net = agent.gross_equity / start - 1.0, agent.equity / start - 1.0
    rows = downsample(net)
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
        cost_text = "no costs were paid"
        bottom.text(0.5, 0.5, cost_text, transform=bottom.transAxes, ha="center", color=GREY)
    for axes in (top, bottom):
        percent_axis(axes)
    time_axis(bottom)
    return figure


def daily_return_figure(split: str, agent: Account) -> Figure:
    """Plot a histogram of daily returns with a normal curve of equal mean and deviation."""
    returns = agent.daily_returns
    figure, (axes,) = new_figure(f"Daily returns, {split}", 3.2)
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


def random_timing_figure(
    split: str, agent: float, draws: Floats, others: Mapping[str, float]
) -> Figure:
    """Plot the agent among random traders with its own positions and holding times."""
    figure, (axes,) = new_figure(f"Against random timing, {split}", 3.3)
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


def rolling_sharpe_figure(split: str, agent: Account, window: int) -> Figure:
    """Plot the Sharpe ratio of the last `window` trading days."""
    figure, (axes,) = new_figure(f"Rolling Sharpe of {window} trading days, {split}", 2.9)
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
            interpolate=True,  # fills up to the zero crossing
            color=colour,
            alpha=alpha,
            linewidth=0,
        )
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.set_ylabel("annual Sharpe")
    time_axis(axes)
    return figure
