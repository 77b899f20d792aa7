"""Columns: which of a table's are ours, whose prices its rows are, and what their cells hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl

from slipstream.core.errors import DataError
from slipstream.market.bars import FloatArray
from slipstream.market.config import DataConfig
from slipstream.market.finding import RemedyError
from slipstream.market.reading import stamps
from slipstream.market.reading.dialect import PRICES, SYMBOL_NAMES, Dialect, rename, simple

_LISTED = 20
_LETTERED = r"^\d[\d.]*[KMB]$"
_SIZES = {"K": 1e3, "M": 1e6, "B": 1e9}


def named(frame: pl.DataFrame, dialect: Dialect, config: DataConfig, label: str) -> pl.DataFrame:
    """The frame under our names, with at least a time and four prices."""
    names = rename(dialect, config.columns, label)
    frame = frame.select(list(names)).rename(names)
    if "time" not in frame.columns:
        moments = [name for name in frame.columns if frame[name].dtype in (pl.Datetime, pl.Date)]
        if len(moments) == 1:
            frame = frame.rename({moments[0]: "time"})
    missing = [name for name in ("time", *PRICES) if name not in frame.columns]
    if missing:
        raise _without(missing, frame, dialect, config, label)
    return frame


def _without(
    missing: list[str],
    frame: pl.DataFrame,
    dialect: Dialect,
    config: DataConfig,
    label: str,
) -> RemedyError:
    """The error that names columns that are missing, and those that hold them if numbers tell."""
    listed = ", ".join(name or '""' for name in dialect.columns)
    given = {theirs: ours for theirs, ours in config.columns.items() if theirs in dialect.columns}
    message = (
        f"{label} must have the columns time, open, high, low and close; {', '.join(missing)} is "
        f"missing among {listed}"
    )
    unknown = [theirs for theirs in config.columns if theirs not in given]
    if unknown:
        message += f" (`columns` names {unknown[0]!r}, which is not there)"
    found = _guess(frame, missing, dialect)
    if found is None:
        return RemedyError(
            "columns", f"{message}: say which is which by `columns`, as THEIRS: ours."
        )
    return RemedyError("columns", f"{message}.", {"columns": {**given, **found}})


def _guess(frame: pl.DataFrame, missing: list[str], dialect: Dialect) -> dict[str, str] | None:
    """The file's names of missing columns, where what they hold leaves one reading.

    A missing time is the only column that holds stamps. Missing prices are found where four
    columns in a row are open, high, low and close by their sizes.
    """
    found: dict[str, str] = {}
    head = frame.head(1000)
    if "time" in missing:
        moments = [name for name in head.columns if _holds_stamps(head[name])]
        if "" in dialect.columns and not moments:
            found[""] = "time"  # pandas writes an index without a name
        elif len(moments) == 1:
            found[moments[0]] = "time"
        else:
            return None
    if set(missing) & set(PRICES):
        numeric = [n for n in head.columns if n not in found and is_numeric(head[n])]
        four = next(
            (
                numeric[k : k + 4]
                for k in range(len(numeric) - 3)
                if _is_ohlc([numbers(head[n]) for n in numeric[k : k + 4]])
            ),
            None,
        )
        if four is None:
            return None
        found |= dict(zip(four, PRICES, strict=True))
    theirs_of = {simple(name).replace(" ", "_"): name for name in dialect.columns}
    return {theirs_of.get(name, name): ours for name, ours in found.items()}


def _holds_stamps(column: pl.Series) -> bool:
    if column.dtype.is_numeric():
        return False
    try:
        readings = stamps.parse(column, None, "")
    except DataError:
        return False
    steps = np.sign(np.diff(readings.seconds))
    ordered = len(steps) > 0 and max(np.mean(steps > 0), np.mean(steps < 0)) > 0.9
    return bool(ordered and (readings.seconds != stamps.MISSING).all())


def _is_ohlc(columns: list[FloatArray]) -> bool:
    opens, high, low, close = columns
    inside = (high >= np.maximum(opens, close)) & (low <= np.minimum(opens, close))
    return bool(inside.mean() > 0.99 and (high > low).any() and (low > 0.0).mean() > 0.99)


def of_symbol(frame: pl.DataFrame, symbol: str, path: Path, label: str) -> pl.DataFrame:
    """The rows of one symbol, of a table with a column that names several."""
    names, column = symbols_in(frame)
    if len(names) < 2:
        return frame
    chosen = [name for name in names if _bare(name) == _bare(symbol)]
    if chosen:
        return frame.filter(pl.col(column).cast(pl.String).str.strip_chars().is_in(chosen))
    listed = names[:_LISTED]
    remedy = {"files": {_bare(name): path.name for name in names}}
    raise RemedyError(
        "several_symbols",
        f"{label} holds {len(names)} symbols in its column {column!r} ({', '.join(listed)}"
        f"{', ...' if len(names) > _LISTED else ''}), none of them {symbol}: name those to load.",
        remedy,
    )


def symbols_in(frame: pl.DataFrame) -> tuple[list[str], str]:
    """The symbols that a column of a table names, in order, and that column's name."""
    for name in frame.columns:
        if simple(name) in SYMBOL_NAMES and frame[name].dtype in (pl.String, pl.Categorical):
            values = frame[name].cast(pl.String).str.strip_chars().drop_nulls()
            return values.unique(maintain_order=True).to_list(), name
    return [], ""


