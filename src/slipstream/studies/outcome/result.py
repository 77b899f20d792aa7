"""result.json: what a study found, complete for its page and for whoever reads it later.

::

    study, finished            name; ISO time, UTC
    handle, ends               what `slipstream evaluate` calls it; UTC date from which on bars are
                               new to it, null for games
    config_hash, data_sha256   of the identity, of the prices (null for games)
    market                     whether it has prices; games have no hold-out and no benchmark
    benchmark                  whether equal weight is traded beside it (forex: only cash); where it
                               is not, no key below says `benchmark` or `equal_weight`
    days_per_year              what annual figures were made with; null for games
    objective, penalty, folds  how a trial is scored, and on how many folds
    trials                     {asked, complete, pruned, failed, inactive, violating, limit, cut,
                               earlier: {studies, trials, unknown} on some of the same days}
    warm_start                 {study, told, left_out, begun} finished trials of another study that
                               the sampler was told of, those that did not fit, and all behind
                               them, which count as tried in `evidence` and `chance`; or null
    best                       {trial, score, folds: [{score, sharpe, benchmark_sharpe, inactive}]}
                               by search score: optimistic by construction; null without one
    shown                      {trial, folds} of the winner, else the best candidate, else the best
    findable                   {folds, holdout: {years, candidates, sharpe}} the test data, how
                               many candidates share the level of its bound, and the smallest annual
                               Sharpe ratio that it can confirm; null for games
    rungs                      [{share, rollouts, same_as, judged, pruned, armed, rho}] rollouts:
                               where it is scored, and of how many; rho: the last one known;
                               same_as: "the rung before" or "the end" of trials, where the budget
                               has too few rollouts to tell them apart; else null
    evidence                   {pbo: {...} | {reason}, deflated_sharpe: {...} | {reason}}; the
                               latter the smallest of daily returns minus equal weight's (if there
                               is one), own ones and timing (if it was recorded), `of`: "excess",
                               "own" or "timing"
    confirmation               {seeds, bootstrap, level, candidates: [{trial, search_score, value,
                               lcb, own_lcb, timing_lcb, seeds: [...], excluded}], cash, winner,
                               best, chance: {trial, trials, full, excess, own, timing} | null,
                               reason, closest}
                               value: information ratio against equal weight, or else cash;
                               games: mean return; lcb: its lower bound, none of few days;
                               own_lcb: of the Sharpe ratio itself, where there is equal weight;
                               timing_lcb: of returns minus mean net exposure times the market's,
                               if the environment declares one position a symbol;
                               chance: p that so many trials without skill would show as much as
                               the best candidate; closest: which trial is the least beyond a
                               constraint, where no candidate is left
    winner                     {trial, params, overrides, forced} | null
    holdout                    {opening, before, looks, unknown (which opening of these days, after
                               which studies and looks, or why that is not known), fresh_days,
                               seeds: [{seed, failed, score, sharpe, benchmark_sharpe,
                               total_return, benchmark_return, days, ...}], mean_return,
                               benchmark_return, ratio, lcb, own_lcb, timing_lcb,
                               beats_equal_weight, beats_cash, promoted} (games: {opening: 0,
                               seeds, mean}) | null
    deployed                   {policy, label, refit, refit_label} | null
    seconds                    wall clock by phase; workers: {search: {env, policy, update,
                               evaluate, overhead}, ...}
    steps                      environment steps of training by phase
    forecast                   what was said before the start
    sentences                  the outcome in words, most important first

Daily returns are not in it: `slipstream.studies.record.ledger.Ledger.passes` gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from slipstream.studies.outcome.confirmation import Confirmed
from slipstream.studies.outcome.sentences import sentences
from slipstream.studies.outcome.winner import Deployed
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Trial, Verdict, best_trials, counts_of
from slipstream.studies.search.plan import StudyPlan, iterations
from slipstream.studies.statistics.overfitting import (
    Floats,
    NotComputed,
    deflated_sharpe,
    findable,
    pbo,
    tested_years,
)
from slipstream.studies.statistics.returns import all_timed, daily_benchmark, daily_matrix

PHASES = ("search", "confirm", "final", "refit")


def result_of(
    folder: StudyFolder,
    plan: StudyPlan,
    facts: Mapping[str, Any],
    ledger: Ledger,
    confirmed: Confirmed,
    deployed: Deployed,
) -> dict[str, Any]:
    """What `result.json` says."""
    trials = ledger.trials()
    evidence = (
        evidence_of(plan, ledger, trials, deployed.winner) if plan.market is not None else None
    )
    ranked = best_trials(trials)
    chosen = {trial.number: trial for trial in trials}
    confirmation = plan.study.confirmation
    result: dict[str, Any] = {
        "study": folder.name,
        "handle": folder.handle,
        "ends": _ends(facts),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_hash": folder.provenance.get("config_hash"),
        "data_sha256": facts.get("market_sha256"),
        "market": plan.market is not None,
        "benchmark": plan.market is not None and plan.market.benchmark,
        "days_per_year": plan.market.days_per_year if plan.market is not None else None,
        "objective": plan.study.objective if plan.market is not None else "mean return",
        "penalty": plan.study.penalty,
        "folds": plan.folds,
        "trials": {
            "asked": len(trials),
            **counts_of(trial.last for trial in trials),
            "limit": plan.study.n_trials,
            "cut": ledger.fact("cut"),
            "earlier": ledger.fact("earlier_searches"),
        },
        "warm_start": _warm_start(plan),
        "best": {**_folds(ranked[0]), "score": ranked[0].score} if ranked else None,
        "shown": _shown(chosen, confirmed, deployed, ranked),
        "findable": _findable(plan, facts, confirmed, deployed.holdout),
        "rungs": _rungs(plan, trials),
        "evidence": evidence,
        "confirmation": {
            **_fields(confirmation, "seeds", "bootstrap", "level"),
            "candidates": [dict(one) for one in confirmed.candidates],
            **_fields(confirmed, "cash", "chance", "winner", "best", "reason", "closest"),
        },
        "winner": _winner(chosen, deployed),
        "holdout": deployed.holdout,
        "deployed": deployed.policies,
        "seconds": {
            **ledger.fact("seconds", {}),
            "workers": {phase: ledger.seconds(phase) for phase in PHASES},
        },
        "steps": {phase: sum(ledger.steps(phase).values()) for phase in PHASES},
        "forecast": ledger.fact("forecast"),
    }
    result["sentences"] = sentences(result)
    return result


def _warm_start(plan: StudyPlan) -> dict[str, Any] | None:
    told = plan.warm_start
    if told is None:
        return None
    return {**_fields(told, "study", "left_out", "begun"), "told": len(told.trials)}


def _ends(facts: Mapping[str, Any]) -> str | None:
    told = facts.get("folds")
    if told is None:
        return None
    return str(np.datetime64(int(told["holdout"][1]) + 86_399, "s").astype("datetime64[D]"))


def _shown(
    trials: Mapping[int, Trial], confirmed: Confirmed, deployed: Deployed, ranked: Sequence[Trial]
) -> dict[str, Any] | None:
    for number in (deployed.winner, confirmed.best):
        if number is not None:
            return _folds(trials[number])
    return _folds(ranked[0]) if ranked else None


def _folds(trial: Trial) -> dict[str, Any]:
    return {"trial": trial.number, "folds": [dict(fold) for fold in trial.last.folds]}


def _findable(
    plan: StudyPlan,
    facts: Mapping[str, Any],
    confirmed: Confirmed,
    holdout: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Ratios that tested groups and hold-out can confirm: by its days, where it was opened."""
    told = facts.get("folds")
    if plan.market is None or told is None:
        return None
    years = tested_years(told)
    fresh = (holdout or {}).get("fresh_days")  # what the bounds are of
    if fresh is not None:
        years["holdout"] = fresh / plan.market.days_per_year
    confirmation, per_year = plan.study.confirmation, plan.market.days_per_year
    candidates = len(confirmed.candidates) or confirmation.top
    return findable(years, candidates, per_year, confirmation.level)


