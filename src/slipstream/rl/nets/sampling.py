"""Actions for a step of every environment, as loops over rows; `compiled.py` compiles them.

Of them the squashed Gaussian, a normal number whose tanh is the action:

    u = mean + std noise,  a = tanh(u),
    log p(a) = sum(-noise^2/2 - log std - log(2 pi)/2 - log(1 - tanh^2 u))

(Haarnoja et al. 2018, "Soft actor-critic", appendix C, equation 21.) A network puts out the means
and after them the log deviations, which count within LOG_STD_LOW..LOG_STD_HIGH, as in the authors'
code. Densities are of actions in [-1, 1], before they are mapped to an environment's bounds.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.jit.draws import quick_normal
from slipstream.jit.simd import exp_2, log_2


def sample_choices(
    head: Any, noise: Any, mask: Any, sizes: Any, action: Any, log_prob: Any
) -> None:
    """Draws each component's choice: argmax of logits + Gumbel noise is a draw from their softmax.

    Args:
        head: float32 [M, >= R, padded]; noise: float32 [M, R * choices].
        mask: bool [M * R, choices] of allowed choices, or [0, 0] for none.
        sizes: int64 [K]; action: int64 [M * R, K], log_prob: float32 [M * R], both written.
    """
    masked = mask.shape[0] > 0
    width = 0
    for c in range(len(sizes)):
        width += sizes[c]
    rows = noise.shape[1] // width
    for m in range(head.shape[0]):
        for i in range(rows):
            e = m * rows + i
            total_log = 0.0
            first = 0
            for c in range(len(sizes)):
                last = first + sizes[c]
                best = first
                score = -math.inf
                top = -math.inf
                for j in range(first, last):
                    if masked and not mask[e, j]:
                        continue
                    z = float(head[m, i, j])
                    top = max(top, z)
                    if z + noise[m, i * width + j] > score:
                        score = z + noise[m, i * width + j]
                        best = j
                total = 0.0
                for j in range(first, last):
                    if not masked or mask[e, j]:
                        total += math.exp(float(head[m, i, j]) - top)
                total_log += float(head[m, i, best]) - top - math.log(total)
                action[e, c] = best - first
                first = last
            log_prob[e] = total_log


def sample_gaussian(head: Any, noise: Any, log_std: Any, action: Any, log_prob: Any) -> None:
    """Draws mean + std * noise.

    Args:
        head: float32 [M, >= R, padded]; noise: standard normal, float32 [M, R * K].
        log_std: float32 [M, K]; action: float32 [M * R, K], log_prob: float32 [M * R], both
            written.
    """
    half_log = 0.5 * math.log(2.0 * math.pi)
    width = log_std.shape[1]
    rows = noise.shape[1] // width
    for m in range(head.shape[0]):
        for i in range(rows):
            e = m * rows + i
            total_log = 0.0
            for j in range(width):
                inverse = math.exp(-float(log_std[m, j]))
                action[e, j] = head[m, i, j] + noise[m, i * width + j] / inverse
                # of the action as it is stored: the update recomputes exactly this
                u = (action[e, j] - head[m, i, j]) * inverse
                total_log -= 0.5 * u * u + float(log_std[m, j]) + half_log
            log_prob[e] = total_log


def scale_rows(obs: Any, mean: Any, inverse_std: Any, limit: Any, begin: int, out: Any) -> None:
    """Scales observations into rows of their member.

    out[m, begin + t N + n] = clip((obs[t, m N + n] - mean[m]) * inverse_std[m], +-limit[m])

    Args:
        obs: float32 [T, M * N, D]; mean, inverse_std, limit: float32 [M, D].
        begin: first row; out: float32 [M, >= begin + T N, >= D], written.
    """
    members = len(mean)
    copies = obs.shape[1] // members
    for t in range(obs.shape[0]):
        for m in range(members):
            centre, factor, bound = mean[m], inverse_std[m], limit[m]
            for n in range(copies):
                to = out[m, begin + t * copies + n]
                scale_row(obs[t, m * copies + n], centre, factor, bound, to)


def scale_row(row: Any, mean: Any, inverse_std: Any, limit: Any, out: Any) -> None:
    """Scale one observation [D] into the first D places of `out`, each clipped to +-limit [D]."""
    for j in range(len(mean)):
        out[j] = min(max((row[j] - mean[j]) * inverse_std[j], -limit[j]), limit[j])


LOG_STD_LOW = -20.0
LOG_STD_HIGH = 2.0
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_PER_LOG_2 = 1.0 / _LOG_2


def bounded_log_std(z: float) -> float:
    """The log deviation that an output z means; NaN stays NaN."""
    z = LOG_STD_LOW if z < LOG_STD_LOW else z
    return LOG_STD_HIGH if z > LOG_STD_HIGH else z


def log_slope(u: float) -> float:
    """log(1 - tanh^2 u) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))), exact for large u, too."""
    size = abs(u)
    return 2.0 * (_LOG_2 - size - math.log1p(math.exp(-2.0 * size)))


def draw_component(mean: float, log_std: float, noise: float) -> tuple[float, float]:
    """One number of an action from standard normal noise.

    Returns:
        u, whose tanh is the number; what it adds to log p.
    """
    u = mean + math.exp(log_std) * noise
    return u, -0.5 * noise * noise - log_std - _HALF_LOG_2_PI - log_slope(u)


def draw_components(key: Any, place: int, noise: Any, std: Any, action: Any, log_prob: Any) -> None:
    """`draw_component` of n numbers, several at once, from noise at n places of a stream.

    Actions are exact to 1e-8, and so is log p for |u| up to 1e8.

    Args:
        key: np.uint64, of the stream; place: the first one.
        noise, log_prob: float64 [n], written: standard normal numbers, what each adds to log p.
        std: float64 [n], log deviations, which become deviations.
        action: float64 [n], means, which become actions.
    """
    for i in range(len(noise)):
        noise[i] = quick_normal(key, place + i)
        log_std = std[i]
        std[i] = exp_2(log_std * _PER_LOG_2)
        u = action[i] + std[i] * noise[i]
        size = abs(u)
        small = exp_2(-2.0 * _PER_LOG_2 * size)
        tanh = (1.0 - small) / (1.0 + small)
        action[i] = -tanh if u < 0.0 else tanh
        slope = 2.0 * (_LOG_2 - size - _LOG_2 * log_2(1.0 + small))
        log_prob[i] = -0.5 * noise[i] * noise[i] - log_std - _HALF_LOG_2_PI - slope
