"""Orders in units of coin, filled at the close: FinRL_Crypto's rules in FinRL_Crypto's order."""

from __future__ import annotations

from typing import Any

from slipstream.markets.portfolio.orders import bounded, sell
from slipstream.markets.portfolio.record import MIN_QUANTITY


def trade_units(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Ages holdings, then trailing stops, sales, forced sales, and buys in the order of assets.

    Cash is spent asset by asset, so the order of assets matters, as in the original.

    Args:
        row: the bar stepped into; its closes are the fill prices.
        fee: fraction of notional.
    """
    n = len(s.units)  # unlike p.assets known when compiled: unrolled loops took 180 ns, not 202
    if p.trailing_stop > 0.0:
        for i in range(n):
            fallen = d.prices[row - 1, i] < s.high[i] * (1.0 - p.trailing_stop)
            if s.units[i] > 0.0 and fallen:  # seen at the last close, sold at this one
                _sell(s, p, d, row, i, s.units[i], fee)
    limit = 0.0
    if p.max_position < 1.0:
        limit = p.max_position * _total(s, p, d, row)
    _place(s, action, p, d, row, fee)
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
                s.high[i] = 0.0  # bought again, its high begins with this close
    _buy_ordered(s, p, d, row)


def _place(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Ages holdings; writes what is to be traded into `s.order`, a coin's cost into `s.target`.

    Sales are at most the holding; orders that may not be placed are 0. A processor cannot guess
    which those are, and guessing wrong costs more than the sums, so the loop has no branches:
    everything that does not wait for cash is done here, what does in the two loops after it.
    Together they made 130 ns a step of 205, with random orders.
    """
    n = len(s.units)
    bar = d.prices[row]
    seen = d.prices[row - 1]
    first = d.first[s.segment]
    # Variables, because for all the compiler knows a store into the record changes the settings.
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
            worth = first[i] * norm_action
            full = capital / worth if worth > 0.0 else 0.0
        else:
            full = norm_action * first[n + i]
        units = s.units[i]
        held = s.held[i] + int(units > 0.0)
        order = bounded(float(action[i])) * full
        buys = order > 0.0
        trades = (abs(order) > min_factor * d.lots[i, MIN_QUANTITY]) & (bar[n + i] > 0.0)
        trades = trades & (buys | (held >= min_holding))
        if union:  # it must have been there when the action was chosen
            trades = trades & ((order < 0.0) | (seen[i] > 0.0))
        order = max(order, -units) if trades else 0.0
        s.order[i] = order
        s.held[i] = held * int(order >= 0.0)  # a second `if` on the order would be a branch
        s.target[i] = bar[i] * rate + bar[2 * n + i] * cost_multiple


def _sell_ordered(s: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Sales, asset by asset."""
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
    """Cuts orders to what a holding may be worth, account currency."""
    for i in range(len(s.units)):
        if s.order[i] > 0.0:
            most = limit / d.prices[row, i] - s.units[i]
            order = min(s.order[i], most)
            s.order[i] = order if order >= p.min_factor * d.lots[i, MIN_QUANTITY] else 0.0


def _buy_ordered(s: Any, p: Any, d: Any, row: int) -> None:
    """Purchases, asset by asset; each spends at most what the cash beyond the reserve allows.

    Cash goes from one to the next, and the step waits for that chain: quantity times a coin's cost
    is one product of it, where notional, fee and spread summed were four (8 % of the step).
    """
    n = len(s.units)
    bar = d.prices[row]
    min_factor = p.min_factor
    cost_multiple = p.cost_multiple
    buy_share = p.buy_share
    cash = s.cash
    left = cash - p.reserve * p.initial_equity
    traded = s.traded
    spread_paid = s.cost_spread
    fills = 0
    for i in range(n):
        cost = s.target[i]
        # Dividing first lets the processor do it before the cash of the last buy is known.
        most = left * (buy_share / cost if cost > 0.0 else 0.0)
        wanted = max(s.order[i], 0.0)
        quantity = min(most, wanted) if most >= min_factor * d.lots[i, MIN_QUANTITY] else 0.0
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


def _total(s: Any, p: Any, d: Any, row: int) -> float:
    total = s.cash
    for i in range(len(s.units)):
        total += s.units[i] * d.prices[row, i]
    return total


def _sell(s: Any, p: Any, d: Any, row: int, i: int, quantity: float, fee: float) -> None:
    n = len(s.units)
    price = d.prices[row, i]
    if price > 0.0 and d.prices[row, n + i] > 0.0:
        spread = d.prices[row, 2 * n + i] * p.cost_multiple
        adverse = spread + p.slippage * p.cost_multiple * price
        sell(s, i, quantity, price, adverse, spread, fee)
