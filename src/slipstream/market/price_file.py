"""A file of prices as the generators of planted markets write it, and known to be theirs."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import polars as pl

from slipstream.market.bars import Bars
from slipstream.market.source import SUFFIXES, resolve_folder

_MARK = ".planted"  # beside the files: the sha256 of each that a generator wrote


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
        with (folder / _MARK).open("a") as mark:
            mark.write(hashlib.sha256(content.getvalue()).hexdigest() + "\n")
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return file


def is_planted(folder: str) -> bool:
    """Whether generators wrote every file of prices in a folder as it is: nothing is traded there.

    Args:
        folder: as a config's `env.data.folder` names it.
    """
    root = resolve_folder(folder)
    place = root if root.is_dir() else root.parent
    files = [path for path in place.iterdir() if path.suffix.lower() in SUFFIXES]
    if not (files and (place / _MARK).is_file()):
        return False
    known = set((place / _MARK).read_text().split())
    return all(hashlib.sha256(path.read_bytes()).hexdigest() in known for path in files)
