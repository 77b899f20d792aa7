"""Technical indicators by TA-Lib, and forms of them that do not depend on the price level."""

from __future__ import annotations

import numpy as np
import talib

from slipstream.features import windows
from slipstream.market.bars import Bars, FloatArray


def rsi(bars: Bars, n: int) -> FloatArray:
    """Wilder's relative strength index, 0 to 100."""
    return talib.RSI(bars.close, n)


def ema(bars: Bars, n: int) -> FloatArray:
    """Exponential moving average of the close, seeded with the mean of its first n."""
    return talib.EMA(bars.close, n) if n > 1 else bars.close


def sma(bars: Bars, n: int) -> FloatArray:
    """Mean of the last n closes."""
    return talib.SMA(bars.close, n) if n > 1 else bars.close


def atr(bars: Bars, n: int) -> FloatArray:
    """Wilder's average true range, price units."""
    return talib.ATR(bars.high, bars.low, bars.close, n)


def cci(bars: Bars, n: int) -> FloatArray:
    """Commodity channel index: typical price minus its mean, in 0.015 mean deviations."""
    return talib.CCI(bars.high, bars.low, bars.close, n)


def dx(bars: Bars, n: int) -> FloatArray:
    """Wilder's directional movement index, 0 to 100."""
    return talib.DX(bars.high, bars.low, bars.close, n)


def adx(bars: Bars, n: int) -> FloatArray:
    """Wilder's average of the directional movement index, 0 to 100."""
    return talib.ADX(bars.high, bars.low, bars.close, n)


def macd(bars: Bars, n: int) -> FloatArray:
    """EMA(12) - EMA(26), price units."""
    return talib.MACD(bars.close, 12, 26, 9)[0]


def macd_signal(bars: Bars, n: int) -> FloatArray:
    """EMA(9) of `macd`, price units."""
    return talib.MACD(bars.close, 12, 26, 9)[1]


def macd_hist(bars: Bars, n: int) -> FloatArray:
    """`macd` - `macd_signal`, price units."""
    return talib.MACD(bars.close, 12, 26, 9)[2]


def bollinger_upper(bars: Bars, n: int) -> FloatArray:
    """Mean of n closes plus two population deviations."""
    return talib.BBANDS(bars.close, n, 2.0, 2.0)[0]


def bollinger_lower(bars: Bars, n: int) -> FloatArray:
    """Mean of n closes minus two population deviations."""
    return talib.BBANDS(bars.close, n, 2.0, 2.0)[2]


def bollinger_width(bars: Bars, n: int) -> FloatArray:
    """Distance between the bands as a fraction of their middle."""
    upper, middle, lower = talib.BBANDS(bars.close, n, 2.0, 2.0)
    return (upper - lower) / middle


def bollinger_position(bars: Bars, n: int) -> FloatArray:
    """Where the close lies between the bands: 0 lower, 1 upper; 0.5 while the bands coincide."""
    upper, _, lower = talib.BBANDS(bars.close, n, 2.0, 2.0)
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
    now = talib.ATR(bars.high, bars.low, bars.close, 14)
    usual = windows.rolling(now, 50, windows.mean)
    still = usual <= 1e-12 * bars.close
    return np.where(still, 0.0, now / np.where(still, 1.0, usual) - 1.0)


def trend_reacceleration(bars: Bars, n: int) -> FloatArray:
    """Second difference of ADX(14): change of its last change, in points a bar squared."""
    result = np.full(len(bars), np.nan)
    result[2:] = np.diff(talib.ADX(bars.high, bars.low, bars.close, 14), 2)
    return result


def ultimate_oscillator(bars: Bars, n: int) -> FloatArray:
    """Williams' ultimate oscillator (7, 14, 28), 0 to 100."""
    return talib.ULTOSC(bars.high, bars.low, bars.close, 7, 14, 28)


def on_balance_volume(bars: Bars, n: int) -> FloatArray:
    """Volume of rising bars minus that of falling ones since the first bar."""
    return talib.OBV(bars.close, bars.volume)


def dominant_cycle_phase(bars: Bars, n: int) -> FloatArray:
    """Ehlers' phase of the dominant cycle by Hilbert transform, degrees, -45 to 315."""
    return talib.HT_DCPHASE(bars.close)
