"""Forex trading environment: one currency pair per environment, on real bars.

The agent observes the complete bar t and chooses a target position. The order fills at the open (or
close) of the next bar, and equity is marked at that bar's close. This file contains the hooks, then
spaces and metrics, then orders, fills and exits. Arrays and state are in `forex_state`, loading is
in `forex_loader`. Rewards follow docs/explanation/market-rules.md, section 8.

Margin stop-out, stop-loss and take-profit exits happen without an order, at the open or inside the
bar. A position is checked against the price at which it would be closed: a long sells at
mid - spread/2, a short buys at mid + spread/2. Equity, and with it the stop-out, is marked at mid.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.jit.alignment import prefetch_element, prefetch_record
from slipstream.kernels.spec import EnvSpec, MarketSpec, Metric
from slipstream.markets.backtest_spec import SymbolBacktestSpec
from slipstream.markets.forex.config import Config
from slipstream.markets.forex.forex_loader import (
    load,
    load_folds,
    load_window,
    timeline,
    with_params,
)
from slipstream.markets.forex.forex_state import (
    ATR,
    ATR_MULTIPLES,
    CLOSE,
    DIFFERENTIAL_SHARPE,
    FLAT,
    FRACTION,
    HIGH,
    INVERSE,
    LOW,
    NEXT_CLOSE,
    NEXT_OPEN,
    NIGHT,
    OPEN,
    PIP,
    PNL,
    RATE_CLOSE,
    RATE_OPEN,
    ROLL,
    SAME_CLOSE,
    SPREAD,
    STATE,
    VARIANCE,
    Data,
    Params,
)
from slipstream.markets.shared_rules import (
    clipped_growth,
    decode_name,
    finalize_metrics,
    floor_to_step,
    log_growth,
    market_spec,
    start_episode,
    update_metrics,
)

# Chosen on synthetic markets with and without an edge (docs/explanation/statistics.md, section
# 14). Wide layers,
# many updates and a high discount factor overfit the noise of 60,000 bars. Results are in
# docs/explanation/agent-defaults.md.
DEFAULT_HYPERPARAMS = {
    "dqn": {
        "agent": {
            "net_arch": [16, 16],
            "dueling": True,
            "gamma": 0.8,
            "utd_ratio": 0.02,
            "learning_rate": 1.4e-3,
            "learning_rate_schedule": "linear",
            "tau": 0.01,
            "target_update_interval": 1,
        },
        "training": {"total_timesteps": 300_000},
    }
}


def reset(s: Any, p: Any, d: Any) -> None:
    """Start an episode without a position and without blocked sides."""
    start_episode(s, p, d)
    s.day_equity = p.initial_equity
    s.long_blocked_to = -1
    s.short_blocked_to = -1
    s.reduce_only_to = -1
    s.sharpe_b = d.constants[s.segment, VARIANCE]


def prefetch(s: Any, p: Any, d: Any) -> None:
    """Prefetch the next bar and its observation, since environments are at distant bars.

    With 2,048 environments per thread, a step takes 90 ns instead of 105 on 100,000 bars. On 6,000
    bars, which stay in the cache, there is no difference.
    """
    row = s.bar + 1
    prefetch_element(d.bars, row, 0)
    prefetch_record(d.calendar, row, 0)
    for k in range(
        0, p.lookback * (p.num_features + NUM_CLOCK_FEATURES), 16
    ):  # floats per cache line
        prefetch_element(d.features, row + 1 - p.lookback, k)


# One long function: it lists the events of a bar in the order in which they happen.
def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    """Advance from bar t to t + 1: the roll, exits at the open, the order, exits inside the bar."""
    decision_row = s.bar
    row = decision_row + 1
    s.bar = row
    pip = d.constants[s.segment, PIP]
    inverse = d.constants[s.segment, INVERSE] != 0.0
    half_spread = 0.5 * d.bars[row, SPREAD] * p.cost_multiple
    slip = p.slippage_pips * pip * p.cost_multiple
    atr = d.bars[row, ATR]
    close = d.bars[row, CLOSE]
    calendar = d.calendar[row]
    before = s.equity
    turnover = s.turnover
    if p.discrete:
        target = float(int(action[0]) - 1) * p.exposure
    else:
        target = min(max(float(action[0]), -1.0), 1.0) * p.exposure
    flat = (calendar & FLAT) != 0 or s.breached != 0

    if p.fill_at == SAME_CLOSE:
        mid = d.bars[decision_row, CLOSE]
        rate = d.bars[decision_row, RATE_CLOSE]
        spread = 0.5 * d.bars[decision_row, SPREAD] * p.cost_multiple
        if trade_to_exposure(s, p, target, flat, mid, spread, slip, rate, atr, pip, row):
            s.equity = s.cash + s.units * (mid - s.entry) * rate

    if (calendar & ROLL) != 0:
        if s.units != 0.0 and calendar >= NIGHT:
            _pay_swap(
                s,
                p,
                d.bars[decision_row, CLOSE],
                d.bars[decision_row, RATE_CLOSE],
                calendar // NIGHT,
            )
        s.day_equity = s.equity
        s.breached = 0

    exit_kind = NO_EXIT
    open_price = d.bars[row, OPEN]
    open_rate = d.bars[row, RATE_OPEN]
    if s.units != 0.0:
        exit_kind = exit_at_open(s, p, open_price, half_spread, slip, open_rate, row)
    if p.fill_at == NEXT_OPEN and exit_kind == NO_EXIT:
        trade_to_exposure(
            s, p, target, flat, open_price, half_spread, slip, open_rate, atr, pip, row
        )
    if s.units != 0.0:
        high, low = d.bars[row, HIGH], d.bars[row, LOW]
        exit_kind = exit_in_bar(
            s, p, open_price, high, low, half_spread, slip, open_rate, inverse, row
        )
    close_rate = d.bars[row, RATE_CLOSE]
    if p.fill_at == NEXT_CLOSE and exit_kind == NO_EXIT:
        trade_to_exposure(s, p, target, flat, close, half_spread, slip, close_rate, atr, pip, row)

    equity = s.cash + s.units * (close - s.entry) * close_rate
    terminated = exit_kind == STOP_OUT
    limit = p.max_daily_drawdown * s.day_equity
    if p.max_daily_drawdown > 0.0 and s.breached == 0 and s.day_equity - equity >= limit:
        s.breached = 1
        terminated = terminated or p.terminate_on_breach
    truncated = row >= s.last and not terminated
    if p.sells_at_end and s.units != 0.0 and (terminated or truncated):
        fill(s, p, 0.0, close, half_spread, slip, close_rate, row)
        equity = s.cash
    value = close * close_rate
    s.equity = equity
    s.exposure = s.units * value / equity if equity > 0.0 else 0.0
    if s.units != 0.0:
        s.holding_bars += 1
        s.exposure_sum += abs(s.exposure)
    update_metrics(s, before, equity)

    gain = reward(s, p, d, before, equity)
    if p.turnover_penalty > 0.0:
        gain -= p.turnover_penalty * (s.turnover - turnover)
    if p.holding_penalty > 0.0:
        gain -= p.holding_penalty * abs(s.exposure)
    if p.drawdown_penalty > 0.0:
        gain -= p.drawdown_penalty * s.drawdown
    return gain, terminated, truncated


def _pay_swap(s: Any, p: Any, close: float, rate: float, nights: int) -> None:
    """Book the swap for the nights held, on the notional at the last close before the roll.

    The cost multiple scales charges only. Credits are income and are not scaled.
    """
    per_night = p.swap_long if s.units > 0.0 else p.swap_short
    if per_night < 0.0:
        per_night *= p.cost_multiple
    credit = abs(s.units) * close * rate * per_night * float(nights)
    s.cash += credit
    s.equity += credit
    s.cost_swap -= credit
    s.costs -= credit


def finalize_episode(s: Any, p: Any, d: Any) -> None:
    """Compute the metrics of the whole episode; standard deviation with ddof 1."""
    variance = finalize_metrics(s, p)
    if variance > 0.0:
        share = 1.0 / float(s.steps)
        s.sharpe = s.return_sum * share / math.sqrt(variance / (1.0 - share))


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    """Write features of L bars, clock, position, unrealised profit and drawdown.

    Unrealised profit is in multiples of ATR, drawdown in ATR times the root of the bars per day.

    Args:
        s, p, d: state, params and data.
        out: float32 [L F + 4 + (3 if discrete, else 1) + 2 (+ 2)], written in this order: F
            features of each of L = `lookback` bars, oldest bar first; clock features of the newest
            bar; short, flat and long as 0 or 1, or the exposure; unrealised profit; drawdown; and,
            for the differential Sharpe ratio, its two moments relative to their initial scale.
    """
    bar = s.bar
    columns = p.num_features
    older = p.lookback - 1
    for k in range(older):
        for column in range(columns):
            out[k * columns + column] = d.features[bar - older + k, column]
    offset = older * columns
    columns += NUM_CLOCK_FEATURES  # clock features follow the features of the newest bar
    for column in range(columns):
        out[offset + column] = d.features[bar, column]
    offset += columns
    units = s.units
    if p.discrete:
        out[offset] = 1.0 if units < 0.0 else 0.0
        out[offset + 1] = 1.0 if units == 0.0 else 0.0
        out[offset + 2] = 1.0 if units > 0.0 else 0.0
        offset += 3
    else:
        out[offset] = s.exposure
        offset += 1
    atr = d.bars[bar, ATR]
    close = d.bars[bar, CLOSE]
    gain = 0.0
    drawdown = 0.0
    if atr > 0.0:
        if units > 0.0:
            gain = (close - s.entry) / atr
        elif units < 0.0:
            gain = (s.entry - close) / atr
        drawdown = s.drawdown * close / (atr * p.day_bars_root)
    out[offset] = gain
    out[offset + 1] = drawdown
    if p.reward == DIFFERENTIAL_SHARPE:
        start = d.constants[s.segment, VARIANCE]
        out[offset + 2] = s.sharpe_a / math.sqrt(start)
        out[offset + 3] = s.sharpe_b / start


def reward(s: Any, p: Any, d: Any, before: float, after: float) -> float:
    """Return the reward of a step that changed equity from `before` to `after`."""
    if p.reward == PNL:
        return (after - before) / p.initial_equity
    if p.reward == DIFFERENTIAL_SHARPE:
        ret = clipped_growth(after, before, p.initial_equity) - 1.0
        return _differential_sharpe(s, p, ret, d.constants[s.segment, VARIANCE])
    return log_growth(after, before, p.initial_equity)


def _differential_sharpe(s: Any, p: Any, ret: float, start: float) -> float:
    """Return D = (B dA - A dB / 2) / (B - A^2)^(3/2) and update the moments.

    See Moody and Saffell 2001.

    Args:
        s, p: state and params.
        ret: simple return of the bar.
        start: B0, variance of the training window's returns; B - A^2 is floored at 0.01 of it.
    """
    a = s.sharpe_a
    b = s.sharpe_b
    change_a = ret - a
    change_b = ret * ret - b
    variance = max(b - a * a, 0.01 * start)
    value = (b * change_a - 0.5 * a * change_b) / (variance * math.sqrt(variance))
    s.sharpe_a = a + p.eta * change_a
    s.sharpe_b = b + p.eta * change_b
    return value


NUM_CLOCK_FEATURES = 4  # sine and cosine of time of day and of day of week
COST_FIELDS = ("cost_spread", "cost_slippage", "cost_commission", "cost_swap")
_TRACE = ("bar", "equity", "exposure", "units", *COST_FIELDS, "fills")
_METRICS = (
    Metric("total_return", "fraction"),
    Metric("max_drawdown", "fraction"),
    Metric("turnover", "equity"),
    Metric("sharpe", "per bar"),
    Metric("trades", "count"),
    Metric("costs", "account currency"),
    Metric("wins", "count"),
    Metric("gross_profit", "account currency"),
    Metric("gross_loss", "account currency"),
    Metric("holding_bars", "bars"),
    Metric("mean_exposure", "equity"),
    Metric("fills", "count"),
    Metric("stop_exits", "count"),
    Metric("target_exits", "count"),
    Metric("stop_outs", "count"),
    Metric("both_touched", "count"),
    Metric("cost_spread", "account currency"),
    Metric("cost_slippage", "account currency"),
    Metric("cost_commission", "account currency"),
    Metric("cost_swap", "account currency"),
)


def spec(p: Params, d: Data) -> EnvSpec:
    """Return spaces, metrics and market metadata; feature columns carry their training moments."""
    bounded = NUM_CLOCK_FEATURES + (3 if p.discrete else 1)
    running = [np.nan] * (4 if p.reward == DIFFERENTIAL_SHARPE else 2)
    mean = np.concatenate(
        [np.tile(d.feature_mean[p.scaling], p.lookback), np.zeros(bounded), running]
    )
    deviation = np.concatenate(
        [np.tile(d.feature_std[p.scaling], p.lookback), np.ones(bounded), running]
    )
    action = spaces.Discrete(3) if p.discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
    return EnvSpec(
        observation_space=spaces.Box(-np.inf, np.inf, mean.shape, np.float32),
        action_space=action,
        metrics=_METRICS,
        trace=_TRACE,
        max_episode_steps=None if p.from_start else p.max_steps,
        stagger_episodes=not p.from_start,
        scale_reward=True,
        fixed_mean=mean.astype(np.float32),
        fixed_std=deviation.astype(np.float32),
        market=_market_spec(p, d),
    )


def _market_spec(p: Params, d: Data) -> MarketSpec:
    segment_symbols = d.segment_symbol[p.first_segment : p.first_segment + p.num_segments]
    symbols = tuple(
        decode_name(d.symbols[index]) for index in dict.fromkeys(segment_symbols.tolist())
    )
    return market_spec(p, d, symbols, COST_FIELDS)


_NO_RULES: dict[str, Any] = {
    "exposure": 1.0,
    "stop_loss": 0.0,
    "take_profit": 0.0,
    "max_daily_drawdown": 0.0,
    "cooldown": 0,
    "stop_cooldown": 0,
}


def backtest_spec(p: Params, d: Data) -> SymbolBacktestSpec:
    """Return the fill prices and costs of an evaluation pass."""
    start, stop = d.segments[p.first_segment]
    first, last, bars = int(start), int(stop) - 1, d.bars
    rows = np.arange(first + 1, last + 1)
    if p.fill_at == NEXT_OPEN:
        mid, rate = bars[rows, OPEN], bars[rows, RATE_OPEN]
    else:
        rows = rows if p.fill_at == NEXT_CLOSE else rows - 1
        mid, rate = bars[rows, CLOSE], bars[rows, RATE_CLOSE]
    mid = np.append(mid, bars[last, CLOSE])
    rate = np.append(rate, bars[last, RATE_CLOSE])
    half = 0.5 * np.append(bars[rows, SPREAD], bars[last, SPREAD])
    pip = float(d.constants[p.first_segment, PIP])
    same_symbol = d.segment_symbol == d.segment_symbol[p.first_segment]
    return SymbolBacktestSpec(
        first=first,
        last=last,
        time=d.time,
        close=bars[:, CLOSE],
        mid=mid,
        rate=rate,
        cost=p.cost_multiple * rate * (half + p.slippage_pips * pip + mid * p.commission),
        first_symbol_row=int(d.segments[same_symbol, 0].min()),
        pip=pip,
        baseline_params=p._replace(**_NO_RULES),
        financing=bool(p.swap_long or p.swap_short),
        close_rate=bars[:, RATE_CLOSE],
    )


def fill(
    s: Any, p: Any, units: float, mid: float, half_spread: float, slip: float, rate: float, row: int
) -> None:
    """Move the position to `units` at the ask or bid around `mid`.

    Buys pay `mid + half_spread + slip`, sells receive `mid - half_spread - slip`. Reductions
    realise profit against the average entry price, converted at this fill's rate. A flip closes the
    old position first.

    Args:
        s, p: state and params.
        units: the new position, base currency.
        mid, half_spread, slip: price units, per unit of base currency.
        rate: account currency per unit of quote currency.
        row: the bar being entered; the cooldown is counted from it.
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
        _record_trade(s)
        s.trade_cash = s.cash
        s.cash -= commission - closing
        s.entry = price
    elif abs(units) > abs(old):
        s.cash -= commission
        s.entry = (abs(old) * s.entry + quantity * price) / abs(units)
    else:
        s.cash += (old - units) * (price - s.entry) * rate - commission
        if units == 0.0:
            _record_trade(s)
            s.entry = 0.0
    s.units = units


