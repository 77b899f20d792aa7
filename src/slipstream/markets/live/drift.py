"""Drift: comparison of a feed with the prices on which a deployed policy was trained.

`TrainingPrices` are closes. A feed with another time zone, timestamp label, unit or symbol leads to
decisions that look valid but are not: bars that both have must have the same closes.
`FeatureRanges` are the ranges of the features in training, used to measure how far a bar is
outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.core.text import plural, stamp
from slipstream.markets.data.bars import Bars
from slipstream.training.environments.kernel_environment import KernelEnvironment

NUM_STORED_BARS = 500  # bars at the end of training and at the end of the file
_MAX_DIFFERENT = 0.01  # fraction of bars that may differ
_MIN_RANGE = 1e-6  # minimum width of a range, for constant columns
_LAGS = sorted(range(-26, 27), key=abs)  # bars


class TrainingPrices(NamedTuple):
    """Last closes of one symbol.

    Attributes:
        time: int64 [n], opens in UTC seconds, increasing; close: float64 [n], mid.
        tolerance: price difference above which two closes differ: the median spread, or, if the
            prices have none, a tenth of the median move per bar.
    """

    time: NDArray[np.int64]
    close: NDArray[np.float64]
    tolerance: float

    @classmethod
    def from_bars(cls, bars: Bars, trained_until: float | None) -> TrainingPrices:
        """Return the last closes before a time and the last closes of the file."""
        end = len(bars.time)
        trained = end if trained_until is None else int(np.searchsorted(bars.time, trained_until))
        rows = np.arange(end)
        rows = rows[
            (rows >= end - NUM_STORED_BARS)
            | ((rows < trained) & (rows >= trained - NUM_STORED_BARS))
        ]
        spread = float(np.median(bars.spread[rows])) if len(rows) else 0.0
        moves = np.abs(np.diff(bars.close[rows]))
        tolerance = spread or (float(np.median(moves)) / 10.0 if len(moves) else 0.0)
        return cls(bars.time[rows], bars.close[rows], tolerance)

    def to_metadata(self) -> dict[str, Any]:
        """Convert to JSON-serialisable values for `from_metadata`."""
        return {name: np.asarray(getattr(self, name)).tolist() for name in self._fields}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> TrainingPrices:
        """Create from the result of `to_metadata`."""
        time, close = np.array(metadata["time"], np.int64), np.array(metadata["close"], np.float64)
        return cls(time, close, float(metadata["tolerance"]))

    def differences(self, time: NDArray[Any], close: NDArray[Any], lag: int = 0) -> NDArray[Any]:
        """Return |close difference| of common bars, with these closes shifted by `lag` bars."""
        _, training_rows, feed_rows = np.intersect1d(self.time, time, return_indices=True)
        inside = (training_rows + lag >= 0) & (training_rows + lag < len(self.close))
        differences: NDArray[Any] = np.abs(
            self.close[training_rows[inside] + lag] - close[feed_rows[inside]]
        )
        return differences

    def lag(self, time: NDArray[Any], close: NDArray[Any]) -> int | None:
        """Return the bars by which the feed is late (negative: early); None if no lag fits."""
        for lag in _LAGS:
            differences = self.differences(time, close, -lag)
            if len(differences) and np.mean(differences > self.tolerance) <= _MAX_DIFFERENT:
                return lag
        return None


class Closes(NamedTuple):
    """Closes of a feed: int64 [n] opens in UTC seconds and float64 [n] mid prices."""

    symbol: str
    time: NDArray[np.int64]
    close: NDArray[np.float64]


class FeedComparison:
    """Comparison of a feed with the training prices that processes each bar once.

    Args:
        training_prices: training prices by symbol.
    """

    def __init__(self, training_prices: Mapping[str, TrainingPrices]) -> None:
        self._training_prices = training_prices
        nothing = np.zeros(0, np.int64), np.zeros(0)
        self._common_closes = {name: Closes(name, *nothing) for name in training_prices}

    def add(self, symbol: str, time: NDArray[np.int64], close: NDArray[np.float64]) -> None:
        """Store the closes of new bars that the training prices contain."""
        if symbol in self._training_prices:
            is_common, before = (
                np.isin(time, self._training_prices[symbol].time),
                self._common_closes[symbol],
            )
            merged = (
                np.append(before.time, time[is_common]),
                np.append(before.close, close[is_common]),
            )
            self._common_closes[symbol] = Closes(symbol, *merged)

    def summary(self) -> str:
        """Return the result of `compare` for all bars so far."""
        return compare(self._training_prices, list(self._common_closes.values()))


def compare(training_prices: Mapping[str, TrainingPrices], bars: Sequence[Bars | Closes]) -> str:
    """Compare a feed with the training prices.

    Returns:
        Summary of how many bars were compared and how many differ.

    Raises:
        DataError: more than 1 % of a symbol's common bars differ by more than its tolerance.
    """
    compared, different, widest = 0, 0, 0.0
    for symbol_bars in bars:
        prices = training_prices.get(symbol_bars.symbol)
        if prices is None:
            continue
        differences = prices.differences(symbol_bars.time, symbol_bars.close)
        excess = differences > prices.tolerance
        if len(differences) and excess.mean() > _MAX_DIFFERENT:
            lag = prices.lag(symbol_bars.time, symbol_bars.close)
            first = stamp(int(np.intersect1d(prices.time, symbol_bars.time)[np.argmax(excess)]))
            shifts = (
                f"{symbol_bars.symbol}: the feed contradicts the prices that the policy was "
                f"trained on: {int(excess.sum())} of {plural(len(differences), 'common bar')} have "
                f"another close, by up to {float(differences.max()):.6g}, the first of {first} UTC."
            )
            if lag:
                when = "later" if lag > 0 else "earlier"
                shifts += (
                    f" Its stamps are {plural(abs(lag), 'bar')} {when} than those of the training "
                    "prices: another time zone or label."
                )
            raise DataError(
                f"{shifts} No decision was made. Use the stamps, unit and symbol of the training "
                "prices in the feed, or train and deploy on prices of this feed."
            )
        compared, different = compared + len(differences), different + int(excess.sum())
        widest = max(widest, float(differences.max(initial=0.0)))
    if not compared:
        return (
            "The feed was not compared with the training prices: it has none of their last "
            f"{NUM_STORED_BARS} "
            "bars."
        )
    text = f"The feed agrees with the training prices on {plural(compared, 'common bar')}"
    return f"{text} but {different}, by up to {widest:.6g}." if different else f"{text}."


class FeatureDrift(NamedTuple):
    """Distance outside the training range as a fraction of it (0: inside), and the feature."""

    share: float = 0.0
    feature: str = ""

    def __str__(self) -> str:
        return f"{self.feature} is outside its training range by {100 * self.share:.0f} % of it"


class FeatureRanges(NamedTuple):
    """Minimum and maximum of each feature of a bar, float64 [features]."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> FeatureRanges | None:
        """Create from the metadata of a deployment; None if it has no ranges."""
        inside = metadata.get("ranges")
        return None if inside is None else cls(*(np.array(inside[name]) for name in cls._fields))

    @classmethod
    def from_environment(cls, environment: KernelEnvironment) -> FeatureRanges:
        """Measure the ranges over the decisions of all passes over a window."""
        parts = list(_pass_features(environment))
        low = np.min([part.min(axis=0) for part in parts], axis=0)
        return cls(low, np.max([part.max(axis=0) for part in parts], axis=0))

    def drift(self, environment: KernelEnvironment, row: int) -> FeatureDrift:
        """Return the largest drift of the features that a decision on a row's bar observes."""
        values = _feature_rows(environment, row, row + 1)
        excess = np.maximum(self.low - values, values - self.high)
        share = np.maximum(excess, 0.0) / np.maximum(self.high - self.low, _MIN_RANGE)
        index, names = int(np.argmax(share)), _feature_names(environment)
        return FeatureDrift(float(share.flat[index]), names[index % len(names)])


def _pass_features(environment: KernelEnvironment) -> Iterator[NDArray[np.float64]]:
    for record in environment.records("window"):
        first, end = environment.loaded.data.segments[record.first_segment].tolist()
        yield _feature_rows(environment, first, end - 1)  # no decision is made on the last bar


def _feature_rows(environment: KernelEnvironment, first: int, end: int) -> NDArray[np.float64]:
    """Return what decisions on rows [first, end) observe, float64 [rows, features]."""
    begin, columns = (
        first + 1 - environment.training_context["lookback"],
        len(_feature_names(environment)),
    )
    features: NDArray[np.float64] = environment.loaded.data.features[begin:end, :columns]
    return features.astype(np.float64)


def _feature_names(environment: KernelEnvironment) -> list[str]:
    """Return the names of a bar's features, in order."""
    context = environment.training_context
    features = [str(described["name"]) for described in context["features"]]
    symbols = context["symbols"] if context["symbols_at_once"] > 1 else ("",)
    return [f"{symbol} {feature}".strip() for symbol in symbols for feature in features]
