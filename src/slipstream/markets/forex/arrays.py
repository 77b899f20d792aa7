"""The forex environment's arrays: symbols end to end, segments cut out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.markets.data.symbols import pip
from slipstream.markets.forex.config import Config
from slipstream.markets.forex.record import VARIANCE, Data
from slipstream.markets.forex.table import SymbolTable
from slipstream.markets.shared_rules import cache_lines, codes_of, name_of


class SymbolSegments(NamedTuple):
    """Which rows records are made of.

    Attributes:
        segments: half-open ranges of rows, counted over all symbols end to end.
        symbol: index of the table of each segment.
        scale: index of the scale of each segment.
        training: for each scale, the segments whose rows it is measured on.
    """

    segments: list[tuple[int, int]]
    symbol: list[int]
    scale: list[int]
    training: list[list[int]]

    @classmethod
    def empty(cls, scales: int) -> SymbolSegments:
        """Nothing yet, to be filled by `add`."""
        return cls([], [], [], [[] for _ in range(scales)])

    def add(self, rows: tuple[int, int], symbol: int, scale: int, *, training: bool) -> int:
        """Appends a segment and returns its index."""
        index = len(self.segments)
        self.segments.append(rows)
        self.symbol.append(symbol)
        self.scale.append(scale)
        if training:
            self.training[scale].append(index)
        return index


def offsets_of(tables: Sequence[SymbolTable]) -> list[int]:
    """First row of each symbol in the arrays, and one past the last row of all."""
    return [0, *(int(row) for row in np.cumsum([len(table.time) for table in tables]))]


def arrays_of(tables: list[SymbolTable], layout: SymbolSegments, config: Config) -> Data:
    """Everything that the kernel reads, read-only."""
    segments = np.array(layout.segments, dtype=np.int64)
    bars = cache_lines([table.bars for table in tables])
    features = cache_lines([table.features for table in tables])
    mean, deviation = [], []
    for training in layout.training:
        rows = [segments[k] for k in training]
        seen = np.concatenate([features[low:high, : len(config.features)] for low, high in rows])
        mean.append(seen.mean(axis=0, dtype=np.float64))
        spread = seen.std(axis=0, dtype=np.float64)
        deviation.append(np.where(spread > 0.0, spread, 1.0))
    data = Data(
        bars=bars,
        features=features,
        calendar=np.concatenate([table.calendar for table in tables]),
        time=np.concatenate([table.time for table in tables]),
        segments=segments,
        segment_symbol=np.array(layout.symbol, dtype=np.int64),
        constants=_constants(tables, layout, bars, config.return_variance),
        feature_mean=np.stack(mean),
        feature_std=np.stack(deviation),
        symbols=np.stack([codes_of(table.symbol) for table in tables]),
        currency=codes_of(config.account_currency),
    )
    for array in data:
        array.flags.writeable = False
    return data


def trained_variances(data: Data, rows: Sequence[int]) -> dict[str, float]:
    """VARIANCE by symbol of the given rows of `Data.segments`: what a policy takes along."""
    names = [name_of(data.symbols[data.segment_symbol[row]]) for row in rows]
    return dict(zip(names, (float(data.constants[row, VARIANCE]) for row in rows), strict=True))


def _constants(
    tables: list[SymbolTable],
    layout: SymbolSegments,
    bars: NDArray[np.float64],
    known: float | Mapping[str, float] | None,
) -> NDArray[np.float64]:
    """PIP, INVERSE and VARIANCE of each segment; variance over its symbol's training rows.

    Variances that are `known` stand instead; of a symbol that is not among them their mean, for
    its own could only come from the bars to be judged.
    """
    variances: dict[tuple[int, int], float] = {}
    for scale, training in enumerate(layout.training):
        for symbol in range(len(tables)):
            rows = [layout.segments[k] for k in training if layout.symbol[k] == symbol]
            variance = _known(known, tables[symbol].symbol)
            if variance is None:
                variance = _variance(bars, rows)
            variances[symbol, scale] = max(variance, 1e-16)
    keys = list(zip(layout.symbol, layout.scale, strict=True))
    constants = [
        (pip(tables[key[0]].symbol), float(tables[key[0]].rates.inverse), variances[key])
        for key in keys
    ]
    return np.array(constants, dtype=np.float64)


def _known(known: float | Mapping[str, float] | None, symbol: str) -> float | None:
    if isinstance(known, Mapping):
        return known.get(symbol, float(np.mean(list(known.values()))))
    return known


def _variance(bars: NDArray[np.float64], segments: list[tuple[int, int]]) -> float:
    """Variance of simple returns per bar, ddof 1; none is taken from one segment to the next."""
    closes = [bars[low:high, 3] for low, high in segments]
    parts = [close[1:] / close[:-1] - 1.0 for close in closes]
    returns = np.concatenate(parts) if parts else np.zeros(0)
    return float(returns.var(ddof=1)) if len(returns) > 1 else 0.0
