"""Confirmation, alignment of seeds and hold-out results, checked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_pool import FakePool, plan

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.random import derive_seed
from slipstream.core.storage.logbook import Logbook
from slipstream.studies.outcome.confirmation import (
    _align_returns,
    confirm,
    confirmation_slots,
    mean_lower_bound,
)
from slipstream.studies.outcome.final_model import evaluate_holdout, final_slots
from slipstream.studies.outcome.outcome_text import (
    describe_openings,
    describe_promotion,
    format_p_values,
)
from slipstream.studies.record.folder import (
    StudyFolder,
    check_data,
    check_identity,
    describe_difference,
    study_identity,
)
from slipstream.studies.record.ledger import Ledger, Slot, TrialDecision, rank_eligible
from slipstream.studies.search.session import Session
from slipstream.studies.statistics import bootstrap
from slipstream.studies.statistics.returns import FoldMap, describe_nearest_violation
from slipstream.training.environments.parts import Opening
from slipstream.training.population.member import DailyReturns

FACTS = {"paths": [[0, 0, 1, 1, 2, 2]], "folds": [{"groups": [2 * k, 2 * k + 1]} for k in range(3)]}


def verdict(trial: int, kind: str, score: float | None, inactive: bool = False) -> TrialDecision:
    return TrialDecision(trial, 0, 1, 1, kind, score, ({"score": score, "inactive": inactive},))


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
    assert [one.trial for one in rank_eligible(verdicts)] == [4, 5, 0]


def one_fold(days, returns, benchmark) -> DailyReturns:
    return DailyReturns(
        np.array(days), np.array(returns), np.array(benchmark), np.zeros(len(days), int), [{}]
    )


def test_a_policy_that_did_not_live_to_a_day_earned_nothing_there():
    layout = FoldMap(((0,),), ((0,),))
    long = one_fold([1, 2, 3], [0.1, 0.2, 0.3], [0.05, 0.05, 0.05])
    short = one_fold([1, 2], [0.1, -0.9], [0.05, 0.05])
    (excess,), benchmark, _ = _align_returns([[[long], [short]]], layout)
    assert benchmark == pytest.approx([0.05] * 3)
    assert excess == pytest.approx(np.array([[0.05, 0.15, 0.25], [0.05, -0.95, -0.05]]))


def confirmed(tmp_path, setup, ledger, pool, jobs):
    asked, folder = SimpleNamespace(requested=False), StudyFolder(tmp_path)
    with Logbook(tmp_path, "study", print) as book:
        here = Session(folder, setup, ledger, pool, asked, book, print, lambda status: None)
        return here.train(jobs, "confirmation")


def trained(tmp_path, setup, jobs, fails=()):
    with Ledger(tmp_path / "ledger.db") as ledger:
        pool = FakePool(3, fails)
        outcomes = confirmed(tmp_path, setup, ledger, pool, jobs)
        again = FakePool(4)
        repeated = confirmed(tmp_path, setup, ledger, again, jobs)
        assert repeated.keys() == outcomes.keys()
        assert not again.trained  # everything was in the ledger
    return outcomes


def searched(setup, outcomes, trials):
    """The confirmation's first seed, as if it had been the search's."""
    slots = {trial: confirmation_slots(setup, [trial])[: setup.num_folds] for trial in trials}
    return {
        trial: [outcomes[slot].backtests for slot in mine]
        for trial, mine in slots.items()
        if not any(outcomes[slot].failed for slot in mine)
    }


def test_a_candidate_with_a_failed_seed_cannot_win(tmp_path):
    setup = plan(confirmation={"seeds": 2, "bootstrap": 100})
    jobs = dict.fromkeys(confirmation_slots(setup, [4, 7]), setup.base)
    outcomes = trained(tmp_path, setup, jobs, ["confirm-00004-1-2"])
    found = confirm(
        setup, [4, 7], {4: 2.0, 7: 1.0}, outcomes, FACTS, searched(setup, outcomes, [4, 7]), 9
    )
    rows = {row["trial"]: row for row in found.candidates}
    assert (
        found.best == 7
        and "could not be trained" in rows[4]["excluded"]
        and not rows[7]["excluded"]
    )
    assert len(rows[7]["seeds"]) == 2 and rows[7]["lcb"] < rows[7]["value"]


@pytest.mark.parametrize(("exposure", "fills"), [(0.009, 50.0), (0.5, 4.0)])
def test_a_candidate_with_one_inactive_fold_cannot_win(tmp_path, exposure, fills):
    """The rule of the search; its other 5 folds trade."""
    setup = plan(confirmation={"seeds": 2, "bootstrap": 100})
    jobs = dict.fromkeys(confirmation_slots(setup, [4, 7]), setup.base)
    outcomes = trained(tmp_path, setup, jobs)
    slot = Slot("confirm", 4, 1, 2)
    backtests = outcomes[slot].backtests
    idle = replace(backtests, metrics=[{"mean_exposure": exposure, "fills": fills}] * 2)
    outcomes[slot] = replace(outcomes[slot], backtests=idle)
    found = confirm(
        setup, [4, 7], {4: 2.0, 7: 1.0}, outcomes, FACTS, searched(setup, outcomes, [4, 7]), 9
    )
    rows = {row["trial"]: row for row in found.candidates}
    assert found.best == 7 and "lcb" not in rows[4]
    assert rows[4]["excluded"].startswith("fold 2 of seed 1 is inactive: exposure ")
    neither = confirm(setup, [4], {4: 2.0}, outcomes, FACTS, {}, 9)
    assert neither.best is None and "traded on every fresh seed" in neither.reason


def test_a_candidate_beyond_a_constraint_in_one_block_cannot_win(tmp_path):
    setup = plan(confirmation={"seeds": 2, "bootstrap": 100}, constraints={"max_drawdown": 0.2})
    jobs = dict.fromkeys(confirmation_slots(setup, [4, 7]), setup.base)
    fine = {"mean_exposure": 0.5, "fills": 50.0, "max_drawdown": 0.2}
    outcomes = {
        slot: replace(one, backtests=replace(one.backtests, metrics=[fine] * 2))
        for slot, one in trained(tmp_path, setup, jobs).items()
    }
    slot = Slot("confirm", 4, 1, 2)
    deep = replace(outcomes[slot].backtests, metrics=[fine, {**fine, "max_drawdown": 0.31}])
    outcomes[slot] = replace(outcomes[slot], backtests=deep)
    found = confirm(
        setup, [4, 7], {4: 2.0, 7: 1.0}, outcomes, FACTS, searched(setup, outcomes, [4, 7]), 9
    )
    assert found.best == 7 and found.candidates[0]["excluded"] == (
        "fold 2 of seed 1 violates a constraint: max_drawdown is 0.31 (at most 0.2)"
    )
    none = confirm(setup, [4], {4: 2.0}, outcomes, FACTS, {}, 9)
    assert none.closest == "trial 4 comes closest, whose max_drawdown is 0.31 (at most 0.2)"
    assert describe_nearest_violation(
        {4: {"x": (3.0, 2.0)}, 5: {"x": (2.5, 2.0), "y": (0.0, 0.0)}, 6: {}}
    ) == ("trial 5 comes closest, whose x is 2.5 (at most 2)")


def test_games_are_ranked_by_the_bound_of_their_mean(tmp_path):
    setup = plan(market=None, confirmation={"seeds": 3, "bootstrap": 200})
    jobs = dict.fromkeys(confirmation_slots(setup, [1, 2]), setup.base)
    outcomes = trained(tmp_path, setup, jobs)
    better = DailyReturns(np.arange(4), np.full(4, 5.0), np.zeros(4), np.zeros(4, int), [{}])
    outcomes |= {s: replace(o, backtests=better) for s, o in outcomes.items() if s.trial == 2}
    found = confirm(setup, [1, 2], {1: 9.0, 2: 1.0}, outcomes, None, {}, 2)
    assert found.winner == 2 and found.candidates[1]["lcb"] == 5.0
    values = np.array([1.0, 2.0, 3.0, 4.0])
    bound = mean_lower_bound(values, setup.study.confirmation, 2, 1)
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
    assert all(Slot.from_name(slot.name) == slot for slot in slots)
    assert members[4].seed == derive_seed(0, 1, 1) and members[4].name == "search-00001-1"


def test_the_holdout_is_the_mean_over_seeds(tmp_path):
    setup = plan(final_seeds=2)
    slots = final_slots(setup, 3)
    outcomes = trained(tmp_path, setup, dict.fromkeys(slots, setup.base))
    days, weight = [1, 2], [0.0, 0.1]
    outcomes[slots[0]] = replace(outcomes[slots[0]], backtests=one_fold(days, [0.1, 0.1], weight))
    outcomes[slots[1]] = replace(outcomes[slots[1]], backtests=one_fold(days, [0.1, 0.2], weight))
    for slot in slots:
        backtests = outcomes[slot].backtests
        metrics = [{"mean_exposure": 0.5, "fills": 50.0}]
        outcomes[slot] = replace(outcomes[slot], backtests=replace(backtests, metrics=metrics))
    facts = evaluate_holdout(setup, slots, outcomes, opening=Opening(1), forced=False)
    assert facts["mean_return"] == pytest.approx((0.21 + 0.32) / 2)
    assert facts["benchmark_return"] == pytest.approx(0.1)
    assert facts["beats_equal_weight"] and facts["beats_cash"]
    assert facts["lcb"] is facts["sharpe_lcb"] is None and not facts["promoted"]  # of two days
    told = {"holdout": facts, "winner": None}
    assert describe_promotion(told) == (
        "Not promoted: 2 fresh days are too few for a bound, which needs 60."
    )
    short = {**facts, **Opening(1, compared_days=2).as_dict()}
    assert (
        "were opened before: prices are identified by 60 days, and there are 2."
        in describe_openings(short)[0]
    )
    searched = {**facts, **Opening(1, searched=("study other (2027-01-15)",)).as_dict()}
    first, used = describe_openings(searched)
    assert "This is the first opening" in first
    assert "development days of study other (2027-01-15): they are not fresh" in used
    alone = replace(setup, market=replace(setup.market, benchmark=False))
    facts = evaluate_holdout(alone, slots, outcomes, opening=Opening(1), forced=False)
    names = [*facts, *(name for seed in facts["seeds"] for name in seed)]
    assert not any("benchmark" in name or "equal_weight" in name for name in names)


FIRST = Opening(1)


def held(tmp_path, mine, market, opening=FIRST, forced=False, **study):
    """Facts and sentence of two seeds that earn `mine` beside `market`, a mean a day each."""
    setup = plan(final_seeds=2, **study)
    slots = final_slots(setup, 3)
    tmp_path.mkdir()
    outcomes = trained(tmp_path, setup, dict.fromkeys(slots, setup.base))
    noise = np.random.default_rng(0).normal(0.0, 0.01, (3, 100))
    noise -= noise.mean(axis=1, keepdims=True)
    for slot, own in zip(slots, noise, strict=False):
        backtests = one_fold(np.arange(100), mine + own, market + 0.3 * noise[2])
        backtests = replace(backtests, metrics=[{"mean_exposure": 0.5, "fills": 50.0}])
        outcomes[slot] = replace(outcomes[slot], backtests=backtests)
    facts = evaluate_holdout(setup, slots, outcomes, opening, forced)
    return facts, describe_promotion({"holdout": facts, "winner": {"forced": forced}})


def test_promotion_needs_both_bounds_above_zero(tmp_path):
    """A mean above equal weight and cash was enough: a coin's flip."""
    facts, said = held(tmp_path / "a", 4e-3, 0.0)
    assert facts["promoted"] and facts["lcb"] > 0 and facts["sharpe_lcb"] > 0
    assert said == "Promoted: the lower bounds on the hold-out are above 0."
    facts, said = held(tmp_path / "z", 4e-3, 0.0, constraints={"fills": 49.0})
    assert facts["lcb"] > 0 and not facts["promoted"]
    assert said == "Not promoted: it violates a constraint there: fills is 50 (at most 49)."
    facts, said = held(tmp_path / "b", 1e-3, 0.0)
    assert facts["beats_equal_weight"] and facts["beats_cash"] and not facts["promoted"]
    assert said.endswith("the hold-out does not contradict it, and is too short to confirm it.")
    facts, said = held(tmp_path / "c", 1e-4, -5e-3)  # loses less than a market that falls
    assert facts["lcb"] > 0 > facts["sharpe_lcb"] and not facts["promoted"]
    facts, said = held(tmp_path / "d", 4e-3, 8e-3)  # gains less than one that rises
    assert facts["sharpe_lcb"] > 0 > facts["lcb"] and not facts["promoted"]
    assert said == "Not promoted: it does not beat its benchmark."
    facts, said = held(tmp_path / "e", 4e-3, 0.0, forced=True)
    assert not facts["promoted"] and said == "Not promoted: it was deployed by force."
    facts, said = held(tmp_path / "f", 4e-3, 0.0, Opening(1, unknown="No folder"))
    assert not facts["promoted"] and "it is unknown whether these days were opened" in said


