"""Bounds and intervals over seeds and days: coverage, who wins, and that nobody wins on noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_pool import MARKET

from slipstream.studies.statistics import bootstrap as bo
from slipstream.studies.statistics.bootstrap import score_interval
from slipstream.studies.statistics.returns import (
    FoldMap,
    backtest_paths,
    compound_by_day,
    daily_return_matrix,
    fold_score,
    mean_daily_returns,
    trial_score,
)
from slipstream.training.population.member import DailyReturns

CPCV = FoldMap(  # 4 groups, 2 tested: six folds, three paths
    ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),
    ((0, 0, 1, 2), (1, 3, 3, 4), (2, 4, 5, 5)),
)


def test_blocks_have_the_stated_mean_length():
    rows = bo.stationary_bootstrap_rows(300, draws=400, mean_block=10.0)
    follows = (rows[:, 1:] - rows[:, :-1]) % 300 == 1
    assert 1.0 / (1.0 - follows.mean()) == pytest.approx(10.0, rel=0.05)


def test_rows_cover_all_days_equally():
    rows = bo.stationary_bootstrap_rows(50, draws=4_000)
    counts = np.bincount(rows.ravel(), minlength=50) / rows.size
    assert np.abs(counts * 50 - 1).max() < 0.1
    assert rows.min() == 0
    assert rows.max() == 49


def test_ratio_by_hand():
    excess = np.array([[0.01, 0.02], [0.03, 0.02]])  # mean 0.02, deviation sqrt(2/3) / 100
    expected = 0.02 / (math.sqrt(2 / 3) / 100) * math.sqrt(365)
    assert bo.sharpe(excess, 365) == pytest.approx(expected)
    assert bo.sharpe(np.zeros((5, 100)), 365) == 0.0


def test_bounds_are_those_of_resampling_one_by_one():
    excess = np.random.default_rng(0).normal(3e-4, 0.01, (3, 60))
    found = bo.lower_bounds([excess], 365, 0.1, draws=500, seed=7)
    rows = bo.stationary_bootstrap_rows(60, 500, seed=7)
    random = np.random.Generator(np.random.PCG64([7, 1]))
    drawn = random.multinomial(3, np.full(3, 1 / 3), 500)
    ratios = [
        bo.sharpe(np.repeat(excess, counts, axis=0)[:, days], 365)
        for counts, days in zip(drawn, rows, strict=True)
    ]
    every = [np.quantile(ratios, 0.1), bo.mertens_bound(excess, 365, 0.1)]
    every.append(bo.newey_west_bound(excess, 365, 0.1))
    assert found.lower[0] == pytest.approx(min(every))
    names = (bo.RESAMPLED, bo.MERTENS, bo.NEWEY_WEST)
    assert found.methods == (names[int(np.argmin(every))],)


def test_the_normal_bound_by_hand():
    """Two seeds of 80 days: moments of all 160, 80 days, the seeds' variance over their number."""
    excess = np.random.default_rng(8).exponential(0.01, (2, 80)) - 0.009
    sr = excess.mean() / excess.std(ddof=1)
    scaled = (excess - excess.mean()) / excess.std()
    assert np.mean(scaled**3) * sr > 0.0  # a skew that would shorten the bound, and must not
    kurtosis = np.mean(scaled**4)
    each = excess.mean(axis=1) / excess.std(axis=1, ddof=1)
    plain = 1 - np.mean(scaled**3) * sr + (kurtosis - 1) / 4 * sr**2
    error = math.sqrt(max(plain, 1.0) / 80 + each.var(ddof=1) / 2)
    expected = (sr - 1.6448536 * error) * math.sqrt(365)
    assert bo.mertens_bound(excess, 365, 0.05) == pytest.approx(expected, rel=1e-6)
    falls = -excess - 0.001  # and one that lengthens it
    sr, skew = falls.mean() / falls.std(ddof=1), -np.mean(scaled**3)
    each = falls.mean(axis=1) / falls.std(axis=1, ddof=1)
    variance = (1 - skew * sr + (kurtosis - 1) / 4 * sr**2) / 80
    error = math.sqrt(max(variance, 1 / 80) + each.var(ddof=1) / 2)
    expected = (sr - 1.6448536 * error) * math.sqrt(365)
    assert bo.mertens_bound(falls, 365, 0.05) == pytest.approx(expected, rel=1e-6)


