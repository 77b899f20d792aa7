"""One update of DQN for one member, from a batch of transitions to new weights.

Plain loops that `loops.py` compiles; `torch_form.py` is the definition.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.off_policy.steps import clipped_step, follow
from slipstream.nets.adam import TrainState
from slipstream.nets.dueling import clear_across, join_streams
from slipstream.nets.layers import BLOCK, OUTPUTS, PLACE, backward, forward, turn
from slipstream.nets.sampling import scale_row

# Columns of `Learner.settings`.
LEARNING_RATE = 0
ADAM_EPS = 1
MAX_NORM = 2
TARGET_RATE = 3
REWARD_FACTOR = 4

STATISTICS = ("loss", "q_value", "gradient_norm")

_ZERO = np.float32(0.0)


class Learner(NamedTuple):
    """What updates read and change, of M members.

    Attributes:
        weights: of the online network; target: float32 [M, P].
        table: int64 [L, 5]; relu: else tanh; choices: n; stream: of a dueling network, else 0.
        double: whether the online network names the next choice.
        target_every: updates between two of the target network.
        mean, inverse_std, limit: of observations, see `scale_row`; float32 [M, D].
        settings: float64 [M, 5], columns as above.
        sums: float64 [M, S], STATISTICS of this iteration; updates: int64 [M], their number.
        x: float32 [BLOCK, inputs], the column of ones in place.
        outputs, others, d_outputs: float32 [BLOCK * all outputs]; `others` are of next rows.
        bootstrap: float64 [BLOCK], values of next rows.
        turned: float32 [P]; values: float64 [2, n]; lanes: float64 [LANES]. Overwritten, like x.
    """

    weights: TrainState
    target: NDArray[np.float32]
    table: NDArray[np.int64]
    relu: bool
    choices: int
    stream: int
    double: bool
    target_every: int
    mean: NDArray[np.float32]
    inverse_std: NDArray[np.float32]
    limit: float
    settings: NDArray[np.float64]
    sums: NDArray[np.float64]
    updates: NDArray[np.int64]
    x: NDArray[np.float32]
    outputs: NDArray[np.float32]
    others: NDArray[np.float32]
    d_outputs: NDArray[np.float32]
    bootstrap: NDArray[np.float64]
    turned: NDArray[np.float32]
    values: NDArray[np.float64]
    lanes: NDArray[np.float64]


def update(by: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """Improves member m, which has not failed, by one batch.

    Args:
        by: Learner; batch: Batch of B transitions.
        weight: float32 [B], importance of each.
        error: float32 [B], written: size of the error of what was chosen, before the update.
    """
    weights, gradient = by.weights.weights[m], by.weights.gradients[m, 0]
    gradient[:] = _ZERO
    turn(weights, by.table, by.turned)
    by.values[:] = 0.0
    rows, loss, q_value = len(weight), 0.0, 0.0
    for first in range(0, rows, BLOCK):
        b = min(BLOCK, rows - first)
        next_values(by, m, batch, first, b)
        load(by, m, batch.obs, first, b)
        forward(weights, by.table, by.relu, by.x[:b], by.outputs)
        part, value = output_gradient(by, m, batch, weight, error, first, b)
        loss += part
        q_value += value
        backward(by.turned, gradient, by.table, by.relu, by.x[:b], by.outputs, by.d_outputs)
    if by.stream > 0:
        clear_across(gradient, by.table, by.stream, by.choices)
    own = by.settings[m]
    norm = clipped_step(by.weights, m, own[MAX_NORM], own[LEARNING_RATE], own[ADAM_EPS], by.lanes)
    if by.weights.failed[m]:
        return
    if by.weights.steps[m] % by.target_every == 0:
        follow(by.target[m], weights, own[TARGET_RATE])
    by.updates[m] += 1
    by.sums[m, 0] += loss / rows
    by.sums[m, 1] += q_value / rows
    by.sums[m, 2] += norm


def load(by: Any, m: int, obs: Any, first: int, b: int) -> None:
    """Scales observations first .. first + b - 1 of member m into by.x."""
    low, high = np.float32(-by.limit), np.float32(by.limit)
    for r in range(b):
        scale_row(obs[first + r], by.mean[m], by.inverse_std[m], low, high, by.x[r])


def next_values(by: Any, m: int, batch: Any, first: int, b: int) -> None:
    """What the choice made next is worth to the target network, into by.bootstrap.

    Where nothing follows (discount 0) it is 0: nothing need be allowed there.
    """
    load(by, m, batch.obs_next, first, b)
    forward(by.target[m], by.table, by.relu, by.x[:b], by.others)
    if by.double:
        forward(by.weights.weights[m], by.table, by.relu, by.x[:b], by.outputs)
    last = len(by.table) - 1
    width, at = by.table[last, OUTPUTS], b * by.table[last, PLACE]
    masked = batch.mask_next.shape[1] > 0
    for r in range(b):
        by.bootstrap[r] = 0.0
        if batch.discount[first + r] == _ZERO:
            continue
        worth = by.others[at + r * width : at + (r + 1) * width]
        # Streams' sums are the same for all choices: advantages alone name the greatest.
        judge = by.outputs[at + r * width : at + (r + 1) * width] if by.double else worth
        best, top = 0, -math.inf
        for j in range(by.choices):
            if (not masked or batch.mask_next[first + r, j]) and float(judge[j]) > top:
                best, top = j, float(judge[j])
        by.bootstrap[r] = value_of(by, worth, best)


def value_of(by: Any, row: Any, choice: int) -> float:
    """Q of one choice from a row of outputs."""
    if by.stream == 0:
        return float(row[choice])
    join_streams(row, by.choices, by.values[0])
    return float(by.values[0, choice])


def output_gradient(
    by: Any, m: int, batch: Any, weight: Any, error: Any, first: int, b: int
) -> tuple[float, float]:
    """Derivatives of a block's loss with respect to the outputs, in their place of by.d_outputs.

    With the error e = Q(s, a) - (f r + discount Q'(s', a')), f the member's factor of rewards, a
    row's loss is Huber's: e^2 / 2 within 1 and |e| - 1/2 beyond, whose derivative is e cut at 1
    (Mnih et al. 2015, "Methods").

    Returns:
        the block's sums of weighted losses and of the values of what was chosen.
    """
    last = len(by.table) - 1
    width, at = by.table[last, OUTPUTS], b * by.table[last, PLACE]
    loss, q_value, share = 0.0, 0.0, 1.0 / len(weight)
    factor = by.settings[m, REWARD_FACTOR]
    for r in range(b):
        row = by.outputs[at + r * width : at + (r + 1) * width]
        to = by.d_outputs[at + r * width : at + (r + 1) * width]
        to[:] = _ZERO
        choice = int(batch.action[first + r, 0])
        value = value_of(by, row, choice)
        goal = float(batch.reward[first + r]) * factor
        goal += float(batch.discount[first + r]) * by.bootstrap[r]
        e = value - goal
        size = abs(e)
        error[first + r] = size
        w = float(weight[first + r])
        loss += w * (0.5 * e * e if size <= 1.0 else size - 0.5)
        q_value += value
        d = w * share * (e if size <= 1.0 else math.copysign(1.0, e))
        if not size < math.inf:
            d = e  # not a number: the member is noticed by its gradient
        if by.stream == 0:
            to[choice] = d
        else:  # dQ_a / dA_j = [j = a] - 1 / n, dQ_a / dV = 1
            for j in range(by.choices):
                to[j] = -d / by.choices
            to[choice] = d - d / by.choices
            to[by.choices] = d
    return loss, q_value
