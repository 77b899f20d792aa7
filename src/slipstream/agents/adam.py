"""One step of Adam for every member, as a loop; `compiled.py` compiles it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

BETA_1 = 0.9
BETA_2 = 0.999


def adam_rows(
    weights: Any, gradients: Any, first: Any, second: Any, learning_rate: Any, max_norm: Any,
    epsilon: Any, frozen: Any, failed: Any, steps: Any, norms: Any,
) -> None:  # fmt: skip
    """Sums the gradient's parts, clips each member's by its own norm, and moves the weights.

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    (Kingma and Ba 2015, "Adam: a method for stochastic optimization".)

    Args:
        weights, first, second: float32 [M, P], changed; gradients: float32 [M, parts, P], the sum
            is left in the first; P is a multiple of 8.
        learning_rate, max_norm, epsilon: float64 [M]; frozen: bool [M], members that keep all.
        failed: bool [M], set where the gradient is not finite; such members keep everything too.
        steps: int64 [M], counted up; norms: float64 [M], written: before clipping.
    """
    width = weights.shape[1]
    for m in range(weights.shape[0]):
        gradient = gradients[m, 0]
        for part in range(1, gradients.shape[1]):  # always in this order
            other = gradients[m, part]
            for i in range(width):
                gradient[i] += other[i]
        norms[m] = math.sqrt(sum_of_squares(gradient))
        if not frozen[m] and not norms[m] < math.inf:
            failed[m] = True
        if frozen[m] or failed[m]:
            continue
        steps[m] += 1
        clip = np.float32(min(1.0, max_norm[m] / (norms[m] + 1e-6)))
        rate = np.float32(learning_rate[m] / (1.0 - math.pow(BETA_1, steps[m])))
        root = np.float32(1.0 / math.sqrt(1.0 - math.pow(BETA_2, steps[m])))
        keep_1, add_1 = np.float32(BETA_1), np.float32(1.0 - BETA_1)
        keep_2, add_2 = np.float32(BETA_2), np.float32(1.0 - BETA_2)
        eps = np.float32(epsilon[m])
        weight, mean, square = weights[m], first[m], second[m]
        for i in range(width):
            g = gradient[i] * clip
            mean[i] = keep_1 * mean[i] + add_1 * g
            square[i] = keep_2 * square[i] + add_2 * g * g
            weight[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + eps)


def sum_of_squares(row: Any) -> float:
    """In float64, as eight sums side by side: one alone would wait for itself at every element."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for i in range(0, len(row), 8):
        s0 += float(row[i]) * float(row[i])
        s1 += float(row[i + 1]) * float(row[i + 1])
        s2 += float(row[i + 2]) * float(row[i + 2])
        s3 += float(row[i + 3]) * float(row[i + 3])
        s4 += float(row[i + 4]) * float(row[i + 4])
        s5 += float(row[i + 5]) * float(row[i + 5])
        s6 += float(row[i + 6]) * float(row[i + 6])
        s7 += float(row[i + 7]) * float(row[i + 7])
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
