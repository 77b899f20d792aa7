"""The planted market: its process, its optimum, its files."""

import itertools

import numpy as np
import pytest

from slipstream.markets.data.check import check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.synthetic import LEVELS, SyntheticForex, transition_matrix

MARKET = SyntheticForex()


def test_the_process_is_the_one_that_was_promised():
    (bars,) = MARKET.generate(60_000, seed=5)
    signal = bars.extra["signal"]
    assert len(bars.extra) == 15
    np.testing.assert_array_equal(bars.open[1:], bars.close[:-1])
    growth = np.log(bars.close[1:] / bars.open[1:])
    surprise = growth - (1e-4 * signal[:-1] - 0.5 * 5e-4**2)
    assert surprise.std() == pytest.approx(5e-4, rel=0.02)
    assert abs(surprise.mean()) < 4 * 5e-4 / np.sqrt(60_000)
    levels = np.rint((signal + 1) * 3).astype(int)
    np.testing.assert_allclose(LEVELS[levels], signal)
    steps = np.diff(levels)
    assert np.abs(steps).max() == 1
    inner = (levels[:-1] > 0) & (levels[:-1] < 6)
    assert (steps[inner] == 0).mean() == pytest.approx(0.6, abs=0.01)
    assert (steps[levels[:-1] == 6] == 0).mean() == pytest.approx(0.8, abs=0.02)


def test_paths_repeat_and_differ_by_seed():
    one, again, other = (MARKET.generate(500, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.close, again.close)
    assert not np.array_equal(one.close, other.close)


def test_the_optimum_is_the_published_one():
    best = MARKET.optimum()
    assert best.gain == MARKET.optimal_gain
    assert best.gain * 1e4 == pytest.approx(0.4654, abs=5e-5)
    np.testing.assert_array_equal(best.policy, -best.policy[::-1, ::-1])  # the market is symmetric


def test_no_stationary_policy_with_hysteresis_beats_the_optimum():
    """Long-run gains of threshold policies, exactly, from their stationary distributions."""
    gains = {}
    for enter, leave in itertools.product(range(4), range(-3, 4)):
        policy = np.zeros((7, 3))
        for x, p in itertools.product(range(7), (-1, 0, 1)):
            lean = x - 3
            held = p if p != 0 and p * lean > leave else 0
            policy[x, p + 1] = np.sign(lean) if abs(lean) > enter else held
        gains[enter, leave] = _gain(policy)
    best = MARKET.optimum()
    assert max(gains.values()) <= best.gain + 1e-15
    assert _gain(best.policy) == pytest.approx(best.gain, rel=1e-9)


def _gain(policy: np.ndarray) -> float:
    moves = transition_matrix()
    chain = np.zeros((21, 21))
    reward = np.zeros(21)
    for x, p in itertools.product(range(7), range(3)):
        action = policy[x, p]
        for target in range(7):
            chain[x * 3 + p, target * 3 + int(action) + 1] += moves[x, target]
        reward[x * 3 + p] = (
            action * 1e-4 * LEVELS[x] - 0.5 * (action * 5e-4) ** 2 - 2e-4 * abs(action - (p - 1))
        )
    weights = np.full(21, 1 / 21)
    for _ in range(3000):
        weights = weights @ (0.5 * chain + 0.5 * np.eye(21))
    return float(weights @ reward)


def test_scores():
    signal = np.array([1.0, 1.0, -1.0])
    positions = np.array([1.0, 1.0, 0.0])
    expected = 2 * (1e-4 - 0.5 * 25e-8) - 2e-4 * 2
    assert MARKET.score(positions, signal) == pytest.approx(expected)
    path = MARKET.generate(20_000, seed=9)[0].extra["signal"]
    per_bar = MARKET.score(MARKET.optimal_positions(path), path) / len(path)
    assert per_bar == pytest.approx(MARKET.optimum().gain, rel=0.05)
    assert MARKET.score(np.zeros(20_000), path) == 0.0


def test_without_an_edge_the_optimum_is_to_stay_flat():
    market = SyntheticForex(beta=0.0)
    assert market.optimum().gain == pytest.approx(0.0, abs=1e-15)
    assert (market.optimum().policy[:, 1] == 0.0).all()


def test_written_files_load_unchanged_and_the_check_is_content(tmp_path):
    MARKET.write(tmp_path, bars=3000, seed=4)
    config = DataConfig(folder=str(tmp_path), timeframe="15m", spread_pips=0.0)
    loaded = load_market(config).symbol("EURUSD")
    (drawn,) = MARKET.generate(3000, seed=4)
    assert list(loaded.extra) == list(drawn.extra)
    for name, column in drawn.columns().items():
        np.testing.assert_array_equal(loaded.columns()[name], column)
    report = check(config)
    kinds = {finding.kind for finding in report.issues}
    assert kinds - {"look_ahead"} == {"weekend"}  # `signal` foresees the drift, by construction
