"""Final model: final training of the winner, the hold-out, and the deployable policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.random import derive_seed
from slipstream.core.storage import checkpoint
from slipstream.studies.outcome.confirmation import ConfirmationResult
from slipstream.studies.outcome.outcome_text import UNKNOWN_OPENINGS
from slipstream.studies.record.ledger import Slot
from slipstream.studies.search.search import Search
from slipstream.studies.search.session import Session
from slipstream.studies.search.study_plan import StudyPlan
from slipstream.studies.statistics.bootstrap import lower_bounds
from slipstream.studies.statistics.returns import (
    align_series,
    compound_by_day,
    compound_return,
    constraint_values,
    describe_violations,
    fold_score,
    sharpe,
)
from slipstream.training.environments.parts import HoldoutRegister, Opening
from slipstream.training.population.batches import effective_members
from slipstream.training.population.member import Outcome
from slipstream.training.population.member_pool import Pool
from slipstream.training.settings.config import RunConfig


@dataclass(frozen=True)
class FinalModel:
    """Result of the final training; empty if nothing was recommended.

    Attributes:
        winner: the trial that was retrained.
        forced: the trial was deployed although nothing was recommended.
        holdout: results of its seeds on the hold-out, see `evaluate_holdout`.
        policies: `policy` and `label`: folder and description of the deployable policy; `refit` and
            `refit_label`: the policy trained on everything.
    """

    winner: int | None = None
    forced: bool = False
    holdout: Mapping[str, Any] | None = None
    policies: Mapping[str, str | None] | None = None


def final_slots(plan: StudyPlan, winner: int) -> list[Slot]:
    """Return the seeds of the final training; the first that does not fail is deployed."""
    return [Slot("final", winner, repeat, 0) for repeat in range(plan.study.final_seeds)]


def evaluate_holdout(
    plan: StudyPlan,
    slots: Sequence[Slot],
    outcomes: Mapping[Slot, Outcome],
    opening: Opening,
    forced: bool,
) -> dict[str, Any]:
    """Evaluate the final seeds on the hold-out; games: on fresh episodes.

    Args:
        plan: objective and market.
        slots: slots of the seeds.
        outcomes: outcomes of the seeds.
        opening: number of this opening, and days that were opened before.
        forced: nothing was recommended; such a policy is never promoted.

    Returns:
        `opening` and its metadata, `seeds` (a mapping each), and means over the seeds that did not
        fail. Games: `mean`. Markets: `mean_return`, `benchmark_return`, `ratio` and `lcb`
        (information ratio against equal weight and its lower bound), `sharpe_lcb` (of the Sharpe
        ratio), `timing_lcb` (of timing, if it is tested), bounds None with fewer than 60
        `fresh_days`, `beats_equal_weight`, `beats_cash`, `promoted`, and `violates` if a seed
        violates a constraint, which prevents promotion. Without equal weight the keys of
        `benchmark` and `equal_weight` are missing, and the ratio is against cash.
    """
    seeds = [_evaluate_seed(plan, slot, outcomes[slot]) for slot in slots]
    facts: dict[str, Any] = {**opening.as_dict(), "seeds": seeds}
    violates = [seed["violates"] for seed in seeds if seed.get("violates")]
    if violates:
        facts["violates"] = violates[0]
    backtests = [outcomes[slot].backtests for slot in slots if not outcomes[slot].failed]
    complete = [
        backtest for backtest in backtests if backtest is not None and len(backtest.returns)
    ]
    if not complete:
        return facts
    if plan.market is None:
        return {**facts, "mean": float(np.mean([backtest.returns.mean() for backtest in complete]))}
    mine = float(np.mean([compound_return(backtest.returns) for backtest in complete]))
    other = float(np.mean([compound_return(backtest.benchmark) for backtest in complete]))
    settings = plan.study.confirmation
    daily = [
        (
            *compound_by_day(backtest.days, backtest.returns),
            compound_by_day(backtest.days, backtest.benchmark)[1],
        )
        for backtest in complete
    ]
    days, excess, benchmark = align_series(
        [(day, returns - rival, rival) for day, returns, rival in daily]
    )
    fresh = ~np.isin(days, list(opening.opened))
    judged = {"lcb": excess, "sharpe_lcb": excess + benchmark}
    timed = [
        (backtest.days, backtest.timing) for backtest in complete if backtest.timing is not None
    ]
    if len(timed) == len(complete):
        series = [
            (*compound_by_day(days, returns), np.zeros(len(np.unique(days))))
            for days, returns in timed
        ]
        judged["timing_lcb"] = align_series(series)[1]
    bounds = lower_bounds(
        [curves[:, fresh] for curves in judged.values()],
        plan.market.days_per_year,
        settings.level,
        settings.bootstrap,
        settings.block_days,
        derive_seed(plan.study.seed, "holdout"),
    )
    known = {
        name: None if np.isnan(bound) else float(bound)
        for name, bound in zip(judged, bounds.lower, strict=True)
    }
    if plan.market.benchmark:
        facts |= {"benchmark_return": other, "beats_equal_weight": mine > other}
    else:
        del known["sharpe_lcb"]  # cash earns nothing, so that it is `lcb`
    return {
        **facts,
        "fresh_days": int(fresh.sum()),
        "mean_return": mine,
        "ratio": sharpe(excess, plan.market.days_per_year),
        **known,
        "beats_cash": mine > 0.0,
        "promoted": bool((bounds.lower > 0.0).all())
        and not (forced or opening.unknown or violates),
    }


def _evaluate_seed(plan: StudyPlan, slot: Slot, outcome: Outcome) -> dict[str, Any]:
    backtests = outcome.backtests
    facts: dict[str, Any] = {"seed": slot.repeat, "failed": outcome.failed}
    if backtests is None:
        return {**facts, "reason": outcome.reason}
    facts |= fold_score(backtests, plan.market, plan.study.objective).to_dict()
    if violates := describe_violations(constraint_values(backtests, plan.study.constraints)):
        facts["violates"] = violates
    if plan.market is not None:
        facts["total_return"] = compound_return(backtests.returns)
    if plan.market is not None and plan.market.benchmark:
        facts["benchmark_return"] = compound_return(backtests.benchmark)
    return facts


def save_policy(
    folder: Path, pool: Pool, name: str, config: RunConfig, facts: Mapping[str, Any]
) -> None:
    """Save a policy with its provenance; `slipstream.load_policy` reads it."""
    tensors, manifest = pool.policy(name)
    known = {"policy": dict(manifest), "run": config.as_mapping(), "member": name}
    checkpoint.save(folder, tensors, {**known, **facts})


def train_final_model(
    session: Session,
    search: Search,
    confirmed: ConfirmationResult,
    *,
    force: bool,
    study_config: str,
    register: HoldoutRegister,
) -> FinalModel:
    """Train the winner on all development data and save the policy of the first trained seed.

    The opening of the hold-out is recorded first, because final members are scored on it when their
    training ends. It is recorded even if the process is killed meanwhile.

    Args:
        session: session that trains.
        search: the finished search.
        confirmed: result of the confirmation.
        force: deploy the best candidate even if nothing is recommended.
        study_config: hash of the study's identity, for the policy's provenance.
        register: register of the hold-out.
    """
    plan, pool = session.plan, session.pool
    winner, forced = confirmed.winner, False
    if winner is None:
        if not force or confirmed.best is None:
            return FinalModel()
        winner, forced = confirmed.best, True
    overrides = search.suggestions()[winner].overrides
    config = plan.config(overrides)
    slots = final_slots(plan, winner)
    opening = (
        _open_holdout(session, f"trial {winner}", register)
        if plan.market is not None
        else Opening()
    )
    jobs = dict.fromkeys(slots, config)
    later = effective_members(plan.study.final_refit, session.workers)
    outcomes = session.train(jobs, "final training", later)
    holdout = evaluate_holdout(plan, slots, outcomes, opening, forced)
    policies: dict[str, str | None] = dict.fromkeys(("policy", "refit"))
    policies |= {"label": "", "refit_label": ""}
    facts = {
        "study": session.folder.name,
        "id": session.folder.provenance.get("id"),
        "environment": _environment_metadata(session.folder.provenance.get("environment") or {}),
        "config": config.hash,
        "study_config": study_config,
        "trial": winner,
        "overrides": dict(overrides),
        "forced": forced,
        "promoted": holdout.get("promoted"),
    }
    first = next((slot for slot in slots if not outcomes[slot].failed), None)
    if first is not None:
        label = "first seed of the final training, fixed in advance"
        if first != slots[0]:
            label = (
                f"seed {first.repeat} of the final training: earlier ones could not be trained "
                "or scored"
            )
        place = session.folder.policy
        save_policy(place, pool, first.name, config, {**facts, "label": label})
        policies |= {"policy": str(place), "label": label}
    for slot in slots:
        pool.finish(slot.name)
    if plan.study.final_refit:
        policies["refit"], policies["refit_label"] = _refit(session, winner, config, facts)
    return FinalModel(winner, forced, holdout, policies)


def _open_holdout(session: Session, what: str, register: HoldoutRegister) -> Opening:
    """Record that the hold-out is opened, in the ledger and in the user's register."""
    opening_number, folder = session.ledger.open_holdout(what), session.folder
    key = f"{folder.provenance.get('id', folder.path)}/{what}"
    opening = register.open(key, f"study {folder.path}", folder.path.parent, opening_number)
    if opening.unknown:
        session.notify(f"{opening.unknown}. {UNKNOWN_OPENINGS}")
    return opening


def _environment_metadata(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that is required to score a deployed policy on other prices.

    Windows are half open, UTC seconds.
    """
    folds = known.get("folds") or {}
    windows = {name: folds[name] for name in ("development", "holdout") if name in folds}
    return {"carried": known.get("carried") or {}, "windows_utc_seconds": windows}


def _refit(
    session: Session, winner: int, config: RunConfig, facts: Mapping[str, Any]
) -> tuple[str | None, str]:
    """Train the winner on everything; return the policy's folder and its description."""
    slot = Slot("refit", winner, 0, 0)
    outcomes = session.train({slot: config}, "refit on everything")
    if outcomes[slot].failed:
        session.notify(
            f"The refit on everything could not be trained or scored: {outcomes[slot].reason}."
        )
        return None, ""
    label = "trained on everything: this exact policy has no out-of-sample result"
    place = session.folder.refit
    save_policy(place, session.pool, slot.name, config, {**facts, "label": label})
    session.pool.finish(slot.name)
    return str(place), label
