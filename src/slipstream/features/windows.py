"""Rolling windows, each summed afresh, so that no row depends on where the file begins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slipstream.market.bars import FloatArray

_CHUNK_CELLS = 4_000_000  # bounds the memory of functions that copy their windows


def rolling(values: FloatArray, n: int, reduce: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """`reduce` over the last n values at each row: [rows] -> [rows], NaN in the first n - 1 rows.

    Args:
        values: float64 [rows].
        n: window length.
        reduce: ``[k, n] -> [k]``.
    """
    result = np.full(len(values), np.nan)
    if len(values) < n:
        return result
    windows = sliding_window_view(values, n)
    chunk = max(_CHUNK_CELLS // n, 1)
    for start in range(0, len(windows), chunk):
        part = windows[start : start + chunk]
        result[n - 1 + start : n - 1 + start + len(part)] = reduce(part)
    return result


def total(windows: FloatArray) -> FloatArray:
    """Sum of each window."""
    result: FloatArray = windows.sum(axis=1)
    return result


def mean(windows: FloatArray) -> FloatArray:
    """Mean of each window."""
    result: FloatArray = windows.mean(axis=1)
    return result


def deviation(windows: FloatArray) -> FloatArray:
    """Sample standard deviation (ddof 1) of each window."""
    result: FloatArray = windows.std(axis=1, ddof=1)
    return result


def last_score(windows: FloatArray) -> FloatArray:
    """Last value of each window in deviations (ddof 1) from its mean; 0 in a constant window."""
    spread = windows.std(axis=1, ddof=1)
    constant = windows.max(axis=1) == windows.min(axis=1)
    return np.where(
        constant, 0.0, (windows[:, -1] - windows.mean(axis=1)) / np.where(constant, 1.0, spread)
    )
