"""The portfolio environment's arrays, laid out for the step that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.markets.data.panel import Panel
from slipstream.markets.data.symbols import parse
from slipstream.markets.features.panel import PanelFeatures
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.record import Data
from slipstream.markets.shared_rules import cache_lines, codes_of

# Smallest orders of Alpaca, in coin, as FinRL_Crypto lists them.
ALPACA_LIMITS = {
    "AAVE": 0.01,
    "AVAX": 0.10,
    "BTC": 0.0001,
    "NEAR": 0.1,
    "LINK": 0.1,
    "ETH": 0.001,
    "LTC": 0.01,
    "MATIC": 10.0,
    "UNI": 0.1,
    "SOL": 0.01,
}


class PanelTable(NamedTuple):
    """A panel with its features.

    Attributes:
        panel: prices, T rows.
        features: of every asset; where they are missing it counts as unlisted.
    """

    panel: Panel
    features: PanelFeatures

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether an asset is listed and its features are there, bool [T, A]."""
        finite = np.isfinite(self.features.values).all(axis=2)
        return np.asarray(self.panel.listed & (self.panel.close > 0.0) & finite)


class PanelSegments(NamedTuple):
    """Segments of the table: rows, and the scale that each was measured for or None."""

    rows: list[tuple[int, int]]
    training: list[int | None]

    def add(self, part: tuple[int, int], scale: int | None) -> int:
        """Appends a segment; its number."""
        self.rows.append(part)
        self.training.append(scale)
        return len(self.rows) - 1


def arrays_of(table: PanelTable, layout: PanelSegments, config: Config) -> Data:
    """All arrays, read-only."""
    panel, known = table.panel, table.known
    assets = len(panel.symbols)
    close = np.where(known, panel.close, 0.0)
    opened = np.where(known & panel.tradable, panel.open, 0.0)
    prices = cache_lines([np.concatenate([close, opened, 0.5 * panel.spread], axis=1)])
    values = np.where(known[:, :, None], table.features.values, 0.0).astype(np.float32)
    mean, deviation = _scales(values, known, layout)
    segments = np.array(layout.rows, dtype=np.int64).reshape(-1, 2)
    first = np.stack([_first(close, row, config.lookback) for row in segments])
    data = Data(
        prices=prices,
        features=cache_lines([values.reshape(len(values), -1)]),
        time=panel.time,
        segments=segments,
        first=np.concatenate([first, _inverse_magnitude(first)], axis=1),
        lots=lots_of(config, panel.symbols),
        fee_tiers=tiers_of(config),
        feature_mean=mean,
        feature_std=deviation,
        symbols=np.stack([codes_of(symbol) for symbol in panel.symbols]),
        currency=codes_of(config.account_currency),
    )
    assert data.lots.shape == (assets, 2)
    for array in data:
        array.flags.writeable = False
    return data


def lots_of(config: Config, symbols: Sequence[str]) -> NDArray[np.float64]:
    """Smallest order and quantity step of each asset, float64 [A, 2].

    Raises:
        ConfigError: a mapping names an asset that is not there.
    """
    smallest = config.min_quantity
    if smallest is None:
        smallest = 0.0
        if config.orders == "units":
            smallest = {name: ALPACA_LIMITS.get(coin(name), 0.0) for name in symbols}
    columns = [
        _by_symbol(smallest, symbols, "min_quantity"),
        _by_symbol(config.quantity_step, symbols, "quantity_step"),
    ]
    return np.array(columns, dtype=np.float64).T.copy()


def _by_symbol(value: float | Mapping[str, float], symbols: Sequence[str], key: str) -> list[float]:
    if not isinstance(value, Mapping):
        return [float(value)] * len(symbols)
    unknown = sorted(set(value) - set(symbols))
    if unknown:
        raise ConfigError(
            f"`env.{key}` names {unknown[0]}, which is not among the assets ({', '.join(symbols)})."
        )
    return [float(value.get(name, 0.0)) for name in symbols]


def coin(symbol: str) -> str:
    """The coin that a symbol trades: BTC of BTCUSD."""
    pair = parse(symbol)
    return symbol.upper() if pair is None else pair.base


def tiers_of(config: Config) -> NDArray[np.float64]:
    """Volumes and fees, float64 [R, 2]; one row without a table."""
    return np.array(config.fee_tiers or ((0.0, config.fee),), dtype=np.float64)


def _first(
    close: NDArray[np.float64], segment: NDArray[np.int64], lookback: int
) -> NDArray[np.float64]:
    """First price of each asset that an episode in the segment can see, 0 for none, [A]."""
    seen = close[segment[0] - (lookback - 1) : segment[1]]
    return np.asarray(seen[(seen > 0.0).argmax(axis=0), np.arange(seen.shape[1])])


def _inverse_magnitude(price: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 over 10 to the whole part of the decimal logarithm; 0 where there is no price."""
    known = price > 0.0
    power = np.floor(np.log10(np.where(known, price, 1.0)))
    return np.where(known, 1.0 / 10.0**power, 0.0)


def _scales(
    values: NDArray[np.float32], known: NDArray[np.bool_], layout: PanelSegments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of every column over the training rows of each scale, [S, A F]."""
    scales = 1 + max(scale for scale in layout.training if scale is not None)
    means, deviations = [], []
    for number in range(scales):
        parts = [
            slice(low, high)
            for (low, high), scale in zip(layout.rows, layout.training, strict=True)
            if scale == number
        ]
        seen = np.concatenate([values[part] for part in parts])
        there = np.concatenate([known[part] for part in parts])[:, :, None]
        there = np.broadcast_to(there, seen.shape)
        count = np.maximum(there.sum(axis=0), 1)
        mean = seen.sum(axis=0, dtype=np.float64) / count  # 0 where unlisted
        apart = np.where(there, seen - mean, 0.0)
        deviation = np.sqrt((apart * apart).sum(axis=0) / count)
        means.append(mean.ravel())
        deviations.append(np.where(deviation > 0.0, deviation, 1.0).ravel())
    return np.stack(means), np.stack(deviations)
