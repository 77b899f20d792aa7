"""The parts of a market page, each with its tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.core.percent import percent
from slipstream.market.calendar import span
from slipstream.report import learning_figures
from slipstream.report.inputs import Comparison, RunEvaluation
from slipstream.report.market import figures as market_figures
from slipstream.report.market import tables as market_tables
from slipstream.report.market import wording
from slipstream.report.market.baselines import ORACLE
from slipstream.report.market.performance import by_hour, by_symbol, by_weekday, trading
from slipstream.report.market.tables import NamedAccount
from slipstream.report.market.view import SplitView
from slipstream.report.page import Picture, Section, Table, picture
from slipstream.report.statistics import alpha_beta, monthly_returns, worst_drawdowns

_MOST_PICTURES = 8  # of positions; more symbols than that are in the tables only
ROLLING_DAYS = 60  # of the rolling Sharpe ratio; fewer show noise only


def results(splits: Sequence[SplitView]) -> Section:
    """Figures of all splits, and the members."""
    held = splits[0]
    tables = [
        market_tables.by_split(
            {s.name: s.found for s in splits}, held.market, held.run.holdings is None
        )
    ]
    if len(held.members) > 1:
        tables.append(market_tables.members(held))
    return Section("Result", (), tables)


def equity(held: SplitView) -> Picture:
    """The agent beside its baselines and the other members: the first picture of a page."""
    band = [m for index, m in enumerate(held.members) if index != held.run.member]
    return picture(
        f"equity_{held.name}",
        f"Equity and drawdown of the agent and its baselines on the {held.name} split",
        market_figures.equity(held.name, held.agent, held.lines, band),
    )


def against(held: SplitView) -> Section:
    """Baselines, random timing, other costs."""
    title, stress = "Against baselines and other costs", held.run.stress
    comparison = held.comparison
    if comparison is None:
        return Section(title, ("There are no baselines for these actions.",))
    sentences = [
        "All baselines trade the same bars under the same rules and pay the same costs, at "
        "exposure 1 and without the agent's own stops and limits. The oracle knows all future "
        "prices: an upper bound, not a rival.",
        *_random(held),
        *slope(held),
        *promise(held),
    ]
    tables = [baselines(held, comparison)]
    if stress:
        sentences.append(wording.breaks_even(stress.break_even))
        tables.append(market_tables.stress(stress))
    return Section(title, sentences, tables, random_timing(held, "traders"))


def baselines(held: SplitView, comparison: Comparison) -> Table:
    """The agent beside what could be followed, each asset held, and what only hindsight could."""
    rows = [NamedAccount("agent", held.agent, held.tracks)]
    rows += [NamedAccount(n, one, comparison.tracks[n]) for n, one in held.rivals.items()]
    rows += [NamedAccount(f"{n} held", one, comparison.assets[n]) for n, one in held.assets.items()]
    bound = [NamedAccount(n, one, comparison.tracks[n]) for n, one in held.bound.items()]
    return market_tables.baselines(rows, held.draws, bound, held.market)


def random_timing(held: SplitView, whom: str) -> list[Picture]:
    """The agent among the matched random draws; nothing where there are none."""
    if not len(held.draws):
        return []
    shown = {name: rival.total_return for name, rival in held.lines.items()}
    drawn = market_figures.random_draws(held.name, held.agent.total_return, held.draws, shown)
    words = f"Total return of the agent among {len(held.draws)} random {whom}"
    return [picture("random_timing", words, drawn)]


def _random(held: SplitView) -> list[str]:
    if not len(held.draws):
        return []
    low, high = (percent(float(v)) for v in np.quantile(held.draws, [0.05, 0.95]))
    return [
        f"Matched random: {len(held.draws)} draws with the agent's own positions and holding times "
        f"at random places; nine of ten end between {low} and {high}."
    ]


def slope(held: SplitView) -> list[str]:
    """Alpha and beta to the market; alpha is a year's, or the split's own where that is shorter."""
    if held.market_line is None:
        return []
    name, market = held.market_line
    yearly = held.market.days_per_year
    whole = held.found.days >= yearly
    periods = yearly if whole else float(held.found.days)
    line = alpha_beta(held.agent.daily_returns, market.daily_returns, periods)
    if line is None:
        return []
    alpha, beta = line
    over = "a year" if whole else f"over the {span(held.found.days, yearly)}"
    return [f"Against {name}: beta {wording.number(beta, 2)}, alpha {percent(alpha)} {over}."]


def promise(held: SplitView) -> list[str]:
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


def trades(held: SplitView) -> Section:
    """What was traded and what it cost."""
    market = held.market
    done = trading(held.tracks, held.agent)
    table = market_tables.trades(done, held.found, market.bar_seconds, market.account_currency)
    return trades_and_costs(held, table)


def trades_and_costs(held: SplitView, traded: Table) -> Section:
    """What was traded, beside what it cost by kind."""
    drawn = picture(
        "costs",
        f"Return before and after costs, and costs by kind, on the {held.name} split",
        market_figures.gross_and_net(held.name, held.agent),
    )
    return Section("Trades and costs", (), [traded, market_tables.costs(held.agent)], [drawn])


def calendar(held: SplitView, symbols: bool = True) -> Section:
    """Months, falls, symbols (where each has its own passes), weekdays, hours."""
    mine = held.agent
    months = monthly_returns(mine.equity, mine.time[1:])
    weekdays, hours = by_weekday(mine), by_hour(mine)
    tables = [
        market_tables.months(months),
        market_tables.drawdowns(worst_drawdowns(mine.equity, mine.time)),
        market_tables.by_weekday(weekdays),
        market_tables.by_hour(hours),
    ]
    if symbols:
        each = by_symbol(held.tracks, held.market, held.prices.time)
        tables.insert(2, market_tables.by_symbol(each))
    sentences = wording.largest_by_chance("weekday", [one.score for one in weekdays])
    sentences += wording.largest_by_chance("hour", [one.score for one in hours])
    days = market_figures.daily_distribution(held.name, mine)
    pictures = [picture("daily_returns", "Distribution of daily returns", days)]
    if mine.days >= 2 * ROLLING_DAYS:
        rolling = market_figures.rolling(held.name, mine, ROLLING_DAYS)
        words = f"Sharpe ratio of the last {ROLLING_DAYS} trading days"
        pictures.insert(0, picture("rolling_sharpe", words, rolling))
    else:
        sentences.append(
            f"A rolling Sharpe ratio is not drawn: it needs {2 * ROLLING_DAYS} trading days, and "
            f"the {held.name} split has {mine.days}."
        )
    return Section("When it was earned", sentences, tables, pictures)


def positions(held: SplitView) -> Section:
    """One picture a symbol."""
    pictures = [
        picture(
            f"positions_{''.join(c if c.isalnum() else '_' for c in track.name)}",
            f"Price and position of {track.name} on the {held.name} split",
            market_figures.positions(track, held.prices),
        )
        for track in held.tracks[:_MOST_PICTURES]
        if len(track.trace["bar"])
    ]
    left = len(held.tracks) - _MOST_PICTURES
    return Section(
        "Positions", (f"{left} more symbols are not drawn.",) if left > 0 else (), (), pictures
    )


def training(run: RunEvaluation, seen: Sequence[SplitView]) -> Section:
    """The learning curve, and equity on the bars that the agent was made with."""
    pictures = []
    if run.curves:
        drawn = learning_figures.learning(run.curves)
        pictures.append(picture("learning_curve", "Score over training", drawn))
    for split in seen:
        drawn = market_figures.equity(split.name, split.agent, split.lines)
        words = f"Equity and drawdown on the {split.name} split"
        pictures.append(picture(f"equity_{split.name}", words, drawn))
    sentence = (
        "The agent learned from the training split and was chosen on the validation split: what it "
        "shows there proves nothing."
    )
    return Section(
        "Training, and the splits it has seen", (sentence,) if seen else (), (), pictures
    )
