"""Features of prices, volume and time in NumPy, with their rolling windows.

Windows are summed independently at every row, so no row depends on where the file begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slipstream.core.timeline import DAY, NEW_YORK, local_time
from slipstream.markets.data.bars import Bars, FloatArray
from slipstream.markets.data.calendar import day_weekday


def log_return(bars: Bars, n: int) -> FloatArray:
    """log(close / close n bars ago)."""
    logs = np.log(bars.close)
    result = np.full(len(logs), np.nan)
    result[n:] = logs[n:] - logs[:-n]
    return result


def simple_return(bars: Bars, n: int) -> FloatArray:
    """close / close n bars ago - 1."""
    return np.expm1(log_return(bars, n))


def log_open(bars: Bars, n: int) -> FloatArray:
    """log(open / previous close)."""
    return _against_previous_close(bars.open, bars.close)


def log_high(bars: Bars, n: int) -> FloatArray:
    """log(high / previous close)."""
    return _against_previous_close(bars.high, bars.close)


def log_low(bars: Bars, n: int) -> FloatArray:
    """log(low / previous close)."""
    return _against_previous_close(bars.low, bars.close)


def range_relative(bars: Bars, n: int) -> FloatArray:
    """(high - low) / close of the bar."""
    return (bars.high - bars.low) / bars.close


def body_relative(bars: Bars, n: int) -> FloatArray:
    """(close - open) / close of the bar."""
    return (bars.close - bars.open) / bars.close


def close_location(bars: Bars, n: int) -> FloatArray:
    """Position of the close between low (0) and high (1); 0.5 in a flat bar."""
    span = bars.high - bars.low
    flat = span <= 0.0
    return np.where(flat, 0.5, (bars.close - bars.low) / np.where(flat, 1.0, span))


def volatility(bars: Bars, n: int) -> FloatArray:
    """Sample standard deviation of the last n one-bar log returns, per bar (not annualised)."""
    result = np.full(len(bars), np.nan)
    result[1:] = rolling(log_return(bars, 1)[1:], n, partial(np.std, ddof=1))
    return result


def log_volume_zscore(bars: Bars, n: int) -> FloatArray:
    """log(1 + volume) in deviations from its mean over n bars; 0 while volume is constant."""
    return rolling_zscore(np.log1p(bars.volume), n)


def range_breakout_volume(bars: Bars, n: int) -> FloatArray:
    """Volume over its mean of 20 bars, in bars that close beyond the 20 bars before; else 0.

    Positive above their highest high, negative below their lowest low. The bar itself is not among
    the 20 whose range it breaks (otherwise the feature would always be 0), but is among the 20 of
    the volume mean.
    """
    length = 20
    result = np.full(len(bars), np.nan)
    if len(bars) <= length:
        return result
    top = sliding_window_view(bars.high[:-1], length).max(axis=1)
    bottom = sliding_window_view(bars.low[:-1], length).min(axis=1)
    close = bars.close[length:]
    side = (close > top).astype(np.float64) - (close < bottom)
    usual = rolling(bars.volume, length, np.mean)[length:]
    silent = usual == 0.0
    result[length:] = side * np.where(
        silent, 0.0, bars.volume[length:] / np.where(silent, 1.0, usual)
    )
    return result


def vwap(bars: Bars, n: int) -> FloatArray:
    """Volume-weighted mean of the typical price (high + low + close) / 3 over the last n bars.

    The plain mean of the typical price if the whole window has no volume.
    """
    typical = (bars.high + bars.low + bars.close) / 3.0
    volume = rolling(bars.volume, n, np.sum)
    silent = volume == 0.0
    weighted = rolling(typical * bars.volume, n, np.sum)
    plain = rolling(typical, n, np.mean)
    return np.where(silent, plain, weighted / np.where(silent, 1.0, volume))


def spread_relative(bars: Bars, n: int) -> FloatArray:
    """Full spread / close."""
    return bars.spread / bars.close


def _against_previous_close(price: FloatArray, close: FloatArray) -> FloatArray:
    result = np.full(len(close), np.nan)
    result[1:] = np.log(price[1:] / close[:-1])
    return result


_Moments = tuple[int, FloatArray, FloatArray, FloatArray, FloatArray]

_CHUNK_CELLS = 4_000_000  # bounds the memory of functions that materialise their windows


def rolling(values: FloatArray, n: int, reduce: Callable[..., Any]) -> FloatArray:
    """Apply `reduce` to the last n values at each row: [rows] -> [rows]; NaN in the first n - 1.

    Args:
        values: float64 [rows].
        n: window length.
        reduce: reduces ``[k, n]`` along an `axis`, as `np.mean` does.
    """
    result = np.full(len(values), np.nan)
    if len(values) < n:
        return result
    windows = sliding_window_view(values, n)
    chunk = max(_CHUNK_CELLS // n, 1)
    for start in range(0, len(windows), chunk):
        part = windows[start : start + chunk]
        result[n - 1 + start : n - 1 + start + len(part)] = reduce(part, axis=1)
    return result


def rolling_zscore(values: FloatArray, n: int) -> FloatArray:
    """Return the z-score (ddof 1) of each value in the last n; 0 in a constant window.

    [rows] -> [rows], NaN in the first n - 1 rows. Windows are combined from halves, quarters and so
    on by the update of Chan, Golub and LeVeque (1979), which many windows share: log n passes over
    the rows, without any value from before the window.
    """
    result = np.full(len(values), np.nan)
    if len(values) < n:
        return result
    # Moments of the `size` values that end at each row; `whole` collects the binary digits of n.
    size, mean, spread = 1, values, np.zeros(len(values))
    top = bottom = values
    total: _Moments | None = None
    while True:
        part = (size, mean, spread, top, bottom)
        if n & size:
            total = part if total is None else _combine_moments(part, total)
        if 2 * size > n:
            break
        size, mean, spread, top, bottom = _combine_moments(part, part)
    assert total is not None
    _, mean, spread, top, bottom = total
    now = values[len(values) - len(mean) :]
    constant = top == bottom
    deviation = np.sqrt(np.where(constant, 1.0, spread) / max(n - 1, 1))
    result[n - 1 :] = np.where(constant, 0.0, (now - mean) / deviation)
    return result


def _combine_moments(before: _Moments, after: _Moments) -> _Moments:
    """Return count, means, squared deviations, maxima and minima of two neighbouring windows.

    Row k of the arrays belongs to the window that ends at row k + count - 1.
    """
    size, moments = before[0], after[0]
    rows = len(after[1]) - size
    first, then = [part[:rows] for part in before[1:]], [part[size:] for part in after[1:]]
    count = size + moments
    apart = then[0] - first[0]
    return (
        count,
        first[0] + apart * (moments / count),
        first[1] + then[1] + apart**2 * (size * moments / count),
        np.maximum(first[2], then[2]),
        np.minimum(first[3], then[3]),
    )


def hour_sin(bars: Bars, n: int) -> FloatArray:
    """Sine of the time of day, UTC."""
    return np.sin(_day_angle(bars, "UTC"))


def hour_cos(bars: Bars, n: int) -> FloatArray:
    """Cosine of the time of day, UTC."""
    return np.cos(_day_angle(bars, "UTC"))


def new_york_hour_sin(bars: Bars, n: int) -> FloatArray:
    """Sine of the time of day in New York, which follows the sessions through summer time."""
    return np.sin(_day_angle(bars, NEW_YORK))


def new_york_hour_cos(bars: Bars, n: int) -> FloatArray:
    """Cosine of the time of day in New York."""
    return np.cos(_day_angle(bars, NEW_YORK))


def day_of_week_sin(bars: Bars, n: int) -> FloatArray:
    """Sine of the weekday, UTC, Monday at angle 0, seven days a turn."""
    return np.sin(_week_angle(bars))


def day_of_week_cos(bars: Bars, n: int) -> FloatArray:
    """Cosine of the weekday, UTC."""
    return np.cos(_week_angle(bars))


def _day_angle(bars: Bars, zone: str) -> FloatArray:
    minutes = local_time(bars.time, zone) % DAY // 60
    return minutes.astype(np.float64) * (2.0 * np.pi / 1440.0)


def _week_angle(bars: Bars) -> FloatArray:
    return day_weekday(bars.time // DAY).astype(np.float64) * (2.0 * np.pi / 7.0)
