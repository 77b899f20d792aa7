"""Features: known values, causality, independence of where the file begins, bad input."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, DataError
from slipstream.markets.data.bars import Bars
from slipstream.markets.features.feature_registry import (
    DEFAULT_FEATURES,
    FEATURES,
    compute_features,
    constant_feature_warnings,
    reject_cumulative_features,
    resolve_feature,
    warm_up_rows,
)

ROOT = Path(__file__).parents[4]
HOUR = 3600
EVERY = tuple(feature.pattern.replace("{n}", "14") for feature in FEATURES)
CUMULATIVE = [feature.pattern for feature in FEATURES if feature.cumulative]

# TA-Lib 0.8.2, 15-minute EURUSD, bar 100.
GOLDEN_M15 = {
    "rsi_14": 50.329497039445044,
    "ema_10": 1.048128405901584,
    "macd": 1.7166950141644932e-05,
    "macd_signal": 4.496343883771604e-05,
    "atr_14": 0.0003972634486900526,
    "cci_14": -41.854024112064984,
    "dx_14": 28.30571484939146,
    "adx_14": 19.28210457455423,
}

# TA-Lib 0.8.2, the demo's hourly EURUSD, bar 500; vwap_20 is our own.
GOLDEN_DEMO = {
    "rsi_14": 50.564722704446964,
    "ema_10": 1.068285036046403,
    "macd": -0.0006399747170986458,
    "macd_signal": -0.0006102291925206862,
    "atr_14": 0.0019040744162891858,
    "cci_14": 21.193191958854996,
    "dx_14": 0.753744886077653,
    "adx_14": 20.49380835522742,
    "vwap_20": 1.0682618505613533,
}


def column(name: str, bars: Bars) -> np.ndarray:
    return compute_features([name], bars, HOUR).values[:, 0]


def replaced(bars: Bars, **columns: np.ndarray) -> Bars:
    return dataclasses.replace(bars, **columns)


def shaken(bars: Bars, where: np.ndarray) -> Bars:
    """Other bars in some rows: wild prices, wider ranges, other volumes and spreads.

    Open, high, low and close move by factors of their own, so that a range or a body of a bar is
    another one too.
    """
    rng = np.random.default_rng(7)
    factor = np.where(where, np.exp(rng.normal(0, 0.05, len(bars))), 1.0)
    own = np.where(where, 1.0 + 0.01 * rng.random((3, len(bars))), 1.0)
    opened, close = bars.open * factor * own[0], bars.close * factor
    return replaced(
        bars,
        open=opened,
        high=np.maximum(np.maximum(opened, close), bars.high * factor) * own[1],
        low=np.minimum(np.minimum(opened, close), bars.low * factor) / own[2],
        close=close,
        volume=np.where(where, 1e3 * rng.random(len(bars)) + 1, bars.volume),
        spread=np.where(where, 1e-3, bars.spread),
    )


def test_golden_values_of_the_reference(eurusd):
    for name, value in GOLDEN_M15.items():
        assert column(name, eurusd)[100] == pytest.approx(value, rel=1e-9), name


def wilder(values: np.ndarray, n: int) -> np.ndarray:
    """Wilder's average, written out: mean of the first n, then (previous (n - 1) + x) / n."""
    result = np.full(len(values), np.nan)
    result[n - 1] = values[:n].mean()
    for row in range(n, len(values)):
        result[row] = (result[row - 1] * (n - 1) + values[row]) / n
    return result


def test_definitions_on_the_demos_prices(demo_bars):
    bars = demo_bars
    rows = slice(400, 900)
    change = np.diff(bars.close)
    up, down = wilder(np.maximum(change, 0), 14), wilder(np.maximum(-change, 0), 14)
    rsi = np.append(np.nan, 100 * up / (up + down))
    np.testing.assert_allclose(column("rsi_14", bars)[rows], rsi[rows], rtol=1e-9)
    high, low = bars.high[1:], bars.low[1:]
    true_range = np.maximum(high, bars.close[:-1]) - np.minimum(low, bars.close[:-1])
    atr = np.append(np.nan, wilder(true_range, 14))
    np.testing.assert_allclose(column("atr_14", bars)[rows], atr[rows], rtol=1e-9)
    ema = np.full(len(bars), np.nan)
    ema[9] = bars.close[:10].mean()
    for row in range(10, 900):
        ema[row] = ema[row - 1] + (bars.close[row] - ema[row - 1]) * 2 / 11
    np.testing.assert_allclose(column("ema_10", bars)[rows], ema[rows], rtol=1e-12)
    np.testing.assert_allclose(
        column("ema_10_rel", bars)[rows], ema[rows] / bars.close[rows] - 1, atol=1e-12
    )
    typical = (bars.high + bars.low + bars.close) / 3
    window = slice(481, 501)
    vwap = (typical * bars.volume)[window].sum() / bars.volume[window].sum()
    assert column("vwap_20", bars)[500] == pytest.approx(vwap, rel=1e-13)
    returns = np.diff(np.log(bars.close))
    assert column("volatility_20", bars)[500] == pytest.approx(returns[480:500].std(ddof=1))
    assert column("log_return_5", bars)[500] == pytest.approx(returns[495:500].sum(), abs=1e-15)
    logs = np.log1p(bars.volume[451:501])
    score = (logs[-1] - logs.mean()) / logs.std(ddof=1)
    assert column("volume_z_50", bars)[500] == pytest.approx(score)
    closes = bars.close[window]
    width = 4 * closes.std() / closes.mean()
    assert column("bb_width_20", bars)[500] == pytest.approx(width, rel=1e-6)


