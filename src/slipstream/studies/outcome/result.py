"""result.json: the complete result of a study.

::

    study, finished            name; ISO time, UTC
    handle, ends               name for `slipstream evaluate`; UTC date from which bars are new to
                               the study, null for games
    config_hash, data_sha256   of the identity, of the prices (null for games)
    market                     whether it has prices; games have no hold-out and no benchmark
    benchmark                  whether equal weight is a benchmark (forex: only cash); otherwise the
                               keys with `benchmark` or `equal_weight` are missing
    days_per_year              for annual values; null for games
    objective, penalty, folds  how a trial is scored, and on how many folds
    trials                     {started, complete, pruned, failed, inactive, violating, limit, cut,
                               earlier: {studies, trials, unknown} on some of the same days}
    warm_start                 {study, num_trials, num_skipped, num_started} finished trials of
                               another study given to the sampler, those that did not fit, and all
                               started trials, which count as tried in `evidence` and `chance`; or
                               null
    best                       {trial, score, folds: [{score, sharpe, benchmark_sharpe, inactive}]}
                               by search score: optimistic by construction; null without one
    shown                      {trial, folds} of the winner, else the best candidate, else the best
    detectable                 {folds, holdout: {years, candidates, sharpe}} the test data, how
                               many candidates share the level of its bound, and the smallest annual
                               Sharpe ratio that it can confirm; null for games
    rungs                      [{share, rollouts, same_as, judged, pruned, armed, rho}] rollouts:
                               where it is scored, and of how many; rho: the last one known;
                               same_as: "the rung before" or "the end" of trials, where the budget
                               has too few rollouts to separate them; else null
    evidence                   {pbo: {...} | {reason}, deflated_sharpe: {...} | {reason}}; the
                               latter the smallest of daily returns minus equal weight's (if there
                               is one), own ones and timing (if it was recorded), `of`: "excess",
                               "own" or "timing"
    confirmation               {seeds, bootstrap, level, candidates: [{trial, search_score, value,
                               lcb, sharpe_lcb, timing_lcb, seeds: [...], excluded}], cash, winner,
                               best, chance: {trial, trials, full, excess, own, timing} | null,
                               reason, closest}
                               value: information ratio against equal weight, or else cash;
                               games: mean return; lcb: its lower bound, none of few days;
                               sharpe_lcb: of the Sharpe ratio itself, where there is equal weight;
                               timing_lcb: of returns minus mean net exposure times the market's,
                               if the environment declares one position a symbol;
                               chance: p-value of the best candidate among all trials (Hansen);
                               closest: trial with the smallest violation of a constraint, if no
                               candidate is left
    winner                     {trial, params, overrides, forced} | null
    holdout                    {opening, before, looks, unknown (which opening of these days, after
                               which studies and looks, or why that is not known), fresh_days,
                               seeds: [{seed, failed, score, sharpe, benchmark_sharpe,
                               total_return, benchmark_return, days, ...}], mean_return,
                               benchmark_return, ratio, lcb, sharpe_lcb, timing_lcb,
                               beats_equal_weight, beats_cash, promoted} (games: {opening: 0,
                               seeds, mean}) | null
    deployed                   {policy, label, refit, refit_label} | null
    seconds                    wall clock by phase; workers: {search: {env, policy, update,
                               evaluate, overhead}, ...}
    steps                      environment steps of training by phase
    forecast                   the forecast before the start
    sentences                  the outcome in words, most important first

Daily returns are not in it: `slipstream.studies.record.ledger.Ledger.backtests` gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from slipstream.studies.outcome.confirmation import ConfirmationResult
from slipstream.studies.outcome.final_model import FinalModel
from slipstream.studies.outcome.outcome_text import summary_sentences
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Trial, TrialDecision, best_trials, count_states
from slipstream.studies.search.study_plan import StudyPlan, num_iterations
from slipstream.studies.statistics.overfitting import (
    Floats,
    NotComputed,
    compute_pbo,
    deflated_sharpe,
    detectable_sharpe,
    tested_years,
)
from slipstream.studies.statistics.returns import (
    daily_benchmark_returns,
    daily_return_matrix,
    has_timing,
)

PHASES = ("search", "confirm", "final", "refit")


def build_result(
    folder: StudyFolder,
    plan: StudyPlan,
    facts: Mapping[str, Any],
    ledger: Ledger,
    confirmed: ConfirmationResult,
    deployed: FinalModel,
) -> dict[str, Any]:
    """Return the content of `result.json`."""
    trials = ledger.trials()
    evidence = (
        overfitting_evidence(plan, ledger, trials, deployed.winner)
        if plan.market is not None
        else None
    )
    ranked = best_trials(trials)
    chosen = {trial.number: trial for trial in trials}
    confirmation = plan.study.confirmation
    result: dict[str, Any] = {
        "study": folder.name,
        "handle": folder.handle,
        "ends": _data_end(facts),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_hash": folder.provenance.get("config_hash"),
        "data_sha256": facts.get("market_sha256"),
        "market": plan.market is not None,
        "benchmark": plan.market is not None and plan.market.benchmark,
        "days_per_year": plan.market.days_per_year if plan.market is not None else None,
        "objective": plan.study.objective if plan.market is not None else "mean return",
        "penalty": plan.study.fold_dispersion_penalty,
        "folds": plan.num_folds,
        "trials": {
            "started": len(trials),
            **count_states(trial.last_decision for trial in trials),
            "limit": plan.study.n_trials,
            "cut": ledger.get_metadata("cut"),
            "earlier": ledger.get_metadata("earlier_searches"),
        },
        "warm_start": _warm_start_summary(plan),
        "best": {**_fold_results(ranked[0]), "score": ranked[0].score} if ranked else None,
        "shown": _reported_trial(chosen, confirmed, deployed, ranked),
        "detectable": _detectable(plan, facts, confirmed, deployed.holdout),
        "rungs": _rung_summaries(plan, trials),
        "evidence": evidence,
        "confirmation": {
            **_select_fields(confirmation, "seeds", "bootstrap", "level"),
            "candidates": [dict(candidate) for candidate in confirmed.candidates],
            **_select_fields(confirmed, "cash", "chance", "winner", "best", "reason", "closest"),
        },
        "winner": _winner(chosen, deployed),
        "holdout": deployed.holdout,
        "deployed": deployed.policies,
        "seconds": {
            **ledger.get_metadata("seconds", {}),
            "workers": {phase: ledger.seconds(phase) for phase in PHASES},
        },
        "steps": {phase: sum(ledger.steps(phase).values()) for phase in PHASES},
        "forecast": ledger.get_metadata("forecast"),
    }
    result["sentences"] = summary_sentences(result)
    return result


def _warm_start_summary(plan: StudyPlan) -> dict[str, Any] | None:
    warm_start = plan.warm_start
    if warm_start is None:
        return None
    fields = _select_fields(warm_start, "study", "num_skipped", "num_started")
    return {**fields, "num_trials": len(warm_start.trials)}


def _data_end(facts: Mapping[str, Any]) -> str | None:
    folds = facts.get("folds")
    if folds is None:
        return None
    return str(np.datetime64(int(folds["holdout"][1]) + 86_399, "s").astype("datetime64[D]"))


def _reported_trial(
    trials: Mapping[int, Trial],
    confirmed: ConfirmationResult,
    deployed: FinalModel,
    ranked: Sequence[Trial],
) -> dict[str, Any] | None:
    for number in (deployed.winner, confirmed.best):
        if number is not None:
            return _fold_results(trials[number])
    return _fold_results(ranked[0]) if ranked else None


def _fold_results(trial: Trial) -> dict[str, Any]:
    return {"trial": trial.number, "folds": [dict(fold) for fold in trial.last_decision.folds]}


def _detectable(
    plan: StudyPlan,
    facts: Mapping[str, Any],
    confirmed: ConfirmationResult,
    holdout: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Return the smallest detectable ratios of folds and hold-out, the latter by its fresh days."""
    folds = facts.get("folds")
    if plan.market is None or folds is None:
        return None
    years = tested_years(folds)
    fresh = (holdout or {}).get("fresh_days")  # what the bounds are of
    if fresh is not None:
        years["holdout"] = fresh / plan.market.days_per_year
    confirmation, per_year = plan.study.confirmation, plan.market.days_per_year
    candidates = len(confirmed.candidates) or confirmation.top
    return detectable_sharpe(years, candidates, per_year, confirmation.level)


