"""Bars: prices of one symbol, and names of bar lengths (``M15``, ``15m``, ``1h``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
NUMBERS = ("open", "high", "low", "close", "volume", "spread")
_SECONDS = {
    **dict.fromkeys(("s", "sec"), 1),
    **dict.fromkeys(("m", "min", "t"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86400),
    **dict.fromkeys(("w", "week"), 604800),
}


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars of one symbol, oldest first, in read-only arrays of length n.

    Attributes:
        symbol: name of the symbol, usually the name of its file (``"EURUSD"``).
        time: UTC seconds of each bar's open, int64, strictly increasing.
        open, high, low, close: mid prices, float64, positive and finite.
        volume: float64, units of the source (contracts, coins or ticks); zero if there is none.
        spread: full bid-ask spread in price units, float64; zero if there is none.
        extra: other numeric columns of the file by name, float64; these may hold NaN.
    """

    symbol: str
    time: IntArray
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    spread: FloatArray
    extra: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", _locked(self.time, np.int64))
        for name in NUMBERS:
            object.__setattr__(self, name, _locked(getattr(self, name), np.float64))
        extra = {name: _locked(column, np.float64) for name, column in self.extra.items()}
        object.__setattr__(self, "extra", extra)
        lengths = {name: len(column) for name, column in self.columns().items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"{self.symbol}: all columns of a symbol must have the same length, got {lengths}."
            )

    def __len__(self) -> int:
        return len(self.time)

    @property
    def silent(self) -> BoolArray:
        """Bars in which nothing traded: flat, without volume, bool [n]."""
        quiet: BoolArray = (self.high == self.low) & (self.volume == 0.0)
        return quiet

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return every column by name, extra columns last."""
        return {"time": self.time, **{name: getattr(self, name) for name in NUMBERS}, **self.extra}

    def take(self, rows: slice | IntArray) -> Bars:
        """Return the bars of some rows."""
        extra = {name: column[rows] for name, column in self.extra.items()}
        numbers = {name: getattr(self, name)[rows] for name in NUMBERS}
        return Bars(self.symbol, self.time[rows], **numbers, extra=extra)

    def between(self, start: int, stop: int) -> Bars:
        """Return the bars with an open in [start, stop), UTC seconds."""
        first, last = np.searchsorted(self.time, [start, stop])
        return self.take(slice(first, last))


def _locked(column: NDArray[np.generic], dtype: type[np.generic]) -> NDArray[np.generic]:
    """Return a read-only view; the caller's own array stays writable."""
    view = np.ascontiguousarray(column, dtype=dtype).view()
    view.flags.writeable = False
    return view


def timeframe_seconds(timeframe: str) -> int:
    """Return the seconds of a bar length such as ``15m``, ``15min``, ``M15``, ``1h`` or ``1d``."""
    text = timeframe.strip().lower()
    match = re.fullmatch(r"(\d+)\s*([a-z]+)", text) or re.fullmatch(r"([a-z]+)\s*(\d+)", text)
    if match:
        first, second = match.groups()
        count, unit = (first, second) if first.isdigit() else (second, first)
        if unit in _SECONDS and int(count) > 0:
            return int(count) * _SECONDS[unit]
    raise ConfigError(
        f"`timeframe` must be a bar length such as 15m, M15, 1h or 1d, got {timeframe!r}."
    )


def timeframe_name(bar_seconds: int) -> str:
    """Return the shortest name of a bar length: 900 -> ``15m``."""
    for unit, size in (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60)):
        if bar_seconds % size == 0:
            return f"{bar_seconds // size}{unit}"
    return f"{bar_seconds}s"
