"""Rewards of the forex environment (docs/rules.md, section 8)."""

from __future__ import annotations

import math
from typing import Any

from slipstream.envs._market import floored_ratio, log_growth
from slipstream.envs.forex.record import DIFFERENTIAL_SHARPE, PNL, VARIANCE


def reward(s: Any, p: Any, d: Any, before: float, after: float) -> float:
    """Reward of a step that took equity from `before` to `after`, account currency."""
    if p.reward == PNL:
        return (after - before) / p.initial_equity
    if p.reward == DIFFERENTIAL_SHARPE:
        ret = floored_ratio(after, before, p.initial_equity) - 1.0
        return _differential_sharpe(s, p, ret, d.constants[s.segment, VARIANCE])
    return log_growth(after, before, p.initial_equity)


def _differential_sharpe(s: Any, p: Any, ret: float, start: float) -> float:
    """D = (B dA - A dB / 2) / (B - A^2)^(3/2), Moody and Saffell 2001; updates the moments.

    Args:
        ret: simple return of the bar.
        start: B0, variance of the training window's returns; B - A^2 is floored at 0.01 of it.
    """
    a = s.sharpe_a
    b = s.sharpe_b
    change_a = ret - a
    change_b = ret * ret - b
    variance = max(b - a * a, 0.01 * start)
    value = (b * change_a - 0.5 * a * change_b) / (variance * math.sqrt(variance))
    s.sharpe_a = a + p.eta * change_a
    s.sharpe_b = b + p.eta * change_b
    return value
