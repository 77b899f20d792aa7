"""planted-crypto: assets of which one is hot, with a known optimum (trading-rules 14).

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
import polars as pl

from slipstream.core.errors import DataError
from slipstream.market.bars import Bars, FloatArray, IntArray
from slipstream.market.panel import Panel

BASIS_POINT = 1e-4
SYMBOLS = ("AAVE", "AVAX", "BTC", "ETH", "LINK", "LTC", "UNI")
HOT = "hot"  # the column that holds the state: 1 in bars in which the asset is hot
_START = 1_640_995_200  # 2022-01-01 00:00 UTC
_FIRST_PRICE = 100.0
_LOG_VOLUME = 10.0


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
    close = _FIRST_PRICE * np.exp(np.cumsum(growth, axis=0))
    opens = np.concatenate([np.full((1, assets), _FIRST_PRICE), close[:-1]])
    log_volume = _LOG_VOLUME + draw.standard_normal((bars, assets)) + market.signal * is_hot
    time = _START + bar_seconds * np.arange(bars, dtype=np.int64)
    return tuple(
        Bars(
            symbol,
            time,
            open=opens[:, a],
            high=np.maximum(opens, close)[:, a],
            low=np.minimum(opens, close)[:, a],
            close=close[:, a],
            volume=np.exp(log_volume[:, a]),
            spread=np.zeros(bars),
            extra={HOT: is_hot[:, a]},
        )
        for a, symbol in enumerate(symbols)
    )


def write_planted_crypto(
    folder: str | Path,
    bars: int = 125_000,
    seed: int = 0,
    market: PlantedCrypto = STANDARD,
    symbols: Sequence[str] = SYMBOLS,
    bar_seconds: int = 300,
) -> tuple[Path, ...]:
    """Writes one path as ``{symbol}.parquet`` files into `folder` and returns them."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for one in planted_crypto(bars, seed, market, symbols, bar_seconds):
        columns = {name: pl.Series(column) for name, column in one.columns().items()}
        moments = pl.from_epoch(columns.pop("time"), "s").dt.replace_time_zone("UTC")
        del columns["spread"]
        files.append(target / f"{one.symbol}.parquet")
        pl.DataFrame({"timestamp": moments, **columns}).write_parquet(files[-1])
    return tuple(files)


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
    if HOT not in panel.extra:
        raise DataError(
            f"The files must have the column `{HOT}` that the generator of planted-crypto writes; "
            f"these have {', '.join(panel.extra) or 'no columns beside prices and volume'}."
        )
    return np.asarray(panel.extra[HOT].argmax(axis=1), dtype=np.int64)


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
    """What weights earn in expectation given the state: conditional drift, not the noisy return.

    Args:
        weights: shares of equity held through bar t + 1, decided on bar t, [n, A]; the rest is
            cash.
        hot: the hot asset at bar t, [n].
        traded: share of equity bought plus sold at each bar, [n]. None: what the weights change,
            from cash alone before the first bar, without the drift of weights that nobody trades.

    Returns:
        Sum over bars of weights . drift - fee x traded.
    """
    held = np.asarray(weights, dtype=np.float64)
    if traded is None:
        traded = np.abs(np.diff(held, axis=0, prepend=0.0)).sum(axis=1)
    earned = (held * drift_of(np.asarray(hot), held.shape[1], market)).sum()
    return float(earned - market.fee * np.sum(traded))


def _states(bars: int, assets: int, switch: float, draw: np.random.Generator) -> IntArray:
    """The hot asset of each bar: at a change one of the others, all equally likely."""
    first = draw.integers(assets)
    changes = draw.random(bars) < switch
    changes[:1] = False
    jumps = draw.integers(1, max(assets, 2), size=bars)
    return np.asarray((first + np.cumsum(np.where(changes, jumps, 0))) % assets, dtype=np.int64)
