"""Registry of features: causal functions of bars with a declared warm-up. One line adds a feature.

The functions are in `prices` and `indicators`. `compute_features` computes the columns of one
symbol, `panel_features.panel_features` those of several. A set is a name for several features.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.text import closest_match, plural, stamp
from slipstream.markets.data.bars import Bars, FloatArray
from slipstream.markets.features import indicators as ta
from slipstream.markets.features import prices

Compute = Callable[[Bars, int], FloatArray]

# Remaining share of a recursive average that comes from bars before the warm-up.
MEMORY_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Feature:
    """One line of the registry.

    Attributes:
        pattern: name, with ``{n}`` for its window in bars (``rsi_{n}``).
        compute: ``(bars, n) -> float64 [rows]``; row t uses bars <= t; n is 0 without a window.
        warm_up_rows: rows to drop, a number or a function of n. After them, a recursive average
            depends on the first bar of the file by at most `MEMORY_TOLERANCE`.
        description: one phrase with the unit, as in the table of docs/reference/features.md.
        stationary: True if the value has the same meaning at any price level.
        min_window: smallest meaningful window.
        cumulative: True if it counts from the first bar of the data, so that no warm-up makes it
            independent of that bar. Such features are only in feature sets of other systems, and
            studies reject them (see `reject_cumulative_features`).
    """

    pattern: str
    compute: Compute
    warm_up_rows: int | Callable[[int], int]
    description: str
    stationary: bool = True
    min_window: int = 1
    cumulative: bool = False

    def warm_up(self, n: int) -> int:
        """Return the number of rows to drop with a window of n bars."""
        return self.warm_up_rows if isinstance(self.warm_up_rows, int) else self.warm_up_rows(n)

    def window(self, name: str) -> int | None:
        """Return the window in `name`; 0 if the pattern has none, None if the name differs."""
        before, braces, after = self.pattern.partition("{n}")
        if not braces:
            return 0 if name == self.pattern else None
        match = re.fullmatch(re.escape(before) + r"([1-9]\d{0,4})" + re.escape(after), name)
        if match is None:
            return None
        n = int(match.group(1))
        return n if n >= self.min_window else None


def ratio_to_close(level: Compute) -> Compute:
    """Return the feature price level / close."""
    return lambda bars, n: level(bars, n) / bars.close


def relative_to_close(level: Compute) -> Compute:
    """Return the feature price level / close - 1."""
    return lambda bars, n: level(bars, n) / bars.close - 1.0


def ema_memory(alpha: float) -> int:
    """Return the rows after which an exponential average has forgotten its start."""
    return math.ceil(math.log(MEMORY_TOLERANCE) / math.log1p(-alpha)) if alpha < 1.0 else 1


def ema_rows(n: int) -> int:
    """Warm-up of EMA(n): the seeding average, then 2 / (n + 1) per bar."""
    return n + ema_memory(2.0 / (n + 1))


def wilder_rows(n: int) -> int:
    """Warm-up of Wilder's average: the seeding average of n changes, then 1 / n per bar."""
    return n + 1 + ema_memory(1.0 / n)


def twice_wilder_rows(n: int) -> int:
    """Warm-up of a Wilder average of Wilder averages (ADX), which forgets 1.2 times slower."""
    return 2 * n + 1 + math.ceil(1.25 * ema_memory(1.0 / n))


def window_rows(n: int) -> int:
    """Warm-up of a plain window of n bars."""
    return n - 1


def change_rows(n: int) -> int:
    """Return the warm-up of a feature that looks n bars back."""
    return n


# Warm-ups of features without a window.
# MACD(12, 26, 9) and its signal: the slow average, then that of the signal.
MACD_ROWS = 34 + math.ceil(1.1 * ema_memory(2.0 / 27.0))
BREAKOUT_ROWS = 20  # the 20 bars before
REGIME_ROWS = wilder_rows(14) + 49  # ATR(14), then its mean of 50
REACCELERATION_ROWS = twice_wilder_rows(14) + 2  # ADX(14), then two differences
ULTOSC_ROWS = 28  # the longest of its windows, and the close before it
PHASE_ROWS = 600  # filters that adapt: measured, up to 405 bars on 5-minute coins

