"""TrainingPrices: closes that a deployed policy was trained on, compared with what its feed tells.

A feed with another time zone, label, unit or symbol than the training prices gives decisions that
look valid and are not. Where both have the same bars, they must have the same closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.core.text import plural, stamp
from slipstream.markets.data.bars import Bars

KEPT = 500  # bars of the training's end and of the file's end
_MOST = 0.01  # share of bars that may differ
_LAGS = sorted(range(-26, 27), key=abs)  # bars


class TrainingPrices(NamedTuple):
    """The last closes of one symbol.

    Attributes:
        time: int64 [n], opens in UTC seconds, increasing; close: float64 [n], mid.
        tolerance: price difference from which on two closes differ: the median spread, or, if the
            prices have none, a tenth of the median move from bar to bar.
    """

    time: NDArray[np.int64]
    close: NDArray[np.float64]
    tolerance: float

    @classmethod
    def from_bars(cls, bars: Bars, trained_until: float | None) -> TrainingPrices:
        """The last closes before a moment and the last ones of the file."""
        end = len(bars.time)
        trained = end if trained_until is None else int(np.searchsorted(bars.time, trained_until))
        rows = np.arange(end)
        rows = rows[(rows >= end - KEPT) | ((rows < trained) & (rows >= trained - KEPT))]
        spread = float(np.median(bars.spread[rows])) if len(rows) else 0.0
        moves = np.abs(np.diff(bars.close[rows]))
        tolerance = spread or (float(np.median(moves)) / 10.0 if len(moves) else 0.0)
        return cls(bars.time[rows], bars.close[rows], tolerance)

    def facts(self) -> dict[str, Any]:
        """JSON-able; `from_facts` reads it."""
        return {name: np.asarray(getattr(self, name)).tolist() for name in self._fields}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> TrainingPrices:
        """Those that `facts` gave."""
        time, close = np.array(facts["time"], np.int64), np.array(facts["close"], np.float64)
        return cls(time, close, float(facts["tolerance"]))

    def differences(self, time: NDArray[Any], close: NDArray[Any], lag: int = 0) -> NDArray[Any]:
        """|close difference| of the bars that both have, after moving ours by `lag` bars."""
        _, mine, theirs = np.intersect1d(self.time, time, return_indices=True)
        kept = (mine + lag >= 0) & (mine + lag < len(self.close))
        found: NDArray[Any] = np.abs(self.close[mine[kept] + lag] - close[theirs[kept]])
        return found

    def lag(self, time: NDArray[Any], close: NDArray[Any]) -> int | None:
        """Bars by which the feed's closes come later (negative: earlier); None if at no lag."""
        for lag in _LAGS:
            apart = self.differences(time, close, -lag)
            if len(apart) and np.mean(apart > self.tolerance) <= _MOST:
                return lag
        return None


class Closes(NamedTuple):
    """Closes of a feed: int64 [n] opens in UTC seconds and float64 [n] mid prices."""

    symbol: str
    time: NDArray[np.int64]
    close: NDArray[np.float64]


class FeedComparison:
    """Comparison of a feed with the training prices, which sees each bar once.

    Args:
        known: the training prices, by symbol.
    """

    def __init__(self, known: Mapping[str, TrainingPrices]) -> None:
        self._known = known
        nothing = np.zeros(0, np.int64), np.zeros(0)
        self._common = {name: Closes(name, *nothing) for name in known}

    def add(self, symbol: str, time: NDArray[np.int64], close: NDArray[np.float64]) -> None:
        """Keep the closes of new bars that the training prices have too."""
        if symbol in self._known:
            both, before = np.isin(time, self._known[symbol].time), self._common[symbol]
            whole = np.append(before.time, time[both]), np.append(before.close, close[both])
            self._common[symbol] = Closes(symbol, *whole)

    def sentence(self) -> str:
        """Return what `compare` does, for all bars so far."""
        return compare(self._known, list(self._common.values()))


def compare(known: Mapping[str, TrainingPrices], bars: Sequence[Bars | Closes]) -> str:
    """Compare what a feed has told with the training prices.

    Returns:
        A sentence about how many bars were compared and how many differ.

    Raises:
        DataError: more than 1 % of a symbol's common bars differ by more than its tolerance.
    """
    compared, different, widest = 0, 0, 0.0
    for one in bars:
        prices = known.get(one.symbol)
        if prices is None:
            continue
        apart = prices.differences(one.time, one.close)
        beyond = apart > prices.tolerance
        if len(apart) and beyond.mean() > _MOST:
            lag = prices.lag(one.time, one.close)
            first = stamp(int(np.intersect1d(prices.time, one.time)[np.argmax(beyond)]))
            found = (
                f"{one.symbol}: the feed contradicts the prices that the policy was trained on: "
                f"{int(beyond.sum())} of {plural(len(apart), 'common bar')} have another close, by "
                f"up to {float(apart.max()):.6g}, the first of {first} UTC."
            )
            if lag:
                when = "later" if lag > 0 else "earlier"
                found += (
                    f" Its stamps are {plural(abs(lag), 'bar')} {when} than those of the training "
                    "prices: another zone or label."
                )
            raise DataError(
                f"{found} Nothing is decided. Give the feed's files the stamps, unit and symbol of "
                "the training prices, or train and deploy on prices of this feed."
            )
        compared, different = compared + len(apart), different + int(beyond.sum())
        widest = max(widest, float(apart.max(initial=0.0)))
    if not compared:
        return (
            f"The feed was not compared with the training prices: it has none of their last {KEPT} "
            "bars."
        )
    told = f"The feed agrees with the training prices on {plural(compared, 'common bar')}"
    return f"{told} but {different}, by up to {widest:.6g}." if different else f"{told}."
