"""Float32 matrix products per second that this machine reaches: a BLAS, and our own in loops."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from slipstream.bench.worker import serve
from slipstream.experience.compiled import compile_loops, of_float32
from slipstream.vector.products import add_product

_BLAS = 2048  # rows and columns: large products show a BLAS at its best
_ROWS, _INNER, _COLUMNS = 256, 112, 64  # fits the first caches
_REPEATS = 200
_BLOCKS = 7


def repeat_product(a: np.ndarray, b: np.ndarray, c: np.ndarray, times: int) -> None:
    """c += a b so many times."""
    for _ in range(times):
        add_product(a, b, c)


def measure(threads: int) -> dict[str, float]:
    """Operations (multiplications and additions) per second, the best of several blocks.

    Args:
        threads: that work side by side.
    """
    random = np.random.default_rng(0)
    left, right = (random.random((_BLAS, _BLAS), np.float32) for _ in range(2))
    blas = 2.0 * _BLAS**3 / _best(lambda: left @ right)
    example = of_float32(2)
    loop = compile_loops("bench", {repeat_product: (example, example, example, 1)})[
        "repeat_product"
    ]
    places = [
        (
            random.random((_ROWS, _INNER), np.float32),
            random.random((_INNER, _COLUMNS), np.float32),
            np.zeros((_ROWS, _COLUMNS), np.float32),
        )
        for _ in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:

        def all_places() -> None:
            list(pool.map(lambda place: loop(*place, _REPEATS), places))

        seconds = _best(all_places)
    own = 2.0 * threads * _REPEATS * _ROWS * _INNER * _COLUMNS / seconds
    return {"blas": blas, "own": own}


def _best(run: Callable[[], object]) -> float:
    run()
    spent = []
    for _ in range(_BLOCKS):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    return min(spent)


if __name__ == "__main__":
    serve(measure)
