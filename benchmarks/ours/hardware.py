"""Limits of this machine: bytes copied and matrix products per second."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from slipstream.jit.gemm import add_product, add_transposed_product
from slipstream.rl.compiled_loops import compile_loops, f4
from slipstream.rl.nets.layers import block_rows

_WORDS = 2**24  # 128 MiB an array: larger than any cache
_BLOCK = block_rows([256], 2**20)


def bandwidth(threads: int, seconds: float) -> dict[str, float]:
    """Measure bytes read plus bytes written per second by NumPy copies, which release the GIL."""
    pairs = [(np.zeros(_WORDS), np.ones(_WORDS)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        best, ends = np.inf, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            best = min(best, _spent(lambda: list(pool.map(np.copyto, *zip(*pairs, strict=True)))))
    return {"bytes_per_second": 2 * 8 * _WORDS * threads / best}


def operations(layers: Sequence[Sequence[int]]) -> float:
    """Return the multiplications and additions of one row's forward and backward pass.

    Args:
        layers: inputs and outputs of each layer. The first layer passes no gradient to its inputs.
    """
    return sum(2.0 * (3 if i else 2) * a * b for i, (a, b) in enumerate(layers))


def products(threads: int, layers: Sequence[Sequence[int]], rows: int) -> dict[str, float | str]:
    """Measure GFLOP/s of fully connected layers, forward and backward, with a thread a core.

    Each thread has its own arrays and calls a library with one thread, so no thread waits.

    Args:
        threads: number of concurrent threads.
        layers: as for `operations`, in multiples of 8.
        rows: rows of the minibatch.

    Returns:
        `own` of slipstream's loops; `numpy` of its OpenBLAS; `torch`, if installed, of its MKL or
        oneDNN. `best` is the highest figure and `fastest` the name of its library.
    """
    places = [_Layers(layers, rows, seed) for seed in range(threads)]
    work = threads * rows * operations(layers)
    rates: dict[str, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for name, multiply in _libraries().items():
            calls = [partial(place.pass_by, multiply) for place in places]
            seconds = _best(partial(_together, pool, calls))
            rates[name] = work / seconds / 1e9
    fastest = max(rates, key=lambda name: rates[name])
    return {**rates, "best": rates[fastest], "fastest": fastest}


class _Layers:
    """Operands and results of the matrix products of a minibatch's pass through layers."""

    def __init__(self, layers: Sequence[Sequence[int]], rows: int, seed: int) -> None:
        draw = np.random.default_rng(seed).random
        self.products: list[tuple[np.ndarray, ...]] = []
        for i, (inputs, outputs) in enumerate(layers):
            x, weight, d = (
                draw(shape, np.float32)
                for shape in ((rows, inputs), (inputs, outputs), (rows, outputs))
            )
            forward = (x, weight, np.zeros_like(d))
            of_weight = (x.T, d, np.zeros_like(weight))
            below = (d, np.ascontiguousarray(weight.T), np.zeros_like(x))
            self.products += [forward, of_weight, below] if i else [forward, of_weight]

    def pass_by(self, multiply: Callable[..., object]) -> None:
        """Calculate all products once with one library."""
        for product in self.products:
            multiply(*product)


def _libraries() -> dict[str, Callable[..., object]]:
    """Return functions that write or add `a @ b` to `c`, by the library's name."""
    example = f4(2)
    loops = compile_loops(
        "bench", dict.fromkeys((add_product, add_transposed_product), (example,) * 3)
    )
    plain, transposed = loops["add_product"], loops["add_transposed_product"]

    def blocked(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """Multiply in blocks of rows, as slipstream's update does."""
        forward = a.flags.c_contiguous
        for first in range(0, len(a) if forward else len(b), _BLOCK):
            block = slice(first, first + _BLOCK)
            plain(a[block], b, c[block]) if forward else transposed(a.T[block], b[block], c)

    libraries: dict[str, Callable[..., object]] = {"own": blocked, "numpy": np.matmul}
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)

        def of_torch(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
            torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(c))

        libraries["torch"] = of_torch
    return libraries


def _together(pool: ThreadPoolExecutor, calls: Sequence[Callable[[], object]]) -> None:
    for future in [pool.submit(call) for call in calls]:
        future.result()


def _best(run: Callable[[], object]) -> float:
    run()
    return min(_spent(run) for _ in range(7))


def _spent(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
