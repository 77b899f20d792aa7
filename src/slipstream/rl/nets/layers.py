"""Fully connected layers of one member on a block of rows, forward and backward.

Plain loops. A network is a table, int64 [L, 7] with a row for each layer; its weights are in the
member's row of weights. Rows pass in blocks (`block_rows`), so that intermediate results stay in
the L1 cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.jit.alignment import matrix
from slipstream.jit.gemm import (
    add_transposed_product,
    fused,
    gated_product,
    head_product,
    layer_product,
    transpose,
)
from slipstream.rl.compiled_loops import Loops, f4, i8

BLOCK = 64  # rows
# (minimum width, blocks): wider layers use larger blocks, since weights and gradients that exceed
# the cache are read from main memory once per block.
_BLOCK_FACTORS = ((512, 4), (128, 2))

_NARROW_SHARE = 4  # if at most a quarter of the outputs are unpadded, only those are computed

# Columns of a table.
INPUTS = 0
OUTPUTS = 1
WEIGHT = 2  # offset of the matrix [inputs, outputs] in the member's weights
BIAS = 3  # offset of the bias, or -1 for none
OFFSET = 4  # offset of the outputs in a row: outputs of all layers below
# Inputs and outputs without padding; sums skip the padding.
TRUE_INPUTS = 5
TRUE_OUTPUTS = 6
ROW_SIZE = 7  # numbers per layer

# x P(x^2) / Q(x^2) fitted to tanh x for |x| <= 9.1; beyond, tanh is 1 in float32. All terms are
# positive. Error below 3e-7.
_LIMIT = np.float32(9.1)
_P1 = np.float32(0.133774995803833)
_P2 = np.float32(0.0034912892151623964)
_P3 = np.float32(2.053404023172334e-05)
_P4 = np.float32(1.3242739349550448e-08)
_Q1 = np.float32(0.46710819005966187)
_Q2 = np.float32(0.02586091309785843)
_Q3 = np.float32(0.0003278417279943824)
_Q4 = np.float32(7.732424478490429e-07)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_NEGATIVE_INFINITY = np.float32(-np.inf)


def block_rows(widths: Sequence[int], rows: int) -> int:
    """Return the rows per block in an update of `rows`, for a network with these hidden layers."""
    times = next((times for least, times in _BLOCK_FACTORS if max(widths) >= least), 1)
    return min(rows, times * BLOCK)


def tanh_f32(x: Any) -> Any:
    """Compute tanh of a float32 from arithmetic alone, so that it vectorizes."""
    near = _clip(x, _LIMIT)
    s = near * near
    p = fused(s, fused(s, fused(s, fused(s, _P4, _P3), _P2), _P1), _ONE)
    q = fused(s, fused(s, fused(s, fused(s, _Q4, _Q3), _Q2), _Q1), _ONE)
    return _clip(near * p / q, _ONE)


def _clip(x: Any, limit: Any) -> Any:
    """Clip x to +-limit. NaN is preserved, so that a failed member is detected."""
    low = -limit if x < -limit else x
    return limit if low > limit else low


def layer_forward(weights: Any, table: Any, i: int, relu: bool, x: Any, y: Any) -> None:
    """Compute y = activation(x weight + bias); the last layer is linear."""
    inputs, outputs, at, bias = (
        table[i, TRUE_INPUTS],
        table[i, OUTPUTS],
        table[i, WEIGHT],
        table[i, BIAS],
    )
    last, true_outputs = i == len(table) - 1, table[i, TRUE_OUTPUTS]
    if last and i > 0 and true_outputs <= outputs // _NARROW_SHARE:
        head = matrix(weights, at, table[i, INPUTS], outputs)
        head_product(x, head, weights[bias : bias + true_outputs], y)
        return
    start = weights[bias : bias + outputs] if bias >= 0 else weights[:0]
    floor = _ZERO if relu and not last else _NEGATIVE_INFINITY
    layer_product(x, matrix(weights, at, inputs, outputs), start, floor, y)
    if last or relu:
        return
    for r in range(y.shape[0]):
        row = y[r]
        for j in range(outputs):
            row[j] = tanh_f32(row[j])


def forward(weights: Any, table: Any, relu: bool, x: Any, workspace: Any) -> None:
    """Compute all layers.

    Args:
        weights: float32 [P] of one member.
        table: int64 [L, 7].
        relu: ReLU activation, else tanh.
        x: float32 [b, inputs] of one block.
        workspace: float32 [>= b * all outputs]; the outputs [b, outputs] of layer i start at
            b * OFFSET.
    """
    b = x.shape[0]
    y = matrix(workspace, 0, b, table[0, OUTPUTS])
    layer_forward(weights, table, 0, relu, x, y)
    for i in range(1, len(table)):
        at, width = table[i, OFFSET], table[i, OUTPUTS]
        above = matrix(workspace, b * at, b, width)
        layer_forward(weights, table, i, relu, y, above)
        y = above


def transpose_weights(weights: Any, table: Any, transposed: Any) -> None:
    """Write the transposed matrices of all layers but the first, at the matrices' offsets."""
    for i in range(1, len(table)):
        transpose_rows(weights, table, i, table[i, INPUTS], transposed)


