"""Sentences of a study's page. Nothing is claimed without evidence.

Conditions for "profitable" and "outperforms": docs/explanation/statistics.md, section 15.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from slipstream.core.text import plural
from slipstream.report import summary_text
from slipstream.report.inputs import BUY_AND_HOLD
from slipstream.report.number_format import format_number, format_percent, format_range_and_median
from slipstream.report.statistics import Floats, compound_return, sharpe, sharpe_interval
from slipstream.report.study.study_view import ReturnCurves, StudyView
from slipstream.studies.outcome import outcome_text
from slipstream.studies.search.pruner import describe_rung
from slipstream.studies.statistics.overfitting import (
    PBO_NOISE_NOTE,
    describe_detectable,
    expected_best_sharpe,
    expected_maximum,
    min_detectable_sharpe,
)

HOLDOUT = "hold-out"
_FAR = 2.0  # factor of luck's deviation above which trials are considered different
OPTIMISTIC = (
    "Trial scores are optimistic by construction: the same test blocks scored and selected the "
    "trials. Only the hold-out took no part in the selection."
)


def warnings(view: StudyView) -> list[str]:
    """Return the warnings at the top of the page."""
    result = view.result
    lines = [*view.accepted]
    if (result["holdout"] or {}).get("opening", 0) > 1:
        lines += outcome_text.describe_openings(result["holdout"])
    winner = result["winner"]
    if winner is not None and not winner["forced"]:
        lines += outcome_text.describe_chance(result)
    else:
        if winner is not None:
            lines.append(f"Trial {winner['trial']} was deployed by force nevertheless.")
        lines += outcome_text.explain_no_winner(result)
    if result["holdout"] is not None:
        lines += outcome_text.describe_holdout(result)[1:]
    if view.holdout is not None:
        lines += summary_text.short_sample_warning(len(view.holdout.time), view.holdout.periods)
    lines.append(OPTIMISTIC)
    lines += [text for text in (_pruning(view), _pbo(result), _cut_search(result)) if text]
    judged = view.holdout or view.fresh
    if judged is not None:
        lines += summary_text.rare_loss_warning(judged.curves[0])
    if (result.get("deployed") or {}).get("refit"):
        lines.append(f"There is a second policy, {result['deployed']['refit_label']}.")
    return lines


def summary_sentences(view: StudyView) -> list[str]:
    """Return a short verdict, and the sentences below it."""
    result = view.result
    winner, entry = result["winner"], result["holdout"]
    if winner is None:
        return [
            outcome_text.describe_no_winner(result),
            *_market_direction(result),
            _trial_counts(result),
        ]
    name, shown = outcome_text.describe_deployment(winner), outcome_text.describe_holdout(result)
    if view.holdout is None:  # a game, or no seed was trained to its end
        return [f"{name} {shown[0]}", _trial_counts(result)]
    lines = _holdout_sentences(view, view.holdout, entry)
    if winner["forced"]:
        lines = [outcome_text.describe_no_winner(result), *lines, name]
    else:
        lines = [f"{name} {_short_verdict(view, view.holdout)}", *lines]
    label = (result["deployed"] or {}).get("label") or "the first seed"
    more = [shown[0], *_seeds(view.holdout, label)]
    more += outcome_text.describe_openings(entry) if entry["opening"] == 1 else []
    return [
        *lines,
        *more,
        *_market_direction(result),
        *expected_best_sentences(view),
        _trial_counts(result),
    ]


def _market_direction(result: Mapping[str, Any]) -> list[str]:
    """Describe the market's own return, and the agent's correlation with it."""
    return [text for text in (outcome_text.describe_market_exposure(result),) if text]


def _short_verdict(view: StudyView, lines: ReturnCurves) -> str:
    """Return the hold-out's result in one short sentence."""
    if compound_return(lines.curves[0]) <= 0.0:
        return "It loses money on the hold-out."
    if missing_evidence(view):
        return "It gains on the hold-out, which is no proof."
    return "It was profitable on the hold-out."