def _record_trade(s: Any) -> None:
    """Count a closed position; its profit is the change of cash since it was opened."""
    profit = s.cash - s.trade_cash
    s.trades += 1
    if profit > 0.0:
        s.wins += 1
        s.gross_profit += profit
    else:
        s.gross_loss -= profit


def trade_to_exposure(
    s: Any,
    p: Any,
    target: float,
    flat: bool,
    mid: float,
    half_spread: float,
    slip: float,
    rate: float,
    atr: float,
    pip: float,
    row: int,
) -> bool:
    """Trade towards the target exposure as far as the rules allow, and return True if it traded.

    Args:
        s, p: state and params.
        target: signed exposure, multiples of equity.
        flat: the position must be closed, whatever the target.
        mid, half_spread, slip, atr, pip: price units; `atr` as of the last complete bar.
        rate: account currency per unit of quote currency.
        row: the bar being entered.
    """
    old = s.units
    if flat:
        target = 0.0
    if target == 0.0 and old == 0.0:
        return False
    if p.discrete and target * old > 0.0:
        return False  # the size is set when the side changes, then held
    value = mid * rate  # value of one unit, account currency
    equity = s.cash + old * (mid - s.entry) * rate
    if equity <= 0.0:
        target = 0.0
    elif not p.discrete and target != 0.0 and target * old >= 0.0:
        within = abs(target * equity - old * value) < p.rebalance_threshold * equity
        if within:
            return False
    size = floor_to_step(abs(target) * equity / value, p.unit_step) if target != 0.0 else 0.0
    held = abs(old) if target * old > 0.0 else 0.0  # units already on the target side
    if size > held:
        blocked = s.long_blocked_to if target > 0.0 else s.short_blocked_to
        if row <= s.reduce_only_to or row <= blocked:
            size = held
        else:
            # Used margin must stay within equity after costs: size * value / leverage
            # <= equity - traded * cost, where traded = size - held, or size + |old| on a flip.
            cost = (half_spread + slip) * rate + p.commission * p.cost_multiple * value
            room = equity + (held if held > 0.0 else -abs(old)) * cost
            limit = room / (value / p.leverage + cost)
            if size > limit:
                size = max(floor_to_step(max(limit, 0.0), p.unit_step), held)
    units = size if target > 0.0 else -size
    if abs(units - old) < 0.5 * p.unit_step:
        return False
    if size == 0.0:
        units = 0.0
    fill(s, p, units, mid, half_spread, slip, rate, row)
    if size > 0.0 and units * old <= 0.0:
        _set_exit_levels(s, p, mid, atr, pip)
    return True


