"""Intervals of a score."""

from __future__ import annotations

import numpy as np
from fake_pool import MARKET

from slipstream.studies.interval import score_interval
from slipstream.studies.member import Passes


def passes(first: int, mine, other) -> Passes:
    days = np.arange(first, first + len(mine))
    return Passes(days, np.asarray(mine), np.asarray(other), np.zeros(len(days), int), [{}])


def test_the_interval_holds_the_difference_of_sharpe_ratios():
    draws = np.random.default_rng(0)
    mine, other = draws.normal(0.002, 0.01, 400), draws.normal(0, 0.01, 400)
    folds = [passes(0, mine[:200], other[:200]), passes(200, mine[200:], other[200:])]
    ends = score_interval(folds, MARKET)
    assert ends is not None

    def sharpe(x):
        return x.mean() / x.std(ddof=1) * np.sqrt(365)

    assert ends[0] < sharpe(mine) - sharpe(other) < ends[1]
    assert 2.0 < ends[1] - ends[0] < 8.0  # two deviations of about sqrt(2 / 1.1 years) each way


def test_equal_returns_have_no_width_and_few_days_no_interval():
    same = np.random.default_rng(1).normal(0, 0.01, 60)
    assert score_interval([passes(0, same, same)], MARKET) == (0.0, 0.0)
    assert score_interval([passes(0, same[:10], same[:10])], MARKET) is None


def test_games_resample_folds():
    folds = [passes(0, [value] * 5, [0.0] * 5) for value in (1.0, 2.0, 3.0)]
    low, high = score_interval(folds, None)
    assert 1.0 <= low < 2.0 < high <= 3.0
    assert score_interval(folds[:1], None) is None