def test_few_days_have_no_bound():
    """The issue's case: 12 days whose bound was 31.63."""
    lucky = np.random.default_rng(0).normal(0.02, 0.004, (1, 60))
    assert np.isnan(bo.lower_bounds([lucky[:, :12], lucky[:, :59]], 365, 0.05).lower).all()
    assert bo.lower_bounds([lucky], 365, 0.05).lower[0] > 0.0


def test_the_long_run_variance_by_hand():
    """Four days: centred -1, 1, 1, -1; rho = -1/3 + (1 - 1) / 4; one lag of weight 1/2."""
    series = np.array([1.0, 3.0, 3.0, 1.0])
    rest = np.array([1.0, 1.0, -1.0]) + np.array([-1.0, 1.0, 1.0]) / 3.0
    lags = 1  # 4 (4 / 100)^(2/9) = 1.96
    total = rest @ rest + 2.0 * (1.0 - lags / 2.0) * (rest[1:] @ rest[:-1])
    assert bo.long_run_variance(series) == pytest.approx(total / 3.0 / (4.0 / 3.0) ** 2)
    assert bo.long_run_variance(np.ones(80)) == 0.0


def test_the_long_run_variance_of_long_series():
    """(1 + rho) / (1 - rho) times the variance."""
    shocks = np.random.default_rng(3).standard_normal(200_000)
    assert bo.long_run_variance(shocks) == pytest.approx(1.0, rel=0.03)
    found = bo.long_run_variance(autoregressive(shocks, 0.4))
    assert found == pytest.approx(1.4 / 0.6 / (1.0 - 0.16), rel=0.05)


def autoregressive(shocks, rho):
    """x_t = rho x_(t-1) + shock_t, along the last axis."""
    found = np.array(shocks)
    for t in range(1, shocks.shape[-1]):
        found[..., t] += rho * found[..., t - 1]
    return found


def above_zero(kind, days, sims, level=0.05, draws=500):
    """Return the rate of skill-less bounds above 0, divided by the level."""
    random = np.random.default_rng([days, kind == "normal"])
    size = (sims, 1, days)
    noise = random.standard_t(4, size) if kind == "student" else random.standard_normal(size)
    if kind == "autoregressive":
        noise = autoregressive(random.standard_normal((sims, 1, days + 50)), 0.4)[..., 50:]
    return np.mean(bo.lower_bounds(list(noise), 365, level, draws).lower > 0.0) / level


@pytest.mark.parametrize("kind", ["normal", "student", "autoregressive"])
@pytest.mark.parametrize("days", [60, 246])
def test_a_bound_of_no_skill_is_above_zero_as_rarely_as_it_says(kind, days):
    """The percentile alone was above 0 in 1.6 to 2 times its level at 60 days."""
    assert above_zero(kind, days, 1_500) <= 1.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "student", "autoregressive"])
@pytest.mark.parametrize("days", [60, 69, 120, 246])
@pytest.mark.parametrize("level", [0.05, 0.005])  # alone, and shared by ten
def test_bounds_of_no_skill_hold_their_level(kind, days, level):
    assert above_zero(kind, days, 20_000, level, bo.NUM_RESAMPLES) <= 1.3


@pytest.mark.slow
def test_bound_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    truth = 1.0
    held = 0
    for number in range(300):
        days = random.normal(truth / math.sqrt(365) * 0.01, 0.01, (1, 365))
        bound = bo.lower_bounds([days], 365, 0.05, draws=400, seed=number).lower[0]
        held += bound <= truth
    assert 0.90 <= held / 300 <= 0.99


