"""Portfolio orders: target weights filled at the open, or orders in coins filled at the close.

This module also computes the cost of each purchase and sale and its effect on the account
(docs/explanation/market-rules.md, section 10). Orders in coins follow the rules of FinRL_Crypto in
the same order.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.markets.portfolio.portfolio_state import (
    CHANGE,
    MIN_QUANTITY,
    SOFTMAX,
    STEP,
    VOLUME_DAYS,
)
from slipstream.markets.shared_rules import floor_to_step

_NUM_ITERATIONS = 8  # of the value after costs; each reduces the error by the cost fraction
_UNCHANGED = -1.0


def trade_to_weights(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Update the target weights if this step decides, and trade towards them.

    Args:
        s, action, p, d: state, action, params and data.
        row: the bar being entered; orders fill at its opens.
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
        set_target_weights(s, action, p, d, row, value)
    traded, after = _select_trades(s, p, d, row, value, decides, fee)
    if traded == 0:
        return
    need = _sell_and_plan_buys(s, p, d, row, after, fee)
    if need > 0.0:
        _buy(s, p, d, row, max(s.cash - p.cash_reserve * after, 0.0), need, fee)
    if -1e-12 * value < s.cash < 0.0:
        s.cash = 0.0


def _price(d: Any, row: int, n: int, i: int) -> float:
    """Return the mid price of a fill: the open, or the last close if there is no open."""
    price = d.prices[row, n + i]
    if price <= 0.0:
        price = d.prices[row, i]
    return price


def _cost(p: Any, d: Any, row: int, i: int, price: float, fee: float) -> float:
    """Return the cost of a fill as a fraction of its notional."""
    spread = d.prices[row, 2 * p.assets + i] * p.cost_multiple
    return fee + p.slippage * p.cost_multiple + spread / price


def _select_trades(
    s: Any, p: Any, d: Any, row: int, value: float, decides: bool, fee: float
) -> tuple[int, float]:
    """Mark unchanged assets, fit the others beside them, and solve for the value after costs.

    Returns:
        Number of assets to trade, and V' = V - sum k |w V' - q p|.
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
            is_held_too_short = s.units[i] > 0.0 and s.held[i] < p.min_holding
            keep = is_held_too_short or abs(s.target[i] - weight) < p.rebalance_threshold
        is_stopped = d.prices[row - 1, i] < s.high[i] * (1.0 - p.trailing_stop)
        if p.trailing_stop > 0.0 and s.units[i] > 0.0 and is_stopped:
            s.target[i] = 0.0
            keep = False
        if keep or d.prices[row, n + i] <= 0.0:
            s.target[i] = _UNCHANGED
            kept += weight
        else:
            moved += s.target[i]
            traded += 1
    if traded == 0:
        return 0, value
    room = max(1.0 - p.cash_reserve - kept, 0.0)
    if moved > room:
        share = room / moved
        for i in range(n):
            if s.target[i] > 0.0:
                s.target[i] *= share
    after = value
    for _ in range(_NUM_ITERATIONS):
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


def _sell_and_plan_buys(s: Any, p: Any, d: Any, row: int, after: float, fee: float) -> float:
    """Sell excess holdings and return the cash required for all buys."""
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
                quantity = floor_to_step(-change, d.lot_sizes[i, STEP])
            if _is_valid_order(p, d, i, quantity, price):
                s.order[i] = -quantity
                spread = d.prices[row, 2 * n + i] * p.cost_multiple
                sell(s, p, i, quantity, price, spread, fee)
        else:
            quantity = floor_to_step(change, d.lot_sizes[i, STEP])
            if _is_valid_order(p, d, i, quantity, price):
                s.order[i] = quantity
                need += quantity * price * (1.0 + _cost(p, d, row, i, price, fee))
    return need


def _buy(s: Any, p: Any, d: Any, row: int, available: float, need: float, fee: float) -> None:
    """Fill the planned buys, all scaled down by one factor if cash is insufficient."""
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
            quantity = floor_to_step(quantity * share, d.lot_sizes[i, STEP])
            if not _is_valid_order(p, d, i, quantity, price):
                quantity = 0.0
            s.order[i] = quantity
        if quantity > 0.0:
            spread = d.prices[row, 2 * n + i] * p.cost_multiple
            buy(s, p, i, quantity, price, spread, fee)
            s.held[i] = 0


