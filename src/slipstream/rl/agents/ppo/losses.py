"""PPO's losses of rows and their derivatives: plain loops that `update.py` compiles.

`torch_ppo.py` is the reference implementation.
"""

from __future__ import annotations

import math
from typing import Any


def clipped_surrogate(
    log_ratio: float, advantage: float, clip: float
) -> tuple[float, float, float, float]:
    """Compute the clipped surrogate objective of Schulman et al. 2017, equation 7.

        loss = -min(r A, clamp(r, 1 - c, 1 + c) A),  r = exp(log p - log p_old)

    ("Proximal policy optimization algorithms".) Its derivative with respect to log p is -r A, or 0
    if the clamped term is the minimum.

    Returns:
        loss; d loss / d log p; the estimate (r - 1) - log r of KL(old, new) (Schulman 2020,
        "Approximating KL divergence"); 1.0 if r is outside 1 +- c, else 0.0.
    """
    ratio = math.exp(log_ratio)
    bounded = min(max(ratio, 1.0 - clip), 1.0 + clip)
    plain = ratio * advantage
    limited = bounded * advantage
    kl = ratio - 1.0 - log_ratio
    outside = 1.0 if bounded != ratio else 0.0
    if plain <= limited or plain != plain:  # NaN propagates to the gradient and is detected there
        return -plain, -plain, kl, outside
    return -limited, 0.0, kl, outside


# Columns of a packed row (`pack_rows`); the K values of the action are last.
LOG_PROB = 0
ADVANTAGE = 1
TARGET = 2
VALUE = 3
VALID = 4
ACTION = 5

# Columns of the losses' coefficients, float64 [M, 3].
CLIP = 0
ENTROPY_COEF = 1
VALUE_COEF = 2

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION = 0, 1, 2, 3, 4  # their columns


def pack_rows(
    lo: int, hi: int, first: int, num_envs: int, log_prob: Any, advantage: Any, target: Any,
    value: Any, valid: Any, action: Any, packed: Any,
) -> None:  # fmt: skip
    """Copy the inputs of the losses into packed rows, each contiguous in memory.

    Args:
        lo, hi: environments lo..hi-1 of all E; they belong to one member.
        first: first environment of the member.
        num_envs: N, number of its environments.
        log_prob, advantage, target: float32 [T, E].
        value: float32 [>= T, E].
        valid: bool [T, E].
        action: float32 [T, E, K], exact for discrete actions below 2^24.
        packed: float32 [T N, 5 + K], written; row t N + n for (t, first + n).
    """
    for t in range(len(log_prob)):
        for e in range(lo, hi):
            row = packed[t * num_envs + e - first]
            row[LOG_PROB] = log_prob[t, e]
            row[ADVANTAGE] = advantage[t, e]
            row[TARGET] = target[t, e]
            row[VALUE] = value[t, e]
            row[VALID] = 1.0 if valid[t, e] else 0.0
            for j in range(action.shape[2]):
                row[ACTION + j] = action[t, e, j]


def explained_variance(packed: Any) -> float:
    """Compute 1 - Var(target - value) / Var(target) of valid rows; 0 for constant targets.

    Args:
        packed: float32 [R, 5 + K].
    """
    count = 0.0
    mean = 0.0
    mean_error = 0.0
    for r in range(len(packed)):
        count += packed[r, VALID]
        mean += packed[r, VALID] * packed[r, TARGET]
        mean_error += packed[r, VALID] * (packed[r, TARGET] - packed[r, VALUE])
    mean /= max(count, 1.0)
    mean_error /= max(count, 1.0)
    target_squares = 0.0
    error_squares = 0.0
    for r in range(len(packed)):
        target = packed[r, TARGET] - mean
        error = packed[r, TARGET] - packed[r, VALUE] - mean_error
        target_squares += packed[r, VALID] * target * target
        error_squares += packed[r, VALID] * error * error
    return 1.0 - error_squares / target_squares if target_squares > 0.0 else 0.0


def minibatch_normalisation(packed: Any, order: Any, normalise: bool, out: Any) -> None:
    """Compute statistics over all rows of a minibatch before it is split into parts.

    Args:
        packed: float32 [R, 5 + K].
        order: int64 [B], rows.
        normalise: Normalize advantages to mean 0 and standard deviation 1.
        out: float64 [3], written: weight 1 / (valid rows), mean, 1 / (deviation + 1e-8).
    """
    count = 0.0
    total = 0.0
    for r in order:
        count += packed[r, VALID]
        total += packed[r, VALID] * packed[r, ADVANTAGE]
    weight = 1.0 / max(count, 1.0)
    mean = total * weight
    square = 0.0
    for r in order:
        centred = packed[r, ADVANTAGE] - mean
        square += packed[r, VALID] * centred * centred
    out[0] = weight
    out[1] = mean if normalise else 0.0
    out[2] = 1.0 / (math.sqrt(square * weight) + 1e-8) if normalise else 1.0


