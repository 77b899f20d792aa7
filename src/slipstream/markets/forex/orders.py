"""Orders of the forex account: what a target asks for, what is allowed, and what a fill does.

Exits nobody ordered follow: margin stop-out, stop-loss and take-profit, at the open and in the bar.
A position is tested against the side it would be closed on: a long sells at mid - spread/2, a
short buys at mid + spread/2. Equity, and with it the stop-out, is marked at mid.
"""

from __future__ import annotations

from typing import Any

from slipstream.markets.forex.record import ATR_MULTIPLES, FRACTION
from slipstream.markets.shared_rules import whole_steps


def fill(
    s: Any, p: Any, units: float, mid: float, half_spread: float, slip: float, rate: float, row: int
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


NO_EXIT = 0
STOP = 1
TARGET = 2
STOP_OUT = 3

_NEVER = 0.0  # a stop-out level that no price reaches


def exit_at_open(
    s: Any, p: Any, mid: float, half_spread: float, slip: float, rate: float, row: int
) -> int:
    """Closes the position at the open's exit price when the open lies beyond one of its levels."""
    side = 1.0 if s.units > 0.0 else -1.0
    price = mid - side * half_spread
    kind = NO_EXIT
    if s.cash + s.units * (mid - s.entry) * rate < _half_margin(s, p, mid * rate):
        kind = STOP_OUT
    elif p.stop_loss > 0.0 and side * (price - s.stop) <= 0.0:
        kind = STOP
    elif p.take_profit > 0.0 and side * (price - s.target) >= 0.0:
        kind = TARGET
    if kind != NO_EXIT:
        _close(s, p, kind, mid, half_spread, slip, rate, row)
    return kind


def exit_in_bar(
    s: Any,
    p: Any,
    opened: float,
    high: float,
    low: float,
    half_spread: float,
    slip: float,
    rate: float,
    inverse: bool,
    row: int,
) -> int:
    """Closes the position at the level that the bar reached first, by the configured assumption.

    Args:
        opened, high, low: mid prices of the bar.
        rate: account currency per unit of quote at the open; unused when `inverse`, where it is
            1 / mid at every price.
    """
    long = s.units > 0.0
    side = 1.0 if long else -1.0
    worst = low if long else high
    best = high if long else low
    worst_rate = 1.0 / worst if inverse else rate
    worst_equity = s.cash + s.units * (worst - s.entry) * worst_rate
    margin_hit = worst_equity < _half_margin(s, p, worst * worst_rate)
    # Levels as mids; `side` turns a short's into a long's.
    stop = s.stop + side * half_spread
    target = s.target + side * half_spread
    stop_hit = p.stop_loss > 0.0 and side * (worst - stop) <= 0.0
    target_hit = p.take_profit > 0.0 and side * (best - target) >= 0.0
    if not (stop_hit or margin_hit or target_hit):
        return NO_EXIT
    # A position just opened may have its stop within half the spread: hit at once, at the open.
    at_once = stop_hit and side * (opened - stop) <= 0.0
    kind = TARGET
    mid = target
    if at_once:
        kind = STOP
        mid = opened
    elif (stop_hit or margin_hit) and not (target_hit and p.favourable_first):
        kind = STOP
        mid = stop
        if margin_hit:
            level = stop_out_level(s, p, rate, inverse)
            if not stop_hit or side * (level - stop) > 0.0:  # nearer to the open than the stop
                kind = STOP_OUT
                mid = level
    if target_hit and (stop_hit or margin_hit) and not at_once:
        s.both_touched += 1
    if inverse:
        rate = 1.0 / mid if mid > 0.0 else worst_rate
    _close(s, p, kind, mid, half_spread, slip, rate, row)
    return kind


def _half_margin(s: Any, p: Any, value: float) -> float:
    """Half the used margin, account currency; `value` is that of one unit."""
    return 0.5 * abs(s.units) * value / p.leverage


def stop_out_level(s: Any, p: Any, rate: float, inverse: bool) -> float:
    """Mid at which equity equals half the used margin.

    Solves cash + u (x - entry) k = |u| x k / (2 leverage) for x, with k constant or k = 1 / x.
    """
    side = 1.0 if s.units > 0.0 else -1.0
    half_margin = 0.5 / p.leverage
    if inverse:
        slope = s.cash + s.units * (1.0 - side * half_margin)
        level = s.units * s.entry / slope if slope != 0.0 else _NEVER
    else:
        level = (s.entry - s.cash / (s.units * rate)) / (1.0 - side * half_margin)
    return level


def _close(
    s: Any, p: Any, kind: int, mid: float, half_spread: float, slip: float, rate: float, row: int
) -> None:
    """Closes the position and blocks its side for the bars of `stop_cooldown`."""
    if s.units > 0.0:
        s.long_blocked_to = row + p.stop_cooldown
    else:
        s.short_blocked_to = row + p.stop_cooldown
    if kind == STOP:
        s.stop_exits += 1
    elif kind == TARGET:
        s.target_exits += 1
        slip = 0.0  # a limit order
    else:
        s.stop_outs += 1
    fill(s, p, 0.0, mid, half_spread, slip, rate, row)
