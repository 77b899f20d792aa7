"""What trading costs at a bar, and what one purchase or sale does to the account."""

from __future__ import annotations

from typing import Any

from slipstream.envs.portfolio.record import VOLUME_DAYS

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
