"""A study's sentences. What the data does not show is not said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.report import wording
from slipstream.report.confidence import sharpe_interval
from slipstream.report.statistics import sharpe
from slipstream.report.study_view import Lines, StudyView
from slipstream.report.wording import number, percent, share
from slipstream.studies.deflated import expected_best, smallest_confirmable
from slipstream.studies.overfitting import ON_NOISE
from slipstream.studies.sentences import no_winner

HOLDOUT = "hold-out"
OPTIMISTIC = (
    "Scores of trials are optimistic by construction: trials were chosen by the test blocks that "
    "scored them. Only the hold-out was untouched by that choice."
)


def warnings(view: StudyView) -> list[str]:
    """What must be read before anything else."""
    result = view.result
    lines = [*view.accepted]
    opened = (result["holdout"] or {}).get("opening", 0)
    if opened > 1:
        lines.append(
            f"The hold-out has been opened {opened} times: choices made between these looks make "
            "its figures too good."
        )
    if (result["winner"] or {}).get("forced"):
        lines.append(
            f"{no_winner(result)} Trial {result['winner']['trial']} was deployed by force all the "
            "same."
        )
    lines.append(OPTIMISTIC)
    lines += [text for text in (_pruning(view), _pbo(result), _left_out(result)) if text]
    if (result.get("deployed") or {}).get("refit"):
        lines.append(f"There is a second policy, {result['deployed']['refit_label']}.")
    return lines


def opening(view: StudyView) -> list[str]:
    """The headline, and the sentences below it."""
    result = view.result
    winner, told = result["winner"], result["holdout"]
    if winner is None:
        lines = [no_winner(result)]
        if result["confirmation"]["reason"]:
            lines.append(f"Reason: {result['confirmation']['reason']}.")
        return [*lines, _tried(result)]
    name = f"Deployed by force: trial {winner['trial']}."
    if not winner["forced"]:
        name = f"Confirmed winner: trial {winner['trial']}."
    if not view.market:
        mean = number((told or {}).get("mean"), 2)
        return [f"{name} Mean return of its final seeds on fresh episodes: {mean}.", _tried(result)]
    if view.holdout is None or view.days_per_year is None or told is None:
        return [f"{name} Every seed of its final training diverged.", _tried(result)]
    lines = _held(view.holdout, view.days_per_year, told, result["trials"]["asked"])
    if winner["forced"]:
        lines = [no_winner(result), *lines]
    label = (result["deployed"] or {}).get("label") or "the first seed"
    return [*lines, *_seeds(view.holdout, view.days_per_year, told, label), name, _tried(result)]


def _held(lines: Lines, periods: float, told: Mapping[str, Any], trials: int) -> list[str]:
    """Headline and comparisons of the deployable policy: the first seed, fixed in advance."""
    mine, other = lines.each[0], lines.benchmark
    interval = sharpe_interval(mine, periods)
    growth = float(np.prod(1.0 + mine) - 1.0)
    rivals, differences = {"cash": 0.0}, {"cash": interval}
    if other is not None:
        rivals = {"equal weight": float(np.prod(1.0 + other) - 1.0), **rivals}
        differences["equal weight"] = sharpe_interval(mine - other, periods)
    unseen = told["opening"] <= 1
    proof = interval if unseen else None  # bars that were looked at before prove nothing
    return [
        wording.headline(HOLDOUT, sharpe(mine, periods), interval, len(mine), periods, trials),
        wording.verdict(HOLDOUT, growth, interval, unseen),
        *wording.comparisons(growth, rivals, proof, differences),
    ]


def _seeds(lines: Lines, periods: float, told: Mapping[str, Any], label: str) -> list[str]:
    every = [sharpe(one, periods) for one in lines.each]
    known = [value for value in every if value is not None]
    found = []
    if len(known) > 1:
        low, middle, high = (number(float(np.quantile(known, q))) for q in (0.0, 0.5, 1.0))
        found.append(
            f"Over {len(known)} seeds the {HOLDOUT} Sharpe is {low} to {high}, median {middle}. "
            f"The headline is of the deployable policy, {label}."
        )
    if told.get("mean_return") is not None:
        met = told["beats_cash"] and told.get("beats_equal_weight", True)
        against, ratio, above = "", "Sharpe ratio", "above cash"
        if lines.benchmark is not None:
            against = f" against {percent(told['benchmark_return'])} of equal weight"
            ratio, above = "information ratio", "above equal weight and above cash"
        found.append(
            f"Mean return of the seeds: {percent(told['mean_return'])}{against}; annual {ratio} "
            f"{number(told['ratio'])}, lower bound {number(told['lcb'])}. Promotion needs a mean "
            f"{above}: {'met' if met else 'not met'}."
        )
    return found


def _tried(result: Mapping[str, Any]) -> str:
    told = result["trials"]
    return (
        f"Trials tried: {told['asked']}; finished {told['complete']}, of these inactive "
        f"{told['inactive']}; stopped early {told['pruned']}; failed {told['failed']}."
    )


def _pruning(view: StudyView) -> str:
    """Where pruning stood at the end."""
    rungs = view.result["rungs"]
    stopped = view.result["trials"]["pruned"]
    if not rungs:
        return ""
    parts = []
    for rung in rungs:
        state = (
            f"{'armed' if rung['armed'] else 'disarmed'} (rank correlation with final scores "
            f"{number(rung['rho'], 2)})"
        )
        if rung.get("same_as"):
            state = f"the same as {rung['same_as']}: the budget has too few rollouts"
        parts.append(f"the rung at {share(rung['share'])} of the budget is {state}")
    return f"Pruning stopped {stopped} trials: {'; '.join(parts)}."


def _pbo(result: Mapping[str, Any]) -> str:
    told = (result["evidence"] or {}).get("pbo")
    if told is None:
        return ""
    if "value" not in told:
        return f"Probability of backtest overfitting: not computed, {told['reason']}."
    return (
        f"Probability of backtest overfitting {number(told['value'], 2)} over {told['columns']} "
        f"trials. {ON_NOISE}"
    )


def _left_out(result: Mapping[str, Any]) -> str:
    told = result["trials"]
    if told["cut"] is None or told["cut"] >= told["limit"]:
        return ""
    return f"The search was cut after {told['cut']} of {told['limit']} trials."


def chance(view: StudyView) -> list[str]:
    """What the amount of data could show at all."""
    findable = view.result.get("findable")
    if findable is None:
        return []
    years = findable["folds"]["years"]
    trials = view.result["trials"]["asked"]
    found = [
        f"The folds' test blocks cover {years:.2f} years. The smallest Sharpe that this much data "
        f"could confirm is {number(smallest_confirmable(years))}"
    ]
    best = expected_best(trials, years)
    if best is not None:
        found[0] += (
            f"; after {trials} trials the best of {trials} skill-less ones is expected to show "
            f"{number(best)}"
        )
    later = findable["holdout"]
    return [
        f"{found[0]}.",
        f"For the hold-out, {later['years']:.2f} years, it is {number(later['sharpe'])}.",
    ]


def search(view: StudyView) -> list[str]:
    """How trials were scored."""
    result = view.result
    if not view.market:
        return ["A fold is a seed, its score the mean return of its episodes."]
    words = {
        "sharpe": "the annual Sharpe ratio minus equal weight's",
        "information_ratio": "the annual information ratio against equal weight",
        "log_growth": "the annual log growth minus equal weight's",
    }[result["objective"]]
    if not view.benchmark:  # against cash both ratios are the Sharpe ratio
        log = result["objective"] == "log_growth"
        words = "the annual log growth" if log else "the annual Sharpe ratio"
    return [
        f"Score of a fold: {words}, of daily returns on its test blocks after costs. Score of a "
        f"trial: mean over {result['folds']} folds minus {result['penalty']:g} deviations over "
        "folds. Folds share test blocks, so their deviation is no standard error. An inactive "
        "fold (exposure below 1 % or fewer than 10 fills) scores 0, and such a trial cannot win."
    ]
