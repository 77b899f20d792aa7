"""Intervals and thresholds: coverage, determinism, the figures of the specified wording."""

import numpy as np
import pytest

from slipstream.report import confidence as co


def test_blocks_have_the_stated_mean_length():
    rows = co.stationary_rows(300, draws=400, mean_block=10.0)
    follows = (rows[:, 1:] - rows[:, :-1]) % 300 == 1
    assert 1.0 / (1.0 - follows.mean()) == pytest.approx(10.0, rel=0.05)


def test_rows_cover_all_days_equally():
    rows = co.stationary_rows(50, draws=4_000)
    counts = np.bincount(rows.ravel(), minlength=50) / rows.size
    assert np.abs(counts * 50 - 1).max() < 0.1
    assert rows.min() == 0
    assert rows.max() == 49


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


@pytest.mark.parametrize("returns", [np.zeros(100), np.full(100, 0.01), np.ones(5)])
def test_no_interval_without_days_or_deviation(returns):
    assert co.sharpe_interval(returns, 260) is None


def test_one_winning_day_gives_no_interval_but_no_error():
    returns = np.zeros(100)
    returns[7] = 0.01
    found = co.sharpe_interval(returns, 260)
    assert found is None or found[0] <= found[1]


def test_figures_of_the_specified_sentence():
    assert round(co.smallest_confirmable(1.16), 1) == 1.5
    assert round(co.expected_best(500, 1.16), 1) == 2.8


def test_expected_best_matches_simulation():
    draws = np.random.default_rng(2).normal(0, 1, (4_000, 100)).max(axis=1).mean()
    assert co.expected_best(100, 1.0) == pytest.approx(draws, abs=0.06)


@pytest.mark.parametrize(("trials", "years"), [(1, 1.0), (0, 1.0), (10, 0.0)])
def test_nothing_to_say_about_one_trial_or_no_time(trials, years):
    assert co.expected_best(trials, years) is None
