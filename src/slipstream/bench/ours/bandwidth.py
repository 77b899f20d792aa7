"""The memory bandwidth that this machine reaches when all its processors copy."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from slipstream.bench.worker import serve

_WORDS = 2**24  # 128 MiB an array: no cache holds it


def measure(threads: int, seconds: float) -> dict[str, float]:
    """Bytes read plus bytes written per second; NumPy copies without the interpreter lock."""
    pairs = [(np.ones(_WORDS), np.zeros(_WORDS)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        best, ends = 0.0, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            began = time.perf_counter()
            list(pool.map(_copy, pairs))
            moved = 2 * 8 * _WORDS * threads
            best = max(best, moved / (time.perf_counter() - began))
    return {"bytes_per_second": best}


def _copy(pair: tuple[NDArray[np.float64], NDArray[np.float64]]) -> None:
    np.copyto(pair[1], pair[0])


if __name__ == "__main__":
    serve(measure)
