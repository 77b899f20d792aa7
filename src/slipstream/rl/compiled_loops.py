"""Plain loops of agents, compiled to machine code once and cached.

Numba infers types from example arguments. Examples are named by NumPy's type codes: `f4(2)` is a
C-contiguous float32 array with two axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, cast

import numpy as np

from slipstream.jit import codegen


def f4(axes: int) -> Any:
    """Return an example of a float32 array."""
    return np.zeros((1,) * axes, np.float32)


def f8(axes: int) -> Any:
    """Return an example of a float64 array."""
    return np.zeros((1,) * axes, np.float64)


def i8(axes: int) -> Any:
    """Return an example of an int64 array."""
    return np.zeros((1,) * axes, np.int64)


def b1(axes: int) -> Any:
    """Return an example of a bool array."""
    return np.zeros((1,) * axes, np.bool_)


def split_range(total: int, part: int, parts: int) -> tuple[int, int]:
    """Return lo, hi: part `part` of `parts` equal parts of `total` covers indices lo..hi-1."""
    return total * part // parts, total * (part + 1) // parts


def compile_loops(
    name: str,
    functions: Mapping[Callable[..., Any], tuple[Any, ...]],
    given: Mapping[str, FunctionType] | None = None,
    refers: bool = False,
) -> dict[str, Any]:
    """Compile plain functions that return nothing, or load them from the cache.

    Args:
        name: Name of the generated module.
        functions: function -> example arguments; arrays are C-contiguous.
        given: Functions by name for globals that are None in the source.
        refers: See `codegen.compile_module`.

    Returns:
        Compiled functions by name. They release the GIL.
    """
    text, entries, bindings = [], {}, {}
    for function, examples in functions.items():
        plain = cast(FunctionType, function)
        inner, code = plain.__name__, plain.__code__
        arguments = ", ".join(code.co_varnames[: code.co_argcount])
        text.append(f"def run_{inner}({arguments}):\n    {inner}({arguments})\n")
        entries[f"run_{inner}"], bindings[inner] = examples, plain
    module = codegen.compile_module(
        name,
        "\n\n".join(text),
        entries,
        bindings,
        {},
        inline=False,
        bound_globals=given,
        struct_pointers=refers,
    )
    return {entry.removeprefix("run_"): loop for entry, loop in module.items()}


class Loops(Mapping[str, Any]):
    """Compiled functions by name, each compiled or loaded on first access.

    A run uses few of them, so unused functions cost no compilation time.

    Args:
        name, functions: As for `compile_loops`; each function gets a module of its own.
    """

    def __init__(self, name: str, functions: Mapping[Callable[..., Any], tuple[Any, ...]]) -> None:
        self._name, self._made = name, dict[str, Any]()
        self._functions = {f.__name__: (f, examples) for f, examples in functions.items()}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            function, examples = self._functions[name]
            self._made |= compile_loops(f"{self._name}_{name}", {function: examples})
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)
