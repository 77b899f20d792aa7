"""synthetic-reversion: its process, its optimum by equations and by brute force, its files."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slipstream.core.errors import DataError
from slipstream.markets.data.bars import FloatArray
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market, market_from_bars
from slipstream.markets.data.panel import align_panel, load_panel
from slipstream.markets.features.panel_features import panel_features
from slipstream.markets.synthetic import SyntheticReversion

BP = 1e-4
STANDARD = SyntheticReversion()
CHEAP, DEAR = SyntheticReversion(fee=1 * BP), SyntheticReversion(fee=10 * BP)
FEES = pytest.mark.parametrize(
    "market",
    [pytest.param(CHEAP, id="1bp"), pytest.param(DEAR, id="10bp", marks=pytest.mark.slow)],
)


def table(name: str, bars: int = 200_000, seed: int = 3) -> FloatArray:
    path = STANDARD.generate(bars, seed)
    if name == "shock":
        return np.stack([one.extra["shock"] for one in path], axis=1)
    return np.stack([getattr(one, name) for one in path], axis=1)


def test_the_process_is_the_one_that_was_promised():
    shock, opens, close = (table(name) for name in ("shock", "open", "close"))
    np.testing.assert_array_equal(opens[1:], close[:-1])
    growth = np.log(close / opens)
    share = STANDARD.share
    np.testing.assert_allclose(growth[1:], shock[1:] - share * shock[:-1], atol=1e-12)
    np.testing.assert_allclose(np.cov(shock.T) / STANDARD.noise**2, np.eye(7), atol=0.01)
    for lag, expected in ((1, -share / (1 + share**2)), (2, 0.0)):
        found = [np.corrcoef(g[lag:], g[:-lag])[0, 1] for g in growth.T]
        np.testing.assert_allclose(found, expected, atol=0.012)
    volume = np.log(table("volume"))
    assert volume.mean() == pytest.approx(10.0, abs=0.01)
    assert abs(np.corrcoef(volume[:-1].ravel(), growth[1:].ravel())[0, 1]) < 0.005


def test_paths_repeat_and_differ_by_seed():
    one, again, other = (table("close", 500, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def optimal_weights(shock, market):
    """Weights of the best policy along a path of shocks, all cash before, float64 [n, A]."""
    drift = market.drift(shock)
    lead, fee = market.optimum(drift.shape[1]).holding_value, market.fee
    weights = np.zeros(drift.shape)
    held = -1
    for row, seen in enumerate(drift):
        best = int(seen.argmax())
        if held < 0:
            held = best if seen[best] - fee + lead > 0.0 else -1
        else:
            stay = seen[held] + lead
            change = seen[best] - 2.0 * fee + lead
            if max(stay, change) < -fee:
                held = -1
            elif change > stay:
                held = best
        if held >= 0:
            weights[row, held] = 1.0
    return weights


@pytest.mark.slow
@FEES
def test_the_best_policy_earns_the_optimum(market):
    shock = table("shock", 400_000)
    earned = market.score(optimal_weights(shock, market), shock) / len(shock)
    assert earned == pytest.approx(market.optimal_gain, rel=0.005)


def test_without_fees_the_best_asset_is_held_whenever_it_rises():
    """E max(0, M): of the largest of seven normals, here by sampling."""
    largest = np.random.default_rng(0).standard_normal((2_000_000, 7)).max(axis=1)
    free = SyntheticReversion(fee=0.0).optimum().gain
    expected = STANDARD.share * STANDARD.noise * np.maximum(largest, 0.0).mean()
    assert free == pytest.approx(expected, rel=2e-3)


@pytest.mark.slow
def test_the_optimum_is_that_of_value_iteration():
    """Two assets, drifts on a grid: the average-reward optimum over (drifts, position) itself."""
    market = SyntheticReversion(share=0.5, noise=60 * BP, fee=10 * BP)
    deviation = market.share * market.noise
    edges = np.linspace(-6, 6, 242)
    middle = 0.5 * (edges[1:] + edges[:-1])
    chance = np.exp(-0.5 * middle**2)
    chance /= chance.sum()
    first, second = np.meshgrid(deviation * middle, deviation * middle, indexing="ij")
    weight = np.outer(chance, chance)
    drift = [np.zeros_like(first), first, second]  # of cash and both assets
    value = np.zeros(3)  # of a position before the drifts are seen
    for _ in range(2_000):
        after = np.zeros(3)
        for held in range(3):
            choices = [
                drift[k] + value[k] - market.fee * (held != k) * ((held > 0) + (k > 0))
                for k in range(3)
            ]
            after[held] = (weight * np.max(choices, axis=0)).sum()
        gain, value = after[0], after - after[0]
    best = market.optimum(assets=2)
    assert best.gain == pytest.approx(gain, rel=2e-4)
    assert best.holding_value == pytest.approx(value[1], rel=5e-3)


@FEES
def test_no_rule_with_other_thresholds_earns_more(market):
    shock = table("shock", 60_000)
    drift = market.drift(shock)
    best = market.score(optimal_weights(shock, market), shock)
    others = []
    for enter, change in itertools.product((0.5, 1.0, 2.0), (0.8, 1.5, 2.0, 3.0)):
        weights, held = np.zeros_like(shock), -1
        for row, seen in enumerate(drift):
            top = int(seen.argmax())
            if held < 0:
                held = top if seen[top] > enter * market.fee else -1
            elif seen[top] - seen[held] > change * market.fee:
                held = top
            if held >= 0:
                weights[row, held] = 1.0
        others.append(market.score(weights, shock))
    assert max(others) < best
    assert max(others) > 0.9 * best  # the yardstick of a tuned rule is near


def test_scores_by_hand_and_no_edge():
    shock = np.array([[-1.0, 0.0], [0.0, -2.0]]) * 100 * BP
    weights = np.array([[1.0, 0.0], [0.0, 0.5]])
    earned = STANDARD.share * (100 + 0.5 * 200) * BP
    assert STANDARD.score(weights, shock) == pytest.approx(earned - STANDARD.fee * (1 + 1.5))
    assert SyntheticReversion(share=0.0).optimum().gain == 0.0
    assert not optimal_weights(table("shock", 1_000), SyntheticReversion(share=0.0)).any()


def test_written_files_hold_the_state_and_the_default_features_show_it(tmp_path):
    files = STANDARD.write(tmp_path, bars=3000, seed=4)
    assert len(files) == 7
    panel = load_panel(DataConfig(folder=str(tmp_path), timeframe="5m"))
    np.testing.assert_array_equal(STANDARD.state(panel), table("shock", 3000, 4))
    assert load_market(DataConfig(folder=str(tmp_path))).bar_seconds == 300
    features = panel_features(("portfolio",), panel)
    rows = np.arange(features.warm_up, 3000)
    seen = features.values[rows, :, features.names.index("log_return_1")]
    found = np.corrcoef(seen.ravel(), STANDARD.state(panel)[rows].ravel())[0, 1]
    assert found > 0.95


def test_other_files_have_no_shocks(frame, folder):
    with pytest.raises(DataError, match="column `shock` that the generator of synthetic-reversion"):
        STANDARD.state(load_panel(DataConfig(folder=folder(A=frame()))))


def test_panels_of_the_generator_need_no_files():
    panel = align_panel(market_from_bars(STANDARD.generate(500, seed=1), 300, "24/7"))
    np.testing.assert_array_equal(STANDARD.state(panel), table("shock", 500, 1))