def _rungs(plan: StudyPlan, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Each rung: trials judged and pruned there, and the last correlation that was known.

    Budgets of few rollouts lay rungs on one iteration: the later one is no rung of its own.
    """
    pruning, end = plan.study.pruning, iterations(plan.base)
    if not (pruning.enabled or pruning.record):
        return []
    found: list[dict[str, Any]] = []
    stage, before = 0, 0
    for share in pruning.rungs:
        milestone = math.ceil(share * end)
        twin = milestone == before < end
        verdicts = [] if twin else _judged(trials, stage)
        same = "the rung before" if twin else "the end" if milestone == end else None
        known = [v.rho for v in verdicts if v.rho is not None]
        rho = known[-1] if known else None
        found.append(
            {
                "share": share,
                "rollouts": [milestone, end] if verdicts or same is None else [],
                "same_as": None if verdicts else same,
                "judged": len(verdicts),
                "pruned": sum(v.kind == "pruned" for v in verdicts),
                "rho": rho,
                "armed": pruning.enabled and rho is not None and rho >= pruning.min_correlation,
            }
        )
        stage, before = stage + (not twin), milestone
    return found


def _judged(trials: Sequence[Trial], stage: int) -> list[Verdict]:
    """Verdicts at a rung in the order of virtual time."""
    verdicts = [v for trial in trials for v in trial.stages if v.stage == stage]
    verdicts = [v for v in verdicts if v.kind in ("continued", "pruned")]
    return sorted(verdicts, key=lambda v: (v.time, v.trial))


def _winner(chosen: Mapping[int, Trial], deployed: Deployed) -> dict[str, Any] | None:
    if deployed.winner is None:
        return None
    trial = chosen[deployed.winner]
    return {
        "trial": trial.number,
        "params": dict(trial.ask.params),
        "overrides": dict(trial.ask.overrides),
        "forced": deployed.forced,
    }


def _fields(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def evidence_of(
    plan: StudyPlan, ledger: Ledger, trials: Sequence[Trial], deployed: int | None = None
) -> dict[str, Any]:
    """PBO and deflated Sharpe over the trials that finished all folds at full budget.

    PBO ranks trials among each other by their net returns. The deflated Sharpe ratio is the
    smallest of those of own returns, of returns in excess of equal weight's, and of timing: a
    market that rises makes every long position look skilled, and one that falls makes cash look so.

    Args:
        deployed: trial whose ratio is deflated; None: the one with the highest score.

    Returns:
        `pbo` and `deflated_sharpe`: their figures, or `reason` where they are not computed.
    """
    whole = ledger.whole_passes()
    complete, columns = list(whole), list(whole.values())
    days, matrix = daily_matrix(columns)
    returns = {"own": matrix}
    if plan.market is not None and plan.market.benchmark:
        returns["excess"] = matrix - daily_benchmark(columns, days)[:, None]
    if columns and all_timed(columns):
        returns["timing"] = daily_matrix(columns, "timing")[1]
    overfitting = pbo(matrix) if len(matrix) else NotComputed("no trial finished")
    known = ("value", "loses", "columns", "days", "blocks")
    told = _fields(overfitting, *(("reason",) if isinstance(overfitting, NotComputed) else known))
    return {
        "pbo": told,
        "deflated_sharpe": _deflated(returns, complete, trials, plan.behind, deployed),
    }


def _deflated(
    returns: Mapping[str, Floats],
    complete: Sequence[int],
    trials: Sequence[Trial],
    behind: int,
    deployed: int | None,
) -> dict[str, Any]:
    """The smallest ratio, and `of` which returns it is; none where one cannot be computed.

    Trials `behind` a warm start count as tried: whoever was told of them need not lose by them.
    """
    scores = {trial.number: trial.score for trial in trials if trial.last.able}
    known = [number for number in complete if scores.get(number) is not None]
    if not known:
        return {"reason": "no trial finished that can win"}
    best = max(known, key=lambda number: (scores[number] or 0.0, -number))
    if deployed is not None:
        best = deployed
    if best not in complete:
        return {"trial": best, "reason": f"trial {best} did not finish all folds at full budget"}
    told: list[dict[str, Any]] = []
    tried = len(trials) + behind
    for name, matrix in returns.items():
        found = deflated_sharpe(matrix, list(complete).index(best), tried)
        if isinstance(found, NotComputed):
            why = "it never changes its exposure: timing has no deviation"
            reason = why if name == "timing" else found.reason
            return {"trial": best, "of": name, "reason": reason}
        told.append({"trial": best, "of": name, **asdict(found)})
    return min(told, key=lambda one: float(one["value"]))