FEATURES: tuple[Feature, ...] = (
    Feature("log_return_{n}", prices.log_return, change_rows, "log(close / close n bars ago)"),
    Feature("return_{n}", prices.simple_return, change_rows, "close / close n bars ago - 1"),
    Feature("log_open", prices.log_open, 1, "log(open / previous close)"),
    Feature("log_high", prices.log_high, 1, "log(high / previous close)"),
    Feature("log_low", prices.log_low, 1, "log(low / previous close)"),
    Feature("range_rel", prices.range_relative, 0, "(high - low) / close"),
    Feature("body_rel", prices.body_relative, 0, "(close - open) / close"),
    Feature("close_location", prices.close_location, 0, "close between low 0 and high 1"),
    Feature("volatility_{n}", prices.volatility, change_rows, "sd of log returns", min_window=2),
    Feature(
        "volume_z_{n}", prices.log_volume_zscore, window_rows, "log-volume z-score", min_window=2
    ),
    Feature("spread_rel", prices.spread_relative, 0, "full spread / close"),
    Feature("vwap_{n}", prices.vwap, window_rows, "volume-weighted price", False),
    Feature("vwap_{n}_rel", relative_to_close(prices.vwap), window_rows, "VWAP / close - 1"),
    Feature("rsi_{n}", ta.rsi, wilder_rows, "RSI, 0 to 100", min_window=2),
    Feature("ema_{n}", ta.ema, ema_rows, "exponential average of close", False),
    Feature("ema_{n}_rel", relative_to_close(ta.ema), ema_rows, "EMA / close - 1"),
    Feature("sma_{n}", ta.sma, window_rows, "mean of close", False),
    Feature("sma_{n}_rel", relative_to_close(ta.sma), window_rows, "SMA / close - 1"),
    Feature("atr_{n}", ta.atr, wilder_rows, "average true range, price units", False),
    Feature("atr_{n}_rel", ratio_to_close(ta.atr), wilder_rows, "ATR / close"),
    Feature("cci_{n}", ta.cci, window_rows, "commodity channel index", min_window=2),
    Feature("dx_{n}", ta.dx, wilder_rows, "directional movement index, 0 to 100", min_window=2),
    Feature("adx_{n}", ta.adx, twice_wilder_rows, "average DX, 0 to 100", min_window=2),
    Feature("macd", ta.macd, MACD_ROWS, "MACD line (12, 26, 9), price units", False),
    Feature("macd_signal", ta.macd_signal, MACD_ROWS, "MACD signal, price units", False),
    Feature("macd_hist", ta.macd_hist, MACD_ROWS, "MACD histogram, price units", False),
    Feature("macd_rel", ratio_to_close(ta.macd), MACD_ROWS, "MACD line / close"),
    Feature("macd_signal_rel", ratio_to_close(ta.macd_signal), MACD_ROWS, "MACD signal / close"),
    Feature("macd_hist_rel", ratio_to_close(ta.macd_hist), MACD_ROWS, "MACD histogram / close"),
    Feature("bb_upper_{n}", ta.bollinger_upper, window_rows, "upper band, 2 sd", False, 2),
    Feature("bb_lower_{n}", ta.bollinger_lower, window_rows, "lower band, 2 sd", False, 2),
    Feature("bb_width_{n}", ta.bollinger_width, window_rows, "band width / middle", min_window=2),
    Feature("bb_pct_{n}", ta.bollinger_position, window_rows, "close in the bands", min_window=2),
    Feature("atr_regime_shift", ta.atr_regime_shift, REGIME_ROWS, "ATR 14 / its mean of 50 - 1"),
    Feature(
        "range_breakout_volume",
        prices.range_breakout_volume,
        BREAKOUT_ROWS,
        "side of a close beyond the 20 bars before x volume / its mean of 20",
    ),
    Feature(
        "trend_reacceleration",
        ta.trend_reacceleration,
        REACCELERATION_ROWS,
        "second difference of ADX 14",
    ),
    Feature("ultosc", ta.ultimate_oscillator, ULTOSC_ROWS, "ultimate oscillator, 0 to 100"),
    Feature("obv", ta.on_balance_volume, 0, "on-balance volume", False, cumulative=True),
    Feature("ht_dcphase", ta.dominant_cycle_phase, PHASE_ROWS, "cycle phase, degrees"),
    Feature("hour_sin", prices.hour_sin, 0, "time of day, UTC"),
    Feature("hour_cos", prices.hour_cos, 0, "time of day, UTC"),
    Feature("ny_hour_sin", prices.new_york_hour_sin, 0, "time of day, New York"),
    Feature("ny_hour_cos", prices.new_york_hour_cos, 0, "time of day, New York"),
    Feature("day_of_week_sin", prices.day_of_week_sin, 0, "weekday, UTC"),
    Feature("day_of_week_cos", prices.day_of_week_cos, 0, "weekday, UTC"),
    Feature("open", lambda bars, n: bars.open, 0, "the open, mid", False),
    Feature("high", lambda bars, n: bars.high, 0, "the high, mid", False),
    Feature("low", lambda bars, n: bars.low, 0, "the low, mid", False),
    Feature("close", lambda bars, n: bars.close, 0, "the close, mid", False),
    Feature("volume", lambda bars, n: bars.volume, 0, "the volume", False),
)

