"""Rolling windows, each summed afresh, so that no row depends on where the file begins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slipstream.markets.data.bars import FloatArray

_Moments = tuple[int, FloatArray, FloatArray, FloatArray, FloatArray]

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


def last_score(values: FloatArray, n: int) -> FloatArray:
    """Each value in deviations (ddof 1) from the mean of the last n; 0 in a constant window.

    [rows] -> [rows], NaN in the first n - 1 rows. A window is put together from halves, quarters
    and so on by the update of Chan, Golub and LeVeque (1979), which many windows share: log n
    passes over the rows, and still nothing from before the window enters.
    """
    result = np.full(len(values), np.nan)
    if len(values) < n:
        return result
    # Moments of the `size` values that end at each row; `whole` collects the binary digits of n.
    size, mean, spread = 1, values, np.zeros(len(values))
    top = bottom = values
    whole: _Moments | None = None
    while True:
        part = (size, mean, spread, top, bottom)
        if n & size:
            whole = part if whole is None else _joined(part, whole)
        if 2 * size > n:
            break
        size, mean, spread, top, bottom = _joined(part, part)
    assert whole is not None
    _, mean, spread, top, bottom = whole
    now = values[len(values) - len(mean) :]
    constant = top == bottom
    deviation = np.sqrt(np.where(constant, 1.0, spread) / max(n - 1, 1))
    result[n - 1 :] = np.where(constant, 0.0, (now - mean) / deviation)
    return result


def _joined(before: _Moments, after: _Moments) -> _Moments:
    """Count, means, squared deviations, maxima, minima of neighbouring windows together.

    Row k of the arrays belongs to the window that ends at row k + count - 1.
    """
    size, own = before[0], after[0]
    rows = len(after[1]) - size
    first, then = [part[:rows] for part in before[1:]], [part[size:] for part in after[1:]]
    count = size + own
    apart = then[0] - first[0]
    return (
        count,
        first[0] + apart * (own / count),
        first[1] + then[1] + apart**2 * (size * own / count),
        np.maximum(first[2], then[2]),
        np.minimum(first[3], then[3]),
    )