def test_seeds_that_disagree_widen_the_bound():
    random = np.random.default_rng(2)
    noise = random.normal(0, 0.01, (5, 300))
    noise -= noise.mean(axis=1, keepdims=True)
    agree, differ = noise + 1e-3, noise + 1e-3 * np.array([-4, -1, 1, 3, 6])[:, None]
    found = bo.lower_bounds([agree, differ], 365, 0.005)
    assert found.ratio[1] == pytest.approx(found.ratio[0], rel=0.1)
    assert found.lower[1] < found.lower[0] - 1.0


def market(seed, drift=0.0, days=300):
    return np.random.default_rng(seed).normal(drift, 0.02, days)


def test_skill_wins():
    random = np.random.default_rng(4)
    excess = [random.normal(0, 0.01, (5, 300)) for _ in range(10)]
    excess[6] += 0.003
    found = bo.select_winner(excess, market(1, drift=0.004), 365)
    assert found.winner == found.best == 6
    assert found.bounds.lower[6] > 0 and found.own[6] > 0


def test_nobody_wins_on_noise():
    won = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        common = random.normal(0, 0.01, 300)  # of all seeds of all candidates
        excess = [common + random.normal(0, 0.01, (5, 300)) for _ in range(10)]
        won += bo.select_winner(excess, market(seed), 365, draws=500).winner is not None
    assert won <= 3


def test_cash_is_a_candidate():
    random = np.random.default_rng(5)
    falling = market(2, drift=-0.01)
    half = -0.5 * falling + random.normal(0, 0.004, (5, 300))  # half of what cash gains
    found = bo.select_winner([half], falling, 365)
    assert found.bounds.lower[0] > 0
    assert found.cash > found.bounds.lower[0]
    assert found.winner is None
    assert found.best == 0
    assert "cash" in found.reason


def test_equal_weight_is_a_candidate():
    found = bo.select_winner([np.zeros((5, 300))], market(3, drift=0.01), 365)
    assert found.winner is None
    assert "not above 0" in found.reason


def test_whoever_loses_beside_a_greater_loss_is_no_winner():
    """The review's case: -20 % beside an equal weight that lost 88 %."""
    random = np.random.default_rng(11)
    falling = market(2, days=300)
    falling += np.log(0.12) / 300 - falling.mean()
    mine = 0.3 * falling + random.normal(0, 1e-3, (5, 300))
    mine += np.log(0.80) / 300 - mine.mean(axis=1, keepdims=True)
    found = bo.select_winner([mine - falling], falling, 365)
    assert found.bounds.lower[0] > max(found.cash, 0.0)  # by these two alone it had won
    assert found.own[0] < 0.0
    assert found.winner is None and found.best == 0
    assert "its own Sharpe ratio is -" in found.reason


def test_the_own_bound_is_that_of_the_same_resamples():
    random = np.random.default_rng(3)
    other = market(6, drift=0.001)
    excess = [random.normal(0.001, 0.01, (4, 300)) for _ in range(3)]
    found = bo.select_winner(excess, other, 365, level=0.06, draws=400, seed=9)
    alone = bo.lower_bounds([one + other for one in excess], 365, 0.02, draws=400, seed=9)
    np.testing.assert_array_equal(found.own, alone.lower)


def test_a_candidate_that_gains_wins_over_a_better_one_that_loses():
    random = np.random.default_rng(12)
    falling = market(8, days=400)
    falling += -0.004 - falling.mean()
    steady = 0.0008 + random.normal(0, 0.001, (5, 400))  # gains
    hedged = 0.5 * falling + 0.0012 + random.normal(0, 1e-4, (5, 400))  # loses by less than cash
    found = bo.select_winner([steady - falling, hedged - falling], falling, 365)
    assert found.own[0] > 0 > found.own[1]
    assert found.winner == 0


def test_the_same_returns_have_the_same_bound():
    excess = [np.random.default_rng(6).normal(0, 0.01, (5, 100))]
    assert bo.select_winner(excess, market(4, days=100), 365) is not None
    first, second = (bo.lower_bounds(excess, 365, 0.05).lower for _ in range(2))
    assert np.array_equal(first, second)


def backtests(days, returns, group, benchmark=None):
    returns = np.array(returns, np.float64)
    other = np.zeros(len(returns)) if benchmark is None else np.array(benchmark, np.float64)
    return DailyReturns(np.array(days), returns, other, np.array(group))


