"""PBO and deflated Sharpe ratio: known answers, simulation, slow computations beside them."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import rankdata

from slipstream.studies.outcome.result import _smallest_deflated_sharpe
from slipstream.studies.statistics import overfitting as de
from slipstream.studies.statistics.bootstrap import mertens_bound
from slipstream.studies.statistics.overfitting import (
    MIN_DSR,
    PBO,
    NotComputed,
    compute_pbo,
    days_to_min_dsr,
    expected_maximum,
    probabilistic_sharpe,
    sharpe_to_min_dsr,
)
from slipstream.studies.statistics.returns import daily_benchmark_returns, daily_return_matrix
from slipstream.training.population.member import DailyReturns


def noise(seed, days=338, columns=50):
    return np.random.default_rng(seed).normal(0.0, 0.01, (days, columns))


def slowly(matrix, blocks):
    """Every half on its own rows."""
    edges = np.linspace(0, len(matrix), blocks + 1).astype(int)
    parts = [matrix[a:b] for a, b in pairwise(edges)]
    below = []
    for half in combinations(range(blocks), blocks // 2):
        here = np.concatenate([parts[k] for k in half])
        there = np.concatenate([parts[k] for k in range(blocks) if k not in half])
        best = np.argmax(ratio(here))
        below.append(rankdata(ratio(there))[best] / (matrix.shape[1] + 1))
    return np.array(below)


def ratio(rows):
    return rows.mean(axis=0) / rows.std(axis=0, ddof=1)


@pytest.mark.parametrize("days", [64, 83])
def test_is_the_computation_half_by_half(days):
    matrix = noise(1, days, 23) + 0.002
    found = compute_pbo(matrix, blocks=8)
    expected = slowly(matrix, 8)
    assert found.value == np.mean(expected <= 0.5)
    logits = np.log(expected / (1 - expected))
    np.testing.assert_allclose(np.sort(found.logits), np.sort(logits), rtol=1e-9)


def test_half_on_noise():
    values = [compute_pbo(noise(seed)).value for seed in range(30)]
    assert np.mean(values) == pytest.approx(0.5, abs=0.1)
    assert 0.08 < np.std(values, ddof=1) < 0.24  # the sentence on the page says about 0.16


def test_low_where_one_trial_has_skill():
    values = []
    for seed in range(30):
        matrix = noise(100 + seed)
        matrix[:, 17] += 4.0 / 365**0.5 * 0.01
        values.append(compute_pbo(matrix).value)
    assert np.mean(values) < 0.25


def test_high_where_the_best_half_is_the_worst_other_half():
    random = np.random.default_rng(5)
    matrix = random.normal(0.0, 1e-4, (320, 40))
    block = np.repeat(np.arange(16), 20)
    for column in range(40):  # all earn the same in total, each at its own time
        matrix[:, column] += np.where(random.permutation(16) < 8, 0.01, -0.01)[block]
    assert compute_pbo(matrix).value > 0.9


def test_all_halves_are_judged():
    found = compute_pbo(noise(2, columns=20))
    assert isinstance(found, PBO)
    assert len(found.logits) == len(found.in_sample) == 12_870
    assert (found.columns, found.days, found.blocks) == (20, 338, 16)
    assert 0.0 < found.probability_of_loss < 1.0


def test_identical_trials_share_the_middle_rank():
    matrix = np.repeat(noise(3, columns=1), 25, axis=1)
    assert np.allclose(compute_pbo(matrix).logits, 0.0)


def test_costs_that_differ_make_a_stable_order_of_losers():
    """Nobody has skill, but who pays least is best in every half: low, and all of them lose."""
    costs = np.linspace(0.01, 0.16, 24)  # a day, as of trials that trade 2,500 to 25,000 times
    found = compute_pbo(noise(6, 91, 24) - costs)
    assert found.value < 0.01
    assert found.probability_of_loss > 0.99
    without = [compute_pbo(noise(seed, 91, 24)).value for seed in range(30)]
    assert np.mean(without) == pytest.approx(0.5, abs=0.1)


def test_flat_trials_have_a_ratio_of_zero():
    matrix = noise(4, columns=30) - 0.01  # everyone loses, the flat one never does
    matrix[:, 3] = 0.0
    assert compute_pbo(matrix).value == 0.0


@pytest.mark.parametrize(
    ("days", "columns", "words"),
    [(338, 19, "19 trials finished"), (79, 40, "79 days")],
)
def test_too_little_says_why(days, columns, words):
    found = compute_pbo(noise(0, days, columns))
    assert isinstance(found, NotComputed)
    assert words in found.reason


def test_refuses_what_is_no_number():
    matrix = noise(0)
    matrix[4, 4] = np.nan
    with pytest.raises(ValueError, match="every day"):
        compute_pbo(matrix)


def test_the_papers_example():
    """Bailey and Lopez de Prado 2014, section "A numerical example": annual 2.5 over five years."""
    ratio, spread = 2.5 / math.sqrt(250), math.sqrt(0.5 / 250)
    bar = spread * de.expected_maximum(100)
    assert bar == pytest.approx(0.1132, abs=5e-5)
    assert de.probabilistic_sharpe(ratio, bar, 1250, -3.0, 10.0) == pytest.approx(0.9004, abs=5e-5)
    bar = spread * de.expected_maximum(46)
    assert de.probabilistic_sharpe(ratio, bar, 1250, -3.0, 10.0) == pytest.approx(0.9505, abs=5e-5)
    bar = spread * de.expected_maximum(88)
    assert de.probabilistic_sharpe(ratio, bar, 1250) == pytest.approx(0.9505, abs=5e-5)


def test_figures_of_the_specified_sentence():
    assert round(de.min_detectable_sharpe(302, 260.0), 1) == 1.5
    assert round(de.expected_best_sharpe(500, 1.16), 1) == 2.8


def test_expected_maximum_matches_simulation():
    draws = np.random.default_rng(2).normal(0, 1, (4_000, 100)).max(axis=1).mean()
    assert de.expected_maximum(100) == pytest.approx(draws, abs=0.06)


@pytest.mark.parametrize(("trials", "years"), [(1, 1.0), (500, 0.0)])
def test_nothing_is_expected_of_one_trial_or_no_time(trials, years):
    assert de.expected_best_sharpe(trials, years) is None


def test_one_trial_is_not_deflated():
    assert de.expected_maximum(1.0) == 0.0
    assert de.expected_maximum(1.1) == 0.0


def test_effective_trials_by_correlation():
    random = np.random.default_rng(0)
    alone = random.normal(size=(20_000, 30))
    common = random.normal(size=(20_000, 1))
    half = (alone + common) / math.sqrt(2)  # correlation 0.5
    assert de.effective_trials(alone, 500) == pytest.approx(500, rel=0.01)
    assert de.effective_trials(half, 500) == pytest.approx(0.5 + 0.5 * 500, rel=0.02)
    assert de.effective_trials(np.repeat(common, 5, axis=1), 500) == pytest.approx(1.0)


def test_effective_trials_is_the_mean_of_all_pairs():
    matrix = np.random.default_rng(1).normal(size=(60, 7)) + np.linspace(0, 2, 60)[:, None]
    pairs = np.corrcoef(matrix.T)[np.triu_indices(7, 1)].mean()
    assert de.effective_trials(matrix, 11) == pytest.approx(pairs + (1 - pairs) * 11)
    flat = np.column_stack([matrix, np.zeros(60)])
    assert de.effective_trials(flat, 11) == pytest.approx(pairs + (1 - pairs) * 11)


def test_the_best_of_noise_is_not_sure():
    values = []
    for seed in range(20):
        matrix = np.random.default_rng(seed).normal(0, 0.01, (338, 100))
        best = int(np.argmax(matrix.mean(axis=0) / matrix.std(axis=0)))
        values.append(de.deflated_sharpe(matrix, best, 100).value)
    assert np.mean(values) == pytest.approx(0.5, abs=0.15)
    assert np.mean(np.array(values) >= 0.95) <= 0.1


def test_skill_is_sure_and_more_trials_make_it_less_so():
    matrix = np.random.default_rng(3).normal(0, 0.01, (1_000, 50))
    matrix[:, 4] += 0.003
    few, many = de.deflated_sharpe(matrix, 4, 50), de.deflated_sharpe(matrix, 4, 50_000)
    assert few.value > 0.95
    assert many.expected > few.expected
    assert many.value < few.value
    assert few.trials == 50
    assert few.effective_value >= few.value - 1e-12


def test_parts_by_hand():
    matrix = np.random.default_rng(4).standard_t(5, (400, 30)) * 0.01
    found = de.deflated_sharpe(matrix, 2, 30)
    column = matrix[:, 2]
    ratios = matrix.mean(axis=0) / matrix.std(axis=0, ddof=1)
    assert found.sharpe == pytest.approx(ratios[2])
    assert found.measured_deviation == pytest.approx(ratios.std(ddof=1))
    assert found.deviation == pytest.approx(max(ratios.std(ddof=1), 0.05))  # 1 / sqrt(400)
    scaled = (column - column.mean()) / column.std()
    assert found.kurtosis == pytest.approx(np.mean(scaled**4))
    assert found.skew == pytest.approx(np.mean(scaled**3))


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((100, 1)), "1 trials"),
        (np.ones((10, 5)), "10 days"),
        (np.zeros((100, 5)), "no deviation"),
    ],
)
def test_too_little_to_deflate_says_why(matrix, words):
    found = de.deflated_sharpe(matrix, 0, 5)
    assert isinstance(found, NotComputed)
    assert words in found.reason


def long_only_trials(seed, trials=100, days=338, market_sharpe=2.0):
    """Skill-less: random long-only weights of ten assets in a market with this Sharpe ratio."""
    random = np.random.default_rng(seed)
    common = random.normal(0.0, 0.02, days)
    common += market_sharpe / math.sqrt(365) * 0.02 - common.mean()
    assets = common[:, None] + random.normal(0.0, 0.01, (days, 10))
    weights = random.dirichlet(np.full(10, 100.0), trials)
    equal, group = assets.mean(axis=1), np.zeros(days, np.int64)
    return [[DailyReturns(np.arange(days), assets @ w, equal, group)] for w in weights]


def sure(trials, excess):
    """Deflated Sharpe ratio of the best of them."""
    days, matrix = daily_return_matrix(trials)
    if excess:
        matrix = matrix - daily_benchmark_returns(trials, days)[:, None]
    best = int(np.argmax(matrix.mean(axis=0) / matrix.std(axis=0)))
    return de.deflated_sharpe(matrix, best, len(trials)).value


@pytest.mark.parametrize("days", [338, pytest.param(8 * 365, marks=pytest.mark.slow)])
def test_a_rising_market_is_no_skill(days):
    """100 skill-less long-only trials in a market of Sharpe 2: nobody is called skilled.

    With 338 days V's floor alone would do, with eight years only the market's returns taken off.
    """
    studies = [long_only_trials(seed, days=days) for seed in range(20)]
    assert max(sure(one, excess=True) for one in studies) < 0.95
    assert np.mean([sure(one, excess=True) for one in studies]) < 0.7
    if days > 2_000:
        assert min(sure(one, excess=False) for one in studies) >= 0.95  # what absolute returns say


def test_survivors_of_pruning_are_too_alike():
    """V is at least 1/days: pruned studies of noise look no surer than whole ones."""
    whole, pruned, naive = [], [], []
    for seed in range(200):
        matrix = np.random.default_rng(seed).normal(0.0, 0.01, (338, 100))
        ratios = matrix.mean(axis=0) / matrix.std(axis=0, ddof=1)
        order = np.argsort(ratios)
        survivors = matrix[:, order[50:]]  # the lower half never finished
        whole.append(de.deflated_sharpe(matrix, int(order[-1]), 100))
        pruned.append(de.deflated_sharpe(survivors, 49, 100))
        bar = pruned[-1].measured_deviation * de.expected_maximum(100)
        naive.append(de.probabilistic_sharpe(pruned[-1].sharpe, bar, 338))
    sure = [np.mean(np.array([one.value for one in found]) >= 0.8) for found in (whole, pruned)]
    assert sure[0] <= 0.06 and sure[1] <= 0.06
    assert np.mean(np.array(naive) >= 0.8) > 0.5  # what V of the survivors alone had said
    annual = [np.mean([one.expected for one in found]) * 365**0.5 for found in (whole, pruned)]
    assert annual[1] == pytest.approx(annual[0], rel=0.05)


def test_the_floor_of_v_by_hand():
    matrix = np.random.default_rng(5).normal(0.0, 0.01, (400, 1)) + np.zeros((1, 30))
    matrix[:, 1:] += 1e-6 * np.random.default_rng(6).normal(size=(400, 29))  # one strategy, copied
    found = de.deflated_sharpe(matrix, 0, 30)
    assert found.measured_deviation < 1e-3 < found.deviation == pytest.approx(1.0 / 20.0)
    assert found.expected == pytest.approx(0.05 * de.expected_maximum(30))
    # The bar of the deflated ratio and that of the page are one where luck alone separates trials.
    assert found.expected * 365**0.5 == pytest.approx(de.expected_best_sharpe(30, 400 / 365))


def test_what_folds_and_holdout_can_confirm():
    """Ten candidates share 0.05 on the folds: 2.576 / 1.645 = 1.57 times the plain figure."""
    told = de.detectable_sharpe({"folds": 4.0, "holdout": 0.5}, candidates=10, per_year=260.0)
    assert told["folds"]["sharpe"] == pytest.approx(2.5758 / 2.0, abs=5e-3)
    assert told["holdout"]["sharpe"] == pytest.approx(1.6449 / 0.5**0.5, abs=0.02)
    ratio = told["folds"]["sharpe"] / de.min_detectable_sharpe(1040, 260.0)
    assert ratio == pytest.approx(1.566, abs=5e-3)
    assert (told["folds"]["span"], told["holdout"]["span"]) == ("4.00 years", "130 trading days")
    alone = de.detectable_sharpe({"folds": 4.0}, 1, 260.0)
    assert alone["folds"]["sharpe"] == pytest.approx(0.8224, abs=1e-3)


@pytest.mark.parametrize("level", [0.05, 0.005])
@pytest.mark.parametrize("days", [60, 246])
def test_the_smallest_ratio_is_where_the_bound_is_zero(days, level):
    """The same bound as the candidates' and the hold-out's, of normal days."""
    quantiles = NormalDist().inv_cdf
    normal = np.array([quantiles((k + 0.5) / days) for k in range(days)])
    normal *= 1.0 / normal.std(ddof=1)
    smallest = de.min_detectable_sharpe(days, 365.0, level)
    bound = mertens_bound((normal + smallest / math.sqrt(365.0))[None], 365.0, level)
    assert bound == pytest.approx(0.0, abs=0.02 * smallest)
    assert de.min_detectable_sharpe(59, 365.0, level) is None
    told = de.detectable_sharpe({"folds": 1.0, "holdout": 42 / 365}, 1, 365.0)
    assert "none on the hold-out (42 days)" in de.describe_detectable(told)


def test_the_ratio_of_the_deployed_trial_is_deflated():
    """The deploy gate showed the figure of the trial with the highest score."""
    random = np.random.default_rng(0)
    matrix = random.normal(0.0, 0.01, (250, 30))
    matrix[:, 4] += 0.01
    last = SimpleNamespace(is_eligible=True)
    trials = [SimpleNamespace(number=k, score=float(k == 4), last_decision=last) for k in range(30)]
    arguments = ({"own": matrix}, range(30), trials, 0)
    best, deployed = (
        _smallest_deflated_sharpe(*arguments, None),
        _smallest_deflated_sharpe(*arguments, 7),
    )
    assert (best["trial"], deployed["trial"]) == (4, 7)
    assert best["value"] > 0.95 > deployed["value"]
    rising = {"own": matrix + 0.02, "excess": matrix, "timing": matrix - 0.02}
    assert (
        _smallest_deflated_sharpe(rising, *arguments[1:], 4)["of"] == "timing"
    )  # the smallest value
    assert "did not finish" in _smallest_deflated_sharpe(*arguments, 99)["reason"]


@pytest.mark.parametrize("measured", [0.0, 0.02])
def test_days_and_ratio_that_would_pass_do_and_no_less_does(measured):
    told = {"sharpe": 0.12, "days": 300, "skew": -0.3, "kurtosis": 5.0, "trials": 40}
    told |= {"deviation": max(measured, 300**-0.5), "measured_deviation": measured}

    def value(ratio, days):
        bar = max(measured, days**-0.5) * expected_maximum(40)
        return probabilistic_sharpe(ratio, bar, days, -0.3, 5.0)

    assert value(0.12, 300) < MIN_DSR
    days, ratio = days_to_min_dsr(told), sharpe_to_min_dsr(told)
    assert value(0.12, days) >= MIN_DSR > value(0.12, days - 1) and days > 300
    assert value(ratio, 300) == pytest.approx(MIN_DSR, abs=1e-9) and ratio > 0.12


def test_no_number_of_days_makes_up_for_a_ratio_below_the_best_of_so_many():
    told = {"sharpe": 0.05, "days": 300, "skew": 0.0, "kurtosis": 3.0, "trials": 40}
    told |= {"deviation": 0.06, "measured_deviation": 0.06}
    assert days_to_min_dsr(told) is None and sharpe_to_min_dsr(told) > 0.06 * expected_maximum(40)
    assert sharpe_to_min_dsr(told | {"kurtosis": 1e6}) is None
