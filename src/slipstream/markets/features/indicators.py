"""Technical indicators by TA-Lib, over all bars or continued bar by bar.

Includes forms that do not depend on the price level. A stream of TA-Lib 0.8 or later is
bit-identical to the function over all bars. Running sums and recursive averages depend on every
bar since the first one, so a window cannot reproduce these bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import talib

from slipstream.markets.data.bars import Bars, FloatArray, IntArray
from slipstream.markets.features.prices import rolling

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
    """Position of the close between the bands: 0 lower, 1 upper; 0.5 while the bands coincide."""
    upper, _, lower = outputs("BBANDS", bars, _CLOSE, n, 2.0, 2.0)
    width = upper - lower
    narrow = width <= 1e-9 * bars.close
    inside = (bars.close - lower) / np.where(narrow, 1.0, width)
    return np.where(narrow, 0.5, inside)


def atr_regime_shift(bars: Bars, n: int) -> FloatArray:
    """ATR(14) over its mean of 50 bars, less 1; 0 while nothing has moved."""
    now = indicator("ATR", bars, _RANGE, 14)
    usual = rolling(now, 50, np.mean)
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


class StreamHistoryError(Exception):
    """The bars do not continue those of a stream: compute the indicator on all bars."""


@dataclass
class _Column:
    """State of one indicator of one symbol.

    Attributes:
        time: opens of the newest bars, UTC seconds.
        values: float64 [rows, outputs] at these bars.
        inputs: columns of all bars so far, until the stream is opened.
        stream: the handle of TA-Lib, at the last bar.
    """

    time: IntArray
    values: FloatArray
    inputs: Sequence[FloatArray]
    stream: Any = None


class IndicatorStreams:
    """The indicators of one market, by symbol, function and parameters."""

    def __init__(self) -> None:
        self._columns: dict[tuple[Any, ...], _Column] = {}
        self._continues = False

    @contextmanager
    def activate(self, continues: bool) -> Iterator[None]:
        """Make `outputs` store the columns of all bars, or continue stored ones by newer bars.

        The last bar is neither stored nor fed: it has not closed yet.
        """
        self._continues = continues
        token = _USED.set(self)
        try:
            yield
        finally:
            _USED.reset(token)

    def outputs(
        self, name: str, bars: Bars, columns: Sequence[str], parameters: tuple[float, ...]
    ) -> tuple[FloatArray, ...]:
        """Return the result of the function `outputs`, from a stream if its columns are stored.

        Raises:
            StreamHistoryError: the bars do not continue stored ones.
        """
        key, inputs = (
            (bars.symbol, name, *parameters),
            [getattr(bars, column) for column in columns],
        )
        if not self._continues:
            computed = _computed(name, inputs, parameters)
            values, parts = np.stack(computed, axis=1)[:-1], [column[:-1] for column in inputs]
            self._columns[key] = _Column(bars.time[:-1], values, parts)
            return computed
        stream = self._columns.get(key)
        old = 0 if stream is None else int(np.searchsorted(bars.time, stream.time[-1], "right"))
        if stream is None or not 0 < old <= len(stream.time):
            raise StreamHistoryError(f"{bars.symbol}: {name} was not computed on the bars before")
        if not np.array_equal(stream.time[-old:], bars.time[:old]):
            raise StreamHistoryError(f"{bars.symbol}: other bars than {name} was computed on")
        rows = range(old, len(bars) - 1)
        if rows and stream.stream is None:
            stream.stream, stream.inputs = _opened(name, stream.inputs, parameters), ()
        new = [stream.stream.update(*(float(column[row]) for column in inputs)) for row in rows]
        new_values = np.reshape(new, (len(new), stream.values.shape[1]))
        stream.values = np.concatenate([stream.values[-2 * len(bars) :], new_values])
        stream.time = np.concatenate([stream.time[-2 * len(bars) :], bars.time[old:-1]])
        previous = stream.values[-(len(bars) - 1) :]
        return tuple(np.append(column, column[-1]) for column in previous.T)


_USED: ContextVar[IndicatorStreams | None] = ContextVar("indicator_streams", default=None)


def outputs(
    name: str, bars: Bars, columns: Sequence[str], *parameters: float
) -> tuple[FloatArray, ...]:
    """Return all outputs of a function of TA-Lib over columns of bars."""
    streams = _USED.get()
    if streams is not None:
        return streams.outputs(name, bars, columns, parameters)
    return _computed(name, [getattr(bars, column) for column in columns], parameters)


def indicator(name: str, bars: Bars, columns: Sequence[str], *parameters: float) -> FloatArray:
    """Return the first output of a function of TA-Lib over columns of bars."""
    return outputs(name, bars, columns, *parameters)[0]


def _computed(
    name: str, inputs: Sequence[FloatArray], parameters: tuple[float, ...]
) -> tuple[FloatArray, ...]:
    result = getattr(talib, name)(*inputs, *parameters)
    return result if isinstance(result, tuple) else (result,)


def _opened(name: str, inputs: Sequence[FloatArray], parameters: tuple[float, ...]) -> Any:
    if not hasattr(talib.stream, "Stream"):
        raise StreamHistoryError(f"TA-Lib {talib.__version__} has no streams")
    try:
        return getattr(talib.stream, name)(*inputs, *parameters)
    except Exception as error:  # fewer bars than the function needs, a class of TA-Lib's own
        raise StreamHistoryError(str(error)) from error
