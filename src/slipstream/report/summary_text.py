"""Sentences on daily returns in reports. Nothing is claimed without proof.

The words "profitable" and "outperforms" are written only for a study's hold-out that proves
them; see `slipstream.report.study.study_summary.missing_evidence`. The page of a run never uses
them, because its bars may be evaluated any number of times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from slipstream.core.text import percent, span
from slipstream.report.number_format import format_interval, format_number, format_percent
from slipstream.report.page import KeyFigure
from slipstream.report.statistics import LARGE_LOSS, Floats, Interval, has_no_large_loss
from slipstream.studies.statistics.bootstrap import MIN_BOUND_DAYS
from slipstream.studies.statistics.overfitting import expected_best_sharpe, min_detectable_sharpe

DRAWDOWN = (
    "Drawdown: maximum drawdown of daily closes. The metric `max_drawdown`, which constraints "
    "limit, uses the closes of bars."
)
BETTER_THAN_RANDOM = 95.0  # minimum percentile among matched random traders to count as better


def compare_returns(mine: float, other: float) -> str:
    """Return two returns, "-3.1 % against +2.0 %", with enough digits to distinguish them."""
    for digits in (1, 2, 3, 4):
        first, second = percent(mine, digits), percent(other, digits)
        if first != second:
            break
    else:
        first, second = percent(mine), percent(other)
    return f"{first} against {second}"


def short_sample_warning(days: int, per_year: float) -> list[str]:
    """Warn of less than a year of daily returns; an empty list if there is more, or none."""
    if days == 0 or days >= per_year:
        return []
    error = format_number(1.0 / math.sqrt(days / per_year))
    return [
        f"{span(days, per_year)} are few: the standard error of an annual Sharpe ratio is "
        f"about {error}."
    ]


def rare_loss_warning(returns: Floats) -> list[str]:
    """Warn of daily returns without a large loss: such losses may be rare, not absent."""
    if not has_no_large_loss(returns):
        return []
    size = float(np.mean(np.abs(returns)))
    worst = max(-float(np.min(returns)), 0.0)
    return [
        f"Rare large losses cannot be judged from these {len(returns)} days: the largest daily "
        f"loss is {format_percent(worst, 2)}, less than {LARGE_LOSS:g} times the mean absolute "
        f"daily return of {format_percent(size, 2)}. Intervals and bounds do not include losses "
        "that never occurred."
    ]


def headline(
    split: str,
    sharpe: float | None,
    interval: tuple[float, float] | None,
    days: int,
    per_year: float,
    trials: int = 1,
) -> str:
    """Return the hold-out's Sharpe ratio and what this amount of data can confirm.

    Args:
        split: name of the split.
        sharpe, interval: annual Sharpe ratio and its interval.
        days: trading days of the split.
        per_year: trading days of a year.
        trials: number of trials, including the chosen one.
    """
    years = days / per_year
    length = f"({span(days, per_year)})"
    name = split.capitalize()
    if sharpe is None:
        return f"{name} Sharpe n/a: equity never moved, or there are too few days {length}."
    if interval is None:
        lead = f"{name} Sharpe {format_number(sharpe)}, no interval: too few days {length}."
    else:
        by = f", by {interval.method}" if isinstance(interval, Interval) else ""
        bounds = format_interval(interval)
        lead = f"{name} Sharpe {format_number(sharpe)}, 95 % interval {bounds} {length}{by}."
    smallest = min_detectable_sharpe(days, per_year)
    if smallest is None:
        lead += f" Below {MIN_BOUND_DAYS} days no Sharpe ratio could be confirmed"
    else:
        lead += (
            f" The smallest Sharpe that this much data could confirm is {format_number(smallest)}"
        )
    best = expected_best_sharpe(trials, years)
    if best is None:
        return f"{lead}."
    return (
        f"{lead}. The best of {trials} trials without skill is expected to reach "
        f"{format_number(best)}."
    )


def is_above_zero(interval: tuple[float, float] | None) -> bool:
    """Return True if the interval is above zero."""
    return interval is not None and interval[0] > 0.0


RUNS_PROVE_NOTHING = (
    "these bars may be evaluated any number of times; only a study's hold-out, opened once, "
    "can prove anything"
)


def verdict(
    split: str,
    total_return: float,
    interval: tuple[float, float] | None,
    unseen: bool = True,
    proven: bool = False,
    missing: str = RUNS_PROVE_NOTHING,
) -> str:
    """Return the verdict: gain or loss, and whether luck explains it.

    Args:
        split: name of the bars.
        total_return: total return, a fraction.
        interval: interval of the Sharpe ratio.
        unseen: these bars neither trained nor selected the policy.
        proven: the study meets all conditions of section 15 of docs/explanation/statistics.md.
        missing: conditions that it does not meet although the interval excludes zero.
    """
    gain = f"{percent(total_return)} after costs on the {split} bars"
    if not unseen:
        return f"The agent ends at {gain}: no proof, for they are not known to be new to it."
    if is_above_zero(interval) and total_return > 0.0:
        if proven:
            return (
                f"The agent was profitable: {gain}, and the 95 % interval of its Sharpe ratio "
                "excludes zero."
            )
        return (
            f"The agent ends at {gain}, and the 95 % interval of its Sharpe ratio excludes zero. "
            f"That is no proof: {missing}."
        )
    if interval is not None and interval[1] < 0.0:
        return (
            f"The agent loses money: {gain}, and the 95 % interval of its Sharpe ratio is below "
            "zero."
        )
    if interval is None:
        return f"The agent ends at {gain}; that is too little data to distinguish skill from luck."
    return f"The agent ends at {gain}; the interval includes zero, so this may be luck."


def baseline_sentences(
    agent: float,
    others: Mapping[str, float],
    interval: tuple[float, float] | None,
    differences: Mapping[str, tuple[float, float] | None],
    proven: Collection[str] = (),
    unseen: bool = True,
) -> list[str]:
    """Return one sentence per baseline.

    Args:
        agent: the agent's total return, a fraction.
        others: total returns of the baselines by name.
        interval: of the agent's Sharpe ratio.
        differences: interval of the Sharpe ratio of the daily returns minus each baseline's.
        proven: baselines that the agent has been shown to be better than; studies only.
        unseen: as for `verdict`.
    """
    doubt = "the difference may be chance"
    if not unseen:
        doubt = "these bars prove nothing"
    elif interval is None:
        doubt = "there are too few days to exclude chance"
    lines = []
    for name, other in others.items():
        if agent <= other:
            lines.append(f"The agent does not beat {name}: {compare_returns(agent, other)}.")
        elif is_above_zero(interval) and is_above_zero(differences.get(name)):
            shown = "outperforms" if name in proven else "is ahead of"
            lines.append(f"The agent {shown} {name}: {compare_returns(agent, other)}.")
        else:
            lines.append(
                f"The agent is ahead of {name}, {compare_returns(agent, other)}, but {doubt}."
            )
    return lines


def random_trader_sentence(percentile: float | None, draws: int) -> list[str]:
    """Compare the agent with traders that differ from it only in their timing."""
    if percentile is None:
        return []
    text = (
        f"Its return is at percentile {format_number(percentile, 0)} of {draws} random traders "
        "with the same positions and holding times"
    )
    if percentile < BETTER_THAN_RANDOM:
        return [f"{text}: no evidence that its timing is better."]
    return [f"{text}."]


def sharpe_figures(
    ratio: float | None, bounds: tuple[float, float] | None, days: int, per_year: float
) -> list[KeyFigure]:
    """Return the annual Sharpe ratio with its interval, and the smallest confirmable ratio.

    A ratio is "n/a" without a deviation, and an interval with too few days.
    """
    value, note = format_number(ratio), f"95 % interval {format_interval(bounds)}"
    if isinstance(bounds, Interval):
        note += f", by {bounds.method}"
    if ratio is None or bounds is None:
        note = "equity never moved" if ratio is None else "too few days for an interval"
    smallest, by = (
        format_number(min_detectable_sharpe(days, per_year)),
        f"with {span(days, per_year)}",
    )
    return [
        KeyFigure("Annual Sharpe ratio", value, note),
        KeyFigure("Smallest detectable Sharpe", smallest, by),
    ]


def interval_note(named: Mapping[str, Interval | None]) -> str:
    """Return a sentence with the methods of a table's intervals; empty without intervals.

    Args:
        named: intervals by the name of their row or column.
    """
    rows: dict[str, list[str]] = {}
    for name, one in named.items():
        if one is not None:
            rows.setdefault(one.method, []).append(name)
    if not rows:
        return ""
    parts = [f"{by} ({', '.join(names)})" for by, names in rows.items()]
    method_note = next(iter(rows)) if len(rows) == 1 else "; ".join(parts)
    return (
        "Interval: each end is the widest of three methods: stationary bootstrap (Politis and "
        "Romano 1994, mean block 10 days), Mertens' and Newey-West standard errors of daily "
        f"returns. Widest here: {method_note}."
    )
