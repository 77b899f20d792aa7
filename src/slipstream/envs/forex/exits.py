"""Exits nobody ordered: margin stop-out, stop-loss and take-profit, at the open and in the bar.

A position is tested against the side it would be closed on: a long sells at mid - spread/2, a
short buys at mid + spread/2. Equity, and with it the stop-out, is marked at mid.
"""

from __future__ import annotations

from typing import Any

from slipstream.envs.forex.orders import fill

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
