"""planted-crypto: assets of which one is hot, with a known optimum (docs/rules.md, section 14).

One asset is hot; with probability 1/288 a bar another one becomes hot, drawn uniformly. What is
hot at bar t shows in the volume of bar t and moves the prices of bar t + 1:

    open[t+1] = close[t]
    log(close[t+1] / open[t+1]) = drift[t] + noise (common[t+1] + own[t+1])
    drift = strength for the hot asset, -strength / (A - 1) for the others
    log(volume[t]) = 10 + own noise of deviation 1, + 4 for the hot asset

Who sees the state and holds the hot asset alone earns `strength` a bar and sells and buys once a
change. With `strength = 0` the market has no edge, and volume tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.market.bars import Bars, FloatArray, IntArray
from slipstream.market.panel import Panel
from slipstream.market.planted.prices import (
    BASIS_POINT,
    LOG_VOLUME,
    SYMBOLS,
    bars_of,
    expected_growth,
    state_of,
    write_bars,
)

HOT = "hot"  # the column that holds the state: 1 in bars in which the asset is hot


@dataclass(frozen=True)
class PlantedCrypto:
    """Parameters of the generator, as fractions (1 bp = 1e-4).

    Attributes:
        strength: log drift a bar of the hot asset.
        noise: standard deviation of the common and of each asset's own part of a bar's log return.
        switch: probability a bar that another asset becomes hot.
        signal: what being hot adds to the log volume, in deviations of its noise.
        fee: fraction of notional, each side.
    """

    strength: float = 20.0 * BASIS_POINT
    noise: float = 20.0 * BASIS_POINT
    switch: float = 1.0 / 288.0
    signal: float = 4.0
    fee: float = 10.0 * BASIS_POINT


STANDARD = PlantedCrypto()


def planted_crypto(
    bars: int,
    seed: int,
    market: PlantedCrypto = STANDARD,
    symbols: Sequence[str] = SYMBOLS,
    bar_seconds: int = 300,
) -> tuple[Bars, ...]:
    """Draws one path of `bars` bars a symbol; the extra column `hot` is the state.

    Equal arguments give equal bars; a longer path is another one.
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, 0xC0117]))
    assets = len(symbols)
    hot = _states(bars, assets, market.switch, draw)
    is_hot = (hot[:, None] == np.arange(assets)).astype(np.float64)
    growth = market.noise * (draw.standard_normal((bars, 1)) + draw.standard_normal((bars, assets)))
    growth[1:] += drift_of(hot[:-1], assets, market)
    log_volume = LOG_VOLUME + draw.standard_normal((bars, assets)) + market.signal * is_hot
    return bars_of(growth, log_volume, {HOT: is_hot}, symbols, bar_seconds)


def write_planted_crypto(
    folder: str | Path,
    bars: int = 125_000,
    seed: int = 0,
    market: PlantedCrypto = STANDARD,
    symbols: Sequence[str] = SYMBOLS,
) -> tuple[Path, ...]:
    """Writes one path as ``{symbol}.parquet`` files into `folder` and returns them."""
    return write_bars(folder, planted_crypto(bars, seed, market, symbols))


def optimum(market: PlantedCrypto = STANDARD) -> float:
    """Log growth a bar of the best policy that sees the state.

    It holds the hot asset and sells and buys once a change; or nothing, where that pays less.
    """
    return max(market.strength - 2.0 * market.fee * market.switch, 0.0)


def hot_assets(panel: Panel) -> IntArray:
    """Which asset is hot at each row of a planted panel, int64 [T].

    Raises:
        DataError: the panel has no column `hot`.
    """
    state = state_of(panel, HOT, "planted-crypto")
    return np.asarray(state.argmax(axis=1), dtype=np.int64)


def drift_of(hot: IntArray, assets: int, market: PlantedCrypto = STANDARD) -> FloatArray:
    """Log drift of every asset in the bar after each of these states, float64 [n, A]."""
    others = -market.strength / (assets - 1)
    return np.where(hot[:, None] == np.arange(assets), market.strength, others)


def score(
    weights: FloatArray,
    hot: IntArray,
    traded: FloatArray | None = None,
    market: PlantedCrypto = STANDARD,
) -> float:
    """What weights earn in expectation given the hot asset [n]; see `expected_growth`."""
    drift = drift_of(np.asarray(hot), np.shape(weights)[1], market)
    return expected_growth(weights, drift, market.fee, traded)


def _states(bars: int, assets: int, switch: float, draw: np.random.Generator) -> IntArray:
    """The hot asset of each bar: at a change one of the others, all equally likely."""
    first = draw.integers(assets)
    changes = draw.random(bars) < switch
    changes[:1] = False
    jumps = draw.integers(1, max(assets, 2), size=bars)
    return np.asarray((first + np.cumsum(np.where(changes, jumps, 0))) % assets, dtype=np.int64)
