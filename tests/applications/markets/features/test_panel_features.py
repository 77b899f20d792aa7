"""Features of panels: hand-computed cases, causality, seams, listing, silence, dead columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, DataError
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.market import market_from_bars
from slipstream.markets.data.panel import Panel, align_panel
from slipstream.markets.features.feature_registry import (
    FEATURE_SETS,
    compute_features,
    expand_feature_sets,
    warm_up_rows,
)
from slipstream.markets.features.panel_features import (
    PanelFeatures,
    check_constant_features,
    panel_features,
)
from slipstream.markets.features.prices import rolling_zscore

BAR = 300
# As `portfolio`, with a volume window that fits short tables.
SHORT = tuple("volume_z_40" if "_z_" in name else name for name in FEATURE_SETS["portfolio"])
SETS = (SHORT, FEATURE_SETS["cappuccino"], FEATURE_SETS["finrl_crypto"])


def noisy(symbol: str, rows: int, seed: int, first: int = 0) -> Bars:
    """A random walk in five-minute bars with lively ranges and volumes."""
    rng = np.random.default_rng(seed)
    close = 50.0 * np.exp(np.cumsum(0.003 * rng.standard_normal(rows)))
    opens = np.concatenate([[50.0], close[:-1]]) * np.exp(0.0005 * rng.standard_normal(rows))
    return Bars(
        symbol,
        BAR * (first + np.arange(rows)),
        open=opens,
        high=np.maximum(opens, close) * np.exp(0.001 * rng.random(rows)),
        low=np.minimum(opens, close) * np.exp(-0.001 * rng.random(rows)),
        close=close,
        volume=np.exp(3.0 + rng.standard_normal(rows)),
        spread=np.zeros(rows),
    )


def rows_of(bars: Bars, keep: np.ndarray) -> Bars:
    columns = {name: column[keep] for name, column in bars.columns().items()}
    return Bars(bars.symbol, **columns)


def replaced(bars: Bars, **columns: np.ndarray) -> Bars:
    return dataclasses.replace(bars, **columns)


def panel(*assets: Bars, universe: str = "common") -> Panel:
    return align_panel(market_from_bars(assets, BAR, "24/7"), universe)  # type: ignore[arg-type]


def hand(opens, highs, lows, closes, volumes) -> Bars:
    n = len(closes)
    columns = [np.array(column, dtype=float) for column in (opens, highs, lows, closes, volumes)]
    return Bars("X", BAR * np.arange(n), *columns, spread=np.zeros(n))


def column(name: str, bars: Bars) -> np.ndarray:
    return compute_features([name], bars, BAR).values[:, 0]


def test_log_ratios_to_the_previous_close_by_hand():
    bars = hand([10, 11, 9], [12, 13, 10], [9, 8, 7], [10, 12, 8], [1, 1, 1])
    np.testing.assert_allclose(column("log_open", bars)[1:], np.log([1.1, 0.75]))
    np.testing.assert_allclose(column("log_high", bars)[1:], np.log([1.3, 10 / 12]))
    np.testing.assert_allclose(column("log_low", bars)[1:], np.log([0.8, 7 / 12]))
    np.testing.assert_allclose(column("log_return_1", bars)[1:], np.log([1.2, 8 / 12]))


def test_range_breakout_by_hand():
    """Twenty bars between 9 and 11; then beyond, at the edge, below, and beyond without volume."""
    closes = [10.0] * 20 + [11.5, 12.0, 8.5, 13.0]
    highs = [11.0] * 20 + [12.0, 12.0, 9.0, 13.0]
    lows = [9.0] * 20 + [10.0, 11.0, 8.0, 12.0]
    volumes = [2.0] * 20 + [6.0, 4.0, 8.0, 0.0]
    values = column("range_breakout_volume", hand(closes, highs, lows, closes, volumes))
    usual = [np.mean(volumes[k - 19 : k + 1]) for k in range(20, 24)]
    # 12.0 only touches the high of the bar before: no breakout.
    np.testing.assert_allclose(values[20:], [6 / usual[0], 0.0, -8 / usual[2], 0.0])
    assert values[19] != values[19]


def test_atr_regime_shift_and_trend_reacceleration_by_hand():
    bars = noisy("A", 700, seed=4)
    atr, adx = column("atr_14", bars), column("adx_14", bars)
    at = 600
    assert column("atr_regime_shift", bars)[at] == pytest.approx(
        atr[at] / atr[at - 49 : at + 1].mean() - 1.0
    )
    second = (adx[at] - adx[at - 1]) - (adx[at - 1] - adx[at - 2])
    assert column("trend_reacceleration", bars)[at] == pytest.approx(second)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 100, 333])
def test_volume_scores_equal_the_plain_formula(n):
    rng = np.random.default_rng(n)
    values = np.concatenate([rng.standard_normal(400), np.full(400, 7.0), rng.random(50) + 1e6])
    scores = rolling_zscore(values, n)
    assert np.isnan(scores[: n - 1]).all()
    for row in range(n - 1, len(values), 13):
        window = values[row - n + 1 : row + 1]
        flat = window.max() == window.min()
        expected = 0.0 if flat else (values[row] - window.mean()) / window.std(ddof=1)
        assert scores[row] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("names", SETS, ids=("portfolio", "cappuccino", "finrl_crypto"))
def test_the_future_and_other_assets_never_change_a_value(names):
    a, b = noisy("A", 1500, 1), noisy("B", 1500, 2)
    cut = 1100
    rng = np.random.default_rng(5)
    later = np.arange(1500) > cut
    factor = np.where(later, np.exp(rng.normal(0, 0.05, 1500)), 1.0)
    shaken = {name: getattr(b, name) * factor for name in ("open", "high", "low", "close")}
    other = replaced(b, **shaken, volume=b.volume * np.where(later, 5.0, 1.0))
    keep = ~later | (rng.random(1500) < 0.8)
    keep[-1] = True
    before = panel_features(names, panel(a, b)).values
    after = panel_features(names, panel(a, rows_of(other, keep))).values
    np.testing.assert_array_equal(before[: cut + 1], after[: cut + 1])
    np.testing.assert_array_equal(before[:, 0], after[:, 0])
    assert not np.array_equal(before[cut + 2 :, 1], after[cut + 2 :, 1])


@pytest.mark.parametrize("names", SETS, ids=("portfolio", "cappuccino", "finrl_crypto"))
@pytest.mark.parametrize("start", [1, 211])
def test_values_do_not_depend_on_where_the_data_begin(names, start):
    names = [name for name in names if name != "obv"]  # counts from the first bar by definition
    assets = [noisy(name, 2000, seed) for seed, name in enumerate("AB")]
    assets[1] = rows_of(assets[1], np.delete(np.arange(2000), [300, 301, 900]))
    whole = panel_features(names, panel(*assets))
    late = panel_features(names, panel(*(one.between(BAR * start, BAR * 9999) for one in assets)))
    usable = slice(whole.warm_up, None)
    difference = np.abs(whole.values[start:] - late.values)[usable]
    assert np.isfinite(late.values[usable]).all()
    assert (difference <= 1e-6 * np.nanstd(whole.values, axis=(0, 1))).all()


def test_each_segment_equals_the_same_bars_alone():
    """Nothing is carried over a hole in all assets: features warm up anew behind it."""
    assets = [noisy(name, 1600, seed) for seed, name in enumerate("AB")]
    keep = np.delete(np.arange(1600), np.arange(700, 720))
    one = panel(*(rows_of(bars, keep) for bars in assets))
    assert one.segments.tolist() == [[0, 700], [700, 1580]]
    split = panel_features(SHORT, one)
    first = panel_features(SHORT, panel(*(bars.take(slice(0, 700)) for bars in assets)))
    second = panel_features(SHORT, panel(*(bars.take(slice(720, None)) for bars in assets)))
    np.testing.assert_array_equal(split.values[:700], first.values)
    np.testing.assert_array_equal(split.values[700:], second.values)
    warm_up = warm_up_rows(SHORT)
    assert np.isnan(split.values[700 : 700 + warm_up]).all()
    assert np.isfinite(split.values[700 + warm_up :]).all()


def test_a_gap_inside_a_segment_counts_as_flat_bars_without_volume():
    a, b = noisy("A", 1000, 1), noisy("B", 1000, 2)
    gap = [600, 601]
    one = panel(a, rows_of(b, np.delete(np.arange(1000), gap)))
    filled = {name: getattr(b, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for name in ("open", "high", "low", "close"):
        filled[name][gap] = b.close[599]
    filled["volume"][gap] = 0.0
    expected = panel_features(SHORT, panel(a, replaced(b, **filled)))
    np.testing.assert_array_equal(panel_features(SHORT, one).values, expected.values)


def test_unlisted_and_unwarmed_assets_have_no_values():
    a, b, c = noisy("A", 1500, 1), noisy("B", 900, 2, first=500), noisy("C", 100, 3, first=300)
    one = panel(a, b, c, universe="union")
    features = panel_features(SHORT, one)
    warm_up = features.warm_up
    there = np.isfinite(features.values).all(axis=2)
    assert there[:, 0].tolist() == [k >= warm_up for k in range(1500)]
    assert there[:, 1].tolist() == [500 + warm_up <= k < 1412 for k in range(1500)]
    assert not there[:, 2].any()
    np.testing.assert_array_equal(
        np.isnan(features.values).any(axis=2), np.isnan(features.values).all(axis=2)
    )
    assert any(note.startswith("C has fewer than") for note in features.notes)
    alone = panel_features(SHORT, panel(b))
    np.testing.assert_array_equal(features.values[500:1400, 1], alone.values[:, 0])


def test_bars_without_volume_or_movement_give_numbers():
    """As AAVE's: runs of flat bars, of bars without volume, and of both, longer than any window."""
    a = noisy("A", 4000, 1)
    still = np.zeros(4000, dtype=bool)
    still[500:530] = still[1000:2200] = True
    silent = still.copy()
    silent[3000:3100] = True
    prices = {name: getattr(a, name).copy() for name in ("open", "high", "low", "close")}
    for values in prices.values():
        values[still] = 50.0
    quiet = replaced(a, **prices, volume=np.where(silent, 0.0, a.volume))
    for names in SETS:
        features = panel_features(names, panel(quiet))
        assert np.isfinite(features.values[features.warm_up :]).all()


