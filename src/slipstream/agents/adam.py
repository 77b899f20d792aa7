"""One step of Adam for a member, as a loop; `compiled.py` compiles it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BETA_1 = 0.9
BETA_2 = 0.999
LANES = 64  # sums side by side; a member's row of weights is a multiple of it


class Weights(NamedTuple):
    """What a step changes, of M members.

    Attributes:
        weights, first, second: float32 [M, P], first and second moment; P is a multiple of LANES.
        gradients: float32 [M, parts, P], their sum is left in the first part.
        steps: int64 [M], updates applied.
        failed: bool [M], members whose gradient was not finite once.
    """

    weights: NDArray[np.float32]
    gradients: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    steps: NDArray[np.int64]
    failed: NDArray[np.bool_]


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


def apply_gradients(weights: Any, statistics: Any, kl: int, tally: Any) -> None:
    """Applies the gradients of a minibatch to the members that are not frozen.

    Args:
        weights: Weights; tally: Tally.
        statistics: float64 [g, parts, S], of the minibatch; kl: which of them is the estimated KL.
    """
    for m in range(len(tally.frozen)):
        apply_gradient(weights, statistics, kl, tally, m)


def apply_gradient(weights: Any, statistics: Any, kl: int, tally: Any, m: int) -> None:
    """Member m's share of `apply_gradients`.

    A member whose KL passes the target, or whose gradient is not finite, is frozen, and keeps
    weights, moments and step count bit for bit.
    """
    divergence = 0.0
    for part in range(statistics.shape[1]):
        divergence += statistics[m, part, kl]
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
    last = statistics.shape[2]
    for part in range(statistics.shape[1]):
        for j in range(last):
            tally.sums[m, j] += statistics[m, part, j]
    tally.sums[m, last] += norm


def adam_step(weights: Any, m: int, clip: float, learning_rate: float, epsilon: float) -> None:
    """Moves member m's weights by its gradient times `clip`.

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    (Kingma and Ba 2015, "Adam: a method for stochastic optimization".)
    """
    shorten, eps = np.float32(clip), np.float32(epsilon)
    rate = np.float32(learning_rate / (1.0 - math.pow(BETA_1, weights.steps[m])))
    root = np.float32(1.0 / math.sqrt(1.0 - math.pow(BETA_2, weights.steps[m])))
    keep_1, add_1 = np.float32(BETA_1), np.float32(1.0 - BETA_1)
    keep_2, add_2 = np.float32(BETA_2), np.float32(1.0 - BETA_2)
    gradient, weight = weights.gradients[m, 0], weights.weights[m]
    mean, square = weights.first[m], weights.second[m]
    for i in range(len(gradient)):
        g = gradient[i] * shorten
        mean[i] = keep_1 * mean[i] + add_1 * g
        square[i] = keep_2 * square[i] + add_2 * g * g
        weight[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + eps)


def sum_of_squares(row: Any, lanes: Any) -> float:
    """In float64, as many sums side by side: one alone would wait for itself at every element.

    Args:
        row: float32, its length a multiple of that of lanes; lanes: float64 [LANES], overwritten.
    """
    lanes[:] = 0.0
    for i in range(0, len(row), LANES):
        part = row[i : i + LANES]
        for j in range(LANES):
            lanes[j] += float(part[j]) * float(part[j])
    total = 0.0
    for j in range(LANES):
        total += lanes[j]
    return total
