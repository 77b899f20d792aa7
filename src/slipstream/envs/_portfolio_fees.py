"""What trading costs at a bar, and what one purchase or sale does to the account."""

from __future__ import annotations

from typing import Any

from slipstream.envs._portfolio_record import VOLUME_DAYS

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
    if p.fee_ramp_bars > 0 and not p.evaluation:
        done = float(s.age + s.steps) / float(p.fee_ramp_bars)
        rate *= min(p.fee_ramp_from + (1.0 - p.fee_ramp_from) * done, 1.0)
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
    s: Any, i: int, quantity: float, price: float, spread: float, slip: float, fee: float
) -> None:
    """Buys `quantity` of asset i.

    Args:
        price: mid; `spread` (half of it) and `slip` in price units are paid on top.
        fee: fraction of the notional at mid.
    """
    if s.units[i] == 0.0:
        s.high[i] = price
        s.held[i] = 0
    s.cash -= quantity * price + _costs(s, quantity, price, spread, slip, fee)
    s.units[i] += quantity


def sell(
    s: Any, i: int, quantity: float, price: float, spread: float, slip: float, fee: float
) -> None:
    """Sells `quantity` of asset i; arguments as for `buy`."""
    s.cash += quantity * price - _costs(s, quantity, price, spread, slip, fee)
    s.held[i] = 0
    if quantity >= s.units[i]:
        s.units[i] = 0.0
        s.trades += 1
    else:
        s.units[i] -= quantity


def _costs(s: Any, quantity: float, price: float, spread: float, slip: float, fee: float) -> float:
    """Books the costs of one fill and its volume; account currency."""
    notional = quantity * price
    commission = notional * fee
    adverse = quantity * (spread + slip)
    s.cost_fee += commission
    s.cost_spread += quantity * spread
    s.cost_slippage += quantity * slip
    s.costs += commission + adverse
    s.day_volume += notional
    s.turnover += notional / max(s.equity, 1e-300)
    s.fills += 1
    return commission + adverse
