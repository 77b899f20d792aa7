"""Rows of random numbers from counter-based streams: action noise and minibatch permutations.

Each member draws from its own key (seed, purpose, step), so its numbers do not depend on other
members. Compiled, in place, with the GIL released.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream, word
from slipstream.jit import codegen
from slipstream.jit.simd import cosine_of_turn, log_2

# Purposes of streams: the second part of the key. Environments use their index there, so purposes
# are far above any number of environments.
ACT = 2**32 + 1
MINIBATCH = 2**32 + 2
INIT = 2**32 + 3
SAMPLE = 2**32 + 4  # actions of a finished policy
LEARN = 2**32 + 5  # actions that an update draws
REPLAY = 2**32 + 6  # sampling of transitions
OPPONENT = 2**32 + 7  # choice of an episode's opponent, and its actions

_SHIFT_11 = np.uint64(11)
_SHIFT_12 = np.uint64(12)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_TO_UNIT_52 = 1.0 / 4503599627370496.0  # 2^-52
_TWO_PI = 2.0 * math.pi
_LOG_2 = math.log(2.0)


def member_keys(
    seeds: Sequence[int] | NDArray[Any], purpose: int, step: int | NDArray[Any]
) -> NDArray[np.uint64]:
    """Return the key of each member's stream: uint64 [M].

    Args:
        seeds: [M] members' seeds; a uint64 array is used unchanged.
        purpose: ACT, MINIBATCH, INIT, SAMPLE or LEARN.
        step: step of the draw; each step has its own stream. An array [T] gives keys [T, M].
    """
    if not (isinstance(seeds, np.ndarray) and seeds.dtype == np.uint64):
        seeds = np.array([int(seed) % 2**64 for seed in seeds], dtype=np.uint64)
    steps = np.asarray(step, dtype=np.uint64)
    with np.errstate(over="ignore"):
        keys = stream(seeds, np.uint64(purpose), steps[..., None])
    return np.asarray(keys, dtype=np.uint64)


def keys_at_steps(
    seeds: NDArray[np.uint64], purpose: int, steps: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return `member_keys` of members at different steps.

    Args:
        seeds: uint64 [M]; purpose: as above.
        steps: [..., M], each member's step.

    Returns:
        uint64 [..., M].
    """
    with np.errstate(over="ignore"):
        keys = stream(seeds, np.uint64(purpose), steps.astype(np.uint64))
    return np.asarray(keys, dtype=np.uint64)


def gumbel_rows(keys: Any, counter: int, out: Any) -> None:
    for m in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[m, i] = np.float32(gumbel_at(keys[m], counter + i))


def uniform_at(key: Any, place: int) -> float:
    """Return the number in [0, 1) at a place of a stream."""
    return float(word(key, np.uint64(place)) >> _SHIFT_11) * _TO_UNIT


def gumbel_at(key: Any, place: int) -> float:
    """Return the standard Gumbel number at a place of a stream."""
    return -math.log(-math.log(_open_at(key, place)))


def normal64_at(key: Any, place: int) -> float:
    """Return the standard normal number at a place of a stream (Box and Muller 1958)."""
    u, v = _pair(key, place)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(_TWO_PI * v)


def normal_at(key: Any, place: int) -> Any:
    """Return the standard normal number at a place of a stream as float32."""
    return np.float32(normal64_at(key, place))


def quick_normal(key: Any, place: int) -> float:
    """Return `normal64_at` to 1e-8, in a form that vectorizes."""
    u, v = _pair(key, place)
    return math.sqrt(-2.0 * _LOG_2 * log_2(u)) * cosine_of_turn(v)


def _pair(key: Any, place: int) -> tuple[float, float]:
    """Return uniform numbers in (0, 1) and [0, 1)."""
    return _open_at(key, 2 * place), uniform_at(key, 2 * place + 1)


def _open_at(key: Any, place: int) -> float:
    """Return the number in (0, 1), with a finite logarithm, at a place of a stream."""
    return (float(word(key, np.uint64(place)) >> _SHIFT_12) + 0.5) * _TO_UNIT_52


def normal_rows(keys: Any, counter: int, out: Any) -> None:
    for m in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[m, i] = normal_at(keys[m], counter + i)


def permutation_rows(keys: Any, out: Any) -> None:
    n = out.shape[1]
    for m in range(out.shape[0]):
        for i in range(n):
            out[m, i] = i
        for i in range(n - 1, 0, -1):
            j = int(uniform_at(keys[m], i) * float(i + 1))
            kept = out[m, i]
            out[m, i] = out[m, j]
            out[m, j] = kept


def fill_gumbel(keys: NDArray[np.uint64], counter: int, out: NDArray[np.float32]) -> None:
    """Write standard Gumbel numbers into out [M, n], row m from place `counter` of stream m.

    argmax(logits + gumbel) is a sample.
    """
    _compiled(gumbel_rows)(keys, counter, out)


def fill_normal(keys: NDArray[np.uint64], counter: int, out: NDArray[np.float32]) -> None:
    """Write standard normal numbers into out [M, n]."""
    _compiled(normal_rows)(keys, counter, out)


def permute(keys: NDArray[np.uint64], out: NDArray[np.int64]) -> None:
    """Write a permutation of 0..n-1 into each row of out [M, n] (Fisher and Yates 1938)."""
    _compiled(permutation_rows)(keys, out)


def preload() -> None:
    """Load the sampler of initial weights and Numba: processes forked later inherit both."""
    _compiled(normal_rows)


_KEYS = np.zeros(1, np.uint64)
# The arguments of the loops, as examples of their types.
_EXAMPLES: dict[Callable[..., None], tuple[Any, ...]] = {
    gumbel_rows: (_KEYS, 0, np.zeros((1, 1), np.float32)),
    normal_rows: (_KEYS, 0, np.zeros((1, 1), np.float32)),
    permutation_rows: (_KEYS, np.zeros((1, 1), np.int64)),
}


@functools.cache
def _compiled(function: Callable[..., None]) -> Any:
    """Compile one of the loops; each is a module of its own, because a run needs one or two."""
    name, examples = function.__name__, _EXAMPLES[function]
    arguments = ", ".join(f"a{i}" for i in range(len(examples)))
    text = f"def run({arguments}):\n    {name}({arguments})\n"
    bindings = {name: cast(FunctionType, function)}
    return codegen.compile_module(f"draws_{name}", text, {"run": examples}, bindings, {})["run"]
