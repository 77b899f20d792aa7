"""Target weights that an action wishes for, and the orders that lead to them, filled at the open.

With what one purchase or sale costs and does to the account (docs/rules.md, section 10).
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.markets.portfolio.record import CHANGE, MIN_QUANTITY, SOFTMAX, STEP, VOLUME_DAYS
from slipstream.markets.shared_rules import whole_steps

_ROUNDS = 8  # of the value after costs: its error shrinks by the cost's share in each
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
                quantity = whole_steps(-change, d.lots[i, STEP])
            if _allowed(p, d, i, quantity, price):
                s.order[i] = -quantity
                spread = d.prices[row, 2 * n + i] * p.cost_multiple
                adverse = spread + p.slippage * p.cost_multiple * price
                sell(s, i, quantity, price, adverse, spread, fee)
        else:
            quantity = whole_steps(change, d.lots[i, STEP])
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
            quantity = whole_steps(quantity * share, d.lots[i, STEP])
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


_DAY = 86_400


def start_volumes(s: Any, p: Any, d: Any, row: int) -> None:
    """Spreads the volume traded before the episode evenly over the days before its first fill."""
    s.day = d.time[row] // _DAY
    for k in range(VOLUME_DAYS):
        s.volumes[k] = p.start_volume / float(VOLUME_DAYS)
    _set_tier(s, d)


def fee_rate(s: Any, p: Any, d: Any, row: int) -> float:
    """Fee of the step into bar `row`, fraction of notional."""
    rate = p.fee
    if p.tiered:
        day = d.time[row] // _DAY
        if day != s.day:
            _roll(s, d, day)
        rate = s.tier_fee
    return rate * p.cost_multiple


def _roll(s: Any, d: Any, day: int) -> None:
    """Books the day that ended and empties those that passed without bars."""
    s.volumes[s.day % VOLUME_DAYS] = s.day_volume
    s.day_volume = 0.0
    for k in range(s.day + 1, min(day, s.day + 1 + VOLUME_DAYS)):
        s.volumes[k % VOLUME_DAYS] = 0.0
    s.day = day
    _set_tier(s, d)


def _set_tier(s: Any, d: Any) -> None:
    volume = 0.0
    for k in range(VOLUME_DAYS):
        volume += s.volumes[k]
    s.tier_fee = d.fee_tiers[0, 1]
    for k in range(1, d.fee_tiers.shape[0]):
        if volume >= d.fee_tiers[k, 0]:
            s.tier_fee = d.fee_tiers[k, 1]


def buy(
    s: Any, i: int, quantity: float, price: float, adverse: float, spread: float, fee: float
) -> None:
    """Buys `quantity` of asset i.

    Args:
        price: mid.
        adverse: how far from it the fill is, price units; `spread` is the part of it that half the
            spread makes, the rest is slippage.
        fee: fraction of the notional at mid.
    """
    if s.units[i] == 0.0:
        s.high[i] = price
        s.held[i] = 0
    notional = quantity * price
    s.cash -= notional + notional * fee + quantity * adverse
    s.units[i] += quantity
    _book(s, notional, quantity * spread)


def sell(
    s: Any, i: int, quantity: float, price: float, adverse: float, spread: float, fee: float
) -> None:
    """Sells `quantity` of asset i; arguments as for `buy`."""
    notional = quantity * price
    s.cash += notional - notional * fee - quantity * adverse
    s.held[i] = 0
    if quantity >= s.units[i]:
        s.units[i] = 0.0
        s.trades += 1
    else:
        s.units[i] -= quantity
    _book(s, notional, quantity * spread)


def _book(s: Any, notional: float, spread_paid: float) -> None:
    """What differs from fill to fill; `book_step` does the rest once a step."""
    s.traded += notional
    s.cost_spread += spread_paid
    s.fills += 1


def book_step(s: Any, p: Any, before: float, fee: float) -> None:
    """Costs, volume and turnover of all fills of a step; `before` is equity ahead of it."""
    commission = s.traded * fee
    slippage = s.traded * p.slippage * p.cost_multiple
    s.cost_fee += commission
    s.cost_slippage += slippage
    s.costs = s.cost_fee + s.cost_slippage + s.cost_spread
    s.day_volume += s.traded
    if before > 0.0:
        s.turnover += s.traded / before
    s.traded = 0.0