@pytest.mark.parametrize("name", ["spread_rel", "volume"])
def test_a_column_that_never_changes_is_refused_by_name(name):
    a, b = noisy("A", 900, 1), replaced(noisy("B", 900, 2), volume=np.full(900, 3.0))
    symbol = "A" if name == "spread_rel" else "B"
    with pytest.raises(DataError, match=rf"{symbol}: feature {name} must change, it is . in all"):
        check_constant_features(
            panel_features([name, "rsi_14"], panel(a, b)), ["A", "B"], np.arange(900)
        )


def test_bars_that_open_at_the_close_before_are_noted_not_refused():
    a = noisy("A", 900, 1)
    opens = np.concatenate([[50.0], a.close[:-1]])
    steady = replaced(a, open=opens, high=a.high * 1.01, low=a.low * 0.99)
    features = panel_features(SHORT, panel(steady))
    assert (features.values[features.warm_up :, 0, 0] == 0.0).all()
    assert [note for note in features.notes if "log_open is 0 in every bar" in note]
    assert not panel_features(SHORT, panel(a)).notes


def test_a_column_may_be_dead_in_a_training_window_only():
    a = noisy("A", 2000, 1)
    volume = a.volume.copy()
    volume[:1500] = 3.0
    features = panel_features(["volume", "rsi_14"], panel(replaced(a, volume=volume)))
    check_constant_features(features, ["A"], np.arange(1000, 2000))
    check_constant_features(features, ["A"], np.arange(300, 450))  # too few bars to judge
    with pytest.raises(DataError, match="A: feature volume must change, it is 3"):
        check_constant_features(features, ["A"], np.arange(300, 1500))


