"""What this machine reaches: bytes copied and products of matrices per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from slipstream.experience.compiled import compile_loops, of_float32
from slipstream.machine.products import add_product

_WORDS = 2**24  # 128 MiB an array: no cache holds it
_BLAS = 2048  # rows and columns: large products show a BLAS at its best
_ROWS, _INNER, _COLUMNS = 256, 112, 64  # fits the first caches
_REPEATS = 200


def bandwidth(threads: int, seconds: float) -> dict[str, float]:
    """Bytes read plus bytes written per second; NumPy copies without the interpreter lock."""
    pairs = [(np.zeros(_WORDS), np.ones(_WORDS)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        best, ends = np.inf, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            best = min(best, _spent(lambda: list(pool.map(np.copyto, *zip(*pairs, strict=True)))))
    return {"bytes_per_second": 2 * 8 * _WORDS * threads / best}


def repeat_product(a: np.ndarray, b: np.ndarray, c: np.ndarray, times: int) -> None:
    """c += a b so many times."""
    for _ in range(times):
        add_product(a, b, c)


def products(threads: int) -> dict[str, float]:
    """Operations (multiplications and additions) of float32 per second, the best of several blocks.

    Args:
        threads: that work side by side.

    Returns:
        `blas`, of NumPy's library; `own`, of our loops.
    """
    random = np.random.default_rng(0)
    left, right = (random.random((_BLAS, _BLAS), np.float32) for _ in range(2))
    blas = 2.0 * _BLAS**3 / _best(lambda: left @ right)
    example = of_float32(2)
    loops = compile_loops("bench", {repeat_product: (example, example, example, 1)})
    loop = loops["repeat_product"]
    places = [
        (
            random.random((_ROWS, _INNER), np.float32),
            random.random((_INNER, _COLUMNS), np.float32),
            np.zeros((_ROWS, _COLUMNS), np.float32),
        )
        for _ in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(lambda place: loop(*place, _REPEATS), places)))
    own = 2.0 * threads * _REPEATS * _ROWS * _INNER * _COLUMNS / seconds
    return {"blas": blas, "own": own}


def _best(run: Callable[[], object]) -> float:
    run()
    return min(_spent(run) for _ in range(7))


def _spent(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
