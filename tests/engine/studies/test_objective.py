"""Scores of folds and trials: by hand, beside empyrical, and what must not count."""

import math
from dataclasses import replace

import empyrical
import numpy as np
import pytest

from slipstream.kernels.spec import MarketSpec
from slipstream.studies.statistics.returns import fold_score, log_growth, sharpe, trial_score
from slipstream.training.population.member import DailyReturns

CRYPTO = MarketSpec(("AAVE",), "USD", 1e6, 300, 105_120.0, 365.0, "00:00 UTC", benchmark=True)
FOREX = MarketSpec(("EURUSD",), "USD", 1e5, 900, 24_960.0, 260.0, "17:00 America/New_York")


def backtests(returns, benchmark=None, exposure=0.9, fills=50, groups=2):
    returns = np.asarray(returns, np.float64)
    n = len(returns)
    return DailyReturns(
        days=np.arange(n),
        returns=returns,
        benchmark=np.zeros(n) if benchmark is None else np.asarray(benchmark, np.float64),
        group=np.arange(n) * groups // max(n, 1),
        metrics=[{"mean_exposure": exposure, "fills": fills}] * groups,
    )


def noise(seed, n=200, mean=1e-3):
    return np.random.default_rng(seed).normal(mean, 0.01, n)


def test_sharpe_is_empyricals():
    returns = noise(0)
    assert sharpe(returns, 365) == pytest.approx(
        empyrical.sharpe_ratio(returns, annualization=365), rel=1e-12
    )


def test_sharpe_by_hand():
    # mean 0.02, deviation with ddof 1 0.01
    assert sharpe(np.array([0.01, 0.02, 0.03]), 260) == pytest.approx(2.0 * math.sqrt(260))


@pytest.mark.parametrize("returns", [[], [0.01], [0.0, 0.0, 0.0], [0.01, 0.01, 0.01]])
def test_no_deviation_is_zero_not_infinity(returns):
    assert sharpe(np.array(returns), 365) == 0.0


@pytest.mark.parametrize(("market", "year"), [(CRYPTO, 365), (replace(FOREX, benchmark=True), 260)])
def test_a_fold_is_sharpe_minus_the_benchmarks(market, year):
    mine, other = noise(1), noise(2)
    found = fold_score(backtests(mine, other), market)
    root = math.sqrt(year)
    assert found.sharpe == pytest.approx(mine.mean() / mine.std(ddof=1) * root)
    assert found.benchmark_sharpe == pytest.approx(other.mean() / other.std(ddof=1) * root)
    assert found.score == pytest.approx(found.sharpe - found.benchmark_sharpe)
    assert found.growth == pytest.approx(np.prod(1 + mine) - 1)
    assert found.days == 200


def test_information_ratio_is_of_the_differences():
    mine, other = noise(3), noise(4)
    gap = mine - other
    found = fold_score(backtests(mine, other), CRYPTO, "information_ratio")
    assert found.score == pytest.approx(gap.mean() / gap.std(ddof=1) * math.sqrt(365))


def test_log_growth_by_hand():
    mine, other = [math.e - 1.0, 0.0], [0.0, 0.0]
    found = fold_score(backtests(mine, other), CRYPTO, "log_growth")
    assert found.score == pytest.approx(365 / 2)
    assert log_growth(np.array([-1.0]), 1.0) == pytest.approx(math.log(1e-6))


@pytest.mark.parametrize("objective", ["sharpe", "information_ratio", "log_growth"])
def test_without_equal_weight_there_is_only_cash_and_nothing_is_invented(objective):
    mine = noise(8)
    facts = fold_score(backtests(mine), FOREX, objective).to_dict()
    alone = log_growth(mine, 260) if objective == "log_growth" else sharpe(mine, 260)
    assert facts["score"] == pytest.approx(alone)
    assert not any("benchmark" in name for name in facts)


@pytest.mark.parametrize(
    ("exposure", "fills", "inactive"),
    [(0.0099, 50, True), (0.01, 50, False), (0.9, 4, True), (0.9, 5, False)],
)
def test_who_hardly_trades_scores_as_cash_against_cash(exposure, fills, inactive):
    falling = -np.abs(noise(5))  # doing nothing would beat this benchmark by far
    found = fold_score(backtests(noise(6), falling, exposure, fills), CRYPTO)
    assert found.inactive is inactive  # fills are added up over the two groups
    assert (found.score == 0.0) is inactive
    assert found.benchmark_sharpe < -5.0


def test_a_return_that_is_no_number_is_no_score():
    broken = noise(7)
    broken[3] = np.nan
    assert math.isnan(fold_score(backtests(broken), CRYPTO).score)
    assert math.isnan(fold_score(backtests([]), CRYPTO).score)


def test_games_score_their_mean_return():
    found = fold_score(backtests([1.0, 2.0, 6.0], exposure=0.0, fills=0), None)
    assert found.score == pytest.approx(3.0)
    assert not found.inactive


def test_trial_by_hand():
    # mean 2, deviation with ddof 1 1
    assert trial_score([1.0, 2.0, 3.0]) == pytest.approx(2.0 - 0.1)
    assert trial_score([1.0, 2.0, 3.0], penalty=1.0) == pytest.approx(1.0)
    assert trial_score([1.5]) == 1.5
    assert math.isnan(trial_score([1.0, math.nan]))