def bare_names(frame: pl.DataFrame) -> list[str]:
    """The symbols that a column of a table names, as a config's `symbols` would."""
    return [_bare(name) for name in symbols_in(frame)[0]]


def _bare(name: str) -> str:
    """``C:EUR/USD`` -> ``EURUSD``; a name that is letters and digits already stays as it is."""
    return re.sub(r"[^A-Z0-9]", "", re.sub(r"^[CXI]:", "", name.upper()))


def is_clock(column: pl.Series) -> bool:
    """Whether a column is a time of day, which needs its date beside it."""
    if column.dtype == pl.Time:
        return True
    if column.dtype.is_integer():
        return bool((column.drop_nulls() < 240_000).all())
    if column.dtype != pl.String:
        return False
    clock = r"^\s*(?:\d{1,2}:\d{2}.*|\d{4}|\d{6})$"
    return bool(column.drop_nulls().head(100).str.contains(clock).all())


def is_blank(column: pl.Series) -> bool:
    """Whether no cell holds anything."""
    if column.dtype == pl.String:
        column = column.filter(column.str.strip_chars() != "")
    return column.null_count() == len(column)


def is_numeric(column: pl.Series) -> bool:
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return True
    if column.dtype != pl.String or column.null_count() == len(column):
        return False
    return bool(column.drop_nulls().cast(pl.Float64, strict=False).null_count() == 0)


def numbers(column: pl.Series) -> FloatArray:
    """A column as float64 [n], NaN where it is missing or not a number."""
    if column.dtype == pl.String:
        column = column.str.strip_chars()
        cast = column.cast(pl.Float64, strict=False)
        if cast.null_count() > column.null_count():
            if column.str.contains(_LETTERED).any():  # 12.5K, 1.2M
                return _lettered(column)
            if column.str.contains(r"^\d{1,3}(,\d{3})+\.\d+$").any():  # 103,428.50
                column = column.str.replace_all(",", "", literal=True)
            elif column.str.contains(r"^\d{1,3}(\.\d{3})+,\d+$").any():  # 103.428,50
                column = column.str.replace_all(".", "", literal=True)
            if not column.str.contains(".", literal=True).any():  # decimal commas
                column = column.str.replace(",", ".", literal=True)
            cast = column.cast(pl.Float64, strict=False)
        column = cast
    elif column.dtype.is_nested() or column.dtype.is_temporal():
        return np.full(len(column), np.nan)
    return column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()


def _lettered(column: pl.Series) -> FloatArray:
    """Numbers that end in K, M or B, float64 [n]."""
    values = column.str.strip_chars_end("KMB").cast(pl.Float64, strict=False)
    letters = column.str.slice(-1).replace_strict(_SIZES, default=1.0, return_dtype=pl.Float64)
    return (values * letters).fill_null(np.nan).to_numpy().copy()