def _is_valid_order(p: Any, d: Any, i: int, quantity: float, price: float) -> bool:
    """Return True if an order reaches the minimum quantity and notional."""
    if quantity <= 0.0 or quantity < d.lot_sizes[i, MIN_QUANTITY]:
        return False
    return quantity * price >= p.min_notional


def set_target_weights(s: Any, action: Any, p: Any, d: Any, row: int, value: float) -> None:
    """Write the target weights of an action chosen at bar `row` - 1 to `s.target`.

    Assets that were not listed at that bar get 0. Weight above the position limit, and the cash
    reserve, remain in cash.

    Args:
        s, action, p, d: state, action, params and data.
        row: the bar being entered.
        value: account value at the fill prices.
    """
    if p.action_map == SOFTMAX:
        _softmax(s, action, p, d, row - 1)
    else:
        _simplex(s, action, p, d, row, value)
    share = 1.0 - p.cash_reserve
    for i in range(p.assets):
        s.target[i] = min(s.target[i] * share, p.max_position)


def clip_action(x: float) -> float:
    """Clip one component of an action to [-1, 1]."""
    return min(max(x, -1.0), 1.0)


def _softmax(s: Any, action: Any, p: Any, d: Any, seen: int) -> None:
    n = p.assets
    cash = math.exp(p.sharpness * (clip_action(float(action[n])) - 1.0))
    total = cash
    for i in range(n):
        weight = 0.0
        if not p.union or d.prices[seen, i] > 0.0:
            # At most 1, so that nothing overflows.
            weight = math.exp(p.sharpness * (clip_action(float(action[i])) - 1.0))
        s.target[i] = weight
        total += weight
    scale = 1.0 / total
    for i in range(n):
        s.target[i] *= scale


def _simplex(s: Any, action: Any, p: Any, d: Any, row: int, value: float) -> None:
    """Project the action, or the weights plus a change, onto the simplex (Euclidean projection).

    Michelot 1986: components that become negative are set to 0, and the others are projected again.
    """
    n = p.assets
    change = p.action_map == CHANGE
    cash = clip_action(float(action[n]))
    if change:
        cash = s.cash / value + p.max_change * cash
    total = cash
    count = 1
    for i in range(n):
        weight = clip_action(float(action[i]))
        if change:
            weight = s.units[i] * _price(d, row, n, i) / value + p.max_change * weight
        if p.union and d.prices[row - 1, i] <= 0.0:
            weight = -math.inf
        else:
            total += weight
            count += 1
        s.target[i] = weight
    for _ in range(n + 1):
        level = (total - 1.0) / float(count)  # increases, so excluded components stay excluded
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


def init_volumes(s: Any, p: Any, d: Any, row: int) -> None:
    """Distribute the volume traded before the episode evenly over the days before it."""
    s.day = d.time[row] // _DAY
    for k in range(VOLUME_DAYS):
        s.volumes[k] = p.start_volume / float(VOLUME_DAYS)
    _set_tier(s, d)


def fee_rate(s: Any, p: Any, d: Any, row: int) -> float:
    """Return the fee of the step into bar `row`, fraction of notional."""
    rate = p.fee
    if p.tiered:
        day = d.time[row] // _DAY
        if day != s.day:
            _start_day(s, d, day)
        rate = s.tier_fee
    return rate * p.cost_multiple


def _start_day(s: Any, d: Any, day: int) -> None:
    """Store the volume of the day that ended and clear days without bars."""
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


def buy(s: Any, p: Any, i: int, quantity: float, price: float, spread: float, fee: float) -> None:
    """Buy `quantity` of asset i.

    Args:
        s, p: state and params.
        i: index of the asset.
        quantity: coins.
        price: mid price.
        spread: half the spread per coin, price units; slippage is added.
        fee: fraction of the notional at mid.
    """
    adverse = spread + p.slippage * p.cost_multiple * price
    if s.units[i] == 0.0:
        s.high[i] = price
        s.held[i] = 0
    notional = quantity * price
    s.cash -= notional + notional * fee + quantity * adverse
    s.units[i] += quantity
    _record_fill(s, notional, quantity * spread)