def test_days_that_were_opened_before_leave_the_bounds(tmp_path):
    seen = Opening(2, ("study other",), frozenset(range(40)))
    facts, _ = held(tmp_path / "a", 4e-3, 0.0, seen)
    assert facts["fresh_days"] == 60 and facts["lcb"] is not None and facts["opening"] == 2
    fewer = Opening(2, ("study other",), frozenset(range(41)))
    facts, said = held(tmp_path / "b", 4e-3, 0.0, fewer)
    assert facts["fresh_days"] == 59 and facts["lcb"] is None and not facts["promoted"]
    assert "59 fresh days are too few" in said


def test_a_bound_above_zero_is_confirmed_only_if_so_many_trials_would_hardly_show_it(
    tmp_path, monkeypatch
):
    """Pruned trials are not in the matrix and were tried: p = 1 - (1 - p)^(all / full)."""
    setup = plan(confirmation={"seeds": 2, "bootstrap": 300})
    jobs = dict.fromkeys(confirmation_slots(setup, [4, 7]), setup.base)
    outcomes = trained(tmp_path, setup, jobs)
    for slot, one in outcomes.items():
        skill = 0.004 if slot.trial == 4 else -0.004
        returns = one.backtests.returns + skill
        outcomes[slot] = replace(one, backtests=replace(one.backtests, returns=returns))
    full = searched(setup, outcomes, [4, 7])

    def confirmed(begun):
        return confirm(setup, [4, 7], {4: 2.0, 7: 1.0}, outcomes, FACTS, full, begun)

    found = confirmed(2)
    assert found.winner == found.best == 4 and not found.reason
    assert found.chance == {"trial": 4, "trials": 2, "full": 2, "excess": 0.0, "own": 0.0}
    seen = []
    monkeypatch.setattr(bootstrap, "spa_p_value", lambda returns, *_: seen.append(returns) or 0.02)
    assert confirmed(2).winner == 4
    many = confirmed(6)
    assert many.winner is None and many.best == 4
    assert many.chance["excess"] == many.chance["own"] == pytest.approx(1 - 0.98**3)
    assert many.reason.startswith(
        "trial 4 is the best candidate, but 6 trials could show as much by chance: Hansen's test "
        "over all of them gives p = 0.059 in excess of equal weight and p = 0.059 of own returns"
    )
    assert format_p_values(found.chance, 2_000) == (
        "p < 0.0005 in excess of equal weight and p < 0.0005 of own returns"
    )
    excess, own = seen[:2]  # the same days and trials, and the market between them
    assert excess.shape == own.shape == (360 // 2, 2) and np.ptp(own - excess, axis=1).max() < 1e-12
    market = replace(setup.market, benchmark=False)
    alone = confirm(replace(setup, market=market), [4], {4: 2.0}, outcomes, FACTS, {4: full[4]}, 1)
    assert "excess" not in alone.chance and alone.chance["own"] == pytest.approx(0.02)


def test_openings_of_the_holdout_are_counted_once_each(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert [ledger.open_holdout(what) for what in ("a", "a", "b", "a")] == [1, 1, 2, 1]


def test_differences_are_named():
    setup = plan()
    first = study_identity(setup.base, setup.study, setup.space)
    assert describe_difference(first, study_identity(setup.base, setup.study, setup.space)) == ""
    other = plan(fold_dispersion_penalty=0.5)
    second = study_identity(other.base, other.study, other.space)
    with pytest.raises(ConfigError, match=r"`study\.fold_dispersion_penalty` was 0\.1 and is 0\.5"):
        check_identity("one", first, second, "read", "again")
    more = plan(n_trials=7)  # more trials are the same study
    check_identity("one", first, study_identity(more.base, more.study, more.space), "read", "again")


def test_other_prices_are_named_by_their_hash():
    check_data("one", "abc", "abc")
    with pytest.raises(DataError, match=r"was abc and is\s+fed"):
        check_data("one", "abc", "fed")