def test_golden_values_of_the_demos_prices(demo_bars):
    for name, value in GOLDEN_DEMO.items():
        assert column(name, demo_bars)[500] == pytest.approx(value, rel=1e-9), name


def test_clock_features(demo_bars):
    # 2017-01-02 is a Monday; row 0 opens on Sunday 22:00 UTC = 17:00 New York.
    names = ["hour_sin", "hour_cos", "ny_hour_sin", "ny_hour_cos"]
    names += ["day_of_week_sin", "day_of_week_cos"]
    values = compute_features(names, demo_bars, HOUR).values
    evening, afternoon = 2 * np.pi * 22 / 24, 2 * np.pi * 17 / 24
    sunday = 2 * np.pi * 6 / 7
    expected = [f(a) for a in (evening, afternoon, sunday) for f in (np.sin, np.cos)]
    np.testing.assert_allclose(values[0], expected, atol=1e-12)
    np.testing.assert_allclose(values[2, 4:], [0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_the_future_never_changes_the_past(demo_bars, name):
    bars = demo_bars.take(slice(0, 1200))
    cut = 900
    other = shaken(bars, np.arange(1200) > cut)
    before = column(name, bars)[: cut + 1]
    after = column(name, other)[: cut + 1]
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in CUMULATIVE])
@pytest.mark.parametrize("start", [1, 313])
def test_values_do_not_depend_on_where_the_file_begins(demo_bars, name, start):
    """Tolerance: 1e-6 of the feature's own standard deviation."""
    warm_up = warm_up_rows([name])
    whole = column(name, demo_bars)[start + warm_up :]
    part = column(name, demo_bars.take(slice(start, None)))[warm_up:]
    assert np.abs(whole - part).max() <= 1e-6 * whole.std()


@pytest.mark.parametrize("n", [2, 5, 50])
@pytest.mark.parametrize("stem", ["rsi", "ema", "atr", "dx", "adx", "cci"])
def test_warm_up_suffices_for_other_windows(demo_bars, stem, n):
    name = f"{stem}_{n}"
    warm_up = warm_up_rows([name])
    whole, part = column(name, demo_bars), column(name, demo_bars.take(slice(777, None)))
    assert np.abs(whole[777 + warm_up :] - part[warm_up:]).max() <= 1e-6 * whole[warm_up:].std()


def test_several_columns_keep_their_order_and_the_longest_warm_up(demo_bars):
    features = compute_features(["rsi_14", "ema_20", "log_return_1"], demo_bars, HOUR)
    assert features.names == ("rsi_14", "ema_20", "log_return_1")
    assert features.values.shape == (len(demo_bars), 3)
    assert features.warm_up == warm_up_rows(["rsi_14"])
    assert not features.values.flags.writeable
    assert np.isfinite(features.values[features.warm_up :]).all()


def test_default_features_are_stationary():
    for name in DEFAULT_FEATURES:
        feature, _ = resolve_feature(name)
        assert feature is not None
        assert feature.stationary


def test_columns_of_the_data_are_features_by_name(demo_bars):
    signal = np.sin(np.arange(len(demo_bars)))
    bars = replaced(demo_bars, extra={"signal": signal, "rsi_14": signal * 2})
    features = compute_features(["signal", "rsi_14"], bars, HOUR)
    assert features.warm_up == 0
    np.testing.assert_array_equal(features.values, np.stack([signal, signal * 2], axis=1))


def test_vwap_without_volume_is_the_mean_typical_price(demo_bars):
    volume = demo_bars.volume.copy()
    volume[100:140] = 0.0
    bars = replaced(demo_bars, volume=volume)
    typical = (bars.high + bars.low + bars.close) / 3
    values = column("vwap_20", bars)
    assert values[139] == pytest.approx(typical[120:140].mean(), rel=1e-13)
    assert values[119] == pytest.approx(typical[100:120].mean(), rel=1e-13)
    assert values[118] == pytest.approx(typical[99], rel=1e-13)
    assert np.isfinite(values[19:]).all()