def transpose_rows(weights: Any, table: Any, i: int, rows: int, transposed: Any) -> None:
    """Write the first rows of layer i's matrix as columns, [outputs, rows], at its offset.

    Rows and outputs are multiples of COLUMNS.
    """
    outputs, at = table[i, OUTPUTS], table[i, WEIGHT]
    transpose(matrix(weights, at, rows, outputs), matrix(transposed, at, outputs, rows))


def backward(
    transposed: Any, gradient: Any, table: Any, relu: bool, x: Any, workspace: Any, d_workspace: Any
) -> None:
    """Add a block's gradients, given those of the last outputs at their offset in d_workspace.

    Args:
        transposed: float32 [P], from `transpose_weights`.
        gradient: float32 [P], added to.
        x, workspace: Of `forward`.
        d_workspace: Like workspace, overwritten below the last layer.
    """
    b = x.shape[0]
    last = len(table) - 1
    place, width = table[last, OFFSET], table[last, OUTPUTS]
    d = matrix(d_workspace, b * place, b, width)
    for i in range(last, 0, -1):
        inputs, outputs, at, bias = (
            table[i, INPUTS], table[i, OUTPUTS], table[i, WEIGHT], table[i, BIAS],
        )  # fmt: skip
        place = table[i - 1, OFFSET]
        below = matrix(workspace, b * place, b, inputs)
        d_below = matrix(d_workspace, b * place, b, inputs)
        d_weight, true_outputs = matrix(gradient, at, inputs, outputs), table[i, TRUE_OUTPUTS]
        if true_outputs <= min(b, outputs // _NARROW_SHARE):
            add_columns(below, d, d_weight, matrix(d_workspace, b * place, true_outputs, inputs))
        else:
            add_transposed_product(below, d, d_weight)
        d_bias = gradient[bias : bias + outputs]
        for r in range(b):
            for j in range(outputs):
                d_bias[j] += d[r, j]
        backward_layer(relu, d, matrix(transposed, at, true_outputs, inputs), below, d_below)
        d = d_below
    inputs, outputs, at = table[0, INPUTS], table[0, OUTPUTS], table[0, WEIGHT]
    add_transposed_product(x, d, matrix(gradient, at, inputs, outputs))


def add_columns(a: Any, b: Any, c: Any, columns: Any) -> None:
    """Apply `add_transposed_product` to the first n columns of b [K, C] and c [R, C] only.

    Wide products are faster, and the sums are the same transposed.

    Args:
        columns: float32 [n, R], overwritten.
    """
    for j in range(len(columns)):
        for i in range(len(c)):
            columns[j, i] = c[i, j]
    add_transposed_product(b, a, columns)
    for j in range(len(columns)):
        for i in range(len(c)):
            c[i, j] = columns[j, i]


def input_gradient(
    transposed: Any, table: Any, relu: bool, workspace: Any, d_workspace: Any, d_x: Any
) -> None:
    """Compute a block's gradients with respect to its inputs only.

    Args:
        transposed: float32 [P], from `transpose_weights`, and from `transpose_rows` for the first
            layer and C rows.
        workspace: Of `forward`.
        d_workspace: As for `backward`.
        d_x: float32 [b, C], written: d loss / d x for the first C inputs.
    """
    b, columns = d_x.shape
    last = len(table) - 1
    place, width = table[last, OFFSET], table[last, OUTPUTS]
    d = matrix(d_workspace, b * place, b, width)
    for i in range(last, 0, -1):
        inputs, outputs, at = table[i, INPUTS], table[i, TRUE_OUTPUTS], table[i, WEIGHT]
        place = table[i - 1, OFFSET]
        d_below = matrix(d_workspace, b * place, b, inputs)
        below = matrix(workspace, b * place, b, inputs)
        backward_layer(relu, d, matrix(transposed, at, outputs, inputs), below, d_below)
        d = d_below
    outputs, at = table[0, OUTPUTS], table[0, WEIGHT]
    first = matrix(transposed, at, outputs, columns)
    layer_product(d, first, transposed[:0], _NEGATIVE_INFINITY, d_x)


def select_rows(table: Any, b: int, selected: Any, workspace: Any) -> None:
    """Keep only some rows in `workspace`, as if `forward` had processed only these.

    Args:
        b: Number of processed rows.
        selected: int64 [n], selected rows, ascending.
    """
    n = len(selected)
    if n == b:
        return
    for i in range(len(table)):
        place, width = table[i, OFFSET], table[i, OUTPUTS]
        y, to = matrix(workspace, b * place, b, width), matrix(workspace, n * place, n, width)
        for r in range(n):  # ascending order: no row is overwritten before it is moved
            line, source = to[r], y[selected[r]]
            for j in range(len(line)):
                line[j] = source[j]


def backward_layer(relu: bool, d: Any, matrix: Any, y: Any, d_y: Any) -> None:
    """Propagate derivatives d [b, >= C] of a layer's outputs to the outputs of the layer below.

    Args:
        matrix: float32 [C, B], transposed.
        y: float32 [b, B], outputs of the layer below.
        d_y: float32 [b, B], written.
    """
    if relu:
        gated_product(d, matrix, y, d_y)
        return
    layer_product(d, matrix, y[0, :0], _NEGATIVE_INFINITY, d_y)
    for r in range(y.shape[0]):
        line, to = y[r], d_y[r]
        for j in range(len(line)):
            to[j] *= _ONE - line[j] * line[j]


def forward_members(weights: Any, table: Any, relu: bool, x: Any, workspace: Any, out: Any) -> None:
    """Compute the last outputs of every member.

    Args:
        weights: float32 [M, P].
        x: float32 [M, R, inputs]; members need not be contiguous.
        workspace: float32 [BLOCK * all outputs], overwritten.
        out: float32 [M, R, outputs], written.
    """
    last, width = len(table) - 1, out.shape[2]
    for m in range(out.shape[0]):
        for first in range(0, out.shape[1], BLOCK):
            rows = min(BLOCK, out.shape[1] - first)
            forward(weights[m], table, relu, x[m, first : first + rows], workspace)
            y = workspace[rows * table[last, OFFSET] :]
            for r in range(rows):
                for j in range(width):
                    out[m, first + r, j] = y[r * width + j]


@functools.cache
def loops() -> Loops:
    """Compiled `forward_members`, by name."""
    apart = np.zeros((2, 2, 2), np.float32)[:, :1]  # not contiguous
    examples = (f4(2), i8(2), True, apart, f4(1), f4(3))
    return Loops("nets", {forward_members: examples})
