"""The page of a run on prices; its first screen: a verdict, a row of figures, what warns of them.

A run's page never calls a result "profitable" (docs/rules.md, section 15): its test bars may be
read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.core.text import NOTHING, percent, span
from slipstream.markets.evaluation.performance import SplitView, sum_metric
from slipstream.markets.report import market_sections as sections
from slipstream.report import summary_text
from slipstream.report.history import closing_sections
from slipstream.report.inputs import RunEvaluation
from slipstream.report.number_format import (
    format_band,
    format_number,
    format_percent,
    format_range_and_median,
)
from slipstream.report.page import KeyFigure, Page, Section
from slipstream.report.statistics import sharpe, sharpe_interval
from slipstream.studies.outcome import outcome_text
from slipstream.studies.statistics.overfitting import min_detectable_sharpe

RUIN_RETURN = -0.9  # total return from which on an account is called ruined
MARKET_CORRELATION = 0.5  # correlation of daily returns from which on a member goes with the market
LOOKAHEAD_SHARE = 0.25  # share of the oracle's log growth from which on a page warns of look-ahead
MAX_NAMED_MEMBERS = 8  # members


def market_page(run: RunEvaluation) -> Page:
    """Builds the page; the hold-out comes first everywhere."""
    splits = split_views(run)
    held = splits[0]
    terms = sections.round_trip_sentences(
        {t.symbol: (t.pips, t.basis_points) for t in run.round_trips}
    )
    if not run.financing:
        terms.append("Swaps are 0: financing not modelled.")
    timing = summary_text.random_trader_sentence(held.percentile, len(held.random_returns))
    middle = [
        sections.baseline_section(held),
        sections.trade_section(held),
        sections.calendar_section(held),
        sections.position_section(held),
    ]
    return build_market_page(splits, opening_sentences(held, timing, terms), middle)


def split_views(run: RunEvaluation) -> list[SplitView]:
    """All splits, the hold-out first."""
    names = [run.holdout, *(n for n in reversed(list(run.tracks)) if n != run.holdout)]
    return [SplitView(name, run) for name in names]


def build_market_page(
    splits: Sequence[SplitView], opening: list[str], middle: Sequence[Section]
) -> Page:
    """What every page of prices has in common, around its own sentences and sections."""
    held = splits[0]
    run, found, yearly = held.run, held.performance, held.market.days_per_year
    in_full = summary_text.headline(
        run.holdout,
        found.sharpe,
        found.interval,
        found.days,
        yearly,
        run.trials + len(run.earlier_uses),
    )
    return Page(
        title=run.title,
        headline=verdict(held),
        figures=key_figures(held),
        picture=sections.equity_picture(held),
        warnings=caveats(held),
        sentences=[in_full, *opening],
        sections=[
            sections.result_section(splits),
            *middle,
            sections.training_section(run, splits[1:]),
            *closing_sections(run),
        ],
    )


def verdict(held: SplitView) -> str:
    """Whether the agent gained, and whether that can be told from luck, in one short sentence."""
    found, run = held.performance, held.run
    bars, gain = f"on the {held.name} bars", percent(found.total_return)
    if never_traded(held):
        return f"It never traded {bars}: there is nothing to judge."
    beside = ""
    if held.market_line is not None:
        name, account = held.market_line
        gain, other = summary_text.compare_returns(found.total_return, account.total_return).split(
            " against "
        )
        beside = f"; {name} made {other}"
    if found.total_return <= RUIN_RETURN:
        return f"The account is ruined: {gain} {bars}{beside}."
    if not run.unseen:
        return f"No proof: {gain} on {held.name} bars that are not known to be new to it."
    if found.interval is None:
        return f"Too few days to judge: {gain} {bars}{beside}."
    if found.interval[1] < 0.0:
        return f"A loss beyond what luck explains: {gain} {bars}{beside}."
    if found.total_return <= 0.0:
        return f"A loss, within what luck explains: {gain} {bars}{beside}."
    return f"A gain{_doubt_suffix(held)}: {gain} {bars}{beside}."


def _doubt_suffix(held: SplitView) -> str:
    """The first reason not to call a gain skill; a run's page never goes beyond luck."""
    found, yearly = held.performance, held.market.days_per_year
    if not summary_text.is_above_zero(found.interval):
        return ", within what luck explains"
    smallest = min_detectable_sharpe(found.days, yearly)
    if found.sharpe is None or smallest is None or found.sharpe <= smallest:
        return f" too small for {span(found.days, yearly)} to confirm"
    if held.percentile is not None and held.percentile < summary_text.BETTER_THAN_RANDOM:
        return ", but random timing does as well"
    return " beyond what luck easily explains"


