"""Timing beside direction: returns minus mean net exposure times the market's return."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_pool import plan

from slipstream.kernels.spec import MarketSpec
from slipstream.studies.outcome.confirmation import confirm, confirmation_slots
from slipstream.studies.outcome.final_model import evaluate_holdout, final_slots
from slipstream.studies.outcome.outcome_text import NO_TIMING, describe_market_exposure
from slipstream.studies.outcome.result import overfitting_evidence
from slipstream.studies.record.ledger import Ledger, Slot, Suggestion, Trial, TrialDecision
from slipstream.studies.statistics.bootstrap import score_interval
from slipstream.studies.statistics.returns import FoldMap, backtest_paths, fold_score
from slipstream.training.environments.parts import Opening
from slipstream.training.population.backtests import backtest_growth, join_backtests
from slipstream.training.population.member import DailyReturns, Outcome

DAY = 86_400
PAIRS = MarketSpec(("EURUSD",), "USD", 1_000.0, DAY // 2, 520.0, 260.0, "00:00 UTC")
FACTS = {"paths": [[0]], "folds": [{"groups": [0]}]}
METRICS = {"mean_exposure": 0.5, "fills": 50.0}


def one_pass(exposure, returns, symbol="EURUSD", bars_a_day=2, metrics=METRICS):
    """A pass whose account earns the exposure that it holds, bar by bar."""
    exposure, returns = np.asarray(exposure, float), np.asarray(returns, float)
    held = np.concatenate([[exposure[0]], exposure[:-1]])
    equity = 1_000.0 * np.cumprod(1.0 + held * returns)
    time = (np.arange(len(returns)) + 1) * (DAY // bars_a_day)
    market = replace(PAIRS, symbols=(symbol,))
    values = {"equity": equity, "exposure": exposure}
    return backtest_growth(time, values, market, metrics, len(returns), returns)


def test_timing_by_hand():
    moves = [0.01, 0.02, -0.01, 0.03]
    found = join_backtests([one_pass([1.0, 0.0, 1.0, 1.0], moves)], [0], {})
    own = np.array([0.01, 0.02, 0.0, 0.03])  # the position of the bar before earns a bar
    timing = own - 0.75 * np.array(moves)
    assert found.timing == pytest.approx([timing[0] + timing[1], timing[2] + timing[3]])
    assert found.market == pytest.approx([1.01 * 1.02 - 1.0, 0.99 * 1.03 - 1.0])
    assert found.metrics[0]["net_exposure"] == pytest.approx(0.75)


def test_the_mean_exposure_is_that_of_all_passes():
    """A policy that is long in one tested group and short in the other one times the market."""
    up = np.array([0.01, 0.02, 0.03, 0.04])
    backtests = [one_pass(np.ones(4), up), one_pass(-np.ones(4), -up)]
    found = join_backtests(backtests, [0, 1], {})
    assert found.timing == pytest.approx([0.03, 0.07, 0.03, 0.07])  # net exposure is 0
    alone = join_backtests(backtests[:1], [0], {})
    assert not alone.timing.any()


def test_two_symbols_count_by_their_share_of_the_equity():
    first, second = np.array([0.5, 0.0, 0.1, 0.0]), np.array([0.0, 0.0, 0.0, 0.2])
    long, turns = one_pass(np.ones(4), first), one_pass([1.0, 1.0, 0.0, 0.0], second, "GBPUSD")
    found = join_backtests([long, turns], [0, 0], {})
    # At the second day's start 1.5 of 2.5 is in the first pair, which is never timed.
    assert found.timing == pytest.approx([0.0, (0.0 - 0.5 * 0.2) * 1.0 / 2.5])
    assert found.metrics[0]["net_exposure"] == pytest.approx((4.0 + 2.0) / 8.0)


@pytest.mark.parametrize("side", [1.0, -1.0, 0.5])
def test_a_position_that_is_held_has_a_timing_of_zeros(side):
    """Its exposure drifts with the price, which nobody decided."""
    random = np.random.default_rng(0)
    returns = 0.002 * random.standard_normal(240) + 2e-4
    price = np.cumprod(1.0 + returns)
    equity = 1_000.0 * (1.0 + side * (price - 1.0)) - 0.2  # a cost at the entry
    values = {"equity": equity, "exposure": side * 1_000.0 * price / equity}
    time = (np.arange(240) + 1) * (DAY // 2)
    found = join_backtests([backtest_growth(time, values, PAIRS, METRICS, 240, returns)], [0], {})
    assert found.timing.tolist() == [0.0] * 120
    assert np.std(found.returns) > 0.0


def test_an_account_that_was_closed_counts_to_the_end():
    exposure, returns = np.array([1.0, 1.0]), np.array([0.01, 0.01, 0.02, 0.02])
    values = {"equity": np.array([1_010.0, 1_020.0]), "exposure": exposure}
    time = (np.arange(4) + 1) * (DAY // 2)
    found = join_backtests([backtest_growth(time, values, PAIRS, METRICS, 2, returns)], [0], {})
    assert found.metrics[0]["net_exposure"] == pytest.approx(0.5)
    assert found.timing[1] == pytest.approx(-0.5 * 0.04)


def test_passes_without_the_markets_returns_have_no_timing():
    known = one_pass(np.ones(4), np.full(4, 0.01))
    found = join_backtests([known, known._replace(moves=None, symbols=("GBPUSD",))], [0, 0], {})
    assert found.timing is None and found.market is None
    assert "net_exposure" not in found.metrics[0]


def test_a_ledger_keeps_timing_and_reads_passes_without_it(tmp_path):
    timed = join_backtests([one_pass([1.0, 0.0, 1.0, 1.0], [0.01, 0.02, -0.01, 0.03])], [0], {})
    plain = replace(timed, timing=None, market=None)
    with Ledger(tmp_path / "ledger.db") as ledger:
        names = [Slot("final", 0, k, 0).name for k in range(2)]
        ledger.add_outcomes(
            [Outcome(name, 1, one) for name, one in zip(names, (timed, plain), strict=True)]
        )
        first, second = (ledger.backtests("final")[0, k, 0] for k in range(2))
    for name in ("timing", "market", "benchmark", "returns"):
        assert getattr(first, name).tolist() == getattr(timed, name).tolist()
    assert second.timing is None and second.market is None
    assert second.benchmark.tolist() == plain.benchmark.tolist()


def study(seed, skill, trials=20, days=300):
    """The confirmation of a study on one pair of constant drift."""
    random = np.random.default_rng(seed)
    spec = replace(PAIRS, bar_seconds=DAY)
    setup = plan(folds=1, market=spec, confirmation={"bootstrap": 500})
    market = 1.5e-3 + 0.005 * random.standard_normal(days)

    def backtests():
        wish = skill * (market - 1.5e-3) / 0.005
        wish = wish + (1.0 - skill**2) ** 0.5 * random.standard_normal(days)
        inside = (wish > np.quantile(wish, 0.3)).astype(float)  # decided before the bar
        held = np.concatenate([inside[1:], [0.0]])
        account = one_pass(held, market, bars_a_day=1)
        return join_backtests([account], [0], {})

    full = {trial: [backtests()] for trial in range(trials)}
    scores = {trial: float(one[0].returns.mean()) for trial, one in full.items()}
    chosen = sorted(scores, key=lambda trial: -scores[trial])[: setup.study.confirmation.top]
    outcomes = {
        slot: Outcome(slot.name, 1, backtests()) for slot in confirmation_slots(setup, chosen)
    }
    return confirm(setup, chosen, scores, outcomes, FACTS, full, trials), full


def test_a_constant_drift_alone_is_not_confirmed():
    """Without timing, a bound above 0 of own returns confirmed all of these studies."""
    for seed in range(6):
        found, _ = study(seed, 0.0)
        assert found.winner is None
        assert max(one["lcb"] for one in found.candidates) > 0.0
        assert max(one["timing_lcb"] for one in found.candidates) <= 0.0
        assert "direction" in found.reason


def test_timing_in_a_drift_is_confirmed():
    found, _ = study(0, 0.5)
    assert found.winner is not None and found.reason == ""
    assert found.chance is not None and found.chance["timing"] <= 0.05


def test_hansens_test_asks_for_timing_too():
    """The bound of a candidate with lucky fresh seeds is above 0; its search was not."""
    found, full = study(0, 0.5)
    assert found.winner is not None
    setup = plan(folds=1, market=replace(PAIRS, bar_seconds=DAY), confirmation={"bootstrap": 500})
    lucky = {trial: [replace(one[0], timing=-one[0].timing)] for trial, one in full.items()}
    jobs = confirmation_slots(setup, [found.winner])
    outcomes = {slot: Outcome(slot.name, 1, full[found.winner][0]) for slot in jobs}
    again = confirm(setup, [found.winner], {found.winner: 1.0}, outcomes, FACTS, lucky, 20)
    assert again.winner is None and again.chance is not None and again.chance["timing"] > 0.5
    assert "of timing" in again.reason


@pytest.mark.parametrize(("skill", "promoted"), [(0.0, False), (0.6, True)])
def test_promotion_asks_for_timing(skill, promoted):
    _, full = study(1, skill)
    setup = plan(folds=1, market=replace(PAIRS, bar_seconds=DAY))
    slots = final_slots(setup, 0)
    outcomes = {slot: Outcome(slot.name, 1, full[k][0]) for k, slot in enumerate(slots, start=3)}
    facts = evaluate_holdout(setup, slots, outcomes, Opening(1), False)
    assert facts["lcb"] > 0.0 and "sharpe_lcb" not in facts
    assert (facts["timing_lcb"] > 0.0) is promoted is facts["promoted"]


class Passed:
    """A ledger of whole passes and nothing else."""

    def __init__(self, full):
        self._full = full

    def complete_backtests(self):
        return self._full


def test_the_deflated_ratio_is_the_smallest_one():
    for skill, above in ((0.0, False), (0.6, True)):
        _, full = study(2, skill)
        setup = plan(folds=1, market=replace(PAIRS, bar_seconds=DAY))
        trials = [
            Trial(
                Suggestion(trial, 0, {}, {}),
                [TrialDecision(trial, 0, 1, 0, "complete", float(one[0].returns.mean()), [{}])],
            )
            for trial, one in full.items()
        ]
        told = overfitting_evidence(setup, Passed(full), trials)["deflated_sharpe"]
        assert (told["value"] >= 0.95) is above
        assert told["of"] == ("timing" if not above else told["of"])
        still = {
            trial: [replace(one[0], timing=np.zeros(len(one[0].days)))]
            for trial, one in full.items()
        }
        told = overfitting_evidence(setup, Passed(still), trials)["deflated_sharpe"]
        assert told["of"] == "timing" and "never changes its exposure" in told["reason"]


def test_paths_have_no_timing_where_a_fold_has_none():
    _, full = study(0, 0.0, trials=1)
    (backtests,) = full[0]
    layout = FoldMap(((0,), (0,)), ((0,), (1,)))
    both = backtest_paths([backtests, backtests], layout)
    assert both.timing == pytest.approx(backtests.timing)
    assert backtest_paths([backtests, replace(backtests, timing=None)], layout).timing is None


def test_a_fold_shows_market_exposure_and_correlation():
    _, full = study(0, 0.0, trials=1)
    facts = fold_score(full[0][0], replace(PAIRS, bar_seconds=DAY)).to_dict()
    assert facts["net_exposure"] == pytest.approx(0.7, abs=0.02)
    assert facts["market_growth"] == pytest.approx(np.prod(1.0 + full[0][0].market) - 1.0)
    assert 0.5 < facts["market_correlation"] < 1.0
    shown = {"trial": 3, "folds": [facts]}
    result = {"market": True, "benchmark": False, "holdout": None, "shown": shown}
    told = describe_market_exposure(result)
    assert told.startswith("Buy and hold, free of costs, made +")
    assert "Mean net exposure, trial 3's on each fold: 0.7" in told
    old = {
        name: one
        for name, one in facts.items()
        if name not in ("net_exposure", "market_correlation")
    }
    assert describe_market_exposure({**result, "shown": {"trial": 3, "folds": [old]}}) == NO_TIMING
    assert describe_market_exposure({**result, "shown": None}) == ""
    seeds = [{"failed": True}, {"failed": False, **facts}]
    held = describe_market_exposure({**result, "holdout": {"seeds": seeds}})
    assert "of each final seed on the hold-out: 0.7" in held


def test_a_score_has_an_interval_where_the_market_was_recorded():
    _, full = study(0, 0.0, trials=1)
    low, high = score_interval(full[0], replace(PAIRS, bar_seconds=DAY))
    assert low < high


def test_games_have_no_direction():
    assert describe_market_exposure({"market": False}) == ""
    zeros = np.zeros(3)
    games = DailyReturns(np.arange(3), zeros + 1.0, zeros, np.zeros(3, np.int64), [{}])
    assert "market_correlation" not in fold_score(games, None).to_dict()
