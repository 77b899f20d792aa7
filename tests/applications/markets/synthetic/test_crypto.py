"""synthetic-crypto: its process, its optimum, its files, and that its features show what is hot."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.core.errors import DataError
from slipstream.markets.data.bars import FloatArray
from slipstream.markets.data.check import check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market, market_from_bars
from slipstream.markets.data.panel import align_panel, load_panel
from slipstream.markets.features.panel_features import panel_features
from slipstream.markets.synthetic import SyntheticCrypto

BP = 1e-4
MARKET = SyntheticCrypto()
SYMBOLS = MARKET.symbols


def table(name: str, bars: int = 200_000, seed: int = 3, **market: float) -> FloatArray:
    path = SyntheticCrypto(**market).generate(bars, seed)
    if name == "hot":
        return np.stack([one.extra["hot"] for one in path], axis=1)
    return np.stack([getattr(one, name) for one in path], axis=1)


def test_the_process_is_the_one_that_was_promised():
    path = MARKET.generate(200_000, seed=3)
    assert tuple(one.symbol for one in path) == SYMBOLS
    close = np.stack([one.close for one in path], axis=1)
    opens = np.stack([one.open for one in path], axis=1)
    hot = np.stack([one.extra["hot"] for one in path], axis=1)
    np.testing.assert_array_equal(opens[1:], close[:-1])
    assert (hot.sum(axis=1) == 1.0).all()
    growth = np.log(close / opens)[1:]
    before = hot[:-1].astype(bool)
    error = 4 * 28 * BP / np.sqrt(200_000 / 7)
    assert growth[before].mean() == pytest.approx(20 * BP, abs=error)
    assert growth[~before].mean() == pytest.approx(-20 / 6 * BP, abs=error)
    surprise = growth - np.where(before, 20 * BP, -20 / 6 * BP)
    covariance = np.cov(surprise.T) / BP**2
    np.testing.assert_allclose(np.diag(covariance), 800, rtol=0.02)
    np.testing.assert_allclose(covariance[~np.eye(7, dtype=bool)], 400, rtol=0.04)
    volume = np.log(np.stack([one.volume for one in path], axis=1))
    now = hot.astype(bool)
    assert volume[now].mean() - volume[~now].mean() == pytest.approx(4.0, abs=0.03)
    assert volume[now].std() == pytest.approx(1.0, abs=0.02)
    assert volume[~now].std() == pytest.approx(1.0, abs=0.01)


def test_changes_of_the_hot_asset_are_rare_and_go_anywhere():
    state = table("hot", bars=400_000).argmax(axis=1)
    rows = np.flatnonzero(np.diff(state)) + 1
    assert len(rows) / len(state) == pytest.approx(1 / 288, rel=0.08)
    moves = np.bincount((state[rows] - state[rows - 1]) % 7, minlength=7)
    assert moves[0] == 0
    np.testing.assert_allclose(moves[1:] / len(rows), 1 / 6, atol=0.04)
    lengths = np.diff(rows)
    assert lengths.std() == pytest.approx(lengths.mean(), rel=0.08)  # geometric: no memory


def test_paths_repeat_and_differ_by_seed():
    one, again, other = (table("close", 500, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_the_optimum_is_the_published_one():
    assert MARKET.optimal_gain * 1e4 == pytest.approx(19.93, abs=0.005)
    assert MARKET.optimal_gain == pytest.approx((20 - 2 * 10 / 288) * BP)
    assert SyntheticCrypto(strength=8 * BP).optimal_gain == pytest.approx((8 - 20 / 288) * BP)
    assert SyntheticCrypto(strength=0.0).optimal_gain == 0.0


def test_scores_by_hand():
    hot = np.eye(7)[[0, 0, 2]]
    weights = np.zeros((3, 7))
    weights[0, 0], weights[1, 0], weights[1, 1], weights[2, 2] = 1.0, 0.5, 0.25, 1.0
    earned = 20 + (0.5 * 20 - 0.25 * 20 / 6) + 20
    traded = 1.0 + 0.75 + 1.75
    assert MARKET.score(weights, hot) == pytest.approx((earned - 10 * traded) * BP)
    assert MARKET.score(weights, hot, np.array([1.0, 0.0, 0.5])) == pytest.approx(
        (earned - 15) * BP
    )
    assert MARKET.score(np.zeros((3, 7)), hot) == 0.0
    np.testing.assert_allclose(MARKET.drift(hot).sum(axis=1), 0.0, atol=1e-18)


def test_following_the_state_earns_the_optimum_and_nothing_earns_more():
    hot = weights = table("hot", bars=300_000)
    best = MARKET.score(weights, hot) / len(hot)
    assert best == pytest.approx(MARKET.optimal_gain, rel=0.002)
    late = np.roll(weights, 1, axis=0)
    late[0] = weights[0]
    assert MARKET.score(late, hot) / len(hot) == pytest.approx(
        MARKET.optimal_gain - (20 + 20 / 6) / 288 * BP, rel=0.002
    )
    assert MARKET.score(0.99 * weights, hot) / len(hot) < best
    equal = np.full_like(weights, 1 / 7)
    assert abs(MARKET.score(equal, hot)) / len(hot) < 0.001 * best


def test_prices_pay_what_the_score_promises():
    """The follower's log growth in actual prices, fees included, is the score plus noise."""
    path = MARKET.generate(100_000, seed=8)
    close = np.stack([one.close for one in path], axis=1)
    hot = np.stack([one.extra["hot"] for one in path], axis=1)[:-1]
    asset = hot.argmax(axis=1)
    growth = np.log(close[1:] / close[:-1])[np.arange(99_999), asset]
    switches = 2 * np.count_nonzero(np.diff(asset)) + 1
    real = growth.sum() + switches * np.log1p(-10 * BP)
    promised = MARKET.score(hot, hot)
    assert real == pytest.approx(promised, abs=4 * 28.3 * BP * np.sqrt(100_000))
    assert promised > 30 * 28.3 * BP * np.sqrt(100_000) / 2


