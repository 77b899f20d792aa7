"""Page of a run on prices. Its first screen has a verdict, key figures and warnings.

A run's page never calls a result "profitable" (docs/explanation/statistics.md, section 15), since
its test bars may be used repeatedly.
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

RUIN_RETURN = -0.9  # total return at or below which an account counts as ruined
MARKET_CORRELATION = 0.5  # daily correlation from which a member follows the market
LOOKAHEAD_SHARE = 0.25  # fraction of the oracle's log growth that indicates look-ahead
MAX_NAMED_MEMBERS = 8


def market_page(run: RunEvaluation) -> Page:
    """Build the page; the hold-out comes first everywhere."""
    splits = split_views(run)
    view = splits[0]
    terms = sections.round_trip_sentences(
        {t.symbol: (t.pips, t.basis_points) for t in run.round_trips}
    )
    if not run.financing:
        terms.append("Swaps are 0: financing is not modelled.")
    timing = summary_text.random_trader_sentence(view.percentile, len(view.random_returns))
    middle = [
        sections.baseline_section(view),
        sections.trade_section(view),
        sections.calendar_section(view),
        sections.position_section(view),
    ]
    return build_market_page(splits, opening_sentences(view, timing, terms), middle)


def split_views(run: RunEvaluation) -> list[SplitView]:
    """Return the views of all splits, the hold-out first."""
    names = [run.holdout, *(n for n in reversed(list(run.tracks)) if n != run.holdout)]
    return [SplitView(name, run) for name in names]


def build_market_page(
    splits: Sequence[SplitView], opening: list[str], middle: Sequence[Section]
) -> Page:
    """Build a page of prices from its own sentences and sections."""
    view = splits[0]
    run, performance, yearly = view.run, view.performance, view.market.days_per_year
    in_full = summary_text.headline(
        run.holdout,
        performance.sharpe,
        performance.interval,
        performance.days,
        yearly,
        run.trials + len(run.earlier_uses),
    )
    return Page(
        title=run.title,
        headline=verdict(view),
        figures=key_figures(view),
        picture=sections.equity_picture(view),
        warnings=caveats(view),
        sentences=[in_full, *opening],
        sections=[
            sections.result_section(splits),
            *middle,
            sections.training_section(run, splits[1:]),
            *closing_sections(run),
        ],
    )


def verdict(view: SplitView) -> str:
    """Return one sentence on whether the agent gained, and whether that differs from luck."""
    performance, run = view.performance, view.run
    bars, gain = f"on the {view.name} bars", percent(performance.total_return)
    if never_traded(view):
        return f"It never traded {bars}: there is nothing to judge."
    beside = ""
    if view.market_line is not None:
        name, account = view.market_line
        gain, comparison = summary_text.compare_returns(
            performance.total_return, account.total_return
        ).split(" against ")
        beside = f"; {name} made {comparison}"
    if performance.total_return <= RUIN_RETURN:
        return f"The account is ruined: {gain} {bars}{beside}."
    if not run.unseen:
        return f"No proof: {gain} on {view.name} bars that are not known to be new to it."
    if performance.interval is None:
        return f"Too few days to judge: {gain} {bars}{beside}."
    if performance.interval[1] < 0.0:
        return f"Loss, statistically significant: {gain} {bars}{beside}."
    if performance.total_return <= 0.0:
        return f"Loss, may be luck: {gain} {bars}{beside}."
    return f"Gain{_doubt_suffix(view)}: {gain} {bars}{beside}."


def _doubt_suffix(view: SplitView) -> str:
    """Return the first reason to doubt a gain; a run's page never claims more than luck."""
    performance, yearly = view.performance, view.market.days_per_year
    if not summary_text.is_above_zero(performance.interval):
        return ", may be luck"
    smallest = min_detectable_sharpe(performance.days, yearly)
    if performance.sharpe is None or smallest is None or performance.sharpe <= smallest:
        return f", too small to confirm with {span(performance.days, yearly)}"
    if view.percentile is not None and view.percentile < summary_text.BETTER_THAN_RANDOM:
        return ", but random timing does equally well"
    return ", unlikely to be luck"


def key_figures(view: SplitView) -> list[KeyFigure]:
    """Return return, Sharpe ratio, smallest confirmable ratio, rank and costs."""
    performance, run, yearly = view.performance, view.run, view.market.days_per_year
    reads = f", read {run.holdout_reads} times" if run.holdout_reads > 1 else ""
    bars = f"{view.name}, {span(performance.days, yearly)}{reads}"
    figures = [KeyFigure("Return after costs", percent(performance.total_return), bars)]
    figures += summary_text.sharpe_figures(
        performance.sharpe, performance.interval, performance.days, yearly
    )
    if view.percentile is not None:
        idle = never_traded(view)
        alike = "its decisions, shuffled" if run.is_portfolio else "the same holding times"
        value = NOTHING if idle else format_percent(view.percentile / 100.0)
        note = "it never traded" if idle else f"of {len(view.random_returns)} with {alike}"
        figures.append(KeyFigure("Random traders that did worse", value, note))
    points = [trip.basis_points for trip in run.round_trips]
    trip = f"; round trip {format_band(points)} bp" if points else ""
    costs = format_percent(performance.costs / float(view.agent.equity[0]), 1)
    return [*figures, KeyFigure("Costs", costs, f"of initial equity{trip}")]


