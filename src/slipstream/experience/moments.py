"""Sums over a rollout, as plain loops that `compiled.py` compiles."""

from __future__ import annotations

from typing import Any


def column_moments(rows: Any, valid: Any, count: Any, mean: Any, m2: Any) -> None:
    """Mean and sum of squared deviations of each member's valid rows, in float64.

    Member by member and in the order of time, so that a member's bits depend on no other's.

    Args:
        rows: float32 [T, M * N, D]; valid: bool [T, M * N].
        count: float64 [M], mean, m2: float64 [M, D]; written.
    """
    members, width = mean.shape
    copies = rows.shape[1] // members
    for m in range(members):
        centre, square = mean[m], m2[m]
        n = 0.0
        for j in range(width):
            centre[j] = 0.0
            square[j] = 0.0
        for t in range(rows.shape[0]):
            for e in range(m * copies, (m + 1) * copies):
                if valid[t, e]:
                    row = rows[t, e]
                    n += 1.0
                    for j in range(width):
                        centre[j] += float(row[j])
        count[m] = n
        for j in range(width):
            centre[j] = centre[j] / max(n, 1.0)
        for t in range(rows.shape[0]):
            for e in range(m * copies, (m + 1) * copies):
                if valid[t, e]:
                    row = rows[t, e]
                    for j in range(width):
                        deviation = float(row[j]) - centre[j]
                        square[j] += deviation * deviation


def discounted_returns(
    reward: Any, ended: Any, valid: Any, gamma: Any, carried: Any, out: Any
) -> None:
    """R_t = gamma R_{t-1} + r_t along every environment, begun anew after an episode's end.

    Args:
        reward: float32 [T, E]; ended, valid: bool [T, E]; gamma: float32 [E].
        carried: float32 [E], R of the step before; changed to that of the last step.
        out: float32 [T, E], written.
    """
    for t in range(reward.shape[0]):
        for e in range(reward.shape[1]):
            r = reward[t, e] if valid[t, e] else 0.0
            out[t, e] = gamma[e] * carried[e] + r
            carried[e] = 0.0 if ended[t, e] else out[t, e]
