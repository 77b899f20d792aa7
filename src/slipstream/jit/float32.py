"""float32 arithmetic for kernels with float64 numbers: definitions and compiled versions.

A float64 sum, difference, product, quotient or root of float32 numbers, rounded to float32, equals
the float32 result: 53 bits are more than twice 24 plus two. A kernel that reproduces a program of
single precision stores numbers in float64 fields and rounds after each operation. Compiled, `add`,
`sub`, `mul`, `div` and `root` are float32 instructions.

Sine and cosine are those of the C library (`sinf`, `cosf`), interpreted and compiled: the rounded
float64 sine differs from them in the last bit for one argument in a hundred.

Sums, differences, products and quotients compile to one instruction each between roundings
(`forms`): a kernel with hundreds of them compiles in half the time needed for functions that are
typed, called and inlined. The other operations are plain functions (`_FORMS`) of `np.float64`:
Numba's `float` of a float32 number stays float32, and later arithmetic on it would be rounded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from slipstream.jit.intrinsics import IntrinsicSet, llvm_modules


def single(x: float) -> float:
    """Round x to float32."""
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
    """Return the C library's function, or the rounded float64 function if it is not accessible."""
    try:
        function: Any = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda x: single(double(x))
    function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    return function  # type: ignore[no-any-return]


_sinf = _from_library("sinf", math.sin)
_cosf = _from_library("cosf", math.cos)


def _root(x: float) -> float:
    return np.float64(np.sqrt(np.float32(x)))


def _sine(x: float) -> float:
    return np.float64(math.sin(np.float32(x)))


def _cosine(x: float) -> float:
    return np.float64(math.cos(np.float32(x)))


_FORMS: dict[str, Any] = {"root": _root, "sine": _sine, "cosine": _cosine}


def is_single(function: FunctionType) -> bool:
    """Return true for the definitions of this module, which are leaves of dependency analysis."""
    return function.__module__ == __name__


def compiled_variant(function: FunctionType) -> FunctionType:
    """Return the function that is compiled in place of a definition; other functions unchanged."""
    if is_single(function):
        function = _FORMS.get(function.__name__, function)
    return function


def _typed() -> tuple[Callable[..., Any], ...]:
    """Return typing functions of operations between two roundings to float32."""
    ir, types, _ = llvm_modules()
    narrow, wide = ir.FloatType(), ir.DoubleType()

    def rounding(_: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.fpext(builder.fptrunc(args[0], narrow), wide)

        return types.float64(types.float64), emit

    def operation(name: str, instruction: str) -> Callable[..., Any]:
        def typed(_: Any, a: Any, b: Any) -> Any:
            def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                left, right = (builder.fptrunc(arg, narrow) for arg in args)
                return builder.fpext(getattr(builder, instruction)(left, right), wide)

            return types.float64(types.float64, types.float64), emit

        typed.__name__ = name
        return typed

    rounding.__name__ = "single"
    names = ("add", "sub", "mul", "div")
    return rounding, *(operation(name, f"f{name}") for name in names)


forms = IntrinsicSet(__name__, _typed)
