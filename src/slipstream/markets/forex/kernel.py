"""Trading one currency pair a copy, many pairs in one batch, on real bars.

The agent sees bar t complete and names a target position; it fills at the next bar's open (or
close), and equity is marked at that bar's close. Orders, fills and exits that nobody ordered live
in `orders`, arrays and records in `record`, loading in `load`; the outside (spaces, metrics) comes
last. Rewards follow docs/rules.md, section 8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.jit.memory import prefetch, prefetch_record
from slipstream.kernels.spec import MarketSpec, Metric, Spec
from slipstream.markets.forex.config import Config
from slipstream.markets.forex.load import load, load_folds, load_window, timeline, vary
from slipstream.markets.forex.orders import (
    NO_EXIT,
    STOP_OUT,
    exit_at_open,
    exit_in_bar,
    fill,
    order,
)
from slipstream.markets.forex.record import (
    ATR,
    CLOSE,
    DIFFERENTIAL_SHARPE,
    FLAT,
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
from slipstream.markets.market_pass import SymbolPass
from slipstream.markets.shared_rules import (
    begin,
    conclude_score,
    floored_ratio,
    keep_score,
    log_growth,
    market_spec,
    name_of,
)

# Chosen on planted markets with and without an edge (docs/rules.md, section 14): wide layers, many
# updates and long sight fit the noise of 60,000 bars, and trade on it. The table is in
# docs/agents.md.
SETTINGS = {
    "dqn": {
        "agent": {
            "widths": [16, 16],
            "dueling": True,
            "discount": 0.8,
            "updates_per_step": 0.02,
            "learning_rate": 1.4e-3,
            "learning_rate_schedule": "linear",
            "target_rate": 0.01,
            "target_every": 1,
        },
        "training": {"total_steps": 300_000},
    }
}


def reset(s: Any, p: Any, d: Any) -> None:
    """Begins in cash, nothing held and nothing blocked."""
    begin(s, p, d)
    s.day_equity = p.initial_equity
    s.long_blocked_to = -1
    s.short_blocked_to = -1
    s.reduce_only_to = -1
    s.sharpe_b = d.constants[s.segment, VARIANCE]


def ahead(s: Any, p: Any, d: Any) -> None:
    """Asks for the next bar and what is observed there: copies stand at bars far apart.

    Measured with 2,048 copies a thread: 90 ns a step instead of 105 on 100,000 bars, nothing on
    6,000, which stay in the cache.
    """
    row = s.bar + 1
    prefetch(d.bars, row, 0)
    prefetch_record(d.calendar, row, 0)
    for k in range(0, p.lookback * (p.num_features + CLOCK), 16):  # numbers of a cache line
        prefetch(d.features, row + 1 - p.lookback, k)


# Long: what happens in a bar, in the order in which it happens, stands in one place.
def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    """Moves from bar t to t + 1: the roll, exits at the open, the order, exits in the bar."""
    seen = s.bar
    row = seen + 1
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
        wish = float(int(action[0]) - 1) * p.exposure
    else:
        wish = min(max(float(action[0]), -1.0), 1.0) * p.exposure
    flat = (calendar & FLAT) != 0 or s.breached != 0

    if p.fill_at == SAME_CLOSE:
        mid = d.bars[seen, CLOSE]
        rate = d.bars[seen, RATE_CLOSE]
        spread = 0.5 * d.bars[seen, SPREAD] * p.cost_multiple
        if order(s, p, wish, flat, mid, spread, slip, rate, atr, pip, row):
            s.equity = s.cash + s.units * (mid - s.entry) * rate

    if (calendar & ROLL) != 0:
        if s.units != 0.0 and calendar >= NIGHT:
            _pay_swap(s, p, d.bars[seen, CLOSE], d.bars[seen, RATE_CLOSE], calendar // NIGHT)
        s.day_equity = s.equity
        s.breached = 0

    exit_kind = NO_EXIT
    opened = d.bars[row, OPEN]
    open_rate = d.bars[row, RATE_OPEN]
    if s.units != 0.0:
        exit_kind = exit_at_open(s, p, opened, half_spread, slip, open_rate, row)
    if p.fill_at == NEXT_OPEN and exit_kind == NO_EXIT:
        order(s, p, wish, flat, opened, half_spread, slip, open_rate, atr, pip, row)
    if s.units != 0.0:
        high, low = d.bars[row, HIGH], d.bars[row, LOW]
        exit_kind = exit_in_bar(s, p, opened, high, low, half_spread, slip, open_rate, inverse, row)
    close_rate = d.bars[row, RATE_CLOSE]
    if p.fill_at == NEXT_CLOSE and exit_kind == NO_EXIT:
        order(s, p, wish, flat, close, half_spread, slip, close_rate, atr, pip, row)

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
    keep_score(s, before, equity)

    gain = reward(s, p, d, before, equity)
    if p.turnover_penalty > 0.0:
        gain -= p.turnover_penalty * (s.turnover - turnover)
    if p.holding_penalty > 0.0:
        gain -= p.holding_penalty * abs(s.exposure)
    if p.drawdown_penalty > 0.0:
        gain -= p.drawdown_penalty * s.drawdown
    return gain, terminated, truncated


def _pay_swap(s: Any, p: Any, close: float, rate: float, nights: int) -> None:
    """Book the financing of the nights held, on the notional at the last close before the roll.

    The cost multiple scales what is charged. What is credited is income, and stays.
    """
    per_night = p.swap_long if s.units > 0.0 else p.swap_short
    if per_night < 0.0:
        per_night *= p.cost_multiple
    credit = abs(s.units) * close * rate * per_night * float(nights)
    s.cash += credit
    s.equity += credit
    s.cost_swap -= credit
    s.costs -= credit


def conclude(s: Any, p: Any, d: Any) -> None:
    """Figures of the whole episode; deviation with ddof 1."""
    variance = conclude_score(s, p)
    if variance > 0.0:
        share = 1.0 / float(s.steps)
        s.sharpe = s.return_sum * share / math.sqrt(variance / (1.0 - share))


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    """Writes features of L bars, clock, position, unrealised profit and drawdown.

    Unrealised profit is in ATR, drawdown in ATR times the root of the bars per day.

    Args:
        out: float32 [L F + 4 + (3 if discrete, else 1) + 2 (+ 2)], written, in this order: F
            features of each of L = `lookback` bars, the oldest bar first; the clock of the newest;
            short, flat and long as 0 or 1, or the exposure; unrealised profit; drawdown; and for
            the differential Sharpe ratio its two moments, relative to their scale at the start.
    """
    bar = s.bar
    columns = p.num_features
    older = p.lookback - 1
    for k in range(older):
        for column in range(columns):
            out[k * columns + column] = d.features[bar - older + k, column]
    place = older * columns
    columns += CLOCK  # the newest bar's clock lies beside its features
    for column in range(columns):
        out[place + column] = d.features[bar, column]
    place += columns
    units = s.units
    if p.discrete:
        out[place] = 1.0 if units < 0.0 else 0.0
        out[place + 1] = 1.0 if units == 0.0 else 0.0
        out[place + 2] = 1.0 if units > 0.0 else 0.0
        place += 3
    else:
        out[place] = s.exposure
        place += 1
    atr = d.bars[bar, ATR]
    close = d.bars[bar, CLOSE]
    gain = 0.0
    fall = 0.0
    if atr > 0.0:
        if units > 0.0:
            gain = (close - s.entry) / atr
        elif units < 0.0:
            gain = (s.entry - close) / atr
        fall = s.drawdown * close / (atr * p.day_bars_root)
    out[place] = gain
    out[place + 1] = fall
    if p.reward == DIFFERENTIAL_SHARPE:
        start = d.constants[s.segment, VARIANCE]
        out[place + 2] = s.sharpe_a / math.sqrt(start)
        out[place + 3] = s.sharpe_b / start


def reward(s: Any, p: Any, d: Any, before: float, after: float) -> float:
    """Reward of a step that took equity from `before` to `after`, account currency."""
    if p.reward == PNL:
        return (after - before) / p.initial_equity
    if p.reward == DIFFERENTIAL_SHARPE:
        ret = floored_ratio(after, before, p.initial_equity) - 1.0
        return _differential_sharpe(s, p, ret, d.constants[s.segment, VARIANCE])
    return log_growth(after, before, p.initial_equity)


def _differential_sharpe(s: Any, p: Any, ret: float, start: float) -> float:
    """D = (B dA - A dB / 2) / (B - A^2)^(3/2), Moody and Saffell 2001; updates the moments.

    Args:
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


