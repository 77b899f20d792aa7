"""Intervals of a score."""

from __future__ import annotations

import numpy as np
import pytest
from fake_pool import MARKET

from slipstream.studies.engine.member import DailyReturns
from slipstream.studies.statistics.bootstrap import score_interval
from slipstream.studies.statistics.objective import fold_score, trial_score


def passes(first: int, mine, other) -> DailyReturns:
    days = np.arange(first, first + len(mine))
    active = {"mean_exposure": 0.5, "fills": 100.0}
    return DailyReturns(
        days, np.asarray(mine), np.asarray(other), np.zeros(len(days), int), [active]
    )


@pytest.mark.parametrize("objective", ["sharpe", "information_ratio", "log_growth"])
def test_the_interval_is_that_of_the_score(objective):
    draws = np.random.default_rng(0)
    mine, other = draws.normal(0.002, 0.01, 400), draws.normal(0, 0.01, 400)
    folds = [passes(0, mine[:200], other[:200]), passes(200, mine[200:], other[200:])]
    score = trial_score([fold_score(one, MARKET, objective).score for one in folds], 0.1)
    ends = score_interval(folds, MARKET, objective, 0.1)
    assert ends is not None and ends[0] < score < ends[1]
    if objective == "sharpe":  # two deviations of about sqrt(2 / 1.1 years) each way
        assert 2.0 < ends[1] - ends[0] < 8.0
    lower = score_interval(folds, MARKET, objective, 1.0)
    assert lower is not None and lower[0] < ends[0]  # the penalty is part of the score


def test_folds_that_test_the_same_days_are_resampled_together():
    """Twice the same fold says no more than once."""
    returns = np.random.default_rng(3).normal(0.002, 0.01, 200)
    one = passes(0, returns, np.zeros(200))
    assert score_interval([one, one], MARKET) == score_interval([one], MARKET)


def test_equal_returns_have_no_width_and_few_days_no_interval():
    same = np.random.default_rng(1).normal(0, 0.01, 60)
    assert score_interval([passes(0, same, same)], MARKET) == (0.0, 0.0)
    assert score_interval([passes(0, same[:59], same[:59])], MARKET) is None


def test_games_resample_folds():
    folds = [passes(0, [value] * 5, [0.0] * 5) for value in (1.0, 2.0, 3.0)]
    low, high = score_interval(folds, None)
    assert 1.0 <= low < 2.0 < high <= 3.0
    assert score_interval(folds[:1], None) is None