def key_figures(held: SplitView) -> list[KeyFigure]:
    """The row of the first screen: return, Sharpe ratio, what could be confirmed, rank, costs."""
    found, run, yearly = held.performance, held.run, held.market.days_per_year
    looked = f", read {run.holdout_reads} times" if run.holdout_reads > 1 else ""
    bars = f"{held.name}, {span(found.days, yearly)}{looked}"
    shown = [KeyFigure("Return after costs", percent(found.total_return), bars)]
    shown += summary_text.sharpe_figures(found.sharpe, found.interval, found.days, yearly)
    if held.percentile is not None:
        idle = never_traded(held)
        alike = "its decisions, shuffled" if run.is_portfolio else "the same holding times"
        value = NOTHING if idle else format_percent(held.percentile / 100.0)
        note = "it never traded" if idle else f"of {len(held.random_returns)} with {alike}"
        shown.append(KeyFigure("Random traders that did worse", value, note))
    points = [trip.basis_points for trip in run.round_trips]
    trip = f"; round trip {format_band(points)} bp" if points else ""
    costs = format_percent(found.costs / float(held.agent.equity[0]), 1)
    return [*shown, KeyFigure("Costs", costs, f"of the start{trip}")]


def caveats(held: SplitView) -> list[str]:
    """What must be known before the figures are believed."""
    found, run = held.performance, held.run
    lines = [*run.accepted]
    if run.holdout_reads > 1:
        lines.append(
            f"The {run.holdout} split has been evaluated {run.holdout_reads} times: choices made "
            "between these looks make its figures too good."
        )
    lines += summary_text.short_sample_warning(found.days, held.market.days_per_year)
    lines += summary_text.rare_loss_warning(held.agent.daily_returns)
    lines += _lookahead_warning(held)
    if found.total_return <= RUIN_RETURN:
        lines.append(
            f"The account lost {format_percent(-found.total_return, 1)}. Its Sharpe ratio, made of "
            "daily percentages of an account that shrinks, does not show that."
        )
    return lines


def _lookahead_warning(held: SplitView) -> list[str]:
    """Whether the agent earns so much of what hindsight allows that it may see future prices."""
    best = max((float(np.log1p(one.total_return)) for one in held.oracle.values()), default=0.0)
    growth = float(np.log1p(max(held.performance.total_return, RUIN_RETURN)))
    if best <= 0.0 or growth < LOOKAHEAD_SHARE * best:
        return []
    return [
        f"The agent earns {format_percent(growth / best)} of the log growth of the oracle, which "
        f"knows all future prices. {format_percent(LOOKAHEAD_SHARE)} or more is a sign of "
        "look-ahead: check that every column of the prices is known at its bar's close, and not "
        "computed from later bars."
    ]


def never_traded(held: SplitView) -> bool:
    """Whether no order was filled and nothing was ever held."""
    return not sum_metric(held.tracks, "fills") and not held.performance.exposure