def test_sets_have_the_documented_members():
    assert [len(FEATURE_SETS[name]) for name in ("portfolio", "cappuccino", "finrl_crypto")] == [
        14,
        14,
        7,
    ]
    one = panel(noisy("A", 3000, 1))
    features = panel_features(("cappuccino", "ema_10_rel"), one)
    assert features.names == (*FEATURE_SETS["cappuccino"], "ema_10_rel")
    at = 2500
    np.testing.assert_array_equal(
        features.values[at, 0, :5],
        [one.open[at, 0], one.high[at, 0], one.low[at, 0], one.close[at, 0], one.volume[at, 0]],
    )
    assert panel_features(("portfolio",), one).warm_up == 719
    assert isinstance(features, PanelFeatures)


def test_own_columns_are_features_by_name():
    a = noisy("A", 400, 1)
    one = panel(replaced(a, extra={"sentiment": np.arange(400.0), "portfolio": -np.arange(400.0)}))
    features = panel_features(("sentiment", "portfolio"), one)
    assert features.warm_up == 0
    assert features.values[7, 0].tolist() == [7.0, -7.0]
    with pytest.raises(ConfigError, match="did you mean `sentiment`"):
        panel_features(("sentimant",), one)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cappucino",), "did you mean `cappuccino`"),
        (("portfolio", "rsi_14"), "'rsi_14' is named twice"),
        (("nonsense",), "sets of features: portfolio, cappuccino, finrl_crypto"),
    ],
)
def test_names_nobody_knows(names, message):
    with pytest.raises(ConfigError, match=message):
        expand_feature_sets(names)


def test_too_few_bars_say_how_many_are_needed():
    words = "719.*longest segment without a hole has 700.*volume_z_720 has the longest, 719 bars"
    with pytest.raises(DataError, match=words):
        panel_features(("portfolio",), panel(noisy("A", 700, 1)))


def test_missing_numbers_of_own_columns_are_refused():
    values = np.arange(400.0)
    values[200] = np.nan
    one = panel(replaced(noisy("A", 400, 1), extra={"sentiment": values}))
    with pytest.raises(DataError, match=r"A: column 'sentiment' must be a number in every bar"):
        panel_features(("sentiment",), one)


def test_features_of_the_coins_at_hand(crypto_panel):
    """Zero-volume and flat bars of AAVE included: every value after the warm-up is a number."""
    for names in FEATURE_SETS:
        features = panel_features((names,), crypto_panel)
        for low, high in crypto_panel.segments.tolist():
            assert np.isfinite(features.values[low + features.warm_up : high]).all()
