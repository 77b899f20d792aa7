"""PBO: known answers on noise and skill, and a slow computation half by half beside it."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.stats import rankdata

from slipstream.studies.statistics.overfitting import PBO, NotComputed, pbo


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
    found = pbo(matrix, blocks=8)
    expected = slowly(matrix, 8)
    assert found.value == np.mean(expected <= 0.5)
    logits = np.log(expected / (1 - expected))
    np.testing.assert_allclose(np.sort(found.logits), np.sort(logits), rtol=1e-9)


def test_half_on_noise():
    values = [pbo(noise(seed)).value for seed in range(30)]
    assert np.mean(values) == pytest.approx(0.5, abs=0.1)
    assert 0.08 < np.std(values, ddof=1) < 0.24  # the sentence on the page says about 0.16


def test_low_where_one_trial_has_skill():
    values = []
    for seed in range(30):
        matrix = noise(100 + seed)
        matrix[:, 17] += 4.0 / 365**0.5 * 0.01
        values.append(pbo(matrix).value)
    assert np.mean(values) < 0.25


def test_high_where_the_best_half_is_the_worst_other_half():
    random = np.random.default_rng(5)
    matrix = random.normal(0.0, 1e-4, (320, 40))
    block = np.repeat(np.arange(16), 20)
    for column in range(40):  # all earn the same in total, each at its own time
        matrix[:, column] += np.where(random.permutation(16) < 8, 0.01, -0.01)[block]
    assert pbo(matrix).value > 0.9


def test_all_halves_are_judged():
    found = pbo(noise(2, columns=20))
    assert isinstance(found, PBO)
    assert len(found.logits) == len(found.inside) == 12_870
    assert (found.columns, found.days, found.blocks) == (20, 338, 16)
    assert 0.0 < found.loses < 1.0


def test_identical_trials_share_the_middle_rank():
    matrix = np.repeat(noise(3, columns=1), 25, axis=1)
    assert np.allclose(pbo(matrix).logits, 0.0)


def test_costs_that_differ_make_a_stable_order_of_losers():
    """Nobody has skill, but who pays least is best in every half: low, and all of them lose."""
    costs = np.linspace(0.01, 0.16, 24)  # a day, as of trials that trade 2,500 to 25,000 times
    found = pbo(noise(6, 91, 24) - costs)
    assert found.value < 0.01
    assert found.loses > 0.99
    without = [pbo(noise(seed, 91, 24)).value for seed in range(30)]
    assert np.mean(without) == pytest.approx(0.5, abs=0.1)


def test_flat_trials_have_a_ratio_of_zero():
    matrix = noise(4, columns=30) - 0.01  # everyone loses, the flat one never does
    matrix[:, 3] = 0.0
    assert pbo(matrix).value == 0.0


@pytest.mark.parametrize(
    ("days", "columns", "words"),
    [(338, 19, "19 trials finished"), (79, 40, "79 days")],
)
def test_too_little_says_why(days, columns, words):
    found = pbo(noise(0, days, columns))
    assert isinstance(found, NotComputed)
    assert words in found.reason


def test_refuses_what_is_no_number():
    matrix = noise(0)
    matrix[4, 4] = np.nan
    with pytest.raises(ValueError, match="every day"):
        pbo(matrix)
