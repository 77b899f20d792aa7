"""Cells: what the columns of a table hold, as text or typed."""

from __future__ import annotations

import numpy as np
import polars as pl

from slipstream.market.bars import FloatArray

_LETTERED = r"^\d[\d.]*[KMB]$"
_SIZES = {"K": 1e3, "M": 1e6, "B": 1e9}


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
