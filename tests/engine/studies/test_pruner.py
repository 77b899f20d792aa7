"""Rungs by hand: when one is armed, whom it stops, what verdicts and the console say of it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_pool import plan
from scipy.stats import spearmanr

from slipstream.studies.config import PruningConfig, StudyConfig
from slipstream.studies.record.ledger import TrialDecision
from slipstream.studies.search.pruner import (
    BEHIND_BEST,
    DISARMED,
    LOWER_HALF,
    RECENT_TRIALS,
    Pruner,
    RungLog,
    is_rung_armed,
    prune_reason,
    rank_correlation,
)
from slipstream.studies.search.scheduler import Event
from slipstream.studies.search.study_plan import Stages
from slipstream.training.population.member import DailyReturns, Outcome
from slipstream.training.settings.config import resolve


def outcome(value: float, fold: int = 0, trial: int = 0, failed: bool = False) -> Outcome:
    backtests = DailyReturns(
        np.arange(2), np.full(2, value), np.zeros(2), np.zeros(2, np.int64), [{}]
    )
    name = f"search-{trial:05d}-{fold}"
    return Outcome(name, 3, None if failed else backtests, failed, "NaN" if failed else "")


class Judged:
    """A game study with one rung: `ended` trials first, then what is asked."""

    def __init__(self, ended: list[tuple[float, float]], **pruning) -> None:
        study = StudyConfig.model_validate(
            {"pruning": {"startup": 4, "rungs": [0.5], **pruning}, "fold_dispersion_penalty": 0}
        )
        self.pruner, self.trial = Pruner(study, None), 0
        for rung, final in ended:
            self.decide([rung], last=False, trial=self.trial)
            self.decide([final], last=True, trial=self.trial)
            self.trial += 1

    def decide(self, scores: list[float], last: bool, trial: int):
        outcomes = [outcome(score, fold, trial) for fold, score in enumerate(scores)]
        verdict = self.pruner.decide(Event(10, trial, 1 if last else 0), outcomes, last)
        self.pruner.record(verdict)
        return verdict

    def rung(self, *scores: float, trial: int = 9):
        return self.decide(list(scores), False, trial)


ALIKE = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)]


def test_scores_are_means_less_the_deviation():
    judge = Pruner(StudyConfig.model_validate({"fold_dispersion_penalty": 0.1}), None)
    verdict = judge.decide(Event(10, 0, 0), [outcome(1.0), outcome(3.0, 1)], True)
    assert verdict.score == pytest.approx(2.0 - 0.1 * np.sqrt(2.0))
    assert [fold["score"] for fold in verdict.folds] == [1.0, 3.0]


def test_an_armed_rung_stops_the_lower_half():
    low, high = Judged(ALIKE).rung(1.5), Judged(ALIKE).rung(4.5)
    assert (low.kind, low.reason, low.rho) == ("pruned", LOWER_HALF, pytest.approx(1.0))
    assert low.score == 1.5
    assert high.kind == "continued"


def test_losing_to_the_best_in_every_fold_stops_the_middle():
    assert Judged(ALIKE).rung(3.5).reason == BEHIND_BEST


def test_a_rung_that_predicts_nothing_stops_nothing():
    upside_down = [(4.0, 1.0), (3.0, 2.0), (2.0, 3.0), (1.0, 4.0)]
    verdict = Judged(upside_down).rung(0.1)
    assert verdict.kind == "continued" and verdict.rho == pytest.approx(-1.0)
    assert "disarmed" in verdict.reason and "-1.00" in verdict.reason


def test_the_first_trials_are_never_stopped():
    assert Judged(ALIKE).rung(0.1, trial=3).kind == "continued"


def test_without_finished_trials_a_rung_is_disarmed():
    judged = Judged([])
    judged.rung(5.0, trial=8)
    assert judged.rung(0.1).kind == "continued"


def test_pruning_off_stops_nothing():
    assert Judged(ALIKE, enabled=False).rung(0.1).kind == "continued"


def test_a_stopped_trial_counts_among_those_that_reached_the_rung():
    judged = Judged(ALIKE)
    for trial in range(5, 9):
        assert judged.rung(0.1, trial=trial).kind == "pruned"
    assert judged.rung(2.4).reason == BEHIND_BEST  # no longer in the lower half


def test_a_failed_fold_fails_the_trial():
    judge = Pruner(StudyConfig.model_validate({}), None)
    verdict = judge.decide(Event(5, 2, 0), [outcome(1.0), outcome(0, 1, 2, failed=True)], False)
    assert (verdict.kind, verdict.score) == ("failed", None)
    assert verdict.reason == "search-00002-1: NaN"


def test_a_return_that_is_no_number_fails_the_trial():
    judge = Pruner(StudyConfig.model_validate({}), None)
    verdict = judge.decide(Event(5, 2, 0), [outcome(float("nan"))], True)
    assert verdict.kind == "failed" and "not a number" in verdict.reason


ARRAY = np.array


def reached(scores):
    return ARRAY(scores, float)


def test_correlation_is_spearmans_with_ties():
    random = np.random.default_rng(0)
    a, b = random.integers(0, 6, 40).astype(float), random.normal(size=40)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)


@pytest.mark.parametrize(
    ("rung", "final", "on"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], True),
        ([1, 2, 3, 4], [40, 30, 20, 10], False),
        ([1, 2, 3, 4], [20, 10, 40, 30], True),  # 0.6
        ([1, 2, 3, 4], [20, 40, 10, 30], False),  # 0.0
    ],
)
def test_armed_while_it_predicts(rung, final, on):
    assert is_rung_armed(ARRAY(rung, float), ARRAY(final, float))[0] is on


def test_threshold_is_inclusive():
    rung, final = ARRAY([1.0, 2.0, 3.0]), ARRAY([1.0, 3.0, 2.0])  # exactly 0.5
    assert is_rung_armed(rung, final, min_correlation=0.5) == (True, pytest.approx(0.5))
    assert not is_rung_armed(rung, final, min_correlation=0.51)[0]


@pytest.mark.parametrize(
    ("rung", "final"),
    [([], []), ([1.0, 2.0], [1.0, 2.0]), ([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])],
)
def test_unknown_correlation_is_disarmed(rung, final):
    assert is_rung_armed(ARRAY(rung), ARRAY(final)) == (False, None)


def test_failed_trials_tell_nothing():
    rung = ARRAY([1.0, 2.0, np.nan, 3.0, 9.0])
    final = ARRAY([1.0, 2.0, 9.0, 3.0, np.nan])
    assert is_rung_armed(rung, final) == (True, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("score", "earlier", "stopped"),
    [
        (2.5, [1, 2, 3, 4], False),  # two ahead, two behind: the middle is not the lower half
        (2.4, [1, 2, 3], False),
        (1.9, [1, 2, 3], True),
        (2.0, [1, 2, 3], False),
        (0.0, [], False),
        (0.0, [0, 0, 0], False),  # equal to all: mid rank
        (0.5, [np.nan, np.nan, 0.1], False),
    ],
)
def test_lower_half(score, earlier, stopped):
    found = prune_reason(score, reached(earlier), ARRAY([score]), None)
    assert found == (LOWER_HALF if stopped else "")


def test_behind_the_best_in_every_fold():
    best = ARRAY([1.0, 2.0, 3.0])
    earlier = reached([0.1, 0.2])
    assert prune_reason(1.5, earlier, ARRAY([0.9, 1.9, 2.9]), best) == BEHIND_BEST
    assert prune_reason(1.5, earlier, ARRAY([0.9, 1.9, 3.0]), best) == ""  # level in one


def test_the_lower_half_is_of_those_that_came_last():
    """A sampler that has learned: 200 poor trials no longer make a mediocre one look good."""
    recent = np.linspace(10.0, 20.0, RECENT_TRIALS)
    earlier = [*np.linspace(0.0, 1.0, 200), *recent]
    assert prune_reason(14.8, reached(earlier), ARRAY([14.8]), None) == LOWER_HALF
    assert prune_reason(15.1, reached(earlier), ARRAY([15.1]), None) == ""
    assert prune_reason(0.9, reached(recent[::-1]), ARRAY([0.9]), None) == LOWER_HALF


MILESTONES = (11, 22, 33)
STAGES = Stages(MILESTONES, (110, 220, 330), (1 / 3, 2 / 3))


def verdict(trial: int, stage: int, rho: float | None, kind: str = "continued") -> TrialDecision:
    armed = rho is not None and rho >= 0.5
    reason = "" if armed else f"{DISARMED}: ..."
    return TrialDecision(trial, stage, MILESTONES[stage], 0, kind, 1.0, rho=rho, reason=reason)


def test_a_change_is_said_once():
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({}), said.append)
    log.update(verdict(3, 0, None), STAGES)  # one of the first trials
    assert not said
    log.update(verdict(16, 0, None), STAGES)
    log.update(verdict(17, 0, 0.2), STAGES)
    log.update(verdict(18, 0, 0.7, "pruned"), STAGES)
    log.update(verdict(18, 2, 0.7, "complete"), STAGES)
    log.update(verdict(19, 0, 0.6), STAGES)
    log.update(verdict(20, 0, -0.1), STAGES)
    assert len(said) == 3
    assert "Trial 16: the rung at 33 %" in said[0] and "is disarmed" in said[0]
    assert "not known" in said[0]
    assert "prunes from now on" in said[1] and "0.70" in said[1]
    assert "Trial 20" in said[2] and "-0.10" in said[2]


def test_nothing_is_said_without_pruning():
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({"enabled": False, "record": True}), said.append)
    log.update(verdict(30, 0, 0.1), STAGES)
    assert not said


def test_a_rung_is_called_by_its_share_and_told_where_it_lies_instead():
    """The issue's case: four rollouts; the console said 50 and 75 %, the page 33 and 67 %."""
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({}), said.append)
    stages = plan(pruning={"startup": 0}).stages(
        resolve(plan().base, {"training.total_timesteps": 256})
    )
    assert stages.shares == (1 / 3, 2 / 3) and stages.milestones == (2, 3, 4)
    log.update(TrialDecision(16, 0, 2, 0, "continued", 1.0, rho=0.7), stages)
    assert "the rung at 33 % (in whole rollouts 50 %) of the budget prunes" in said[0]
