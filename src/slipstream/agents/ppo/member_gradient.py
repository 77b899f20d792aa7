"""Gradient of a minibatch for one member after another, from rows to weights in one pass.

Plain loops that `compiled.py` compiles. A member's rows pass through its networks, the losses and
back in blocks, so that nothing but the weights and their gradient is read twice from far away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.surrogate import (
    ACTION,
    APPROX_KL,
    choices_gradient,
    gaussian_gradient,
)
from slipstream.agents.ppo.tally import apply_gradient
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


class Rows(NamedTuple):
    """Rows of g members' rollouts, and their order in this epoch.

    Attributes:
        x: float32 [g, >= R, inputs]; packed: float32 [g, R, 5 + K] as in `surrogate.py`.
        mask: bool [g, R, choices], or [g, 0, 0] for none.
        order: int64 [g, R]; moments: float64 [g, minibatches, 3], of `advantage_moments`.
        losses: float64 [g, 4], settings of the losses.
    """

    x: NDArray[np.float32]
    packed: NDArray[np.float32]
    mask: NDArray[np.bool_]
    order: NDArray[np.int64]
    moments: NDArray[np.float64]
    losses: NDArray[np.float64]


class Space(NamedTuple):
    """Memory of one thread, for one block of one member.

    Attributes:
        x: float32 [BLOCK, inputs].
        outputs, d_outputs: float32 [2, BLOCK * all outputs], actor's and critic's.
        turned: float32 [P], transposed matrices.
        scratch: float64 [3, head width].
    """

    x: NDArray[np.float32]
    outputs: NDArray[np.float32]
    d_outputs: NDArray[np.float32]
    turned: NDArray[np.float32]
    scratch: NDArray[np.float64]


def minibatch_gradients(
    net: Any, weights: Any, rows: Any, part: int, end: int, first: int, last: int, apply: bool,
    statistics: Any, tally: Any, space: Any,
) -> None:  # fmt: skip
    """Gradients of minibatches first .. last - 1 for g members, one member after another.

    Args:
        net: Net; weights: TrainState; rows: Rows; tally: Tally; space: Space.
        part, end: parts part .. end - 1 of a minibatch's rows, each into its gradient buffer.
        apply: the gradient of each minibatch, before the next is calculated; of all parts only.
        statistics: float64 [g, parts, 5], [:, part:end] is written.
    """
    parts = statistics.shape[1]
    width = rows.order.shape[1] // rows.moments.shape[1] // parts
    for m in range(len(tally.frozen)):
        for k in range(first, last):
            if tally.frozen[m]:
                break
            for p in range(part, end):
                at = (k * parts + p) * width
                member_gradient(net, weights, rows, m, p, k, at, width, statistics[m, p], space)
            if apply:
                apply_gradient(weights, statistics, APPROX_KL, tally, m)


def member_gradient(
    net: Any, weights: Any, rows: Any, m: int, p: int, k: int, at: int, width: int,
    statistics: Any, space: Any,
) -> None:  # fmt: skip
    """Member m's gradient buffer p from rows order[at : at + width] of minibatch k."""
    weight, gradient, tables = weights.weights[m], weights.gradients[m, p], net.tables
    gradient[:] = _ZERO
    turn(weight, tables[ACTOR], space.turned)
    turn(weight, tables[CRITIC], space.turned)
    begin(statistics, space.scratch)
    last = tables.shape[1] - 1
    for first in range(0, width, BLOCK):
        b = min(BLOCK, width - first)
        x = space.x[:b]
        for i in range(b):
            row, to = rows.x[m, rows.order[m, at + first + i]], x[i]
            for j in range(len(to)):
                to[j] = row[j]
        for which in range(2):
            forward(weight, tables[which], net.relu, x, space.outputs[which])
        columns = tables[ACTOR, last, OUTPUTS]
        place, end = b * tables[ACTOR, last, PLACE], b * (tables[ACTOR, last, PLACE] + columns)
        head = space.outputs[ACTOR, place:end].reshape(b, columns)
        d_head = space.d_outputs[ACTOR, place:end].reshape(b, columns)
        columns = tables[CRITIC, last, OUTPUTS]
        place, end = b * tables[CRITIC, last, PLACE], b * (tables[CRITIC, last, PLACE] + columns)
        value = space.outputs[CRITIC, place:end].reshape(b, columns)
        d_value = space.d_outputs[CRITIC, place:end].reshape(b, columns)
        d_head[:] = _ZERO  # the padding too
        d_value[:] = _ZERO
        outputs_gradient(
            *(net, weight, rows, m, k, at + first, head, value, d_head, d_value),
            *(statistics, space.scratch),
        )
        for which in range(2):
            backward(
                *(space.turned, gradient, tables[which], net.relu, x),
                *(space.outputs[which], space.d_outputs[which]),
            )
    finish(net, rows, gradient, space.scratch)


def begin(statistics: Any, scratch: Any) -> None:
    """Sums from 0; those of d loss / d log_std are in scratch[2]."""
    statistics[:] = 0.0
    scratch[2, :] = 0.0


def outputs_gradient(
    net: Any, weight: Any, rows: Any, m: int, k: int, at: int, head: Any, value: Any, d_head: Any,
    d_value: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Losses of a block and their derivatives with respect to the networks' outputs."""
    if net.continuous:
        log_std = weight[net.log_std : net.log_std + rows.packed.shape[2] - ACTION]
        gaussian_gradient(
            *(head, value, log_std, rows.packed[m], rows.order[m], at, rows.moments[m, k]),
            *(rows.losses[m], d_head, d_value, scratch[2], statistics, scratch),
        )
    else:
        choices_gradient(
            *(head, value, rows.packed[m], rows.order[m], at, rows.mask[m], net.sizes),
            *(rows.moments[m, k], rows.losses[m], d_head, d_value, statistics, scratch),
        )


def finish(net: Any, rows: Any, gradient: Any, scratch: Any) -> None:
    """Writes the gradient of log_std."""
    if net.continuous:
        for j in range(rows.packed.shape[2] - ACTION):
            gradient[net.log_std + j] = scratch[2, j]
