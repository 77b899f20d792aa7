"""Orders that bring a portfolio to its target weights, filled at the open.

See docs/rules.md, section 10.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.envs.portfolio.fees import buy, sell
from slipstream.envs.portfolio.record import MIN_QUANTITY, STEP
from slipstream.envs.portfolio.weights import wish

_ROUNDS = 8  # of the value after costs: its error shrinks by the cost's share in each
_WHOLE = 9007199254740992.0  # 2^53: from here on every float64 is a whole number
_KEPT = -1.0


def trade_to_weights(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Decides, trades and keeps what cannot or need not be traded.

    Args:
        row: the bar stepped into; its opens are the fill prices.
        fee: fraction of notional.
    """
    n = p.assets
    value = s.cash
    for i in range(n):
        if s.units[i] > 0.0:
            s.held[i] += 1
            value += s.units[i] * _price(d, row, n, i)
    if value <= 0.0:
        return
    decides = s.steps % p.decide_every == 0
    if decides:
        wish(s, action, p, d, row, value)
    traded, after = _choose(s, p, d, row, value, decides, fee)
    if traded == 0:
        return
    need = _sell_and_plan(s, p, d, row, after, fee)
    if need > 0.0:
        _buy(s, p, d, row, max(s.cash - p.reserve * after, 0.0), need, fee)
    if -1e-12 * value < s.cash < 0.0:
        s.cash = 0.0


def _price(d: Any, row: int, n: int, i: int) -> float:
    """Mid at the fill: the open, or the last close of what cannot be traded."""
    price = d.prices[row, n + i]
    if price <= 0.0:
        price = d.prices[row, i]
    return price


def _cost(p: Any, d: Any, row: int, i: int, price: float, fee: float) -> float:
    """Fraction of a fill's notional that it costs."""
    spread = d.prices[row, 2 * p.assets + i] * p.cost_multiple
    return fee + p.slippage * p.cost_multiple + spread / price


def _choose(
    s: Any, p: Any, d: Any, row: int, value: float, decides: bool, fee: float
) -> tuple[int, float]:
    """Marks what is kept, fits the rest beside it, and finds the value after costs.

    Returns:
        How many assets are traded, and V' = V - sum k |w V' - q p|.
    """
    n = p.assets
    kept = 0.0
    moved = 0.0
    traded = 0
    for i in range(n):
        price = _price(d, row, n, i)
        weight = s.units[i] * price / value
        keep = not decides
        if decides:
            young = s.units[i] > 0.0 and s.held[i] < p.min_holding
            keep = young or abs(s.target[i] - weight) < p.band
        fallen = d.prices[row - 1, i] < s.high[i] * (1.0 - p.trailing_stop)
        if p.trailing_stop > 0.0 and s.units[i] > 0.0 and fallen:
            s.target[i] = 0.0
            keep = False
        if keep or d.prices[row, n + i] <= 0.0:
            s.target[i] = _KEPT
            kept += weight
        else:
            moved += s.target[i]
            traded += 1
    if traded == 0:
        return 0, value
    room = max(1.0 - p.reserve - kept, 0.0)
    if moved > room:
        share = room / moved
        for i in range(n):
            if s.target[i] > 0.0:
                s.target[i] *= share
    after = value
    for _ in range(_ROUNDS):
        cost = 0.0
        for i in range(n):
            if s.target[i] >= 0.0:
                price = d.prices[row, n + i]
                change = s.target[i] * after - s.units[i] * price
                cost += _cost(p, d, row, i, price, fee) * abs(change)
        if value - cost == after:
            break
        after = value - cost
    return traded, after


def _sell_and_plan(s: Any, p: Any, d: Any, row: int, after: float, fee: float) -> float:
    """Sells what is too much and returns the cash that all buys would need."""
    n = p.assets
    need = 0.0
    for i in range(n):
        s.order[i] = 0.0
        if s.target[i] < 0.0:
            continue
        price = d.prices[row, n + i]
        change = s.target[i] * after / price - s.units[i]
        if change < 0.0:
            quantity = s.units[i]
            if s.target[i] > 0.0:
                quantity = _whole_steps(-change, d.lots[i, STEP])
            if _allowed(p, d, i, quantity, price):
                s.order[i] = -quantity
                spread = d.prices[row, 2 * n + i] * p.cost_multiple
                adverse = spread + p.slippage * p.cost_multiple * price
                sell(s, i, quantity, price, adverse, spread, fee)
        else:
            quantity = _whole_steps(change, d.lots[i, STEP])
            if _allowed(p, d, i, quantity, price):
                s.order[i] = quantity
                need += quantity * price * (1.0 + _cost(p, d, row, i, price, fee))
    return need


def _buy(s: Any, p: Any, d: Any, row: int, available: float, need: float, fee: float) -> None:
    """Fills the planned buys, all of them smaller by one factor if cash is short."""
    n = p.assets
    share = 1.0
    if need > available:
        share = available / need
    for i in range(n):
        if s.order[i] <= 0.0:
            continue
        price = d.prices[row, n + i]
        quantity = s.order[i]
        if share < 1.0:
            quantity = _whole_steps(quantity * share, d.lots[i, STEP])
            if not _allowed(p, d, i, quantity, price):
                quantity = 0.0
            s.order[i] = quantity
        if quantity > 0.0:
            spread = d.prices[row, 2 * n + i] * p.cost_multiple
            adverse = spread + p.slippage * p.cost_multiple * price
            buy(s, i, quantity, price, adverse, spread, fee)
            s.held[i] = 0


def _allowed(p: Any, d: Any, i: int, quantity: float, price: float) -> bool:
    """Whether an order is large enough."""
    if quantity <= 0.0 or quantity < d.lots[i, MIN_QUANTITY]:
        return False
    return quantity * price >= p.min_notional


def _whole_steps(quantity: float, step: float) -> float:
    """Largest multiple of `step` (0: any number) that is <= `quantity` (>= 0)."""
    if step <= 0.0:
        return quantity
    count = quantity / step
    if count >= _WHOLE:
        return quantity
    return float(math.floor(count)) * step
