"""Orders in units of coin, filled at the close: FinRL_Crypto's rules in FinRL_Crypto's order."""

from __future__ import annotations

from typing import Any

from slipstream.envs._portfolio_fees import buy, sell
from slipstream.envs._portfolio_record import MIN_QUANTITY
from slipstream.envs._portfolio_weights import bounded


def trade_units(s: Any, action: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Ages holdings, then trailing stops, sales, forced sales, and buys in the order of assets.

    Cash is spent asset by asset, so the order of assets matters, as in the original.

    Args:
        row: the bar stepped into; its closes are the fill prices.
        fee: fraction of notional.
    """
    n = p.assets
    decides = s.steps % p.decide_every == 0
    for i in range(n):
        if s.units[i] > 0.0:
            s.held[i] += 1
            if p.trailing_stop > 0.0:
                _trail(s, p, d, row, i, fee)
        order = 0.0
        if decides:
            order = bounded(float(action[i])) * _full_order(s, p, d, i)
        s.order[i] = order
    limit = 0.0
    if p.max_position < 1.0:
        limit = p.max_position * _total(s, p, d, row)
    _sell_ordered(s, p, d, row, fee)
    if p.forced_sale_bars > 0:
        for i in range(n):
            if s.held[i] >= p.forced_sale_bars and s.units[i] > 0.0:
                _sell(s, p, d, row, i, s.units[i] * p.forced_sale_share, fee)
    for i in range(n):
        smallest = p.min_factor * d.lots[i, MIN_QUANTITY]
        if s.order[i] > smallest:
            _buy(s, p, d, row, i, smallest, limit, fee)


def _sell_ordered(s: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Sales, asset by asset, without branches.

    A processor cannot guess which assets are sold, and guessing wrong costs more than the sums:
    measured 190 ns a step instead of 225, with random orders.
    """
    n = p.assets
    keep = 1.0 - fee - p.slippage * p.cost_multiple
    cash = s.cash
    for i in range(n):
        units = s.units[i]
        price = d.prices[row, i]
        sells = s.order[i] < -(p.min_factor * d.lots[i, MIN_QUANTITY])
        sells = sells & (units > 0.0) & (s.held[i] >= p.min_holding)
        sells = sells & (price > 0.0) & (d.prices[row, n + i] > 0.0)
        quantity = min(units, -s.order[i]) if sells else 0.0
        notional = quantity * price
        spread = quantity * d.prices[row, 2 * n + i] * p.cost_multiple
        cash += notional * keep - spread
        s.units[i] = units - quantity
        s.traded += notional
        s.cost_spread += spread
        s.held[i] = 0 if sells else s.held[i]
        s.fills += 1 if sells else 0
        s.trades += 1 if sells & (quantity == units) else 0
    s.cash = cash


def _full_order(s: Any, p: Any, d: Any, i: int) -> float:
    """Coins that action 1 trades."""
    if p.value_scale:
        price = d.first[s.segment, i]
        return p.initial_equity / (price * p.norm_action) if price > 0.0 else 0.0
    return p.norm_action * d.first[s.segment, p.assets + i]


def _total(s: Any, p: Any, d: Any, row: int) -> float:
    total = s.cash
    for i in range(p.assets):
        total += s.units[i] * d.prices[row, i]
    return total


def _trail(s: Any, p: Any, d: Any, row: int, i: int, fee: float) -> None:
    """Sells all of an asset that closed too far below its highest close since it was bought."""
    price = d.prices[row, i]
    s.high[i] = max(s.high[i], price)
    if price < s.high[i] * (1.0 - p.trailing_stop):
        _sell(s, p, d, row, i, s.units[i], fee)


def _sell(s: Any, p: Any, d: Any, row: int, i: int, quantity: float, fee: float) -> None:
    n = p.assets
    price = d.prices[row, i]
    if price > 0.0 and d.prices[row, n + i] > 0.0:
        spread = d.prices[row, 2 * n + i] * p.cost_multiple
        adverse = spread + p.slippage * p.cost_multiple * price
        sell(s, i, quantity, price, adverse, spread, fee)


def _buy(
    s: Any, p: Any, d: Any, row: int, i: int, smallest: float, limit: float, fee: float
) -> None:
    """Buys at most what the cash beyond the reserve and the position limit allow.

    Args:
        limit: largest value of the holding, account currency; 0 for none.
    """
    n = p.assets
    price = d.prices[row, i]
    if price <= 0.0 or d.prices[row, n + i] <= 0.0:
        return
    if p.union and d.prices[row - 1, i] <= 0.0:
        return  # it was not there when the action was chosen
    wanted = s.order[i]
    if limit > 0.0:
        wanted = min(wanted, limit / price - s.units[i])
    spread = d.prices[row, 2 * n + i] * p.cost_multiple
    adverse = spread + p.slippage * p.cost_multiple * price
    available = max(s.cash - p.reserve * p.initial_equity, 0.0)
    # Dividing first lets the processor do it before the cash of the last buy is known.
    most = available * (p.buy_share / (price * (1.0 + fee) + adverse))
    quantity = min(most, wanted)
    if quantity >= smallest and quantity > 0.0:
        buy(s, i, quantity, price, adverse, spread, fee)
