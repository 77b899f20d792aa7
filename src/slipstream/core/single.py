"""float32 arithmetic for kernels whose numbers are float64.

A float64 sum, difference, product, quotient or root of float32 numbers, rounded to float32, is the
float32 operation's result: 53 bits are more than twice 24 and two. So a kernel that must repeat a
program of single precision keeps its numbers in float64 fields and rounds after each operation.
Compiled, `add`, `sub`, `mul`, `div` and `root` are the processor's float32 operations.

The sine and cosine are those of the C library (`sinf`, `cosf`), interpreted and compiled: the
rounded float64 sine differs from them in the last bit for one argument in a hundred. The forms that
compiled code gets are in `jit/singles.py`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def single(x: float) -> float:
    """The float32 number nearest to x."""
    return float(np.float32(x))


def add(a: float, b: float) -> float:
    """float32 a + b."""
    return float(np.float32(a + b))


def sub(a: float, b: float) -> float:
    """float32 a - b."""
    return float(np.float32(a - b))


def mul(a: float, b: float) -> float:
    """float32 a b."""
    return float(np.float32(a * b))


def div(a: float, b: float) -> float:
    """float32 a / b, for b != 0."""
    return float(np.float32(a / b))


def root(x: float) -> float:
    """float32 square root, for x >= 0."""
    return float(np.float32(math.sqrt(x)))


def sine(x: float) -> float:
    """`sinf` of a float32 number."""
    return _sinf(x)


def cosine(x: float) -> float:
    """`cosf` of a float32 number."""
    return _cosf(x)


def _from_library(name: str, double: Callable[[float], float]) -> Callable[[float], float]:
    """The C library's function; the rounded float64 function where Python cannot reach it."""
    try:
        function: Any = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda x: single(double(x))
    function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    return function  # type: ignore[no-any-return]


_sinf = _from_library("sinf", math.sin)
_cosf = _from_library("cosf", math.cos)
