"""PPO's losses and their derivatives, row by row.

Every function returns the loss of each row before weighting and the derivative of the weighted sum;
a row's weight is 1 / (valid rows of its member's minibatch), or 0 where the row is not valid.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    log_ratio: Tensor, advantage: Tensor, weight: Tensor, clip: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The clipped surrogate objective of Schulman et al. 2017, "Proximal policy optimization", equation 7.

        loss = -min(r A, clamp(r, 1 - c, 1 + c) A),  r = exp(log p - log p_old)

    Its derivative with respect to log p is -r A, or 0 where the clamp is what the minimum chose.

    Args:
        log_ratio, advantage, weight: [M, R]; clip: [M, 1].

    Returns:
        loss [M, R]; d loss / d log_prob [M, R], weighted; the ratio's estimate of KL(old, new),
        (r - 1) - log r (Schulman 2020); 1.0 where r lies outside 1 +- c, both [M, R].
    """
    ratio = log_ratio.exp()
    plain = ratio * advantage
    bounded = torch.minimum(torch.maximum(ratio, 1.0 - clip), 1.0 + clip)
    limited = bounded * advantage
    loss = torch.maximum(plain.neg(), limited.neg())
    d_log_prob = torch.where(plain <= limited, plain, 0.0).mul_(weight).neg_()
    kl = (ratio - 1.0).sub_(log_ratio)
    outside = (bounded != ratio).to(torch.float32)
    return loss, d_log_prob, kl, outside


def value_error(
    value: Tensor, target: Tensor, old_value: Tensor, weight: Tensor, clip: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Squared error (v - target)^2 of the critic.

    With a clip c it is the larger of that and the error of v_old + clamp(v - v_old, -c, c), whose
    derivative is 0 outside the clamp.

    Args:
        value, target, old_value, weight: [M, R]; clip: [M, 1] or None.

    Returns:
        loss [M, R]; d loss / d value [M, R], weighted.
    """
    error = value - target
    loss = error * error
    if clip is None:
        return loss, error.mul_(weight).mul_(2.0)
    change = value - old_value
    bounded = torch.minimum(torch.maximum(change, -clip), clip)
    clipped_error = old_value + bounded - target
    clipped_loss = clipped_error * clipped_error
    inside = torch.where(bounded == change, clipped_error, 0.0)
    d_value = torch.where(loss >= clipped_loss, error, inside)
    return torch.maximum(loss, clipped_loss), d_value.mul_(weight).mul_(2.0)