def _set_exit_levels(s: Any, p: Any, mid: float, atr: float, pip: float) -> None:
    """Set stop and target prices of a position that was just opened, relative to the fill's mid."""
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
    """Close the position at the open if the open is beyond one of its exit levels."""
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
    open_price: float,
    high: float,
    low: float,
    half_spread: float,
    slip: float,
    rate: float,
    inverse: bool,
    row: int,
) -> int:
    """Close the position at the exit level that the bar is assumed to reach first.

    Args:
        s, p: state and params.
        open_price, high, low: mid prices of the bar.
        half_spread, slip: price units.
        rate: account currency per unit of quote currency at the open; not used if `inverse`.
        inverse: the rate is 1 / mid at every price.
        row: the bar being entered.
    """
    long = s.units > 0.0
    side = 1.0 if long else -1.0
    worst = low if long else high
    best = high if long else low
    worst_rate = 1.0 / worst if inverse else rate
    worst_equity = s.cash + s.units * (worst - s.entry) * worst_rate
    margin_hit = worst_equity < _half_margin(s, p, worst * worst_rate)
    # Exit levels as mid prices; `side` maps a short to a long.
    stop = s.stop + side * half_spread
    target = s.target + side * half_spread
    stop_hit = p.stop_loss > 0.0 and side * (worst - stop) <= 0.0
    target_hit = p.take_profit > 0.0 and side * (best - target) >= 0.0
    if not (stop_hit or margin_hit or target_hit):
        return NO_EXIT
    # The stop of a position just opened may be within half the spread. It is then hit at the open.
    stop_at_open = stop_hit and side * (open_price - stop) <= 0.0
    kind = TARGET
    mid = target
    if stop_at_open:
        kind = STOP
        mid = open_price
    elif (stop_hit or margin_hit) and not (target_hit and p.favourable_first):
        kind = STOP
        mid = stop
        if margin_hit:
            level = stop_out_level(s, p, rate, inverse)
            if not stop_hit or side * (level - stop) > 0.0:  # closer to the open than the stop
                kind = STOP_OUT
                mid = level
    if target_hit and (stop_hit or margin_hit) and not stop_at_open:
        s.both_touched += 1
    if inverse:
        rate = 1.0 / mid if mid > 0.0 else worst_rate
    _close(s, p, kind, mid, half_spread, slip, rate, row)
    return kind


def _half_margin(s: Any, p: Any, value: float) -> float:
    """Return half the used margin, account currency; `value` is the value of one unit."""
    return 0.5 * abs(s.units) * value / p.leverage


def stop_out_level(s: Any, p: Any, rate: float, inverse: bool) -> float:
    """Return the mid price at which equity equals half the used margin.

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
    """Close the position and block its side for `stop_cooldown` bars."""
    if s.units > 0.0:
        s.long_blocked_to = row + p.stop_cooldown
    else:
        s.short_blocked_to = row + p.stop_cooldown
    if kind == STOP:
        s.stop_exits += 1
    elif kind == TARGET:
        s.target_exits += 1
        slip = 0.0  # take-profits are limit orders
    else:
        s.stop_outs += 1
    fill(s, p, 0.0, mid, half_spread, slip, rate, row)
