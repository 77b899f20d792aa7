"""How a member's weights move: a clipped step of Adam, and target networks that follow.

Plain loops; each agent compiles them with its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slipstream.nets.adam import adam_step, sum_of_squares


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
