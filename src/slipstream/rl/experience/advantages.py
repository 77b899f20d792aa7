"""Generalized advantage estimation as a plain loop that agents compile."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.jit.gemm import fused


def gae(
    lo: int, hi: int, reward: Any, value: Any, terminated: Any, truncated: Any, valid: Any,
    final_value: Any, final_index: Any, gamma: Any, lam: Any, advantage: Any, target: Any,
) -> None:  # fmt: skip
    """Compute advantages and value targets of a rollout for environments lo..hi-1.

        delta_t = r_t + gamma V'_t - V(s_t)
        A_t     = delta_t + gamma lambda [episode continues] A_{t+1}
        target  = A_t + V(s_t)

    V'_t is V(s_{t+1}) inside an episode, V(final observation) after a truncation, and 0 after a
    termination (Schulman et al. 2016, "High-dimensional continuous control using generalized
    advantage estimation", equations 11 and 16). An invalid row has advantage 0 and does not
    propagate.

    Args:
        lo, hi: Range of environments.
        reward: float32 [T, E].
        value: float32 [T + 1, E], values of all observation rows.
        terminated, truncated, valid: bool [T, E].
        final_value: float32 [n], values of the final observations of truncated rows.
        final_index: int64 [n, 2], their (t, e).
        gamma, lam: float32 [E], discount factor and GAE lambda of each environment's member.
        advantage, target: float32 [T, E], written.
    """
    n_steps = len(reward)
    for t in range(n_steps):
        for e in range(lo, hi):
            advantage[t, e] = value[t + 1, e]
    for i in range(len(final_index)):
        if lo <= final_index[i, 1] < hi:
            advantage[final_index[i, 0], final_index[i, 1]] = final_value[i]
    for t in range(n_steps - 1, -1, -1):
        for e in range(lo, hi):
            following = _ZERO if terminated[t, e] else advantage[t, e]
            a = following * gamma[e] + reward[t, e] - value[t, e]
            if not valid[t, e]:
                a = _ZERO
            elif t + 1 < n_steps and not terminated[t, e] and not truncated[t, e]:
                a = fused(gamma[e] * lam[e], advantage[t + 1, e], a)
            advantage[t, e] = a
            target[t, e] = a + value[t, e]


_ZERO = np.float32(0.0)
