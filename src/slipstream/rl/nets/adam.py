"""How a member's weights move: a clipped step of Adam, and targets that follow.

Plain loops; each agent compiles them with its own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BETA_1 = 0.9
BETA_2 = 0.999
# Moments below these move no weight, and soon would be denormal numbers.
TINY = np.float32(1e-30)
TINY_SQUARE = np.float32(1e-36)
LANES = 64  # sums side by side; a member's row of weights is a multiple of it
_ZERO = np.float32(0.0)


class TrainState(NamedTuple):
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


def adam_step(weights: Any, m: int, clip: float, learning_rate: float, epsilon: float) -> None:
    """Moves member m's weights by its gradient times `clip`; see `adam_range`."""
    adam_range(weights, m, 0, weights.weights.shape[1], clip, learning_rate, epsilon)


def adam_range(
    weights: Any, m: int, lo: int, hi: int, clip: float, learning_rate: float, epsilon: float
) -> None:
    """Moves weights lo..hi-1 of member m by their gradient times `clip`.

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    (Kingma and Ba 2015, "Adam: a method for stochastic optimization".)
    """
    shorten, eps = np.float32(clip), np.float32(epsilon)
    rate = np.float32(learning_rate / (1.0 - math.pow(BETA_1, weights.steps[m])))
    root = np.float32(1.0 / math.sqrt(1.0 - math.pow(BETA_2, weights.steps[m])))
    keep_1, add_1 = np.float32(BETA_1), np.float32(1.0 - BETA_1)
    keep_2, add_2 = np.float32(BETA_2), np.float32(1.0 - BETA_2)
    gradient, weight = weights.gradients[m, 0, lo:hi], weights.weights[m, lo:hi]
    mean, square = weights.first[m, lo:hi], weights.second[m, lo:hi]
    for i in range(len(gradient)):
        g = gradient[i] * shorten
        moved = keep_1 * mean[i] + add_1 * g
        spread = keep_2 * square[i] + add_2 * g * g
        # The moments of a unit that has died would stay denormal numbers for ever, and a processor
        # takes a hundred times as long for those.
        mean[i] = _ZERO if abs(moved) < TINY else moved
        square[i] = _ZERO if spread < TINY_SQUARE else spread
        weight[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + eps)


def share_of(weights: Any, part: int, parts: int) -> tuple[int, int]:
    """Weights lo..hi-1 of one of so many parts: whole LANES."""
    lines = weights.weights.shape[1] // LANES
    return part * lines // parts * LANES, (part + 1) * lines // parts * LANES


def add_parts(weights: Any, m: int, lo: int, hi: int, lanes: Any) -> float:
    """Leaves the sum of all parts of a gradient in the first, for weights lo..hi-1 of member m.

    Returns:
        its sum of squares.
    """
    gradients = weights.gradients[m]
    total = gradients[0, lo:hi]
    for other in range(1, len(gradients)):  # always in this order
        more = gradients[other, lo:hi]
        for i in range(len(total)):
            total[i] += more[i]
    return sum_of_squares(total, lanes)


def norm_of(squares: Any) -> float:
    """The norm of a gradient, of the sums of squares [parts] that `add_parts` returned."""
    total = 0.0
    for part in range(len(squares)):
        total += squares[part]
    return math.sqrt(total)


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


def clipped_step(
    weights: Any, m: int, max_norm: float, learning_rate: float, epsilon: float, lanes: Any
) -> float:
    """Moves member m by its gradient, shortened to at most `max_norm`.

    A member whose gradient is not finite has failed: it keeps weights, moments and step count bit
    for bit, now and from then on.

    Args:
        weights: `TrainState` of a group; its gradients[m, 0] is applied.
        max_norm: infinity for none.
        learning_rate, epsilon: Adam's.
        lanes: float64 [LANES], overwritten.

    Returns:
        The gradient's norm before it was shortened.
    """
    norm = math.sqrt(sum_of_squares(weights.gradients[m, 0], lanes))
    if counted(weights, m, norm):
        adam_step(weights, m, shortened(norm, max_norm), learning_rate, epsilon)
    return norm


def counted(weights: Any, m: int, norm: float) -> bool:
    """Whether member m can be moved by a gradient of this norm: counts its step, or its failure."""
    if not norm < math.inf:
        weights.failed[m] = True
        return False
    weights.steps[m] += 1
    return True


def shortened(norm: float, max_norm: float) -> float:
    """What a gradient of this norm is multiplied by."""
    return min(1.0, max_norm / (norm + 1e-6))


def follow(target: Any, weight: Any, rate: float) -> None:
    """target = target + rate (weight - target); a rate of 1 copies.

    Args:
        target, weight: float32 [P] of one member (Lillicrap et al. 2016, algorithm 1).
    """
    if rate == 1.0:
        for i in range(len(target)):
            target[i] = weight[i]
        return
    part = np.float32(rate)
    for i in range(len(target)):
        target[i] = target[i] + part * (weight[i] - target[i])
