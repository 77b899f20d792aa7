"""A folder of forex files: random walks on the forex week's grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from slipstream.markets.data.calendar import is_weekend

START = 1_740_348_000  # Sunday 2025-02-23 22:00 UTC: the week opens in New York; clocks change soon
BAR = 900


def grid(bars: int) -> np.ndarray:
    """UTC seconds of the first bars of the forex week's quarter hours."""
    times = START + BAR * np.arange(2 * bars + 400)
    return times[~is_weekend(times)][:bars]


def write_symbol(
    folder: Path,
    symbol: str,
    bars: int = 3000,
    seed: int = 0,
    price: float = 1.1,
    drop: slice | None = None,
) -> None:
    """Writes one random walk; `drop` leaves rows out."""
    draw = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(3e-4 * draw.standard_normal(bars)))
    opened = np.concatenate([[price], close[:-1]])
    reach = 1e-4 * price * np.abs(draw.standard_normal((2, bars)))
    frame = pl.DataFrame(
        {
            "timestamp": pl.from_epoch(pl.Series(grid(bars)), "s").dt.replace_time_zone("UTC"),
            "open": opened,
            "high": np.maximum(opened, close) + reach[0],
            "low": np.minimum(opened, close) - reach[1],
            "close": close,
            "volume": 100.0 + 10.0 * draw.random(bars),
            "signal": draw.standard_normal(bars),
        }
    )
    if drop is not None:
        keep = np.ones(bars, dtype=bool)
        keep[drop] = False
        frame = frame.filter(pl.Series(keep))
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / f"{symbol}.parquet")
