"""Features of prices and volume in plain NumPy."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slipstream.markets.data.bars import Bars, FloatArray
from slipstream.markets.features import windows


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
    """Where the close lies between low (0) and high (1); 0.5 in a flat bar."""
    span = bars.high - bars.low
    flat = span <= 0.0
    return np.where(flat, 0.5, (bars.close - bars.low) / np.where(flat, 1.0, span))


def volatility(bars: Bars, n: int) -> FloatArray:
    """Sample standard deviation of the last n one-bar log returns, per bar (not annualised)."""
    result = np.full(len(bars), np.nan)
    result[1:] = windows.rolling(log_return(bars, 1)[1:], n, windows.deviation)
    return result


def log_volume_score(bars: Bars, n: int) -> FloatArray:
    """log(1 + volume) in deviations from its mean over n bars; 0 while volume is constant."""
    return windows.last_score(np.log1p(bars.volume), n)


def range_breakout_volume(bars: Bars, n: int) -> FloatArray:
    """Volume over its mean of 20 bars, in bars that close beyond the 20 bars before; else 0.

    Positive above their highest high, negative below their lowest low. The bar itself is not among
    the 20 whose range it breaks (with it the feature would be 0 for ever), but is among the 20
    that its volume is compared with.
    """
    length = 20
    result = np.full(len(bars), np.nan)
    if len(bars) <= length:
        return result
    top = sliding_window_view(bars.high[:-1], length).max(axis=1)
    bottom = sliding_window_view(bars.low[:-1], length).min(axis=1)
    close = bars.close[length:]
    side = (close > top).astype(np.float64) - (close < bottom)
    usual = windows.rolling(bars.volume, length, windows.mean)[length:]
    silent = usual == 0.0
    result[length:] = side * np.where(
        silent, 0.0, bars.volume[length:] / np.where(silent, 1.0, usual)
    )
    return result


def vwap(bars: Bars, n: int) -> FloatArray:
    """Volume-weighted mean of the typical price (high + low + close) / 3 over the last n bars.

    Where the whole window has no volume, it is the plain mean of the typical price.
    """
    typical = (bars.high + bars.low + bars.close) / 3.0
    volume = windows.rolling(bars.volume, n, windows.total)
    silent = volume == 0.0
    weighted = windows.rolling(typical * bars.volume, n, windows.total)
    plain = windows.rolling(typical, n, windows.mean)
    return np.where(silent, plain, weighted / np.where(silent, 1.0, volume))


def vwap_relative(bars: Bars, n: int) -> FloatArray:
    """VWAP(n) / close - 1."""
    return vwap(bars, n) / bars.close - 1.0


def spread_relative(bars: Bars, n: int) -> FloatArray:
    """Full spread / close."""
    return bars.spread / bars.close


def _against_previous_close(price: FloatArray, close: FloatArray) -> FloatArray:
    result = np.full(len(close), np.nan)
    result[1:] = np.log(price[1:] / close[:-1])
    return result
