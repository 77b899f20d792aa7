"""Plain loops of agents as machine code, compiled once and cached like the environments' loops.

Numba types a loop by examples of its arguments. Arrays are named by NumPy's type codes: `f4(2)` is
an example of a float32 array of two axes, C-contiguous.
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
    """Return an example of an array of truth values."""
    return np.zeros((1,) * axes, np.bool_)


def split_range(total: int, part: int, parts: int) -> tuple[int, int]:
    """Return lo, hi: one of so many equal parts of `total` has the places lo..hi-1."""
    return total * part // parts, total * (part + 1) // parts


def compile_loops(
    name: str,
    functions: Mapping[Callable[..., Any], tuple[Any, ...]],
    given: Mapping[str, FunctionType] | None = None,
    refers: bool = False,
) -> dict[str, Any]:
    """Compiles plain functions that return nothing, or loads them from the cache.

    Args:
        name: of the module they are kept in.
        functions: function -> examples of its arguments; arrays are C-contiguous.
        given: functions for globals that are None where they are read, by name.
        refers: see `render.compile_module`.

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
    """Compiled functions by their names, each compiled or loaded when it is first asked for.

    A run uses few of them, and one that is never called need not be waited for.

    Args:
        name, functions: as for `compile_loops`; each is kept in a module of its own.
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