def caveats(view: SplitView) -> list[str]:
    """Return warnings that must be read before the figures."""
    performance, run = view.performance, view.run
    lines = [*run.accepted]
    if run.holdout_reads > 1:
        lines.append(
            f"The {run.holdout} split has been evaluated {run.holdout_reads} times: choices made "
            "between these evaluations make its figures too good."
        )
    lines += summary_text.short_sample_warning(performance.days, view.market.days_per_year)
    lines += summary_text.rare_loss_warning(view.agent.daily_returns)
    lines += _lookahead_warning(view)
    if performance.total_return <= RUIN_RETURN:
        lines.append(
            f"The account lost {format_percent(-performance.total_return, 1)}. Its Sharpe ratio, "
            "made of daily percentages of an account that shrinks, does not show that."
        )
    return lines


def _lookahead_warning(view: SplitView) -> list[str]:
    """Warn if the agent earns so much of the oracle's gain that it may see future prices."""
    best = max(
        (float(np.log1p(oracle.total_return)) for oracle in view.oracle.values()), default=0.0
    )
    growth = float(np.log1p(max(view.performance.total_return, RUIN_RETURN)))
    if best <= 0.0 or growth < LOOKAHEAD_SHARE * best:
        return []
    return [
        f"The agent earns {format_percent(growth / best)} of the log growth of the oracle, which "
        f"uses all future prices. {format_percent(LOOKAHEAD_SHARE)} or more is a sign of "
        "look-ahead: check that every column of the prices is available at its bar's close, and "
        "not "
        "computed from later bars."
    ]


def never_traded(view: SplitView) -> bool:
    """Return True if no order was filled and nothing was held."""
    return not sum_metric(view.tracks, "fills") and not view.performance.exposure


def opening_sentences(
    view: SplitView, timing: Sequence[str], terms: Sequence[str], trading: Sequence[str] = ()
) -> list[str]:
    """Return the full assessment of the result.

    Args:
        view: the hold-out.
        timing: comparison with the agent's own decisions at other times.
        terms: sentences about costs.
        trading: sentences about how the agent trades, placed before comparisons.
    """
    run, agent, yearly = view.run, view.agent, view.market.days_per_year
    market = market_sentences(view)
    trials_text = (
        f"Number of trials: {run.trials}{outcome_text.describe_earlier_runs(run.earlier_uses)}."
    )
    last = [*seed_band(view), *market, *terms, trials_text]
    returns = {name: baseline.total_return for name, baseline in view.rule_baselines.items()}
    if never_traded(view):
        baseline_text = ", ".join(f"{name} {percent(value)}" for name, value in returns.items())
        beside = f"; on the same bars: {baseline_text}" if baseline_text else ""
        return [f"The agent never traded: its account is unchanged{beside}.", *last]
    # Results on bars used for training or selection are no evidence.
    bounds = view.performance.interval if run.unseen else None
    differences = {
        name: sharpe_interval(agent.daily_returns - baseline.daily_returns, yearly)
        for name, baseline in view.rule_baselines.items()
    }
    compared = summary_text.baseline_sentences(
        agent.total_return, returns, bounds, differences, unseen=run.unseen
    )
    verdict = summary_text.verdict(view.name, agent.total_return, bounds, run.unseen)
    return [verdict, *trading, *compared, *timing, *last]


def seed_band(view: SplitView) -> list[str]:
    """Report how the Sharpe ratios of the members differ."""
    count, run = len(view.members), view.run
    if count < 2:
        return []
    ratios = [
        performance.sharpe for performance in view.performances if performance.sharpe is not None
    ]
    if not ratios:
        return [f"None of the {count} members has a Sharpe ratio. {run.member_note}"]
    if len(ratios) == 1:
        sentence = (
            f"Of {count} {run.member_noun} one has a Sharpe ratio, {format_number(ratios[0])}."
        )
        return [f"{sentence} {run.member_note}"]
    some = "" if len(ratios) == count else f" ({len(ratios)} of {count} have one)"
    sharpes = format_range_and_median(ratios)
    over = f"Over {count} {run.member_noun} the {view.name} Sharpe is {sharpes}{some}."
    return [f"{over} {run.member_note}"]


def market_sentences(view: SplitView) -> list[str]:
    """Report the market's return, and which members follow it.

    This explains a wide range over seeds. For a single member, report net exposure and correlation.
    """
    if view.market_line is None:
        return []
    name, account = view.market_line
    ratio = sharpe(account.daily_returns, view.market.days_per_year)
    text = (
        f"The market itself on these bars: {name} {percent(account.total_return)}, Sharpe "
        f"{format_number(ratio)}."
    )
    if len(view.members) == 1:
        text += (
            f" The agent's mean net exposure is {format_number(view.net_exposure(0), 2)}, and the "
            "correlation of its daily returns with the market's is "
            f"{format_number(view.market_correlations[0], 2)}."
        )
    for sign, direction in ((1.0, "with"), (-1.0, "against")):
        followers = [
            k
            for k, v in enumerate(view.market_correlations)
            if v is not None and sign * v >= MARKET_CORRELATION
        ]
        if followers:
            follows = format_band([view.market_correlations[k] or 0.0 for k in followers], 2)
            nets = format_band([view.net_exposure(k) for k in followers], 2)
            figures = f" (correlation of daily returns {follows}, mean net exposure {nets})"
            figures *= len(view.members) > 1
            text += (
                f" {_members(view, followers)} {direction} it{figures}: much of such a return is "
                "market exposure, not timing."
            )
    return [text]


def _members(view: SplitView, followers: Sequence[int]) -> str:
    """Return members and their verb, such as "Members 1, 2 and 5 move"."""
    numbers = [str(view.run.number(index)) for index in followers]
    if len(view.members) == 1:
        return "It moves"
    if len(followers) == len(view.members):
        return "All members move"
    if len(followers) > MAX_NAMED_MEMBERS:
        return f"{len(followers)} of {len(view.members)} members move"
    if len(followers) == 1:
        return f"Member {numbers[0]} moves"
    return f"Members {', '.join(numbers[:-1])} and {numbers[-1]} move"
