"""Generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    final_value: Tensor,
    final_index: Tensor,
    gamma: Tensor,
    lam: Tensor,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of a rollout.

        delta_t = r_t + gamma V'_t - V(s_t)
        A_t     = delta_t + gamma lambda [episode goes on] A_{t+1}
        return  = A_t + V(s_t)

    where V'_t is V(s_{t+1}) inside an episode, V(final observation) where a time limit cut it
    short, and 0 after a termination (Schulman et al. 2016, "High-dimensional continuous control
    using generalized advantage estimation", equations 11 and 16). A row that is not valid has
    advantage 0 and passes nothing on.

    Args:
        reward: float32 [T, E].
        value: float32 [T + 1, E], of every observation row.
        terminated, truncated, valid: bool [T, E].
        final_value: float32 [n], of the final observations of truncated rows.
        final_index: int64 [n, 2], their (t, e).
        gamma, lam: float32 [E], discount and lambda of each environment's member.

    Returns:
        advantage, return: float32 [T, E].
    """
    following = value[1:].clone()
    if len(final_index):
        following[final_index[:, 0], final_index[:, 1]] = final_value
    following.masked_fill_(terminated, 0.0)
    delta = following.mul_(gamma).add_(reward).sub_(value[:-1])
    delta.masked_fill_(~valid, 0.0)
    carried = torch.where(terminated | truncated | ~valid, 0.0, gamma * lam)
    # One operation a step: everything else was done for all steps at once.
    deltas, factors = delta.unbind(0), carried.unbind(0)
    for t in range(len(deltas) - 2, -1, -1):
        deltas[t].addcmul_(factors[t], deltas[t + 1])
    return delta, delta + value[:-1]