def _holdout_sentences(view: StudyView, lines: ReturnCurves, entry: Mapping[str, Any]) -> list[str]:
    """Return figures and comparisons of the deployable policy, which is the first seed."""
    mine, other, periods = lines.curves[0], lines.benchmark, lines.periods
    interval = sharpe_interval(mine, periods)
    total_return = compound_return(mine)
    rivals, differences = {"cash": 0.0}, {"cash": interval}
    if other is not None:
        rivals = {"equal weight": compound_return(other), **rivals}
        differences["equal weight"] = sharpe_interval(mine - other, periods)
    elif lines.market is not None:
        rivals = {BUY_AND_HOLD: compound_return(lines.market), **rivals}
        differences[BUY_AND_HOLD] = sharpe_interval(mine - lines.market, periods)
    unseen = entry["opening"] <= 1
    proof = interval if unseen else None  # bars seen before prove nothing
    missing = missing_evidence(view)
    sentences = [
        summary_text.headline(HOLDOUT, sharpe(mine, periods), interval, len(mine), periods),
        summary_text.verdict(
            HOLDOUT, total_return, interval, unseen, not missing, "; ".join(missing)
        ),
        *summary_text.baseline_sentences(
            total_return, rivals, proof, differences, outperformed_rivals(view), unseen
        ),
    ]
    if view.random_traders is not None:
        sentences += summary_text.random_trader_sentence(
            view.random_traders.percentile, view.random_traders.draws
        )
    elif view.random_missing:
        sentences.append(f"It is not compared with random traders: {view.random_missing}.")
    return sentences


def _seeds(lines: ReturnCurves, label: str) -> list[str]:
    every = [sharpe(curve, lines.periods) for curve in lines.curves]
    known = [value for value in every if value is not None]
    if len(known) < 2:
        return []
    return [
        f"Over {len(known)} seeds the {HOLDOUT} Sharpe is {format_range_and_median(known)}. "
        f"The headline is of the deployable policy, {label}."
    ]


def _trial_counts(result: Mapping[str, Any]) -> str:
    entry, held = result["trials"], result["holdout"] or {}
    before_it = [*held.get("before", ()), *held.get("accesses", ())]
    before = result.get("warm_start")
    warm = before and (
        f" The sampler was warm-started with {plural(before['num_trials'], 'finished trial')} of "
        f"the study {before['study']}. Its {before['num_started']} started trials count as tried "
        "in the correction for multiple testing only."
    )
    violating = f", violating a constraint {entry['violating']}" if entry.get("violating") else ""
    cut = f"; cut by the time budget {entry['timed_out']}" if entry.get("timed_out") else ""
    return (
        f"Number of trials: {entry['started']}; complete {entry['complete']}, of these inactive "
        f"{entry['inactive']}{violating}; pruned {entry['pruned']}; failed {entry['failed']}"
        f"{cut}{outcome_text.describe_earlier_runs(before_it)}.{outcome_text.describe_earlier_studies(entry.get('earlier'))}"
        f"{warm or ''}"
    )


def _pruning(view: StudyView) -> str:
    """Describe the state of pruning at the end."""
    rungs = view.result["rungs"]
    stopped = view.result["trials"]["pruned"]
    if not rungs:
        return ""
    alike: dict[str, list[str]] = {}
    for rung in rungs:
        alike.setdefault(rung_state(rung), []).append(
            describe_rung(rung["share"], rung["rollouts"])
        )
    parts = [
        f"the rung{'s' * (len(at) > 1)} at {' and '.join(at)} of the budget "
        f"{rung_state_plural(words) if len(at) > 1 else words}"
        for words, at in alike.items()
    ]
    return f"Pruning stopped {plural(stopped, 'trial')}. Its rungs: {'; '.join(parts)}."


