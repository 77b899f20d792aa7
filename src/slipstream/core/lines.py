"""Arrays that begin on a cache line: vectors read across two lines take twice as long."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes


def zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """As `numpy.zeros`, whose large arrays begin 16 bytes behind a page."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    block = np.zeros(size + LINE, np.uint8)
    first = -block.ctypes.data % LINE
    array: NDArray[Any] = block[first : first + size].view(dtype).reshape(shape)
    return array
