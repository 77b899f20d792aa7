"""Dueling networks: values of choices from the value of the state and advantages.

    Q_j = V + A_j - mean(A)

(Wang et al. 2016, "Dueling network architectures for deep reinforcement learning", equation 9.)
V and A have a hidden layer each, of one width: a stream. Both lie side by side as one layer of
twice that width, V's first. The last matrix has a column for each A_j and after them one for V;
what would lead from one stream to the other's outputs is 0 and stays so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.nets.layers import INPUTS, OUTPUTS, WEIGHT

_ZERO = np.float32(0.0)


def blocks(shape: tuple[int, ...], stream: int, choices: int) -> NDArray[np.float32]:
    """1 where the last matrix, padded to `shape`, may be other than 0."""
    allowed = np.zeros(shape, np.float32)
    allowed[:stream, choices] = 1.0
    allowed[stream : 2 * stream, :choices] = 1.0
    return allowed


def clear_across(gradient: Any, table: Any, stream: int, choices: int) -> None:
    """Sets the gradient of the last matrix to 0 where it leads from one stream to the other.

    Args:
        gradient: float32 [P] of one member; table: as in `layers.py`.
    """
    last = len(table) - 1
    inputs, outputs, at = table[last, INPUTS], table[last, OUTPUTS], table[last, WEIGHT]
    matrix = gradient[at : at + inputs * outputs].reshape(inputs, outputs)
    for i in range(inputs):
        if i < stream:
            for j in range(outputs):
                if j != choices:
                    matrix[i, j] = _ZERO
        else:
            matrix[i, choices] = _ZERO


def join_streams(row: Any, choices: int, values: Any) -> None:
    """Q of one row of outputs: advantages [choices], then the value.

    Args:
        row: float32 [> choices]; values: float64 [choices], written.
    """
    mean = 0.0
    for j in range(choices):
        mean += float(row[j])
    mean /= choices
    for j in range(choices):
        values[j] = float(row[choices]) + (float(row[j]) - mean)