def rung_state_plural(words: str) -> str:
    """Return the state of a rung as the state of several rungs."""
    return re.sub(r"^(is|was)\b", lambda verb: {"is": "are", "was": "were"}[verb[0]], words)


def rung_state(rung: Mapping[str, Any]) -> str:
    """Describe the state of a rung at the end."""
    if rung.get("same_as"):
        return f"is the same as {rung['same_as']}: the budget has too few rollouts"
    if rung["rho"] is None:
        return "never stopped a trial: too few had finished to measure its predictive power"
    known = f"rank correlation with final scores {format_number(rung['rho'], 2)}"
    if rung["armed"]:
        return f"was armed ({known})"
    return f"was disarmed ({known}: it predicts too little)"


def _pbo(result: Mapping[str, Any]) -> str:
    entry = (result["evidence"] or {}).get("pbo")
    if entry is None:
        return ""
    if "value" not in entry:
        return f"Probability of backtest overfitting: not computed, {entry['reason']}."
    text = (
        f"Probability of backtest overfitting {format_number(entry['value'], 2)} over "
        f"{entry['columns']} trials. {PBO_NOISE_NOTE}"
    )
    if has_stable_losers(entry):
        text += (
            " A low probability shows that the order of the trials is stable, for example because "
            "some pay more costs than others. It does not show that any earns: the best trial of "
            "one half of the days loses money in the other half in "
            f"{format_percent(entry['probability_of_loss'])} of halves."
        )
    return text


def has_stable_losers(entry: Mapping[str, Any]) -> bool:
    """Return True if the best trial of a half ranks high but loses money in most other halves.

    Args:
        entry: `value` and `probability_of_loss` of PBO, as in ``result.json``.
    """
    return bool(entry["value"] < 0.5 < entry["probability_of_loss"])


def _cut_search(result: Mapping[str, Any]) -> str:
    entry = result["trials"]
    if entry["cut"] is None or entry["cut"] >= entry["limit"]:
        return ""
    return f"The search was ended early after {entry['cut']} of {entry['limit']} trials."


def expected_by_chance(view: StudyView) -> list[str]:
    """Describe what this amount of data can show."""
    findable = view.result.get("detectable")
    if findable is None:
        return []
    return [describe_detectable(findable), *expected_best_sentences(view)]


def expected_best_sentences(view: StudyView) -> list[str]:
    """Describe the expected best of the same number of skill-less trials on the folds.

    It is the threshold of the deflated Sharpe ratio. If that is not computed, the smallest possible
    deviation of trials is used.
    """
    behind = (view.result.get("warm_start") or {}).get("num_started", 0)
    trials = view.result["trials"]["started"] + behind
    entry = (view.result.get("evidence") or {}).get("deflated_sharpe") or {}
    findable = view.result.get("detectable")
    bar, periods = None, view.result["days_per_year"]
    if "expected" in entry:
        bar = float(entry["expected"]) * math.sqrt(periods)
    elif findable is not None:
        bar = expected_best_sharpe(trials, findable["folds"]["years"])
    if bar is None:
        return []
    excess = entry.get("of", "excess") == "excess" and view.has_benchmark
    ratio = "information ratio against equal weight" if excess else "Sharpe ratio"
    ratio += " of timing" if entry.get("of") == "timing" else ""
    lines = [
        f"On the folds, the best of {trials} trials without skill is expected to reach an annual "
        f"{ratio} of {format_number(bar)}."
    ]
    if entry.get("measured_deviation", math.inf) < entry.get("deviation", 0.0):
        lines.append(
            "The finished trials are more similar than independent ones would be (survivors of "
            "pruning are similar), so the deviation of Sharpe ratios is assumed to be at least "
            "1 / sqrt(days)."
        )
    elif "expected" in entry:
        lines += _dispersion_sentences(entry, trials, periods)
    return lines


