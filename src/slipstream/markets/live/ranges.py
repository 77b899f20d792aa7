"""Ranges: what a policy's features were in training, and how far outside of that a bar's lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.training.environments.kernel_environment import KernelEnvironment

_LEAST = 1e-6  # of a range: a column that was constant has none


class Outside(NamedTuple):
    """How far outside, as a share of the range in training (0: within), and of which feature."""

    share: float = 0.0
    feature: str = ""

    def __str__(self) -> str:
        return (
            f"{self.feature} lies outside its range in training, by {100 * self.share:.0f} % of it"
        )


class Ranges(NamedTuple):
    """Smallest and largest value of each feature of a bar, float64 [features]."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Ranges | None:
        """Those that a deployment froze."""
        kept = facts.get("ranges")
        return None if kept is None else cls(*(np.array(kept[name]) for name in cls._fields))

    @classmethod
    def seen(cls, environment: KernelEnvironment) -> Ranges:
        """What decisions in the passes over a window see, the bars of training as one window."""
        parts = list(_seen(environment))
        low = np.min([part.min(axis=0) for part in parts], axis=0)
        return cls(low, np.max([part.max(axis=0) for part in parts], axis=0))

    def outside(self, environment: KernelEnvironment, row: int) -> Outside:
        """The feature that lies furthest outside, of those that a decision on a row's bar sees."""
        seen = _features(environment, row, row + 1)
        beyond = np.maximum(self.low - seen, seen - self.high)
        share = np.maximum(beyond, 0.0) / np.maximum(self.high - self.low, _LEAST)
        place, names = int(np.argmax(share)), _names(environment)
        return Outside(float(share.flat[place]), names[place % len(names)])


def _seen(environment: KernelEnvironment) -> Iterator[NDArray[np.float64]]:
    for record in environment.records("window"):
        first, end = environment.loaded.data.segments[record.first_segment].tolist()
        yield _features(environment, first, end - 1)  # nobody decides on the last bar


def _features(environment: KernelEnvironment, first: int, end: int) -> NDArray[np.float64]:
    """What decisions on rows [first, end) see: float64 [rows, features], the look-back's too."""
    begin, columns = first + 1 - environment.conditions["lookback"], len(_names(environment))
    found: NDArray[np.float64] = environment.loaded.data.features[begin:end, :columns]
    return found.astype(np.float64)


def _names(environment: KernelEnvironment) -> list[str]:
    """Of the features of one bar, in order."""
    known = environment.conditions
    features = [str(one["name"]) for one in known["features"]]
    symbols = known["symbols"] if known["symbols_at_once"] > 1 else ("",)
    return [f"{symbol} {feature}".strip() for symbol in symbols for feature in features]