def sell(s: Any, p: Any, i: int, quantity: float, price: float, spread: float, fee: float) -> None:
    """Sell `quantity` of asset i; arguments as in `buy`."""
    adverse = spread + p.slippage * p.cost_multiple * price
    notional = quantity * price
    s.cash += notional - notional * fee - quantity * adverse
    s.held[i] = 0
    if quantity >= s.units[i]:
        s.units[i] = 0.0
        s.trades += 1
    else:
        s.units[i] -= quantity
    _record_fill(s, notional, quantity * spread)


def _record_fill(s: Any, notional: float, spread_paid: float) -> None:
    """Record the figures of one fill; `record_step_costs` does the rest once per step."""
    s.traded += notional
    s.cost_spread += spread_paid
    s.fills += 1


def record_step_costs(s: Any, p: Any, before: float, fee: float) -> None:
    """Record costs, volume and turnover of a step; `before` is the equity before it."""
    commission = s.traded * fee
    slippage = s.traded * p.slippage * p.cost_multiple
    s.cost_fee += commission
    s.cost_slippage += slippage
    s.costs = s.cost_fee + s.cost_slippage + s.cost_spread
    s.day_volume += s.traded
    if before > 0.0:
        s.turnover += s.traded / before
    s.traded = 0.0


def trade_units(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Apply trailing stops, sales, forced sales and buys, asset by asset.

    Cash is spent in the order of the assets, so that order matters, as in the original.

    Args:
        s, action, p, d: state, action, params and data.
        row: the bar being entered; orders fill at its closes.
        fee: fraction of notional.
    """
    n = len(s.units)  # constant, unlike p.assets: unrolled loops take 180 ns, not 202
    if p.trailing_stop > 0.0:
        for i in range(n):
            is_stopped = d.prices[row - 1, i] < s.high[i] * (1.0 - p.trailing_stop)
            if s.units[i] > 0.0 and is_stopped:  # triggered at the last close, sold at this one
                _sell(s, p, d, row, i, s.units[i], fee)
    limit = 0.0
    if p.max_position < 1.0:
        limit = p.max_position * _account_value(s, p, d, row)
    _plan_orders(s, action, p, d, row, fee)
    _sell_ordered(s, p, d, row, fee)
    if p.forced_sale_bars > 0:
        for i in range(n):
            if s.held[i] >= p.forced_sale_bars and s.units[i] > 0.0:
                _sell(s, p, d, row, i, s.units[i] * p.forced_sale_share, fee)
    if limit > 0.0:
        _limit_buys(s, p, d, row, limit)
    if p.trailing_stop > 0.0:
        for i in range(n):
            if s.units[i] == 0.0:
                s.high[i] = 0.0  # a new purchase starts with this close as its high
    _buy_ordered(s, p, d, row)


def _plan_orders(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Age holdings, and write orders to `s.order` and the cost of a coin to `s.target`.

    Sales are limited to the holding, and invalid orders are 0. The CPU cannot predict which orders
    are invalid, and a misprediction costs more than the arithmetic, so the loop has no branches. It
    contains everything that does not depend on cash; the two loops after it contain the rest.
    Together they take 130 of 205 ns per step with random orders.
    """
    n = len(s.units)
    bar = d.prices[row]
    seen = d.prices[row - 1]
    first = d.first[s.segment]
    # Local variables, since the compiler must assume that a store to the state changes the params.
    union = p.union
    by_value = p.value_scale
    norm_action = p.norm_action
    capital = p.initial_equity
    if p.decide_every > 1 and s.steps % p.decide_every != 0:
        norm_action = 0.0
    min_factor = p.min_factor
    min_holding = p.min_holding
    cost_multiple = p.cost_multiple
    rate = 1.0 + fee + p.slippage * cost_multiple
    for i in range(n):
        if by_value:
            scaled_price = first[i] * norm_action
            full = capital / scaled_price if scaled_price > 0.0 else 0.0
        else:
            full = norm_action * first[n + i]
        units = s.units[i]
        held = s.held[i] + int(units > 0.0)
        order = clip_action(float(action[i])) * full
        buys = order > 0.0
        trades = (abs(order) > min_factor * d.lot_sizes[i, MIN_QUANTITY]) & (bar[n + i] > 0.0)
        trades = trades & (buys | (held >= min_holding))
        if union:  # the asset must have been listed when the action was chosen
            trades = trades & ((order < 0.0) | (seen[i] > 0.0))
        order = max(order, -units) if trades else 0.0
        s.order[i] = order
        s.held[i] = held * int(order >= 0.0)  # arithmetic, since a second `if` would be a branch
        s.target[i] = bar[i] * rate + bar[2 * n + i] * cost_multiple


def _sell_ordered(s: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Fill the sales, asset by asset."""
    n = len(s.units)
    bar = d.prices[row]
    cost_multiple = p.cost_multiple
    keep = 1.0 - fee - p.slippage * cost_multiple
    cash = s.cash
    traded = s.traded
    spread_paid = s.cost_spread
    fills = 0
    closed = 0
    for i in range(n):
        quantity = max(-s.order[i], 0.0)
        notional = quantity * bar[i]
        spread = quantity * bar[2 * n + i] * cost_multiple
        cash += notional * keep - spread
        traded += notional
        spread_paid += spread
        units = s.units[i] - quantity
        s.units[i] = units
        fills += int(quantity > 0.0)
        closed += int((quantity > 0.0) & (units == 0.0))
    s.cash = cash
    s.traded = traded
    s.cost_spread = spread_paid
    s.fills += fills
    s.trades += closed


def _limit_buys(s: Any, p: Any, d: Any, row: int, limit: float) -> None:
    """Reduce buy orders to the maximum value of a holding, account currency."""
    for i in range(len(s.units)):
        if s.order[i] > 0.0:
            most = limit / d.prices[row, i] - s.units[i]
            order = min(s.order[i], most)
            s.order[i] = order if order >= p.min_factor * d.lot_sizes[i, MIN_QUANTITY] else 0.0


def _buy_ordered(s: Any, p: Any, d: Any, row: int) -> None:
    """Fill the buys, asset by asset; each spends at most its share of the cash above the reserve.

    The cash of one buy depends on the previous one, and this chain limits the speed of a step.
    Quantity times cost per coin is a single multiplication in it; summing notional, fee and spread
    would be four operations (8 % of the step).
    """
    n = len(s.units)
    bar = d.prices[row]
    min_factor = p.min_factor
    cost_multiple = p.cost_multiple
    buy_share = p.buy_share
    cash = s.cash
    left = cash - p.cash_reserve * p.initial_equity
    traded = s.traded
    spread_paid = s.cost_spread
    fills = 0
    for i in range(n):
        cost = s.target[i]
        # Dividing first lets the CPU compute it before the cash of the previous buy is known.
        affordable = left * (buy_share / cost if cost > 0.0 else 0.0)
        ordered = max(s.order[i], 0.0)
        quantity = (
            min(affordable, ordered)
            if affordable >= min_factor * d.lot_sizes[i, MIN_QUANTITY]
            else 0.0
        )
        spent = quantity * cost
        cash -= spent
        left -= spent
        traded += quantity * bar[i]
        spread_paid += quantity * bar[2 * n + i] * cost_multiple
        fills += int(quantity > 0.0)
        s.units[i] += quantity
    s.cash = cash
    s.traded = traded
    s.cost_spread = spread_paid
    s.fills += fills


def _account_value(s: Any, p: Any, d: Any, row: int) -> float:
    total = s.cash
    for i in range(len(s.units)):
        total += s.units[i] * d.prices[row, i]
    return total


def _sell(s: Any, p: Any, d: Any, row: int, i: int, quantity: float, fee: float) -> None:
    n = len(s.units)
    price = d.prices[row, i]
    if price > 0.0 and d.prices[row, n + i] > 0.0:
        spread = d.prices[row, 2 * n + i] * p.cost_multiple
        sell(s, p, i, quantity, price, spread, fee)
