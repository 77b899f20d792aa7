"""Loops over a rollout's rows, compiled once and cached like the environments' loops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, cast

import numpy as np

from slipstream.experience.moments import column_moments, discounted_returns
from slipstream.vector import render

_FLAGS = np.zeros((1, 1), np.bool_)
_ROW, _ROWS = np.zeros(1, np.float32), np.zeros((1, 1), np.float32)
_SUM, _SUMS = np.zeros(1), np.zeros((1, 1))


def compile_loops(
    name: str, functions: Mapping[Callable[..., Any], tuple[Any, ...]]
) -> dict[str, Any]:
    """Compiles plain functions that return nothing, or loads them from the cache.

    Args:
        name: of the module they are kept in.
        functions: function -> examples of its arguments; arrays are C-contiguous.

    Returns:
        Compiled functions by their names. They release the interpreter lock.
    """
    text, entries, bindings = [], {}, {}
    for function, examples in functions.items():
        plain = cast(FunctionType, function)
        inner, code = plain.__name__, plain.__code__
        arguments = ", ".join(code.co_varnames[: code.co_argcount])
        text.append(f"def run_{inner}({arguments}):\n    {inner}({arguments})\n")
        entries[f"run_{inner}"], bindings[inner] = examples, plain
    module = render.compile_module(name, "\n\n".join(text), entries, bindings, {}, inline=False)
    return {entry.removeprefix("run_"): loop for entry, loop in module.items()}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions of `moments.py`, by their names."""
    return compile_loops(
        "experience",
        {
            column_moments: (_ROWS[None], _FLAGS, _SUM, _SUMS, _SUMS),
            discounted_returns: (_ROWS, _FLAGS, _FLAGS, _ROW, _ROW, _ROWS),
        },
    )