def test_flat_prices_stay_finite(demo_bars):
    ones = np.ones(len(demo_bars))
    bars = replaced(demo_bars, open=ones, high=ones, low=ones, close=ones, volume=ones)
    features = compute_features(EVERY, bars, HOUR)
    assert np.isfinite(features.values[features.warm_up :]).all()


def test_constant_columns_are_named(demo_bars):
    names = ["spread_rel", "rsi_14"]
    features = compute_features(names, demo_bars, HOUR)
    values = features.values[features.warm_up :]
    assert constant_feature_warnings("EURUSD", names, values) == [
        "EURUSD: feature spread_rel never changes (it is 0 in every bar that is trained on) and "
        "is uninformative; leave it out.",
    ]
    assert constant_feature_warnings("EURUSD", names, values[:1]) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rsi14", "did you mean `rsi_14`"),
        ("RSI_14", "did you mean `rsi_14`?"),
        ("emma_10", "did you mean `ema_10`"),
        ("signl", "did you mean `signal`"),
        ("rsi_0", "Feature 'rsi_0'"),
        ("rsi_1", "at least 2 bars"),
        ("qwertz", "known, with a number of bars"),
    ],
)
def test_unknown_names(demo_bars, name, message):
    bars = replaced(demo_bars, extra={"signal": demo_bars.close})
    with pytest.raises(ConfigError, match=message):
        compute_features([name], bars, HOUR)


def test_a_name_twice_is_refused(demo_bars):
    with pytest.raises(ConfigError, match="named twice"):
        compute_features(["rsi_14", "rsi_14"], demo_bars, HOUR)


def test_nan_after_the_warm_up_names_symbol_column_and_time(demo_bars):
    signal = np.ones(len(demo_bars))
    signal[[2, 300]] = np.nan
    bars = replaced(demo_bars, extra={"signal": signal})
    with pytest.raises(DataError, match=r"EURUSD: column 'signal'.* 2 of them.*2017-01-02 00:00"):
        compute_features(["signal"], bars, HOUR)
    warm = warm_up_rows(["rsi_14"])
    assert 2 < warm < 300
    with pytest.raises(DataError, match=r"1 of them"):
        compute_features(["signal", "rsi_14"], bars, HOUR)


def test_too_few_bars_for_the_warm_up(demo_bars):
    with pytest.raises(DataError, match=r"more bars than the .* it has 100"):
        compute_features(["rsi_14"], demo_bars.take(slice(0, 100)), HOUR)


def test_every_feature_forgets_a_block_after_its_warm_up_but_the_cumulative_ones(demo_bars):
    """Guarantee of the folds' embargo, tested by experiment for all registered features.

    Bars 400 to 500, a test block, are drawn anew: wild prices, other volumes, wider spreads. After
    the block and a warm-up nothing may show it (1e-6 of a feature's deviation). What does never
    forgets: exactly those may call themselves cumulative, and studies refuse them.
    """
    bars = demo_bars.take(slice(0, 3_000))
    row = np.arange(3_000)
    other = shaken(bars, (row >= 400) & (row < 500))
    endless, shown = [], []
    for name in EVERY:
        before, after = column(name, bars), column(name, other)
        if not np.array_equal(before[400:500], after[400:500], equal_nan=True):
            shown.append(name)
        late = slice(500 + warm_up_rows([name]), None)
        apart = np.abs(before[late] - after[late]).max()
        if apart > 1e-6 * max(before[late].std(), 1e-12):
            endless.append(name)
    assert endless == CUMULATIVE == ["obv"]
    clocks = {name for name in EVERY if "hour" in name or "day_of_week" in name}
    assert set(EVERY) - set(shown) == clocks  # the experiment reaches every other one


def test_what_never_forgets_is_refused_where_folds_are_made():
    reject_cumulative_features(("close", "rsi_14"))
    reject_cumulative_features(("obv",), columns=("obv",))  # a column of the data that is called so
    with pytest.raises(
        ConfigError, match=r"'obv' counts from the first bar.*`features: \[close\]`"
    ):
        reject_cumulative_features(("close", "obv"))


def test_the_data_page_has_every_feature():
    lines = (ROOT / "docs/reference/features.md").read_text().splitlines()
    rows = [line for line in lines if line[:3] == "| `"]
    assert len(rows) == len(FEATURES)
    for row, feature in zip(rows, FEATURES, strict=True):
        remarks = [f"n from {feature.min_window}"] if feature.min_window > 1 else []
        remarks += [] if feature.stationary else ["moves with the level"]
        remarks += ["counts from the first bar; not in studies"] if feature.cumulative else []
        assert row == f"| `{feature.pattern}` | {feature.description} | {'; '.join(remarks)} |"