def opening_sentences(
    held: SplitView, timing: Sequence[str], terms: Sequence[str], trading: Sequence[str] = ()
) -> list[str]:
    """What the result is worth, in full.

    Args:
        held: the hold-out.
        timing: the agent among its own decisions at other places.
        terms: what was paid.
        trading: what must be said of how it trades before it is compared.
    """
    run, agent, yearly = held.run, held.agent, held.market.days_per_year
    market = market_sentences(held)
    tried = f"Trials tried: {run.trials}{outcome_text.describe_earlier_runs(run.earlier_uses)}."
    last = [*seed_band(held), *market, *terms, tried]
    returns = {name: baseline.total_return for name, baseline in held.rule_baselines.items()}
    if never_traded(held):
        made = ", ".join(f"{name} {percent(value)}" for name, value in returns.items())
        beside = f"; on the same bars: {made}" if made else ""
        return [f"The agent never traded: its account stands where it began{beside}.", *last]
    # Proof on bars that were trained or chosen on is none.
    bounds = held.performance.interval if run.unseen else None
    differences = {
        name: sharpe_interval(agent.daily_returns - baseline.daily_returns, yearly)
        for name, baseline in held.rule_baselines.items()
    }
    compared = summary_text.baseline_sentences(
        agent.total_return, returns, bounds, differences, unseen=run.unseen
    )
    verdict = summary_text.verdict(held.name, agent.total_return, bounds, run.unseen)
    return [verdict, *trading, *compared, *timing, *last]


def seed_band(held: SplitView) -> list[str]:
    """Says how the Sharpe ratios of the members differ."""
    count, run = len(held.members), held.run
    if count < 2:
        return []
    known = [found.sharpe for found in held.performances if found.sharpe is not None]
    if not known:
        return [f"None of the {count} members has a Sharpe ratio. {run.member_note}"]
    if len(known) == 1:
        one = f"Of {count} {run.member_noun} one has a Sharpe ratio, {format_number(known[0])}."
        return [f"{one} {run.member_note}"]
    some = "" if len(known) == count else f" ({len(known)} of {count} have one)"
    sharpes = format_range_and_median(known)
    over = f"Over {count} {run.member_noun} the {held.name} Sharpe is {sharpes}{some}."
    return [f"{over} {run.member_note}"]


def market_sentences(held: SplitView) -> list[str]:
    """The market's own move, and whose figures are that rather than timing.

    It explains a wide seed band. Of a single member it gives net exposure and correlation.
    """
    if held.market_line is None:
        return []
    name, account = held.market_line
    ratio = sharpe(account.daily_returns, held.market.days_per_year)
    text = (
        f"The market itself on these bars: {name} {percent(account.total_return)}, Sharpe "
        f"{format_number(ratio)}."
    )
    if len(held.members) == 1:
        text += (
            f" The agent's mean net exposure is {format_number(held.net_exposure(0), 2)}, and the "
            "correlation of its daily returns with the market's is "
            f"{format_number(held.market_correlations[0], 2)}."
        )
    for sign, words in ((1.0, "with"), (-1.0, "against")):
        followers = [
            k
            for k, v in enumerate(held.market_correlations)
            if v is not None and sign * v >= MARKET_CORRELATION
        ]
        if followers:
            follows = format_band([held.market_correlations[k] or 0.0 for k in followers], 2)
            nets = format_band([held.net_exposure(k) for k in followers], 2)
            figures = f" (correlation of daily returns {follows}, mean net exposure {nets})"
            figures *= len(held.members) > 1
            text += (
                f" {_members(held, followers)} {words} it{figures}: such ups and downs are in "
                "good part "
                "the market's, not timing."
            )
    return [text]


def _members(held: SplitView, followers: Sequence[int]) -> str:
    """Names members and what they do: "Members 1, 2 and 5 move"."""
    numbers = [str(held.run.number(index)) for index in followers]
    if len(held.members) == 1:
        return "It moves"
    if len(followers) == len(held.members):
        return "All members move"
    if len(followers) > MAX_NAMED_MEMBERS:
        return f"{len(followers)} of {len(held.members)} members move"
    if len(followers) == 1:
        return f"Member {numbers[0]} moves"
    return f"Members {', '.join(numbers[:-1])} and {numbers[-1]} move"
