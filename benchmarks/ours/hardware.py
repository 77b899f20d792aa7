"""What this machine reaches: bytes copied and products of matrices per second."""

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

_WORDS = 2**24  # 128 MiB an array: no cache holds it
_BLOCK = block_rows([256], 2**20)


def bandwidth(threads: int, seconds: float) -> dict[str, float]:
    """Bytes read plus bytes written per second; NumPy copies without the interpreter lock."""
    pairs = [(np.zeros(_WORDS), np.ones(_WORDS)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        best, ends = np.inf, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            best = min(best, _spent(lambda: list(pool.map(np.copyto, *zip(*pairs, strict=True)))))
    return {"bytes_per_second": 2 * 8 * _WORDS * threads / best}


def operations(layers: Sequence[Sequence[int]]) -> float:
    """Multiplications and additions of one row's pass through layers and back.

    Args:
        layers: inputs and outputs of each; nothing goes back below the first one.
    """
    return sum(2.0 * (3 if i else 2) * a * b for i, (a, b) in enumerate(layers))


def products(threads: int, layers: Sequence[Sequence[int]], rows: int) -> dict[str, float | str]:
    """GFLOP/s of the products of fully connected layers, forward and back, a thread a core.

    Each thread has its own arrays, and a library one thread of its own in each: nothing waits.

    Args:
        threads: that work side by side.
        layers: as for `operations`, in multiples of 8.
        rows: of the minibatch.

    Returns:
        `own`, of our loops; `numpy`, of its OpenBLAS; where it is installed `torch`, of its MKL or
        oneDNN. `best` is the highest and `fastest` whose it is.
    """
    places = [_Layers(layers, rows, seed) for seed in range(threads)]
    work = threads * rows * operations(layers)
    found: dict[str, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for name, multiply in _libraries().items():
            calls = [partial(place.pass_by, multiply) for place in places]
            seconds = _best(partial(_together, pool, calls))
            found[name] = work / seconds / 1e9
    fastest = max(found, key=lambda name: found[name])
    return {**found, "best": found[fastest], "fastest": fastest}


class _Layers:
    """What a minibatch's pass through layers multiplies, with places for what comes of it."""

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
        """All products once, of one library."""
        for one in self.products:
            multiply(*one)


def _libraries() -> dict[str, Callable[..., object]]:
    """What writes or adds a b to c, by the library's name."""
    example = f4(2)
    loops = compile_loops(
        "bench", dict.fromkeys((add_product, add_transposed_product), (example,) * 3)
    )
    plain, transposed = loops["add_product"], loops["add_transposed_product"]

    def own(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """In blocks of rows, as an update of ours calculates them."""
        forward = a.flags.c_contiguous
        for first in range(0, len(a) if forward else len(b), _BLOCK):
            one = slice(first, first + _BLOCK)
            plain(a[one], b, c[one]) if forward else transposed(a.T[one], b[one], c)

    found: dict[str, Callable[..., object]] = {"own": own, "numpy": np.matmul}
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)

        def of_torch(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
            torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(c))

        found["torch"] = of_torch
    return found


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