def test_without_an_edge_volume_tells_nothing_about_prices():
    market = {"strength": 0.0}
    hot = table("hot", **market).astype(bool)
    growth = np.log(table("close", **market) / table("open", **market))[1:]
    error = 4 * 28.3 * BP / np.sqrt(hot.sum())
    assert abs(growth[hot[:-1]].mean()) < error
    volume = np.log(table("volume", **market))
    assert volume[hot].mean() - volume[~hot].mean() == pytest.approx(4.0, abs=0.03)
    flat = np.log(table("volume", signal=0.0))
    assert flat[hot].mean() - flat[~hot].mean() == pytest.approx(0.0, abs=0.03)


def test_written_files_load_unchanged_and_the_check_is_content(tmp_path):
    files = MARKET.write(tmp_path, bars=3000, seed=4)
    assert [file.name for file in files] == [f"{symbol}.parquet" for symbol in SYMBOLS]
    config = DataConfig(folder=str(tmp_path), timeframe="5m")
    drawn = MARKET.generate(3000, seed=4)
    for one in drawn:
        loaded = load_market(config).symbol(one.symbol)
        for name, column in one.columns().items():
            np.testing.assert_array_equal(loaded.columns()[name], column)
    kinds = {finding.kind for finding in check(config).issues}
    assert kinds == {"symbol_name", "look_ahead"}  # its signal foresees the drift, by construction
    panel = load_panel(config)
    assert panel.symbols == SYMBOLS
    assert panel.segments.tolist() == [[0, 3000]]
    np.testing.assert_array_equal(
        MARKET.state(panel), np.stack([one.extra["hot"] for one in drawn], axis=1)
    )


def test_other_files_have_no_state(frame, folder):
    with pytest.raises(DataError, match="column `hot`"):
        MARKET.state(load_panel(DataConfig(folder=folder(A=frame()))))


def test_the_default_features_show_the_hot_asset():
    """Hold the asset with the highest volume score, change only for one far ahead: 0.7 at least.

    Measured: 0.76 of the optimum, and 0.91 with a score over 1,440 bars, in which long regimes
    do not become the mean. A network on all features sees more: `../learning/test_portfolio.py`.
    """
    panel = align_panel(market_from_bars(MARKET.generate(60_000, seed=1), 300, "24/7"))
    features = panel_features(("portfolio",), panel)
    assert features.values.shape == (60_000, 7, 14)
    rows = np.arange(features.warm_up, 60_000)
    volume = features.values[rows, :, features.names.index("volume_z_720")]
    assert np.isfinite(features.values[rows]).all()
    held = int(volume[0].argmax())
    weights = np.zeros((len(rows), 7))
    for row, seen in enumerate(volume):
        best = int(seen.argmax())
        if seen[best] > seen[held] + 3.0:
            held = best
        weights[row, held] = 1.0
    assert MARKET.score(weights, MARKET.state(panel)[rows]) / len(rows) >= 0.7 * MARKET.optimal_gain
