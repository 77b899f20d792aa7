"""Orders of the forex account: what a target asks for, what is allowed, and what a fill does."""

from __future__ import annotations

import math
from typing import Any

from slipstream.envs.forex.record import ATR_MULTIPLES, FRACTION

_WHOLE = 9007199254740992.0  # 2^53: from here on every float64 is a whole number


def fill(
    s: Any,
    p: Any,
    units: float,
    mid: float,
    half_spread: float,
    slip: float,
    rate: float,
    row: int,
) -> None:
    """Moves the position to `units` at the exit or entry side of `mid`.

    Buys pay `mid + half_spread + slip`, sells get `mid - half_spread - slip`. Reductions realise
    profit at the average entry and at this fill's rate; a flip closes the old position first.

    Args:
        units: the new position, base currency.
        mid, half_spread, slip: price units, per unit of base currency.
        rate: account currency per unit of quote currency.
        row: the bar stepped into; the cooldown counts from it.
    """
    old = s.units
    change = units - old
    quantity = abs(change)
    price = mid + half_spread + slip if change > 0.0 else mid - half_spread - slip
    notional = quantity * mid * rate
    commission = notional * p.commission * p.cost_multiple
    equity = max(s.cash + old * (mid - s.entry) * rate, 1e-6 * p.initial_equity)
    s.turnover += notional / equity
    s.cost_spread += quantity * half_spread * rate
    s.cost_slippage += quantity * slip * rate
    s.cost_commission += commission
    s.costs += quantity * (half_spread + slip) * rate + commission
    s.fills += 1
    s.reduce_only_to = row + p.cooldown
    if old == 0.0:
        s.trade_cash = s.cash
        s.cash -= commission
        s.entry = price
    elif old * units < 0.0:
        closing = commission * (abs(old) / quantity)
        s.cash += old * (price - s.entry) * rate - closing
        _book_trade(s)
        s.trade_cash = s.cash
        s.cash -= commission - closing
        s.entry = price
    elif abs(units) > abs(old):
        s.cash -= commission
        s.entry = (abs(old) * s.entry + quantity * price) / abs(units)
    else:
        s.cash += (old - units) * (price - s.entry) * rate - commission
        if units == 0.0:
            _book_trade(s)
            s.entry = 0.0
    s.units = units


def _book_trade(s: Any) -> None:
    """Counts a position that has just been closed; its profit is what it did to cash."""
    profit = s.cash - s.trade_cash
    s.trades += 1
    if profit > 0.0:
        s.wins += 1
        s.gross_profit += profit
    else:
        s.gross_loss -= profit


def whole_steps(units: float, step: float) -> float:
    """Largest multiple of `step` that is <= `units` (>= 0)."""
    count = units / step
    if count >= _WHOLE:
        return units
    return float(math.floor(count)) * step


def order(
    s: Any,
    p: Any,
    wish: float,
    flat: bool,
    mid: float,
    half_spread: float,
    slip: float,
    rate: float,
    atr: float,
    pip: float,
    row: int,
) -> bool:
    """Trades towards the wished exposure, as far as the rules allow; tells whether it traded.

    Args:
        wish: signed exposure, in multiples of equity.
        flat: the position must be closed, whatever is wished.
        mid, half_spread, slip, atr, pip: price units; `atr` as of the last complete bar.
        rate: account currency per unit of quote currency.
        row: the bar stepped into.
    """
    old = s.units
    if flat:
        wish = 0.0
    if wish == 0.0 and old == 0.0:
        return False
    if p.discrete and wish * old > 0.0:
        return False  # set when the target changes, then held
    value = mid * rate  # of one unit, account currency
    equity = s.cash + old * (mid - s.entry) * rate
    if equity <= 0.0:
        wish = 0.0
    elif not p.discrete and wish != 0.0 and wish * old >= 0.0:
        within = abs(wish * equity - old * value) < p.band * equity
        if within:
            return False
    size = whole_steps(abs(wish) * equity / value, p.unit_step) if wish != 0.0 else 0.0
    held = abs(old) if wish * old > 0.0 else 0.0  # units already on the wished side
    if size > held:
        blocked = s.long_blocked_to if wish > 0.0 else s.short_blocked_to
        if row <= s.reduce_only_to or row <= blocked:
            size = held
        else:
            # Used margin stays within equity after costs: size * value / leverage
            # <= equity - traded * cost, where traded = size - held, or size + |old| on a flip.
            cost = (half_spread + slip) * rate + p.commission * p.cost_multiple * value
            room = equity + (held if held > 0.0 else -abs(old)) * cost
            limit = room / (value / p.leverage + cost)
            if size > limit:
                size = max(whole_steps(max(limit, 0.0), p.unit_step), held)
    units = size if wish > 0.0 else -size
    if abs(units - old) < 0.5 * p.unit_step:
        return False
    if size == 0.0:
        units = 0.0
    fill(s, p, units, mid, half_spread, slip, rate, row)
    if size > 0.0 and units * old <= 0.0:
        _place_levels(s, p, mid, atr, pip)
    return True


def _place_levels(s: Any, p: Any, mid: float, atr: float, pip: float) -> None:
    """Fixes stop and target of a position just opened, from the fill's mid."""
    unit = pip
    if p.stop_unit == ATR_MULTIPLES:
        unit = atr
    elif p.stop_unit == FRACTION:
        unit = mid
    side = 1.0 if s.units > 0.0 else -1.0
    s.stop = mid - side * p.stop_loss * unit
    s.target = mid + side * p.take_profit * unit
