"""The forms of `core.single` that compiled code and devices get: plain functions to be compiled.

`np.float64`, because Numba's `float` of a float32 number stays one, and what is calculated with it
would be rounded. Its sine of a float32 number is the C library's `sinf`, which the interpreted form
calls too.
"""

from __future__ import annotations

import math
from types import FunctionType
from typing import cast

import numpy as np

from slipstream.core import single as interpreted


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
