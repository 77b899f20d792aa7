"""Features of prices and volume in plain NumPy."""

from __future__ import annotations

import numpy as np

from slipstream.features import windows
from slipstream.market.bars import Bars, FloatArray


def log_return(bars: Bars, n: int) -> FloatArray:
    """log(close / close n bars ago)."""
    logs = np.log(bars.close)
    result = np.full(len(logs), np.nan)
    result[n:] = logs[n:] - logs[:-n]
    return result


def simple_return(bars: Bars, n: int) -> FloatArray:
    """close / close n bars ago - 1."""
    return np.expm1(log_return(bars, n))


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
    return windows.rolling(np.log1p(bars.volume), n, windows.last_score)


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


def open_(bars: Bars, n: int) -> FloatArray:
    """The bar's open, mid."""
    return bars.open


def high(bars: Bars, n: int) -> FloatArray:
    """The bar's high, mid."""
    return bars.high


def low(bars: Bars, n: int) -> FloatArray:
    """The bar's low, mid."""
    return bars.low


def close(bars: Bars, n: int) -> FloatArray:
    """The bar's close, mid."""
    return bars.close


def volume(bars: Bars, n: int) -> FloatArray:
    """The bar's volume."""
    return bars.volume


def spread_relative(bars: Bars, n: int) -> FloatArray:
    """Full spread / close."""
    return bars.spread / bars.close
