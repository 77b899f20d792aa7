"""From the search's best trials to a policy: confirmation, final training, hold-out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.runs.openings import Opening, PriceSeries, open_days
from slipstream.settings.config import RunConfig
from slipstream.studies.outcome.confirmation import (
    Confirmed,
    candidates,
    confirm,
    confirmation_slots,
)
from slipstream.studies.outcome.final import Deployed, final_slots, holdout_facts, save_policy
from slipstream.studies.outcome.sentences import UNKNOWN_OPENINGS
from slipstream.studies.record.rows import Slot
from slipstream.studies.search.search import Search
from slipstream.studies.session import Session


def confirm_best(
    session: Session, search: Search, fold_facts: Mapping[str, Any] | None
) -> Confirmed:
    """Trains the best trials again on fresh seeds and chooses among them.

    Args:
        session: who trains.
        search: that has ended.
        fold_facts: which fold tests what; None for games.
    """
    plan = session.plan
    chosen = candidates(search.verdicts, plan.study.confirmation.top)
    configs = {trial: plan.config(search.asked()[trial].overrides) for trial in chosen}
    jobs = {slot: configs[slot.trial] for slot in confirmation_slots(plan, chosen)}
    later = plan.study.final_seeds + plan.study.final_refit
    outcomes = session.train(jobs, "confirmation", later)
    for slot in jobs:
        session.pool.drop(slot.name)
    scores = {trial: search.verdicts[trial].score for trial in chosen}
    begun, full = len(search.asked()), {}
    if plan.market is not None:
        tested = session.ledger.outcomes("search")
        for trial, verdict in sorted(search.verdicts.items()):
            ends = [tested.get((slot.name, verdict.milestone)) for slot in plan.trial_slots(trial)]
            passes = [one.passes for one in ends if one is not None and one.passes is not None]
            if verdict.kind == "complete" and len(passes) == plan.folds:
                full[trial] = passes
    return confirm(plan, chosen, scores, outcomes, fold_facts, full, begun)


def deploy(
    session: Session,
    search: Search,
    confirmed: Confirmed,
    *,
    force: bool,
    study_config: str,
    prices: Callable[[], Sequence[PriceSeries]],
) -> Deployed:
    """Trains the winner on all development data, opens the hold-out, saves the policy.

    Args:
        session: who trains.
        search: that has ended.
        confirmed: who won.
        force: deploy the best candidate even when nothing is recommended.
        study_config: hash of what decides the study, for the policy's provenance.
        prices: of the hold-out.
    """
    plan, pool = session.plan, session.pool
    winner, forced = confirmed.winner, False
    if winner is None:
        if not force or confirmed.best is None:
            return Deployed()
        winner, forced = confirmed.best, True
    overrides = search.asked()[winner].overrides
    config = plan.config(overrides)
    slots = final_slots(plan, winner)
    opening = _open(session, f"trial {winner}", prices) if plan.market is not None else Opening()
    jobs = dict.fromkeys(slots, config)
    outcomes = session.train(jobs, "final training", int(plan.study.final_refit))
    holdout = holdout_facts(plan, slots, outcomes, opening, forced)
    deployed = Deployed(winner, forced, holdout)
    facts = {
        "study": session.folder.name,
        "id": session.folder.provenance.get("id"),
        "environment": _environment_facts(session.folder.provenance.get("environment") or {}),
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
            label = f"seed {first.repeat} of the final training: earlier ones diverged"
        place = session.folder.policy
        save_policy(place, pool, first.name, config, {**facts, "label": label})
        deployed = replace(deployed, policy=str(place), label=label)
    for slot in slots:
        pool.finish(slot.name)
    if plan.study.final_refit:
        folder, label = _refit(session, winner, config, facts)
        deployed = replace(deployed, refit=folder, refit_label=label)
    return deployed


def _open(session: Session, what: str, prices: Callable[[], Sequence[PriceSeries]]) -> Opening:
    """Writes down that the hold-out is looked at, before it is: in the ledger and for the user."""
    own, folder = session.ledger.open_holdout(what), session.folder
    key = f"{folder.provenance.get('id', folder.path)}/{what}"
    found = open_days(prices(), key, f"study {folder.path}", folder.path.parent, own)
    if found.unknown:
        session.say(f"{found.unknown}. {UNKNOWN_OPENINGS}")
    return found


def _environment_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """What scoring a deployed policy elsewhere must know of the study's prices.

    Windows are half open, UTC seconds.
    """
    folds = known.get("folds") or {}
    windows = {name: folds[name] for name in ("development", "holdout") if name in folds}
    return {"carried": known.get("carried") or {}, "windows_utc_seconds": windows}


def _refit(
    session: Session, winner: int, config: RunConfig, facts: Mapping[str, Any]
) -> tuple[str | None, str]:
    """The winner trained on everything, where it was asked for: its folder, and what it is."""
    slot = Slot("refit", winner, 0, 0)
    outcomes = session.train({slot: config}, "refit on everything")
    if outcomes[slot].failed:
        session.say(f"The refit on everything diverged: {outcomes[slot].reason}.")
        return None, ""
    label = "trained on everything: this exact policy has no out-of-sample result"
    place = session.folder.refit
    save_policy(place, session.pool, slot.name, config, {**facts, "label": label})
    session.pool.finish(slot.name)
    return str(place), label