CLOCK = 4  # sine and cosine of time of day and of day of week
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


def spec(p: Params, d: Data) -> Spec:
    """Spaces, metrics and what reports need; feature columns come with their training moments."""
    bounded = CLOCK + (3 if p.discrete else 1)
    running = [np.nan] * (4 if p.reward == DIFFERENTIAL_SHARPE else 2)
    mean = np.concatenate(
        [np.tile(d.feature_mean[p.scale], p.lookback), np.zeros(bounded), running]
    )
    deviation = np.concatenate(
        [np.tile(d.feature_std[p.scale], p.lookback), np.ones(bounded), running]
    )
    action = spaces.Discrete(3) if p.discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
    return Spec(
        observation=spaces.Box(-np.inf, np.inf, mean.shape, np.float32),
        action=action,
        metrics=_METRICS,
        trace=_TRACE,
        max_episode_steps=None if p.from_start else p.max_steps,
        stagger=not p.from_start,
        scale_reward=True,
        fixed_mean=mean.astype(np.float32),
        fixed_std=deviation.astype(np.float32),
        market=_market(p, d),
    )


def _market(p: Params, d: Data) -> MarketSpec:
    picked = d.segment_symbol[p.first_segment : p.first_segment + p.num_segments]
    symbols = tuple(name_of(d.symbols[index]) for index in dict.fromkeys(picked.tolist()))
    return market_spec(p, d, symbols, COST_FIELDS)


_NO_RULES: dict[str, Any] = {
    "exposure": 1.0,
    "stop_loss": 0.0,
    "take_profit": 0.0,
    "max_daily_drawdown": 0.0,
    "cooldown": 0,
    "stop_cooldown": 0,
}


def market_pass(p: Params, d: Data) -> SymbolPass:
    """What the pass of an evaluation record could trade at, and what that costs."""
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
    mine = d.segment_symbol == d.segment_symbol[p.first_segment]
    return SymbolPass(
        first=first,
        last=last,
        time=d.time,
        close=bars[:, CLOSE],
        mid=mid,
        rate=rate,
        cost=p.cost_multiple * rate * (half + p.slippage_pips * pip + mid * p.commission),
        history=int(d.segments[mine, 0].min()),
        pip=pip,
        plain=p._replace(**_NO_RULES),
        financing=bool(p.swap_long or p.swap_short),
        close_rate=bars[:, RATE_CLOSE],
    )
