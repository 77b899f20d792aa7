"""When a rung is armed and whom it stops, by hand."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from slipstream.studies.search.judge import (
    BEHIND,
    LOWER_HALF,
    RECENT,
    armed,
    rank_correlation,
    stops,
)

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
    assert armed(ARRAY(rung, float), ARRAY(final, float))[0] is on


def test_threshold_is_inclusive():
    rung, final = ARRAY([1.0, 2.0, 3.0]), ARRAY([1.0, 3.0, 2.0])  # exactly 0.5
    assert armed(rung, final, least=0.5) == (True, pytest.approx(0.5))
    assert not armed(rung, final, least=0.51)[0]


@pytest.mark.parametrize(
    ("rung", "final"),
    [([], []), ([1.0, 2.0], [1.0, 2.0]), ([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])],
)
def test_unknown_correlation_is_disarmed(rung, final):
    assert armed(ARRAY(rung), ARRAY(final)) == (False, None)


def test_failed_trials_tell_nothing():
    rung = ARRAY([1.0, 2.0, np.nan, 3.0, 9.0])
    final = ARRAY([1.0, 2.0, 9.0, 3.0, np.nan])
    assert armed(rung, final) == (True, pytest.approx(1.0))


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
    found = stops(score, reached(earlier), ARRAY([score]), None)
    assert found == (LOWER_HALF if stopped else "")


def test_behind_the_best_in_every_fold():
    best = ARRAY([1.0, 2.0, 3.0])
    earlier = reached([0.1, 0.2])
    assert stops(1.5, earlier, ARRAY([0.9, 1.9, 2.9]), best) == BEHIND
    assert stops(1.5, earlier, ARRAY([0.9, 1.9, 3.0]), best) == ""  # level in one


def test_the_lower_half_is_of_those_that_came_last():
    """A sampler that has learned: 200 poor trials no longer make a mediocre one look good."""
    recent = np.linspace(10.0, 20.0, RECENT)
    earlier = [*np.linspace(0.0, 1.0, 200), *recent]
    assert stops(14.8, reached(earlier), ARRAY([14.8]), None) == LOWER_HALF
    assert stops(15.1, reached(earlier), ARRAY([15.1]), None) == ""
    assert stops(0.9, reached(recent[::-1]), ARRAY([0.9]), None) == LOWER_HALF
