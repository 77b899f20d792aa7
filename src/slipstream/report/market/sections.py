"""The parts of a market page, each with its tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.core.text import percent
from slipstream.market.calendar import span
from slipstream.report import learning
from slipstream.report.inputs import ORACLE, RunEvaluation
from slipstream.report.market import figures, tables, wording
from slipstream.report.market.account import by_hour, by_symbol, by_weekday
from slipstream.report.market.view import SplitView
from slipstream.report.numbers import number
from slipstream.report.page import Picture, Section, Table, picture
from slipstream.report.statistics import alpha_beta, monthly_returns, worst_drawdowns

_MOST_PICTURES = 8  # of positions; more symbols than that are in the tables only
ROLLING_DAYS = 60  # of the rolling Sharpe ratio; fewer show noise only


def results(splits: Sequence[SplitView]) -> Section:
    """Figures of all splits, and the members."""
    members = [tables.members(splits[0])] if len(splits[0].members) > 1 else []
    return Section("Result", (), [tables.by_split(splits), *members])


def equity(held: SplitView) -> Picture:
    """The agent beside its baselines and the other members: the first picture of a page."""
    band = [m for index, m in enumerate(held.members) if index != held.run.member]
    return picture(
        f"equity_{held.name}",
        f"Equity and drawdown of the agent and its baselines on the {held.name} split",
        figures.equity(held.name, held.agent, held.lines, band),
    )


def against(
    held: SplitView, rules: Sequence[str] = (), draws: str = "traders", costs: Sequence[str] = ()
) -> Section:
    """Baselines, random timing, other costs.

    Args:
        held: the hold-out.
        rules: what the baselines keep to; those of single positions unless given.
        draws: what the matched random ones are called.
        costs: what must be said of other costs.
    """
    title, stress = "Against baselines and other costs", held.run.stress
    if held.comparison is None:
        return Section(title, ("There are no baselines for these actions.",))
    sentences = [*(rules or _rules(held)), *_slope(held), *_promise(held)]
    shown = [tables.baselines(held)]
    if stress:
        sentences += [wording.breaks_even(stress.break_even), *costs]
        shown.append(tables.stress(stress))
    pictures = []
    if len(held.draws):
        lines = {name: rival.total_return for name, rival in held.lines.items()}
        drawn = figures.random_draws(held.name, held.agent.total_return, held.draws, lines)
        words = f"Total return of the agent among {len(held.draws)} random {draws}"
        pictures.append(picture("random_timing", words, drawn))
    return Section(title, sentences, shown, pictures)


def _rules(held: SplitView) -> list[str]:
    """How single positions are compared."""
    text = (
        "All baselines trade the same bars under the same rules and pay the same costs, at "
        "exposure 1 and without the agent's own stops and limits. The oracle knows all future "
        "prices: an upper bound, not a rival."
    )
    if not len(held.draws):
        return [text]
    low, high = (percent(float(v)) for v in np.quantile(held.draws, [0.05, 0.95]))
    return [
        text,
        f"Matched random: {len(held.draws)} draws with the agent's own positions and holding times "
        f"at random places; nine of ten end between {low} and {high}.",
    ]


def _slope(held: SplitView) -> list[str]:
    """Alpha and beta to the market; alpha is a year's, or the split's own where that is shorter."""
    if held.market_line is None:
        return []
    name, market = held.market_line
    days, yearly = held.found.days, held.market.days_per_year
    line = alpha_beta(held.agent.daily_returns, market.daily_returns, min(yearly, float(days)))
    if line is None:
        return []
    over = "a year" if days >= yearly else f"over the {span(days, yearly)}"
    return [f"Against {name}: beta {number(line[1], 2)}, alpha {percent(line[0])} {over}."]


def _promise(held: SplitView) -> list[str]:
    """Says when the replay of the oracle's actions is not what its programme computed."""
    promised = held.comparison.oracle_growth if held.comparison else None
    if promised is None:
        return []
    replayed = 1.0 + held.baselines[ORACLE].total_return
    if abs(np.log(replayed / promised)) <= 1e-2:
        return []
    return [
        f"The oracle's programme promised {percent(promised - 1.0)}: swaps, clock rules or "
        "rounding that it does not see make its replay in the table differ."
    ]


def trades(held: SplitView, traded: Table | None = None) -> Section:
    """What was traded, beside what it cost by kind."""
    drawn = picture(
        "costs",
        f"Return before and after costs, and costs by kind, on the {held.name} split",
        figures.gross_and_net(held.name, held.agent),
    )
    shown = [traded or tables.trades(held), tables.costs(held.agent)]
    return Section("Trades and costs", (), shown, [drawn])


def calendar(held: SplitView) -> Section:
    """Months, falls, symbols (where each has its own passes), weekdays, hours."""
    mine = held.agent
    weekdays, hours = by_weekday(mine), by_hour(mine)
    shown = [
        tables.months(monthly_returns(mine.equity, mine.time[1:])),
        tables.drawdowns(worst_drawdowns(mine.equity, mine.time)),
    ]
    if held.run.holdings is None:
        each = by_symbol(held.tracks, held.market, held.prices.time)
        shown.append(tables.slices("By symbol", "Sharpe", each))
    shown += [tables.slices("By weekday", "t value", weekdays), tables.by_hour(hours)]
    sentences = wording.largest_by_chance("weekday", [one.score for one in weekdays])
    sentences += wording.largest_by_chance("hour", [one.score for one in hours])
    days = figures.daily_distribution(held.name, mine)
    pictures = [picture("daily_returns", "Distribution of daily returns", days)]
    if mine.days >= 2 * ROLLING_DAYS:
        rolling = figures.rolling(held.name, mine, ROLLING_DAYS)
        words = f"Sharpe ratio of the last {ROLLING_DAYS} trading days"
        pictures.insert(0, picture("rolling_sharpe", words, rolling))
    else:
        sentences.append(
            f"A rolling Sharpe ratio is not drawn: it needs {2 * ROLLING_DAYS} trading days, and "
            f"the {held.name} split has {mine.days}."
        )
    return Section("When it was earned", sentences, shown, pictures)


def positions(held: SplitView) -> Section:
    """One picture a symbol."""
    pictures = [
        picture(
            f"positions_{''.join(c if c.isalnum() else '_' for c in track.name)}",
            f"Price and position of {track.name} on the {held.name} split",
            figures.positions(track, held.prices),
        )
        for track in held.tracks[:_MOST_PICTURES]
        if len(track.trace["bar"])
    ]
    left = len(held.tracks) - _MOST_PICTURES
    more = (f"{left} more symbols are not drawn.",) if left > 0 else ()
    return Section("Positions", more, (), pictures)


def training(run: RunEvaluation, seen: Sequence[SplitView]) -> Section:
    """The learning curve, and equity on the bars that the agent was made with."""
    pictures = []
    if run.curves:
        drawn = learning.learning(run.curves)
        pictures.append(picture("learning_curve", "Score over training", drawn))
    for split in seen:
        drawn = figures.equity(split.name, split.agent, split.lines)
        words = f"Equity and drawdown on the {split.name} split"
        pictures.append(picture(f"equity_{split.name}", words, drawn))
    sentence = (
        "The agent learned from the training split and was chosen on the validation split: what it "
        "shows there proves nothing."
    )
    title = "Training, and the splits it has seen"
    return Section(title, (sentence,) if seen else (), (), pictures)