def test_a_day_that_two_groups_share_is_compounded():
    days, returns = compound_by_day(np.array([5, 4, 5]), np.array([0.1, 0.2, 0.5]))
    assert days.tolist() == [4, 5]
    np.testing.assert_allclose(returns, [0.2, 1.1 * 1.5 - 1])


def test_a_days_entry_is_the_mean_over_the_policies_that_were_tested_on_it():
    folds = [
        backtests(
            [1, 2, 2, 3], [0.1, 0.2, 0.5, 0.0], [0, 0, 1, 1]
        ),  # day 2 ends one, begins another
        backtests([1, 2], [0.3, 0.4], [0, 0]),
    ]
    days, mix = mean_daily_returns(folds)
    assert days.tolist() == [1, 2, 3]
    np.testing.assert_allclose(mix, [0.2, (1.2 * 1.5 - 1 + 0.4) / 2, 0.0])


def six_folds(value):
    """Group g on days 10 g and 10 g + 1; what fold f makes there is value(f, g)."""
    return [
        backtests(
            [10 * g + k for g in groups for k in (0, 1)],
            [value(f, g) for g in groups for _ in (0, 1)],
            [0, 0, 1, 1],
            [0.01 * g for g in groups for _ in (0, 1)],
        )
        for f, groups in enumerate(CPCV.groups)
    ]


def test_paths_take_each_group_from_the_fold_that_tests_it_there():
    found = backtest_paths(six_folds(lambda f, g: 0.001 * f + 0.1 * g), CPCV)
    assert found.days.tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    expected = [
        [0.001 * fold + 0.1 * group for group, fold in enumerate(path) for _ in (0, 1)]
        for path in CPCV.paths
    ]
    np.testing.assert_allclose(found.returns, expected, atol=1e-15)
    np.testing.assert_allclose(found.benchmark, np.repeat([0, 0.01, 0.02, 0.03], 2), atol=1e-15)
    np.testing.assert_allclose(found.excess, np.mean(expected, axis=0) - found.benchmark)


def test_matrix_has_a_column_for_each_finished_trial_and_zero_after_an_account_closed():
    whole = six_folds(lambda f, g: 0.1)
    short = [backtests([0, 1], [0.2, 0.2], [0, 0])]
    days, matrix = daily_return_matrix([whole, short])
    assert days.tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    np.testing.assert_allclose(matrix[:, 0], 0.1)
    np.testing.assert_allclose(matrix[:, 1], [0.2, 0.2, 0, 0, 0, 0, 0, 0])


def fold_of(first: int, mine, other) -> DailyReturns:
    days = np.arange(first, first + len(mine))
    active = {"mean_exposure": 0.5, "fills": 100.0}
    return DailyReturns(
        days, np.asarray(mine), np.asarray(other), np.zeros(len(days), int), [active]
    )


@pytest.mark.parametrize("objective", ["sharpe", "information_ratio", "log_growth"])
def test_the_interval_is_that_of_the_score(objective):
    draws = np.random.default_rng(0)
    mine, other = draws.normal(0.002, 0.01, 400), draws.normal(0, 0.01, 400)
    folds = [fold_of(0, mine[:200], other[:200]), fold_of(200, mine[200:], other[200:])]
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
    one = fold_of(0, returns, np.zeros(200))
    assert score_interval([one, one], MARKET) == score_interval([one], MARKET)


def test_equal_returns_have_no_width_and_few_days_no_interval():
    same = np.random.default_rng(1).normal(0, 0.01, 60)
    assert score_interval([fold_of(0, same, same)], MARKET) == (0.0, 0.0)
    assert score_interval([fold_of(0, same[:59], same[:59])], MARKET) is None


def test_games_resample_folds():
    folds = [fold_of(0, [value] * 5, [0.0] * 5) for value in (1.0, 2.0, 3.0)]
    low, high = score_interval(folds, None)
    assert 1.0 <= low < 2.0 < high <= 3.0
    assert score_interval(folds[:1], None) is None
