"""A file of prices as the generators of planted markets write it."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl

from slipstream.market.bars import Bars


def write_prices(folder: Path, bars: Bars) -> Path:
    """Writes `SYMBOL.parquet` with stamps in UTC and all columns but the spread; returns its path.

    Raises:
        OSError: the folder cannot be written, or its disk is full; then there is no such file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: pl.Series(column) for name, column in bars.columns().items()}
    moments = pl.from_epoch(columns.pop("time"), "s").dt.replace_time_zone("UTC")
    del columns["spread"]
    content = io.BytesIO()  # polars itself would not say what the system said
    pl.DataFrame({"timestamp": moments, **columns}).write_parquet(content)
    file = folder / f"{bars.symbol}.parquet"
    try:
        file.write_bytes(content.getvalue())
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return file
