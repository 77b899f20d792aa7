"""Streams: indicators of TA-Lib, continued bar by bar behind bars that they were computed on.

A stream of TA-Lib 0.8 or later gives the bits that the function gives over all bars. Running sums
and recursive averages depend on every bar since the first one, so that no window gives these bits.
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


class HistoryError(Exception):
    """Bars that do not continue those of a stream: compute the indicator on all bars."""


@dataclass
class _Column:
    """One indicator of one symbol.

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
    def used(self, continues: bool) -> Iterator[None]:
        """Make `outputs` store the columns of all bars, or continue stored ones by newer bars.

        The last bar is neither stored nor fed: it stands ahead of those that have closed.
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
        """Return what the function `outputs` does, from a stream if its columns are stored.

        Raises:
            HistoryError: the bars do not continue stored ones.
        """
        key, inputs = (bars.symbol, name, *parameters), [getattr(bars, one) for one in columns]
        if not self._continues:
            found = _computed(name, inputs, parameters)
            values, parts = np.stack(found, axis=1)[:-1], [one[:-1] for one in inputs]
            self._columns[key] = _Column(bars.time[:-1], values, parts)
            return found
        known = self._columns.get(key)
        old = 0 if known is None else int(np.searchsorted(bars.time, known.time[-1], "right"))
        if known is None or not 0 < old <= len(known.time):
            raise HistoryError(f"{bars.symbol}: {name} was not computed on the bars before")
        if not np.array_equal(known.time[-old:], bars.time[:old]):
            raise HistoryError(f"{bars.symbol}: other bars than {name} was computed on")
        rows = range(old, len(bars) - 1)
        if rows and known.stream is None:
            known.stream, known.inputs = _opened(name, known.inputs, parameters), ()
        new = [known.stream.update(*(float(one[row]) for one in inputs)) for row in rows]
        made = np.reshape(new, (len(new), known.values.shape[1]))
        known.values = np.concatenate([known.values[-2 * len(bars) :], made])
        known.time = np.concatenate([known.time[-2 * len(bars) :], bars.time[old:-1]])
        shown = known.values[-(len(bars) - 1) :]
        return tuple(np.append(one, one[-1]) for one in shown.T)


_USED: ContextVar[IndicatorStreams | None] = ContextVar("indicator_streams", default=None)


def outputs(
    name: str, bars: Bars, columns: Sequence[str], *parameters: float
) -> tuple[FloatArray, ...]:
    """Return all outputs of a function of TA-Lib over columns of bars."""
    streams = _USED.get()
    if streams is not None:
        return streams.outputs(name, bars, columns, parameters)
    return _computed(name, [getattr(bars, one) for one in columns], parameters)


def indicator(name: str, bars: Bars, columns: Sequence[str], *parameters: float) -> FloatArray:
    """Return the first output of a function of TA-Lib over columns of bars."""
    return outputs(name, bars, columns, *parameters)[0]


def _computed(
    name: str, inputs: Sequence[FloatArray], parameters: tuple[float, ...]
) -> tuple[FloatArray, ...]:
    found = getattr(talib, name)(*inputs, *parameters)
    return found if isinstance(found, tuple) else (found,)


def _opened(name: str, inputs: Sequence[FloatArray], parameters: tuple[float, ...]) -> Any:
    if not hasattr(talib.stream, "Stream"):
        raise HistoryError(f"TA-Lib {talib.__version__} has no streams")
    try:
        return getattr(talib.stream, name)(*inputs, *parameters)
    except Exception as error:  # fewer bars than the function needs, a class of TA-Lib's own
        raise HistoryError(str(error)) from error
