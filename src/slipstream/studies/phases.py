"""Members that need nobody's verdict: trained to their ends, each counted once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slipstream.settings.config import RunConfig
from slipstream.studies.engine.member import Outcome
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.rows import Slot
from slipstream.studies.search.plan import StudyPlan, iterations
from slipstream.studies.search.search import MemberPool

_POLL_SECONDS = 0.5


def train_all(
    plan: StudyPlan,
    ledger: Ledger,
    pool: MemberPool,
    jobs: Mapping[Slot, RunConfig],
    tick: Callable[[Sequence[Slot]], None] = lambda left: None,
    take: Callable[[Outcome], None] = lambda outcome: None,
) -> dict[Slot, Outcome]:
    """Outcomes of all slots at the end of their budgets; those in the ledger are not trained again.

    Args:
        plan: makes members of slots.
        ledger: where outcomes are and go.
        pool: who trains.
        jobs: config of each slot.
        tick: called after every wait with the slots that are left; it may raise to leave.
        take: called with every new outcome.
    """
    ends = {slot: iterations(config) for slot, config in jobs.items()}
    known = {key for phase in {slot.phase for slot in jobs} for key in ledger.known(phase)}
    missing = [slot for slot in jobs if (slot.name, ends[slot]) not in known]
    if missing:
        pool.submit(
            [plan.member(slot, jobs[slot]) for slot in missing], [ends[slot] for slot in missing]
        )
    while missing:
        tick(missing)
        outcomes = pool.collect(_POLL_SECONDS)
        if outcomes:
            ledger.add_outcomes(outcomes)
            there = {outcome.name for outcome in outcomes}
            missing = [slot for slot in missing if slot.name not in there]
            for outcome in outcomes:
                take(outcome)
    found = {slot: ledger.outcome(slot.name, end) for slot, end in ends.items()}
    return {slot: outcome for slot, outcome in found.items() if outcome is not None}
