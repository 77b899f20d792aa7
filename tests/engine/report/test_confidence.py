"""Intervals: coverage, determinism, and none where there is too little."""

import numpy as np
import pytest

from slipstream.report import statistics as co


def test_interval_is_deterministic_and_holds_the_estimate():
    returns = np.random.default_rng(0).normal(5e-4, 6e-3, 300)
    low, high = co.sharpe_interval(returns, 260)
    assert (low, high) == co.sharpe_interval(returns, 260)
    assert low < returns.mean() / returns.std(ddof=1) * 260**0.5 < high


def test_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    truth = 1.0
    hits = 0
    for _ in range(150):
        returns = random.normal(truth / 260**0.5 * 0.01, 0.01, 260)
        low, high = co.sharpe_interval(returns, 260, draws=400)
        hits += low <= truth <= high
    assert 0.86 <= hits / 150 <= 1.0


@pytest.mark.parametrize("returns", [np.zeros(100), np.full(100, 0.01), np.arange(59) % 7])
def test_no_interval_without_days_or_deviation(returns):
    assert co.sharpe_interval(returns, 260) is None


def test_one_winning_day_gives_no_interval_but_no_error():
    returns = np.zeros(100)
    returns[7] = 0.01
    found = co.sharpe_interval(returns, 260)
    assert found is None or found[0] <= found[1]
