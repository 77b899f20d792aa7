"""Verdicts by hand: startup, armed and disarmed rungs, the incumbent, failures."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.studies.config import StudyConfig
from slipstream.studies.engine.member import DailyReturns, Outcome
from slipstream.studies.search.judge import BEHIND, LOWER_HALF, Judge
from slipstream.studies.search.scheduler import Event


def outcome(value: float, fold: int = 0, trial: int = 0, failed: bool = False) -> Outcome:
    passes = DailyReturns(np.arange(2), np.full(2, value), np.zeros(2), np.zeros(2, np.int64), [{}])
    name = f"search-{trial:05d}-{fold}"
    return Outcome(name, 3, None if failed else passes, failed, "NaN" if failed else "")


class Judged:
    """A game study with one rung: `ended` trials first, then what is asked."""

    def __init__(self, ended: list[tuple[float, float]], **pruning) -> None:
        study = StudyConfig.model_validate(
            {"pruning": {"startup": 4, "rungs": [0.5], **pruning}, "penalty": 0}
        )
        self.judge, self.trial = Judge(study, None), 0
        for rung, final in ended:
            self.decide([rung], last=False, trial=self.trial)
            self.decide([final], last=True, trial=self.trial)
            self.trial += 1

    def decide(self, scores: list[float], last: bool, trial: int):
        outcomes = [outcome(score, fold, trial) for fold, score in enumerate(scores)]
        verdict = self.judge.decide(Event(10, trial, 1 if last else 0), outcomes, last)
        self.judge.remember(verdict)
        return verdict

    def rung(self, *scores: float, trial: int = 9):
        return self.decide(list(scores), False, trial)


ALIKE = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)]


def test_scores_are_means_less_the_deviation():
    judge = Judge(StudyConfig.model_validate({"penalty": 0.1}), None)
    verdict = judge.decide(Event(10, 0, 0), [outcome(1.0), outcome(3.0, 1)], True)
    assert verdict.score == pytest.approx(2.0 - 0.1 * np.sqrt(2.0))
    assert [fold["score"] for fold in verdict.folds] == [1.0, 3.0]


def test_an_armed_rung_stops_the_lower_half():
    low, high = Judged(ALIKE).rung(1.5), Judged(ALIKE).rung(4.5)
    assert (low.kind, low.reason, low.rho) == ("pruned", LOWER_HALF, pytest.approx(1.0))
    assert low.score == 1.5
    assert high.kind == "continued"


def test_losing_to_the_best_in_every_fold_stops_the_middle():
    assert Judged(ALIKE).rung(3.5).reason == BEHIND


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
    assert judged.rung(2.4).reason == BEHIND  # no longer in the lower half


def test_a_failed_fold_fails_the_trial():
    judge = Judge(StudyConfig.model_validate({}), None)
    verdict = judge.decide(Event(5, 2, 0), [outcome(1.0), outcome(0, 1, 2, failed=True)], False)
    assert (verdict.kind, verdict.score) == ("failed", None)
    assert verdict.reason == "search-00002-1: NaN"


def test_a_return_that_is_no_number_fails_the_trial():
    judge = Judge(StudyConfig.model_validate({}), None)
    verdict = judge.decide(Event(5, 2, 0), [outcome(float("nan"))], True)
    assert verdict.kind == "failed" and "not a number" in verdict.reason