# Default features: stationary and of similar scale.
DEFAULT_FEATURES = (
    "log_return_1",
    "log_return_5",
    "range_rel",
    "volatility_20",
    "rsi_14",
    "ema_10_rel",
    "ema_20_rel",
    "atr_14_rel",
)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of one symbol, causal and unscaled.

    Attributes:
        values: float64 [rows, F]; row t uses bars <= t. The first `warm_up` rows must not be used.
        names: the columns' names, in the requested order.
        warm_up: rows to drop, the longest warm-up of the columns.
    """

    values: FloatArray
    names: tuple[str, ...]
    warm_up: int


def resolve_feature(
    name: str, columns: Collection[str] = (), sets: Collection[str] = ()
) -> tuple[Feature | None, int]:
    """Return the feature and the window of `name`; None for a column of the data itself.

    `sets` are other names that are valid in this place, for suggestions.

    Raises:
        ConfigError: unknown name; the message suggests the nearest.
    """
    if name in columns:
        return None, 0
    for feature in FEATURES:
        n = feature.window(name)
        if n is not None:
            return feature, n
    digits = "".join(filter(str.isdigit, name)) or "14"
    patterns = {feature.pattern.replace("{n}", digits): feature for feature in FEATURES}
    if name in patterns:
        raise ConfigError(
            f"Feature {name!r} needs a window of at least {patterns[name].min_window} bars and at "
            "most 99,999."
        )
    names = [*patterns, *columns, *sets]
    guess = closest_match(name, names) or closest_match(name.lower(), names)
    if guess:
        raise ConfigError(f"Feature {name!r} is unknown; did you mean `{guess}`?")
    listed = ", ".join(feature.pattern for feature in FEATURES)
    column_list = f"; columns of the data: {', '.join(columns)}" if columns else ""
    groups = f"; sets of features: {', '.join(sets)}" if sets else ""
    raise ConfigError(
        f"Feature {name!r} is not known; known, with a number of bars for {{n}}: "
        f"{listed}{column_list}{groups}."
    )


def warm_up_rows(names: Sequence[str], columns: Collection[str] = ()) -> int:
    """Return the number of rows before the first usable one."""
    longest = 0
    for name in names:
        feature, n = resolve_feature(name, columns)
        longest = max(longest, feature.warm_up(n) if feature is not None else 0)
    return longest


def feature_parameters(names: Sequence[str], columns: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return each feature's name and parameters as plain values, to compute it elsewhere.

    A registered feature has its `pattern`, its window `n` if it has one, and `warm_up_bars`; a
    column of the data has `column`.
    """
    parameters: list[dict[str, Any]] = []
    for name in names:
        feature, n = resolve_feature(name, columns)
        if feature is None:
            parameters.append({"name": name, "column": name})
            continue
        window = {"n": n} if n else {}
        warm_up = {"warm_up_bars": feature.warm_up(n)}
        parameters.append({"name": name, "pattern": feature.pattern, **window, **warm_up})
    return parameters


def describe_longest_warm_up(
    names: Sequence[str], columns: Collection[str] = (), most: int | None = None
) -> str:
    """Describe the feature with the longest warm-up, for messages about too few bars.

    Args:
        names, columns: the features, and extra columns of the data.
        most: allowed warm-up; features within it are listed as they are written into a config.
    """
    rows = {name: warm_up_rows([name], columns) for name in names}
    slowest = max(rows, key=lambda name: rows[name])
    text = f"{slowest} has the longest, {plural(rows[slowest], 'bar')}"
    quick = [name for name in names if most is not None and rows[name] <= most]
    if not quick:
        return text
    longest = plural(max(rows[name] for name in quick), "bar")
    return f"{text}; with `features: [{', '.join(quick)}]` it is {longest}"


def compute_features(names: Sequence[str], bars: Bars, bar_seconds: int) -> Features:
    """Compute features of one symbol.

    Args:
        names: registry names or names of extra columns of the data.
        bars: the symbol's bars.
        bar_seconds: length of a bar, for messages.

    Raises:
        ConfigError: unknown or repeated name.
        DataError: fewer bars than the warm-up needs, or a missing number after it.
    """
    check_unique(names)
    warm_up = warm_up_rows(names, bars.extra)
    if len(bars) <= warm_up:
        raise DataError(
            f"{bars.symbol} must have more bars than the {warm_up:,} that its features need to "
            f"warm up, it has {len(bars):,} of {bar_seconds:,} s: load more data or choose "
            "shorter windows."
        )
    values = np.empty((len(bars), len(names)))
    for index, name in enumerate(names):
        values[:, index] = compute_feature(name, bars, warm_up)
    values.flags.writeable = False
    return Features(values, tuple(names), warm_up)


