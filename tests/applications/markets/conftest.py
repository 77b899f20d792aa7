"""Small price files, sound ones, for tests to plant defects in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from slipstream.markets.synthetic import SyntheticForex

FrameMaker = Callable[..., pl.DataFrame]


def sound_frame(
    bars: int = 2400, seed: int = 3, symbol: str = "EURUSD", bar_seconds: int = 900
) -> pl.DataFrame:
    """Five forex weeks of M15 bars with nothing wrong: time (aware), prices, volume."""
    (path,) = SyntheticForex(beta=0.0).generate(bars, seed, (symbol,), bar_seconds)
    columns = {name: getattr(path, name) for name in ("open", "high", "low", "close", "volume")}
    frame = pl.DataFrame({"timestamp": pl.from_epoch(pl.Series(path.time), "s"), **columns})
    return frame.with_columns(pl.col("timestamp").dt.replace_time_zone("UTC"))


@pytest.fixture
def frame() -> FrameMaker:
    """Makes sound frames."""
    return sound_frame


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., str]:
    """Writes frames as ``{SYMBOL}.parquet`` into a folder and returns it."""

    def write(**frames: pl.DataFrame) -> str:
        for symbol, one in frames.items():
            one.write_parquet(tmp_path / f"{symbol}.parquet")
        return str(tmp_path)

    return write


@pytest.fixture
def put() -> Callable[..., pl.DataFrame]:
    """Replaces values of some rows of a column."""

    def replace(one: pl.DataFrame, column: str, rows: object, value: object) -> pl.DataFrame:
        values = one[column].to_numpy().copy()
        values[np.asarray(rows)] = value
        return one.with_columns(pl.Series(column, values))

    return replace


def real_data(name: str) -> Path:
    """A folder of real prices, or a skip where they are absent."""
    root = Path(os.environ.get("SLIPSTREAM_MARKET_DATA", Path(__file__).parents[4] / "shared/data"))
    if not (root / name).is_dir():
        pytest.skip(f"no real prices: set SLIPSTREAM_MARKET_DATA to the folder that holds {name}/")
    return root / name


@pytest.fixture
def forex_m15() -> Path:
    """Four pairs of 15-minute bars."""
    return real_data("forex_m15")


@pytest.fixture
def crypto_5m() -> Path:
    """Seven coins of 5-minute bars."""
    return real_data("crypto_5m")
