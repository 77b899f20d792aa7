"""PPO's losses of one row, as scalar functions; `surrogate.py` applies them to minibatches."""

from __future__ import annotations

import math


def clipped_surrogate(
    log_ratio: float, advantage: float, clip: float
) -> tuple[float, float, float, float]:
    """The clipped surrogate objective of Schulman et al. 2017, equation 7.

        loss = -min(r A, clamp(r, 1 - c, 1 + c) A),  r = exp(log p - log p_old)

    ("Proximal policy optimization algorithms".) Its derivative with respect to log p is -r A, or 0
    where the clamp is what the minimum chose.

    Returns:
        loss; d loss / d log p; the estimate of KL(old, new) that this ratio gives, (r - 1) - log r
        (Schulman 2020, "Approximating KL divergence"); 1.0 where r lies outside 1 +- c, else 0.0.
    """
    ratio = math.exp(log_ratio)
    bounded = min(max(ratio, 1.0 - clip), 1.0 + clip)
    plain = ratio * advantage
    limited = bounded * advantage
    kl = ratio - 1.0 - log_ratio
    outside = 1.0 if bounded != ratio else 0.0
    if plain <= limited or plain != plain:  # NaN goes on into the gradient, where it is noticed
        return -plain, -plain, kl, outside
    return -limited, 0.0, kl, outside


def value_error(value: float, target: float, old_value: float, clip: float) -> tuple[float, float]:
    """Squared error of the critic.

    The larger of (v - R)^2 and (v_old + clamp(v - v_old, -c, c) - R)^2; the second has derivative 0
    outside the clamp. An infinite clip leaves the first.

    Returns:
        loss; d loss / d v.
    """
    error = value - target
    loss = error * error
    change = value - old_value
    if abs(change) <= clip or change != change:
        return loss, 2.0 * error
    clipped = old_value + (clip if change > 0.0 else -clip) - target
    clipped_loss = clipped * clipped
    if clipped_loss > loss:
        return clipped_loss, 0.0
    return loss, 2.0 * error
