"""Loops over a rollout's rows, compiled once and cached like the environments' loops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, cast

import numpy as np

from slipstream.jit import render


def column_moments(rows: Any, valid: Any, count: Any, mean: Any, m2: Any) -> None:
    """Mean and sum of squared deviations of each member's valid rows, in float64.

    Member by member and in the order of time, so that a member's bits depend on no other's.

    Args:
        rows: float32 [T, M * N, D]; valid: bool [T, M * N].
        count: float64 [M], mean, m2: float64 [M, D]; written.
    """
    members, width = mean.shape
    copies = rows.shape[1] // members
    for m in range(members):
        centre, square = mean[m], m2[m]
        n = 0.0
        for j in range(width):
            centre[j] = 0.0
            square[j] = 0.0
        for t in range(rows.shape[0]):
            for e in range(m * copies, (m + 1) * copies):
                if valid[t, e]:
                    row = rows[t, e]
                    n += 1.0
                    for j in range(width):
                        centre[j] += float(row[j])
        count[m] = n
        for j in range(width):
            centre[j] = centre[j] / max(n, 1.0)
        for t in range(rows.shape[0]):
            for e in range(m * copies, (m + 1) * copies):
                if valid[t, e]:
                    row = rows[t, e]
                    for j in range(width):
                        deviation = float(row[j]) - centre[j]
                        square[j] += deviation * deviation


def discounted_returns(
    reward: Any, ended: Any, valid: Any, gamma: Any, carried: Any, out: Any
) -> None:
    """R_t = gamma R_{t-1} + r_t along every environment, begun anew after an episode's end.

    Args:
        reward: float32 [T, E]; ended, valid: bool [T, E]; gamma: float32 [E].
        carried: float32 [E], R of the step before; changed to that of the last step.
        out: float32 [T, E], written.
    """
    for t in range(reward.shape[0]):
        for e in range(reward.shape[1]):
            r = reward[t, e] if valid[t, e] else 0.0
            out[t, e] = gamma[e] * carried[e] + r
            carried[e] = 0.0 if ended[t, e] else out[t, e]


def of_float32(ndim: int) -> Any:
    """An example of the type of a float32 array."""
    return np.zeros((1,) * ndim, np.float32)


def of_float64(ndim: int) -> Any:
    """An array whose type Numba reads: float64 with `ndim` axes."""
    return np.zeros((1,) * ndim, np.float64)


def of_int64(ndim: int) -> Any:
    """An array whose type Numba reads: int64 with `ndim` axes."""
    return np.zeros((1,) * ndim, np.int64)


def of_bool(ndim: int) -> Any:
    """An array whose type Numba reads: bool with `ndim` axes."""
    return np.zeros((1,) * ndim, np.bool_)


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
    module = render.compile_module(
        name, "\n\n".join(text), entries, bindings, {}, inline=False, given=given, refers=refers
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


@functools.cache
def loops() -> Loops:
    """Compiled forms of the moments above, by their names."""
    return Loops(
        "experience",
        {
            column_moments: (
                *(of_float32(3), of_bool(2), of_float64(1), of_float64(2), of_float64(2)),
            ),
            discounted_returns: (
                *(of_float32(2), of_bool(2), of_bool(2), of_float32(1), of_float32(1)),
                of_float32(2),
            ),
        },
    )
