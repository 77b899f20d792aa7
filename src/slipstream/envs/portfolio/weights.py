"""Target weights: what an action wishes for (docs/rules.md, section 10)."""

from __future__ import annotations

import math
from typing import Any

from slipstream.envs.portfolio.record import CHANGE, SOFTMAX


def wish(s: Any, action: Any, p: Any, d: Any, row: int, value: float) -> None:
    """Writes the weights of all assets that an action at bar `row` - 1 asks for into `s.target`.

    Assets that were not listed when the action was chosen get 0. What the reserve and the position
    limit cut off stays cash.

    Args:
        row: the bar stepped into.
        value: of the account at the fill's prices.
    """
    if p.action_map == SOFTMAX:
        _softmax(s, action, p, d, row - 1)
    else:
        _simplex(s, action, p, d, row, value)
    share = 1.0 - p.reserve
    for i in range(p.assets):
        s.target[i] = min(s.target[i] * share, p.max_position)


def bounded(x: float) -> float:
    """An action's number in [-1, 1]."""
    return min(max(x, -1.0), 1.0)


def _softmax(s: Any, action: Any, p: Any, d: Any, seen: int) -> None:
    n = p.assets
    cash = math.exp(p.sharpness * (bounded(float(action[n])) - 1.0))
    total = cash
    for i in range(n):
        weight = 0.0
        if not p.union or d.prices[seen, i] > 0.0:
            # At most 1: no overflow; action 1 may still meet -1 everywhere else.
            weight = math.exp(p.sharpness * (bounded(float(action[i])) - 1.0))
        s.target[i] = weight
        total += weight
    scale = 1.0 / total
    for i in range(n):
        s.target[i] *= scale


def _simplex(s: Any, action: Any, p: Any, d: Any, row: int, value: float) -> None:
    """Euclidean projection of the action, or of weights plus change, on weights that sum to 1.

    Michelot 1986: what the projection would make negative is 0, and the others are projected again.
    """
    n = p.assets
    change = p.action_map == CHANGE
    cash = bounded(float(action[n]))
    if change:
        cash = s.cash / value + p.max_change * cash
    total = cash
    count = 1
    for i in range(n):
        wished = bounded(float(action[i]))
        if change:
            price = d.prices[row, n + i]
            if price <= 0.0:
                price = d.prices[row, i]
            wished = s.units[i] * price / value + p.max_change * wished
        if p.union and d.prices[row - 1, i] <= 0.0:
            wished = -math.inf
        else:
            total += wished
            count += 1
        s.target[i] = wished
    for _ in range(n + 1):
        level = (total - 1.0) / float(count)  # rises: what fell below it stays out
        left = 0
        rest = 0.0
        if cash > level:
            left += 1
            rest += cash
        for i in range(n):
            if s.target[i] > level:
                left += 1
                rest += s.target[i]
        if left == count:
            break
        count = left
        total = rest
    level = (total - 1.0) / float(count)
    for i in range(n):
        s.target[i] = max(s.target[i] - level, 0.0)
