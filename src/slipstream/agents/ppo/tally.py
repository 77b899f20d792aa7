"""How a minibatch's gradients move members, and what is counted of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.nets.adam import adam_step, sum_of_squares


class Tally(NamedTuple):
    """How g members' updates go on, and what they were.

    Attributes:
        learning_rate, epsilon: float64 [g]; max_norm, target_kl: infinity for none.
        frozen: bool [g], members that change no more in this rollout.
        sums: float64 [g, S + 1], of the S statistics of minibatches that changed the member, and of
            the gradient's norm before clipping.
        updates: int64 [g], how many there were.
        lanes: float64 [LANES], scratch.
    """

    learning_rate: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    max_norm: NDArray[np.float64]
    target_kl: NDArray[np.float64]
    frozen: NDArray[np.bool_]
    sums: NDArray[np.float64]
    updates: NDArray[np.int64]
    lanes: NDArray[np.float64]


def apply_gradient(weights: Any, statistics: Any, kl: int, tally: Any, m: int) -> None:
    """Applies the gradient of a minibatch to member m, unless it is frozen.

    A member whose KL passes the target, or whose gradient is not finite, is frozen, and keeps
    weights, moments and step count bit for bit.

    Args:
        weights: TrainState; tally: Tally.
        statistics: float64 [parts, >= S], of the minibatch; kl: which of them is the estimated KL.
    """
    divergence = 0.0
    for part in range(len(statistics)):
        divergence += statistics[part, kl]
    if divergence > tally.target_kl[m] or weights.failed[m]:
        tally.frozen[m] = True
    if tally.frozen[m]:
        return
    gradient = weights.gradients[m, 0]
    for part in range(1, weights.gradients.shape[1]):  # always in this order
        other = weights.gradients[m, part]
        for i in range(len(gradient)):
            gradient[i] += other[i]
    norm = math.sqrt(sum_of_squares(gradient, tally.lanes))
    if not norm < math.inf:
        weights.failed[m] = True
        tally.frozen[m] = True
        return
    weights.steps[m] += 1
    clip = min(1.0, tally.max_norm[m] / (norm + 1e-6))
    adam_step(weights, m, clip, tally.learning_rate[m], tally.epsilon[m])
    tally.updates[m] += 1
    last = tally.sums.shape[1] - 1
    for part in range(len(statistics)):
        for j in range(last):
            tally.sums[m, j] += statistics[part, j]
    tally.sums[m, last] += norm
