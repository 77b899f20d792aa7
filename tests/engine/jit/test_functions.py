"""Functions made of plain arithmetic are those of the C library to what they promise."""

import math

import numpy as np
import pytest

from slipstream.core.random import stream
from slipstream.jit import rng
from slipstream.jit.simd import cosine_of_turn, exp_2, log_2
from slipstream.rl.compiled_loops import compile_loops
from slipstream.rl.nets.action_selection import sample_squashed, sample_squashed_many


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high", "relative"),
    [
        (lambda x: log_2(2.0**x), lambda x: x, -1020.0, 1020.0, False),
        (exp_2, lambda x: 2.0**x, -1000.0, 1000.0, True),
        (cosine_of_turn, lambda x: math.cos(2.0 * math.pi * x), 0.0, 1.0, False),
    ],
)
def test_errors_are_below_what_is_said(ours, theirs, low, high, relative):
    for x in np.linspace(low, high, 20_001).tolist():
        exact = theirs(x)
        assert abs(ours(x) - exact) < 2e-9 * (abs(exact) if relative else 1.0)


def test_a_logarithm_near_one_keeps_its_digits():
    for x in (1e-15, 1e-9, 1e-3):
        assert log_2(1.0 - x) * math.log(2.0) == pytest.approx(math.log1p(-x), rel=1e-6)


def test_powers_end_where_they_are_said_to():
    assert exp_2(-math.inf) == 2.0**-1000 and exp_2(math.inf) == 2.0**1000


def test_actions_drawn_several_at_once_are_those_drawn_one_by_one():
    random, n = np.random.default_rng(0), 2_000
    with np.errstate(over="ignore"):
        key = stream(np.uint64(3), np.uint64(rng.LEARN), np.uint64(7))
        exact = np.array([rng.normal_at(key, 5 + i) for i in range(n)])
    noise, std, action, log_prob = (np.zeros(n) for _ in range(4))
    log_std, mean = random.uniform(-20.0, 2.0, n), random.normal(0.0, 4.0, n)
    log_std[0] = mean[1] = math.nan  # of a sick member, which is noticed by them
    std[:], action[:] = log_std, mean
    given = key, 5, noise, std, action, log_prob
    compile_loops("draws_test", {sample_squashed_many: given})["sample_squashed_many"](*given)
    np.testing.assert_allclose(noise, exact, atol=1e-6)
    assert np.isnan(action[:2]).all() and np.isnan(log_prob[:2]).all()
    for i in range(2, n):
        u, density = sample_squashed(mean[i], log_std[i], noise[i])
        assert std[i] == pytest.approx(math.exp(log_std[i]), rel=1e-8)
        assert action[i] == pytest.approx(math.tanh(u), abs=1e-8)
        assert log_prob[i] == pytest.approx(density, abs=1e-7)