def _rung_summaries(plan: StudyPlan, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return for each rung the trials judged and pruned there and the last known correlation.

    Short budgets can place two rungs on one iteration; the later one then has no results of its
    own.
    """
    pruning, end = plan.study.pruning, num_iterations(plan.base)
    if not (pruning.enabled or pruning.record):
        return []
    summaries: list[dict[str, Any]] = []
    stage, before = 0, 0
    for share in pruning.rungs:
        milestone = math.ceil(share * end)
        twin = milestone == before < end
        decisions = [] if twin else _decisions_at(trials, stage)
        same = "the rung before" if twin else "the end" if milestone == end else None
        known = [v.rho for v in decisions if v.rho is not None]
        rho = known[-1] if known else None
        summaries.append(
            {
                "share": share,
                "rollouts": [milestone, end] if decisions or same is None else [],
                "same_as": None if decisions else same,
                "judged": len(decisions),
                "pruned": sum(v.kind == "pruned" for v in decisions),
                "rho": rho,
                "armed": pruning.enabled and rho is not None and rho >= pruning.min_correlation,
            }
        )
        stage, before = stage + (not twin), milestone
    return summaries


def _decisions_at(trials: Sequence[Trial], stage: int) -> list[TrialDecision]:
    """Return the decisions at a rung in the order of virtual time."""
    decisions = [v for trial in trials for v in trial.decisions if v.stage == stage]
    decisions = [v for v in decisions if v.kind in ("continued", "pruned")]
    return sorted(decisions, key=lambda v: (v.time, v.trial))


def _winner(chosen: Mapping[int, Trial], deployed: FinalModel) -> dict[str, Any] | None:
    if deployed.winner is None:
        return None
    trial = chosen[deployed.winner]
    return {
        "trial": trial.number,
        "params": dict(trial.suggestion.params),
        "overrides": dict(trial.suggestion.overrides),
        "forced": deployed.forced,
    }


def _select_fields(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def overfitting_evidence(
    plan: StudyPlan, ledger: Ledger, trials: Sequence[Trial], deployed: int | None = None
) -> dict[str, Any]:
    """Compute PBO and the deflated Sharpe ratio over trials that finished all folds.

    PBO ranks trials by their net returns. The deflated Sharpe ratio is the smallest of those of net
    returns, of returns in excess of equal weight, and of timing. A rising market makes every long
    position look skilled, and a falling one makes cash look skilled.

    Args:
        plan: plan of the study.
        ledger: ledger of the study.
        trials: all trials.
        deployed: trial whose ratio is deflated; None: the one with the highest score.

    Returns:
        `pbo` and `deflated_sharpe`: their values, or `reason` if they are not computed.
    """
    whole = ledger.complete_backtests()
    complete, columns = list(whole), list(whole.values())
    days, matrix = daily_return_matrix(columns)
    returns = {"own": matrix}
    if plan.market is not None and plan.market.benchmark:
        returns["excess"] = matrix - daily_benchmark_returns(columns, days)[:, None]
    if columns and has_timing(columns):
        returns["timing"] = daily_return_matrix(columns, "timing")[1]
    overfitting = compute_pbo(matrix) if len(matrix) else NotComputed("no trial finished")
    known = ("value", "probability_of_loss", "columns", "days", "blocks")
    fields_ = _select_fields(
        overfitting, *(("reason",) if isinstance(overfitting, NotComputed) else known)
    )
    return {
        "pbo": fields_,
        "deflated_sharpe": _smallest_deflated_sharpe(
            returns, complete, trials, plan.num_prior_trials, deployed
        ),
    }


def _smallest_deflated_sharpe(
    returns: Mapping[str, Floats],
    complete: Sequence[int],
    trials: Sequence[Trial],
    behind: int,
    deployed: int | None,
) -> dict[str, Any]:
    """Return the smallest deflated ratio and the kind of returns `of` it; or a `reason`.

    Trials `behind` a warm start count as tried.
    """
    scores = {trial.number: trial.score for trial in trials if trial.last_decision.is_eligible}
    known = [number for number in complete if scores.get(number) is not None]
    if not known:
        return {"reason": "no trial finished that can win"}
    best = max(known, key=lambda number: (scores[number] or 0.0, -number))
    if deployed is not None:
        best = deployed
    if best not in complete:
        return {"trial": best, "reason": f"trial {best} did not finish all folds at full budget"}
    results: list[dict[str, Any]] = []
    tried = len(trials) + behind
    for name, matrix in returns.items():
        deflated = deflated_sharpe(matrix, list(complete).index(best), tried)
        if isinstance(deflated, NotComputed):
            why = "it never changes its exposure: timing has no deviation"
            reason = why if name == "timing" else deflated.reason
            return {"trial": best, "of": name, "reason": reason}
        results.append({"trial": best, "of": name, **asdict(deflated)})
    return min(results, key=lambda entry: float(entry["value"]))
