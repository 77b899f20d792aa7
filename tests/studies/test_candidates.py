"""Who is confirmed, how seeds are laid side by side, and what the hold-out says, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_pool import FakePool, plan

from slipstream.core.errors import ConfigError, DataError
from slipstream.studies.config import seed_of
from slipstream.studies.engine.member import DailyReturns
from slipstream.studies.outcome.confirmation import (
    _aligned,
    candidates,
    confirm,
    confirmation_slots,
    mean_bound,
)
from slipstream.studies.outcome.final import final_slots, holdout_facts
from slipstream.studies.phases import train_all
from slipstream.studies.record.identity import check_data, check_same, difference, identity
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.rows import Slot, Verdict
from slipstream.studies.statistics.paths import FoldMap

FACTS = {"paths": [[0, 0, 1, 1, 2, 2]], "folds": [{"groups": [2 * k, 2 * k + 1]} for k in range(3)]}


def verdict(trial: int, kind: str, score: float | None, inactive: bool = False) -> Verdict:
    return Verdict(trial, 0, 1, 1, kind, score, ({"score": score, "inactive": inactive},))


def test_only_complete_active_trials_are_candidates_the_best_first():
    verdicts = [
        verdict(0, "complete", 1.0),
        verdict(1, "pruned", 9.0),
        verdict(2, "complete", 3.0, inactive=True),
        verdict(3, "failed", None),
        verdict(4, "complete", 2.0),
        verdict(5, "complete", 2.0),
        verdict(6, "continued", 8.0),
    ]
    assert candidates({one.trial: one for one in verdicts}, 2) == [4, 5]


def one_fold(days, returns, benchmark) -> DailyReturns:
    return DailyReturns(
        np.array(days), np.array(returns), np.array(benchmark), np.zeros(len(days), int), [{}]
    )


def test_a_policy_that_did_not_live_to_a_day_earned_nothing_there():
    layout = FoldMap(((0,),), ((0,),))
    long = one_fold([1, 2, 3], [0.1, 0.2, 0.3], [0.05, 0.05, 0.05])
    short = one_fold([1, 2], [0.1, -0.9], [0.05, 0.05])
    (excess,), benchmark = _aligned([[[long], [short]]], layout)
    assert benchmark == pytest.approx([0.05] * 3)
    assert excess == pytest.approx(np.array([[0.05, 0.15, 0.25], [0.05, -0.95, -0.05]]))


def trained(tmp_path, setup, jobs, fails=()):
    with Ledger(tmp_path / "ledger.db") as ledger:
        pool = FakePool(3, fails)
        outcomes = train_all(setup, ledger, pool, jobs)
        again = FakePool(4)
        assert train_all(setup, ledger, again, jobs).keys() == outcomes.keys()
        assert not again.trained  # everything was in the ledger
    return outcomes


def test_a_candidate_with_a_diverged_seed_cannot_win(tmp_path):
    setup = plan(confirmation={"seeds": 2, "bootstrap": 100})
    jobs = dict.fromkeys(confirmation_slots(setup, [4, 7]), setup.base)
    outcomes = trained(tmp_path, setup, jobs, ["confirm-00004-1-2"])
    found = confirm(setup, [4, 7], {4: 2.0, 7: 1.0}, outcomes, FACTS)
    rows = {row["trial"]: row for row in found.candidates}
    assert found.best == 7 and "diverged" in rows[4]["excluded"] and not rows[7]["excluded"]
    assert len(rows[7]["seeds"]) == 2 and rows[7]["lcb"] < rows[7]["value"]


@pytest.mark.parametrize(("exposure", "fills"), [(0.009, 50.0), (0.5, 4.0)])
def test_a_candidate_with_one_inactive_fold_cannot_win(tmp_path, exposure, fills):
    """The rule of the search; its other 5 folds trade."""
    setup = plan(confirmation={"seeds": 2, "bootstrap": 100})
    jobs = dict.fromkeys(confirmation_slots(setup, [4, 7]), setup.base)
    outcomes = trained(tmp_path, setup, jobs)
    slot = Slot("confirm", 4, 1, 2)
    passes = outcomes[slot].passes
    idle = replace(passes, metrics=[{"mean_exposure": exposure, "fills": fills}] * 2)
    outcomes[slot] = replace(outcomes[slot], passes=idle)
    found = confirm(setup, [4, 7], {4: 2.0, 7: 1.0}, outcomes, FACTS)
    rows = {row["trial"]: row for row in found.candidates}
    assert found.best == 7 and "lcb" not in rows[4]
    assert rows[4]["excluded"].startswith("fold 2 of seed 1 is inactive: exposure ")
    neither = confirm(setup, [4], {4: 2.0}, outcomes, FACTS)
    assert neither.best is None and "traded on every fresh seed" in neither.reason


def test_games_are_ranked_by_the_bound_of_their_mean(tmp_path):
    setup = plan(market=None, confirmation={"seeds": 3, "bootstrap": 200})
    jobs = dict.fromkeys(confirmation_slots(setup, [1, 2]), setup.base)
    outcomes = trained(tmp_path, setup, jobs)
    better = DailyReturns(np.arange(4), np.full(4, 5.0), np.zeros(4), np.zeros(4, int), [{}])
    outcomes |= {s: replace(o, passes=better) for s, o in outcomes.items() if s.trial == 2}
    found = confirm(setup, [1, 2], {1: 9.0, 2: 1.0}, outcomes, None)
    assert found.winner == 2 and found.candidates[1]["lcb"] == 5.0
    values = np.array([1.0, 2.0, 3.0, 4.0])
    bound = mean_bound(values, setup.study.confirmation, 2, 1)
    assert 1.0 <= bound < values.mean()


def test_fresh_seeds_are_no_seeds_of_the_search():
    setup = plan()
    slots = [
        *(slot for trial in range(20) for slot in setup.trial_slots(trial)),
        *confirmation_slots(setup, range(20)),
        *(slot for trial in range(20) for slot in final_slots(setup, trial)),
    ]
    members = [setup.member(slot, setup.base) for slot in slots]
    assert len({one.seed for one in members}) == len({one.name for one in members}) == len(slots)
    assert all(Slot.parse(slot.name) == slot for slot in slots)
    assert members[4].seed == seed_of(0, 1, 1) and members[4].name == "search-00001-1"


def test_the_holdout_is_the_mean_over_seeds(tmp_path):
    setup = plan(final_seeds=2)
    slots = final_slots(setup, 3)
    outcomes = trained(tmp_path, setup, dict.fromkeys(slots, setup.base))
    days, weight = [1, 2], [0.0, 0.1]
    outcomes[slots[0]] = replace(outcomes[slots[0]], passes=one_fold(days, [0.1, 0.1], weight))
    outcomes[slots[1]] = replace(outcomes[slots[1]], passes=one_fold(days, [0.1, 0.2], weight))
    for slot in slots:
        passes = outcomes[slot].passes
        metrics = [{"mean_exposure": 0.5, "fills": 50.0}]
        outcomes[slot] = replace(outcomes[slot], passes=replace(passes, metrics=metrics))
    facts = holdout_facts(setup, slots, outcomes, opening=1, forced=False)
    assert facts["mean_return"] == pytest.approx((0.21 + 0.32) / 2)
    assert facts["benchmark_return"] == pytest.approx(0.1)
    assert facts["beats_equal_weight"] and facts["beats_cash"] and facts["promoted"]
    assert not holdout_facts(setup, slots, outcomes, opening=1, forced=True)["promoted"]
    alone = replace(setup, market=replace(setup.market, benchmark=False))
    facts = holdout_facts(alone, slots, outcomes, opening=1, forced=False)
    names = [*facts, *(name for seed in facts["seeds"] for name in seed)]
    assert not any("benchmark" in name or "equal_weight" in name for name in names)
    assert facts["beats_cash"] and facts["promoted"]


def test_openings_of_the_holdout_are_counted_once_each(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert [ledger.open_holdout(what) for what in ("a", "a", "b", "a")] == [1, 1, 2, 1]
        assert ledger.openings() == 2


def test_differences_are_named():
    setup = plan()
    first = identity(setup.base, setup.study, setup.space)
    assert difference(first, identity(setup.base, setup.study, setup.space)) == ""
    other = plan(penalty=0.5)
    second = identity(other.base, other.study, other.space)
    with pytest.raises(ConfigError, match=r"`study\.penalty` was 0\.1 and is 0\.5"):
        check_same("one", first, second, "read", "again")
    more = plan(n_trials=7)  # more trials are the same study
    check_same("one", first, identity(more.base, more.study, more.space), "read", "again")


def test_other_prices_are_named_by_their_hash():
    check_data("one", "abc", "abc")
    with pytest.raises(DataError, match=r"was abc and is\s+fed"):
        check_data("one", "abc", "fed")
