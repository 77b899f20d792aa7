"""The forms of `core.single` that compiled code and devices get.

On a processor sums, differences, products and quotients are an instruction each between roundings
(`forms`): a kernel with hundreds of them compiles in half the time that it takes where each is a
function to be typed, called and inlined. Elsewhere they are plain functions to be compiled.

`np.float64`, because Numba's `float` of a float32 number stays one, and what is calculated with it
would be rounded. Its sine of a float32 number is the C library's `sinf`, which the interpreted form
calls too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import numpy as np

from slipstream.core import single as interpreted
from slipstream.jit.machine_form import MachineForms, tools


def single(x: float) -> float:
    return np.float64(np.float32(x))


def add(a: float, b: float) -> float:
    return np.float64(np.float32(a) + np.float32(b))


def sub(a: float, b: float) -> float:
    return np.float64(np.float32(a) - np.float32(b))


def mul(a: float, b: float) -> float:
    return np.float64(np.float32(a) * np.float32(b))


def div(a: float, b: float) -> float:
    return np.float64(np.float32(a) / np.float32(b))


def root(x: float) -> float:
    return np.float64(np.sqrt(np.float32(x)))


def sine(x: float) -> float:
    return np.float64(math.sin(np.float32(x)))


def cosine(x: float) -> float:
    return np.float64(math.cos(np.float32(x)))


_FORMS = {form.__name__: form for form in (single, add, sub, mul, div, root, sine, cosine)}


def is_single(function: FunctionType) -> bool:
    """Whether it is a function of `core.single`, whose body no renderer looks into."""
    return function.__module__ == interpreted.__name__


def compiled_form(function: FunctionType) -> FunctionType:
    """What is compiled in place of a function of `core.single`; any other function as it is."""
    if is_single(function):
        return cast(FunctionType, _FORMS[function.__name__])
    return function


def _typed() -> tuple[Callable[..., Any], ...]:
    """Functions that Numba replaces by the operation between two roundings to float32."""
    ir, types, _ = tools()
    narrow, wide = ir.FloatType(), ir.DoubleType()

    def rounding(_: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.fpext(builder.fptrunc(args[0], narrow), wide)

        return types.float64(types.float64), emit

    def operation(name: str, instruction: str) -> Callable[..., Any]:
        def typed(_: Any, a: Any, b: Any) -> Any:
            def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                one, two = (builder.fptrunc(arg, narrow) for arg in args)
                return builder.fpext(getattr(builder, instruction)(one, two), wide)

            return types.float64(types.float64, types.float64), emit

        typed.__name__ = name
        return typed

    rounding.__name__ = "single"
    names = ("add", "sub", "mul", "div")
    return rounding, *(operation(name, f"f{name}") for name in names)


forms = MachineForms(interpreted.__name__, _typed, __name__)
