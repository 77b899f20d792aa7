"""Prices of planted markets: bars from growth, files known to be theirs, a score of weights."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from slipstream.core.errors import DataError
from slipstream.market.bars import Bars, FloatArray
from slipstream.market.panel import Panel
from slipstream.market.reading.source import SUFFIXES, resolve_folder

BASIS_POINT = 1e-4
SYMBOLS = ("AAVE", "AVAX", "BTC", "ETH", "LINK", "LTC", "UNI")
LOG_VOLUME = 10.0  # mean logarithm of a bar's volume
_START = 1_640_995_200  # 2022-01-01 00:00 UTC
_FIRST_PRICE = 100.0
_MARK = ".planted"  # beside the files: the sha256 of each that a generator wrote


def bars_of(
    growth: FloatArray,
    log_volume: FloatArray,
    extra: Mapping[str, FloatArray],
    symbols: Sequence[str],
    bar_seconds: int,
) -> tuple[Bars, ...]:
    """Bars whose every open is the close before.

    Args:
        growth: log(close / open) of each bar, float64 [T, A].
        log_volume: float64 [T, A].
        extra: columns that hold the state, float64 [T, A], by name.
        symbols: A names.
        bar_seconds: length of a bar.
    """
    bars, assets = growth.shape
    close = _FIRST_PRICE * np.exp(np.cumsum(growth, axis=0))
    opens = np.concatenate([np.full((1, assets), _FIRST_PRICE), close[:-1]])
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
            extra={name: column[:, a] for name, column in extra.items()},
        )
        for a, symbol in enumerate(symbols)
    )


def write_bars(folder: str | Path, path: Sequence[Bars]) -> tuple[Path, ...]:
    """Writes one ``{symbol}.parquet`` file for each asset into `folder` and returns them."""
    return tuple(write_prices(Path(folder), one) for one in path)


def state_of(panel: Panel, column: str, generator: str) -> FloatArray:
    """The column of a planted panel that holds its state, float64 [T, A].

    Raises:
        DataError: the panel has no such column.
    """
    if column not in panel.extra:
        raise DataError(
            f"The files must have the column `{column}` that the generator of {generator} writes; "
            f"these have {', '.join(panel.extra) or 'no columns beside prices and volume'}."
        )
    return panel.extra[column]


def expected_growth(
    weights: FloatArray, drift: FloatArray, fee: float, traded: FloatArray | None = None
) -> float:
    """What weights earn in expectation given the state: conditional drift, not the noisy return.

    Args:
        weights: shares of equity held through bar t + 1, decided on bar t, [n, A]; the rest is
            cash.
        drift: expected log growth of each asset in bar t + 1, [n, A].
        fee: fraction of notional, each side.
        traded: share of equity bought plus sold at each bar, [n]. None: what the weights change,
            from cash alone before the first bar, without the drift of weights that nobody trades.

    Returns:
        Sum over bars of weights . drift - fee x traded.
    """
    held = np.asarray(weights, dtype=np.float64)
    if traded is None:
        traded = np.abs(np.diff(held, axis=0, prepend=0.0)).sum(axis=1)
    return float((held * drift).sum() - fee * np.sum(traded))


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