def constant_feature_warnings(
    symbol: str, names: Sequence[str], values: NDArray[np.floating]
) -> list[str]:
    """Return sentences about constant columns.

    Args:
        symbol: symbol of the columns.
        names: of the columns.
        values: [rows, F], of the readable bars: a study's hold-out is not among them.
    """
    if len(values) < 2:
        return []
    return [
        f"{symbol}: feature {name} never changes (it is {column[-1]:g} in every bar that is "
        "trained on) and is uninformative; leave it out."
        for name, column in zip(names, values.T, strict=True)
        if np.ptp(column) == 0.0
    ]


def reject_cumulative_features(names: Sequence[str], columns: Collection[str] = ()) -> None:
    """Raise ConfigError for cumulative features, whose memory crosses the boundaries of folds.

    A fold also trains on bars after its test block. A feature that counts from the first bar
    carries information of that block into all of them, and no embargo is long enough.
    """
    features = [resolve_feature(name, columns)[0] for name in names]
    endless = [
        name
        for name, feature in zip(names, features, strict=True)
        if feature is not None and feature.cumulative
    ]
    if endless:
        rest = ", ".join(name for name in names if name not in endless)
        raise ConfigError(
            f"Feature {endless[0]!r} counts from the first bar of the data and never forgets: in a "
            "study it would leak the test block into the training bars after it, "
            "whatever the embargo. Leave it out: `features: "
            f"[{rest}]`."
        )


def check_unique(names: Sequence[str]) -> None:
    """Raise ConfigError for a name that occurs twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ConfigError(f"Feature {twice!r} is named twice: each may be named once.")


def compute_feature(name: str, bars: Bars, warm_up: int) -> FloatArray:
    """Return one feature of one symbol, float64 [rows]; finite in all rows after the warm-up.

    Raises:
        DataError: a column of the data is not finite there.
    """
    feature, n = resolve_feature(name, bars.extra)
    column = bars.extra[name] if feature is None else feature.compute(bars, n)
    bad = ~np.isfinite(column[warm_up:])
    if bad.any():
        row = warm_up + int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{bars.symbol}: column {name!r} must be a number in every bar after the warm-up, it "
            f"is {column[row]} in {int(bad.sum()):,} of them, the first at "
            f"{stamp(int(bars.time[row]))} UTC: fix the file, or leave the column out."
        )
    return column


# The window of the volume z-score is the longest memory: it determines the cost of a hole and the
# embargo of folds. docs/explanation/fees-and-exploration.md compares windows.
FEATURE_SETS: dict[str, tuple[str, ...]] = {
    "portfolio": (
        "log_open",
        "log_high",
        "log_low",
        "log_return_1",
        "volume_z_720",
        "macd_rel",
        "macd_signal_rel",
        "macd_hist_rel",
        "rsi_14",
        "cci_14",
        "dx_14",
        "atr_regime_shift",
        "range_breakout_volume",
        "trend_reacceleration",
    ),
    # Raw levels, as Cappuccino has them.
    "cappuccino": (
        "open",
        "high",
        "low",
        "close",
        "volume",
        "macd",
        "macd_signal",
        "macd_hist",
        "rsi_14",
        "cci_14",
        "dx_14",
        "atr_regime_shift",
        "range_breakout_volume",
        "trend_reacceleration",
    ),
    # FinRL_Crypto's list without the columns that it drops.
    "finrl_crypto": ("close", "volume", "rsi_14", "dx_14", "ultosc", "obv", "ht_dcphase"),
}


def expand_feature_sets(names: Sequence[str], columns: Collection[str] = ()) -> tuple[str, ...]:
    """Return feature names with every set replaced by its features.

    Args:
        names: features, sets of features, columns of the data; or one name.
        columns: extra columns of the data, which take precedence over sets of the same name.

    Raises:
        ConfigError: unknown or repeated name.
    """
    listed = (names,) if isinstance(names, str) else names
    every = [
        feature
        for name in listed
        for feature in ((name,) if name in columns else FEATURE_SETS.get(name, (name,)))
    ]
    check_unique(every)
    for name in every:
        resolve_feature(name, columns, FEATURE_SETS)
    return tuple(every)
