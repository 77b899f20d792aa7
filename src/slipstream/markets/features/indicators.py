"""Technical indicators by TA-Lib, and forms of them that do not depend on the price level."""

from __future__ import annotations

import numpy as np

from slipstream.markets.data.bars import Bars, FloatArray
from slipstream.markets.features import windows
from slipstream.markets.features.streams import indicator, outputs

_CLOSE, _RANGE = ("close",), ("high", "low", "close")


def rsi(bars: Bars, n: int) -> FloatArray:
    """Wilder's relative strength index, 0 to 100."""
    return indicator("RSI", bars, _CLOSE, n)


def ema(bars: Bars, n: int) -> FloatArray:
    """Exponential moving average of the close, seeded with the mean of its first n."""
    return indicator("EMA", bars, _CLOSE, n) if n > 1 else bars.close


def sma(bars: Bars, n: int) -> FloatArray:
    """Mean of the last n closes."""
    return indicator("SMA", bars, _CLOSE, n) if n > 1 else bars.close


def atr(bars: Bars, n: int) -> FloatArray:
    """Wilder's average true range, price units."""
    return indicator("ATR", bars, _RANGE, n)


def cci(bars: Bars, n: int) -> FloatArray:
    """Commodity channel index: typical price minus its mean, in 0.015 mean deviations."""
    return indicator("CCI", bars, _RANGE, n)


def dx(bars: Bars, n: int) -> FloatArray:
    """Wilder's directional movement index, 0 to 100."""
    return indicator("DX", bars, _RANGE, n)


def adx(bars: Bars, n: int) -> FloatArray:
    """Wilder's average of the directional movement index, 0 to 100."""
    return indicator("ADX", bars, _RANGE, n)


def macd(bars: Bars, n: int) -> FloatArray:
    """EMA(12) - EMA(26), price units."""
    return outputs("MACD", bars, _CLOSE, 12, 26, 9)[0]


def macd_signal(bars: Bars, n: int) -> FloatArray:
    """EMA(9) of `macd`, price units."""
    return outputs("MACD", bars, _CLOSE, 12, 26, 9)[1]


def macd_hist(bars: Bars, n: int) -> FloatArray:
    """`macd` - `macd_signal`, price units."""
    return outputs("MACD", bars, _CLOSE, 12, 26, 9)[2]


def bollinger_upper(bars: Bars, n: int) -> FloatArray:
    """Mean of n closes plus two population deviations."""
    return outputs("BBANDS", bars, _CLOSE, n, 2.0, 2.0)[0]


def bollinger_lower(bars: Bars, n: int) -> FloatArray:
    """Mean of n closes minus two population deviations."""
    return outputs("BBANDS", bars, _CLOSE, n, 2.0, 2.0)[2]


def bollinger_width(bars: Bars, n: int) -> FloatArray:
    """Distance between the bands as a fraction of their middle."""
    upper, middle, lower = outputs("BBANDS", bars, _CLOSE, n, 2.0, 2.0)
    return (upper - lower) / middle


def bollinger_position(bars: Bars, n: int) -> FloatArray:
    """Where the close lies between the bands: 0 lower, 1 upper; 0.5 while the bands coincide."""
    upper, _, lower = outputs("BBANDS", bars, _CLOSE, n, 2.0, 2.0)
    width = upper - lower
    narrow = width <= 1e-9 * bars.close
    inside = (bars.close - lower) / np.where(narrow, 1.0, width)
    return np.where(narrow, 0.5, inside)


def ema_relative(bars: Bars, n: int) -> FloatArray:
    """EMA(n) / close - 1."""
    return ema(bars, n) / bars.close - 1.0


def sma_relative(bars: Bars, n: int) -> FloatArray:
    """SMA(n) / close - 1."""
    return sma(bars, n) / bars.close - 1.0


def atr_relative(bars: Bars, n: int) -> FloatArray:
    """ATR(n) / close."""
    return atr(bars, n) / bars.close


def macd_relative(bars: Bars, n: int) -> FloatArray:
    """MACD line / close."""
    return macd(bars, n) / bars.close


def macd_signal_relative(bars: Bars, n: int) -> FloatArray:
    """MACD signal / close."""
    return macd_signal(bars, n) / bars.close


def macd_hist_relative(bars: Bars, n: int) -> FloatArray:
    """MACD histogram / close."""
    return macd_hist(bars, n) / bars.close


def atr_regime_shift(bars: Bars, n: int) -> FloatArray:
    """ATR(14) over its mean of 50 bars, less 1; 0 while nothing has moved."""
    now = indicator("ATR", bars, _RANGE, 14)
    usual = windows.rolling(now, 50, windows.mean)
    still = usual <= 1e-12 * bars.close
    return np.where(still, 0.0, now / np.where(still, 1.0, usual) - 1.0)


def trend_reacceleration(bars: Bars, n: int) -> FloatArray:
    """Second difference of ADX(14): change of its last change, in points a bar squared."""
    result = np.full(len(bars), np.nan)
    result[2:] = np.diff(indicator("ADX", bars, _RANGE, 14), 2)
    return result


def ultimate_oscillator(bars: Bars, n: int) -> FloatArray:
    """Williams' ultimate oscillator (7, 14, 28), 0 to 100."""
    return indicator("ULTOSC", bars, _RANGE, 7, 14, 28)


def on_balance_volume(bars: Bars, n: int) -> FloatArray:
    """Volume of rising bars minus that of falling ones since the first bar."""
    return indicator("OBV", bars, ("close", "volume"))


def dominant_cycle_phase(bars: Bars, n: int) -> FloatArray:
    """Ehlers' phase of the dominant cycle by Hilbert transform, degrees, -45 to 315."""
    return indicator("HT_DCPHASE", bars, _CLOSE)
