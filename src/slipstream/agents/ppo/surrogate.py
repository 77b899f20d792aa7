"""Losses of a minibatch and their derivatives with respect to the networks' outputs.

Plain loops over rows, compiled by `compiled.py`. Rows are read where they lie, in the order of the
epoch's permutation; sums are float64 and in that order, member by member, so that a member's
numbers do not depend on the others.

Shapes: g members, b rows of a block of a minibatch, R rows of a member's rollout.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.agents.ppo.losses import clipped_surrogate, value_error

# Columns of a packed row; the action follows.
LOG_PROB = 0
ADVANTAGE = 1
TARGET = 2
VALUE = 3
VALID = 4
ACTION = 5

# Per-member settings, [g, 4].
CLIP = 0
VALUE_CLIP = 1
ENTROPY_COEF = 2
VALUE_COEF = 3

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
APPROX_KL = 3


def pack_rows(
    lo: int, hi: int, first: int, copies: int, log_prob: Any, advantage: Any, target: Any,
    value: Any, valid: Any, action: Any, packed: Any,
) -> None:  # fmt: skip
    """Puts what the losses need of a row side by side: a row is one piece of memory.

    Args:
        lo, hi: environments lo..hi-1 of all E, a member's.
        first, copies: the member's first environment, and N, how many it has.
        log_prob, advantage, target: float32 [T, E]; value: float32 [>= T, E]; valid: bool [T, E].
        action: float32 [T, E, K], exact for choices below 2^24.
        packed: float32 [T N, 5 + K], written; row t N + n for (t, first + n).
    """
    for t in range(len(log_prob)):
        for e in range(lo, hi):
            row = packed[t * copies + e - first]
            row[LOG_PROB] = log_prob[t, e]
            row[ADVANTAGE] = advantage[t, e]
            row[TARGET] = target[t, e]
            row[VALUE] = value[t, e]
            row[VALID] = 1.0 if valid[t, e] else 0.0
            for j in range(action.shape[2]):
                row[ACTION + j] = action[t, e, j]


def explained_variance(packed: Any) -> float:
    """1 - Var(target - value) / Var(target) of the valid rows; 0 for constant targets.

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
    spread = 0.0
    unexplained = 0.0
    for r in range(len(packed)):
        target = packed[r, TARGET] - mean
        error = packed[r, TARGET] - packed[r, VALUE] - mean_error
        spread += packed[r, VALID] * target * target
        unexplained += packed[r, VALID] * error * error
    return 1.0 - unexplained / spread if spread > 0.0 else 0.0


def minibatch_moments(packed: Any, order: Any, normalise: bool, out: Any) -> None:
    """What a minibatch needs of all its rows before it is cut into parts.

    Args:
        packed: float32 [R, 5 + K]; order: int64 [B], which rows.
        normalise: whether advantages get mean 0 and deviation 1.
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
    row: Any, log_prob: float, value: float, moments: Any, settings: Any, statistics: Any
) -> tuple[float, float, float]:
    """Adds a packed row's losses to statistics [5].

    Returns:
        weight of the row; d loss / d log_prob and d loss / d value, weighted.
    """
    weight = moments[0] * row[VALID]
    advantage = (row[ADVANTAGE] - moments[1]) * moments[2]
    log_ratio = log_prob - row[LOG_PROB]
    policy, d_log_prob, kl, outside = clipped_surrogate(log_ratio, advantage, settings[CLIP])
    critic, d_value = value_error(
        value, float(row[TARGET]), float(row[VALUE]), settings[VALUE_CLIP]
    )
    statistics[0] += weight * policy
    statistics[1] += weight * critic
    statistics[3] += weight * kl
    statistics[4] += weight * outside
    return weight, weight * d_log_prob, weight * settings[VALUE_COEF] * d_value


# Long: one pass over a row's choices, whose intermediate numbers stay in registers.
def choices_gradient(
    head: Any, value: Any, packed: Any, order: Any, mask: Any, sizes: Any, moments: Any,
    settings: Any, d_head: Any, d_value: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Discrete and multi-discrete actions: softmax p = exp(z - log sum exp z) of each component.

    log p(a) has derivative onehot(a) - p with respect to z, and H = -sum p log p
    has -p (log p + H).

    Args:
        head, value: float32 [b, padded], of rows order [b] of packed [R, 5 + K].
        mask: bool [R, choices] of allowed choices, or [0, 0] for none.
        sizes: int64 [K], choices of each component.
        moments: [3], the minibatch's of `minibatch_moments`; settings: float64 [4].
        d_head, d_value: float32, shaped like head and value, written (padding stays as it is).
        statistics: float64 [5], sums of weighted losses, added to.
        scratch: float64 [2, choices], overwritten.
    """
    masked = mask.shape[0] > 0
    p, d = scratch[0], scratch[1]  # probabilities; d loss / d logits of the entropy alone
    for i in range(head.shape[0]):
        r = order[i]
        z, row = head[i], packed[r]
        pull = moments[0] * row[VALID] * settings[ENTROPY_COEF]
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
            row, log_prob, float(value[i, 0]), moments, settings, statistics
        )
        statistics[2] += weight * entropy
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
    head: Any, value: Any, log_std: Any, packed: Any, order: Any, moments: Any,
    settings: Any, d_head: Any, d_value: Any, d_log_std: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Continuous actions: independent normals whose log_std is the same in every state.

    With u = (a - mean) / std: log p = sum(-u^2/2 - log_std - log(2 pi)/2), whose derivatives are
    u / std with respect to the mean and u^2 - 1 with respect to log_std;
    H = sum(log_std + log(2 pi e)/2).

    Args:
        log_std: float32 [K]; d_log_std: float64 [K], added to; the others as above.
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
            row, -0.5 * square - constant, float(value[i, 0]), moments, settings, statistics
        )
        total_weight += weight
        d_value[i, 0] = d_v
        for j in range(width):
            to[j] = d_log_prob * u[j] * inverse[j]
            d_log_std[j] += d_log_prob * (u[j] * u[j] - 1.0)
    statistics[2] += total_weight * entropy
    for j in range(width):
        d_log_std[j] -= settings[ENTROPY_COEF] * total_weight
