"""Gradient of a minibatch of one member, from rows to weights in one pass.

Plain loops that `loops.py` compiles. A member's rows pass through its networks, the losses and
back in blocks, so that nothing but the weights and their gradient is read twice from far away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.surrogate import ACTION, choices_gradient, gaussian_gradient
from slipstream.nets.layers import BLOCK, OUTPUTS, PLACE, backward, forward, turn

ACTOR = 0
CRITIC = 1
_ZERO = np.float32(0.0)


class Net(NamedTuple):
    """Actor and critic in a member's row of weights, and what the actor's head means.

    Attributes:
        tables: int64 [2, L, 5], actor's and critic's as in `layers.py`.
        relu: else tanh.
        continuous: real actions, else choices.
        log_std: where the K log deviations of continuous actions begin.
        sizes: int64 [K], choices of each component; empty for continuous actions.
    """

    tables: NDArray[np.int64]
    relu: bool
    continuous: bool
    log_std: int
    sizes: NDArray[np.int64]


class Space(NamedTuple):
    """Memory of each task of a phase for one block; each begins on a cache line of its own.

    Attributes:
        x: float32 [parts + 1, BLOCK, inputs].
        outputs: float32 [parts + 1, 2, BLOCK * all outputs], actor's and critic's.
        d_outputs: float32 [parts, 2, BLOCK * all outputs].
        turned: float32 [parts, P], transposed matrices.
        scratch: float64 [parts, 3, >= head width].
    """

    x: NDArray[np.float32]
    outputs: NDArray[np.float32]
    d_outputs: NDArray[np.float32]
    turned: NDArray[np.float32]
    scratch: NDArray[np.float64]


def member_gradient(
    net: Any, weights: Any, rows: Any, m: int, p: int, order: Any, moments: Any, losses: Any,
    statistics: Any, space: Any,
) -> None:  # fmt: skip
    """Member m's gradient buffer p, from some rows of a minibatch.

    Args:
        net: Net; weights: TrainState; rows: Rows, as in `member_rows.py`; space: Space.
        order: int64 [b], which rows; moments: float64 [3], the minibatch's.
        losses: float64 [4], settings of the losses; statistics: float64 [>= S], written.
    """
    weight, gradient, tables = weights.weights[m], weights.gradients[m, p], net.tables
    turned, scratch = space.turned[p], space.scratch[p]
    gradient[:] = _ZERO
    turn(weight, tables[ACTOR], turned)
    turn(weight, tables[CRITIC], turned)
    begin(statistics, scratch)
    last = tables.shape[1] - 1
    for first in range(0, len(order), BLOCK):
        own = order[first : first + BLOCK]
        b = len(own)
        x = space.x[p, :b]
        for i in range(b):
            row, to = rows.x[own[i]], x[i]
            for j in range(len(to)):
                to[j] = row[j]
        for which in range(2):
            forward(weight, tables[which], net.relu, x, space.outputs[p, which])
        columns = tables[ACTOR, last, OUTPUTS]
        place, end = b * tables[ACTOR, last, PLACE], b * (tables[ACTOR, last, PLACE] + columns)
        head = space.outputs[p, ACTOR, place:end].reshape(b, columns)
        d_head = space.d_outputs[p, ACTOR, place:end].reshape(b, columns)
        columns = tables[CRITIC, last, OUTPUTS]
        place, end = b * tables[CRITIC, last, PLACE], b * (tables[CRITIC, last, PLACE] + columns)
        value = space.outputs[p, CRITIC, place:end].reshape(b, columns)
        d_value = space.d_outputs[p, CRITIC, place:end].reshape(b, columns)
        d_head[:] = _ZERO  # the padding too
        d_value[:] = _ZERO
        outputs_gradient(
            *(net, weight, rows, own, moments, losses, head, value, d_head, d_value),
            *(statistics, scratch),
        )
        for which in range(2):
            backward(
                *(turned, gradient, tables[which], net.relu, x),
                *(space.outputs[p, which], space.d_outputs[p, which]),
            )
    finish(net, rows, gradient, scratch)


def begin(statistics: Any, scratch: Any) -> None:
    """Sums from 0; those of d loss / d log_std are in scratch[2]."""
    statistics[:] = 0.0
    scratch[2, :] = 0.0


def outputs_gradient(
    net: Any, weight: Any, rows: Any, order: Any, moments: Any, losses: Any, head: Any,
    value: Any, d_head: Any, d_value: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Losses of a block and their derivatives with respect to the networks' outputs."""
    if net.continuous:
        log_std = weight[net.log_std : net.log_std + rows.packed.shape[1] - ACTION]
        gaussian_gradient(
            *(head, value, log_std, rows.packed, order, moments, losses),
            *(d_head, d_value, scratch[2], statistics, scratch),
        )
    else:
        choices_gradient(
            *(head, value, rows.packed, order, rows.mask, net.sizes),
            *(moments, losses, d_head, d_value, statistics, scratch),
        )


def finish(net: Any, rows: Any, gradient: Any, scratch: Any) -> None:
    """Writes the gradient of log_std."""
    if net.continuous:
        for j in range(rows.packed.shape[1] - ACTION):
            gradient[net.log_std + j] = scratch[2, j]
