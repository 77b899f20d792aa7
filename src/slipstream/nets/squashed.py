"""The squashed Gaussian: a normal number whose tanh is the action, as scalar functions.

    u = mean + std noise,  a = tanh(u),
    log p(a) = sum(-noise^2/2 - log std - log(2 pi)/2 - log(1 - tanh^2 u))

(Haarnoja et al. 2018, "Soft actor-critic", appendix C, equation 21.) A network puts out the means
and after them the log deviations, which count within LOG_STD_LOW..LOG_STD_HIGH, as in the authors'
code. Densities are of actions in [-1, 1], before they are mapped to an environment's bounds.
"""

from __future__ import annotations

import math

LOG_STD_LOW = -20.0
LOG_STD_HIGH = 2.0
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


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