def row_losses(
    row: Any, log_prob: float, value: float, normalisation: Any, coefficients: Any, statistics: Any
) -> tuple[float, float, float]:
    """Add a packed row's losses to the statistics, except the entropy, which the caller adds.

    Args:
        row: float32 [5 + K].
        log_prob: log probability of the row's action.
        value: output of the critic.
        normalisation, coefficients: float64 [3].
        statistics: float64 [>= 5], added to.

    Returns:
        Weight of the row; weighted d loss / d log_prob and d loss / d value.
    """
    weight = normalisation[0] * row[VALID]
    advantage = (row[ADVANTAGE] - normalisation[1]) * normalisation[2]
    log_ratio = log_prob - row[LOG_PROB]
    policy, d_log_prob, kl, outside = clipped_surrogate(log_ratio, advantage, coefficients[CLIP])
    error = value - float(row[TARGET])
    statistics[POLICY_LOSS] += weight * policy
    statistics[VALUE_LOSS] += weight * (error * error)
    statistics[APPROX_KL] += weight * kl
    statistics[CLIP_FRACTION] += weight * outside
    return weight, weight * d_log_prob, weight * coefficients[VALUE_COEF] * (2.0 * error)


# One long function: intermediate values of a row stay in registers.
def choices_gradient(
    head: Any, value: Any, packed: Any, order: Any, mask: Any, sizes: Any, normalisation: Any,
    coefficients: Any, d_head: Any, d_value: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Compute losses and derivatives of discrete and multi-discrete actions.

    Each component is a softmax p = exp(z - log sum exp z). With respect to z, log p(a) has the
    derivative onehot(a) - p, and H = -sum p log p has -p (log p + H).

    Args:
        head, value: float32 [b, padded], network outputs of the rows `order`.
        packed: float32 [R, 5 + K], see `pack_rows`.
        order: int64 [b], indices of the rows.
        mask: bool [R, num_actions] of allowed actions, or [0, 0] for none.
        sizes: int64 [K], number of actions of each component.
        normalisation: float64 [3] of the minibatch, see `minibatch_normalisation`.
        coefficients: float64 [3], loss coefficients of the member: columns as above.
        d_head, d_value: float32, shaped like head and value, written (except the padding).
        statistics: float64 [5], sums of weighted losses, added to.
        scratch: float64 [2, num_actions], overwritten.
    """
    masked = mask.shape[0] > 0
    p, d = scratch[0], scratch[1]  # probabilities; d loss / d logits of the entropy alone
    for i in range(head.shape[0]):
        r = order[i]
        z, row = head[i], packed[r]
        pull = normalisation[0] * row[VALID] * coefficients[ENTROPY_COEF]
        log_prob = 0.0
        entropy = 0.0
        first = 0
        for c in range(len(sizes)):
            last = first + sizes[c]
            top = -math.inf
            for j in range(first, last):
                if not masked or mask[r, j]:
                    top = max(top, float(z[j]))
            total = 0.0
            weighted = 0.0
            for j in range(first, last):
                p[j] = 0.0
                if not masked or mask[r, j]:
                    below = float(z[j]) - top
                    p[j] = math.exp(below)
                    total += p[j]
                    weighted += p[j] * below
            log_total = math.log(total)
            h = log_total - weighted / total  # H = log total - sum p z
            for j in range(first, last):
                p[j] /= total
                d[j] = 0.0
                if p[j] > 0.0:
                    d[j] = pull * p[j] * (float(z[j]) - top - log_total + h)
            action = first + int(row[ACTION + c])
            log_prob += float(z[action]) - top - log_total
            entropy += h
            first = last
        weight, d_log_prob, d_v = row_losses(
            row, log_prob, float(value[i, 0]), normalisation, coefficients, statistics
        )
        statistics[ENTROPY] += weight * entropy
        d_value[i, 0] = d_v
        first = 0
        for c in range(len(sizes)):
            last = first + sizes[c]
            for j in range(first, last):
                d_head[i, j] = d[j] - p[j] * d_log_prob
            action = first + int(row[ACTION + c])
            d_head[i, action] = d[action] + (1.0 - p[action]) * d_log_prob
            first = last


def gaussian_gradient(
    head: Any, value: Any, log_std: Any, packed: Any, order: Any, normalisation: Any,
    coefficients: Any, d_head: Any, d_value: Any, d_log_std: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Compute losses and derivatives of continuous actions: normals with a common log_std.

    With u = (a - mean) / std, log p = sum(-u^2/2 - log_std - log(2 pi)/2). Its derivatives are
    u / std with respect to the mean and u^2 - 1 with respect to log_std. The entropy is
    H = sum(log_std + log(2 pi e)/2).

    Args:
        log_std: float32 [K].
        d_log_std: float64 [K], added to.

    The other arguments are those of `choices_gradient`.
    """
    half_log = 0.5 * math.log(2.0 * math.pi)
    width = len(log_std)
    inverse, u = scratch[0], scratch[1]
    entropy = 0.0
    constant = 0.0
    for j in range(width):
        inverse[j] = math.exp(-float(log_std[j]))
        constant += float(log_std[j]) + half_log
        entropy += float(log_std[j]) + half_log + 0.5
    total_weight = 0.0
    for i in range(head.shape[0]):
        row, mean, to = packed[order[i]], head[i], d_head[i]
        square = 0.0
        for j in range(width):
            u[j] = (row[ACTION + j] - mean[j]) * inverse[j]
            square += u[j] * u[j]
        weight, d_log_prob, d_v = row_losses(
            row,
            -0.5 * square - constant,
            float(value[i, 0]),
            normalisation,
            coefficients,
            statistics,
        )
        total_weight += weight
        d_value[i, 0] = d_v
        for j in range(width):
            to[j] = d_log_prob * u[j] * inverse[j]
            d_log_std[j] += d_log_prob * (u[j] * u[j] - 1.0)
    statistics[ENTROPY] += total_weight * entropy
    for j in range(width):
        d_log_std[j] -= coefficients[ENTROPY_COEF] * total_weight