def _dispersion_sentences(entry: Mapping[str, Any], trials: int, periods: float) -> list[str]:
    """Explain a high threshold if trials differ by much more than luck; empty otherwise."""
    luck = 1.0 / math.sqrt(entry["days"])
    if entry["measured_deviation"] < _FAR * luck:
        return []
    root = math.sqrt(periods)
    least = luck * expected_maximum(trials)
    return [
        "That threshold is high because the finished trials differ by more than luck: their annual "
        f"ratios have a deviation of {format_number(entry['measured_deviation'] * root)}, while "
        f"luck alone gives {format_number(luck * root)} in {entry['days']} days. Some trials lose "
        f"steadily to costs, or have skill. The best of {trials} trials that differ by luck alone "
        f"would show {format_number(least * root)}."
    ]


def scoring_sentences(view: StudyView) -> list[str]:
    """Describe the scoring of trials."""
    result = view.result
    if not view.has_prices:
        return ["A fold is a seed, its score the mean return of its episodes."]
    words = {
        "sharpe": "the annual Sharpe ratio minus equal weight's",
        "information_ratio": "the annual information ratio against equal weight",
        "log_growth": "the annual log growth minus equal weight's",
    }[result["objective"]]
    if not view.has_benchmark:  # against cash both ratios are the Sharpe ratio
        log = result["objective"] == "log_growth"
        words = "the annual log growth" if log else "the annual Sharpe ratio"
    return [
        f"Score of a fold: {words}, of daily returns on its test blocks after costs. Score of a "
        f"trial: mean over {result['folds']} folds minus {result['penalty']:g} deviations over "
        "folds. Folds share test blocks, so their deviation is no standard error. An inactive "
        "fold (exposure below 1 % or fewer than 10 fills) scores 0, and such a trial cannot win."
    ]


def missing_evidence(view: StudyView) -> list[str]:
    """Return the unmet conditions of the deployable policy as clauses; empty if proven."""
    holdout, entry = view.holdout, view.result["holdout"]
    if holdout is None:
        return ["the hold-out was not opened"]
    missing = []
    if (view.result["winner"] or {}).get("forced"):
        missing.append("it was deployed by force")
    if entry["opening"] > 1:
        missing.append(f"this is opening {entry['opening']} of these hold-out days")
    if not entry.get("promoted"):
        missing.append("it was not promoted")
    missing += _significance_problems(holdout.curves[0], holdout.periods)
    if view.random_traders is None:
        why = f": {view.random_missing}" if view.random_missing else ""
        missing.append(f"the results of random traders with its positions are unknown{why}")
    elif view.random_traders.percentile < summary_text.BETTER_THAN_RANDOM:
        missing.append(
            f"{format_number(view.random_traders.percentile, 0)} % of matched random traders did "
            f"worse, and {summary_text.BETTER_THAN_RANDOM:g} % must"
        )
    return missing


def outperformed_rivals(view: StudyView) -> Collection[str]:
    """Return the benchmarks that the deployable policy has been shown to outperform."""
    if missing_evidence(view):
        return ()
    lines = view.holdout
    assert lines is not None
    if lines.benchmark is None or _significance_problems(
        lines.curves[0] - lines.benchmark, lines.periods
    ):
        return ("cash",)
    return ("cash", "equal weight")


def _significance_problems(returns: Floats, periods: float) -> list[str]:
    """Return the reasons why daily returns are not significant; empty if they are."""
    if not summary_text.is_above_zero(sharpe_interval(returns, periods)):
        return ["the 95 % interval of its Sharpe ratio includes zero"]
    ratio, smallest = sharpe(returns, periods), min_detectable_sharpe(len(returns), periods)
    if ratio is None or smallest is None or ratio <= smallest:
        return [
            f"its Sharpe ratio, {format_number(ratio)}, is not above {format_number(smallest)}, "
            "the smallest that the hold-out can confirm"
        ]
    return []
