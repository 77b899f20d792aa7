"""The outside of the forex environment: spaces, metrics, and what reports need to know."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.kernels.spec import MarketSpec, Metric, Spec
from slipstream.markets.forex.record import (
    CLOSE,
    DIFFERENTIAL_SHARPE,
    NEXT_CLOSE,
    NEXT_OPEN,
    OPEN,
    PIP,
    RATE_CLOSE,
    RATE_OPEN,
    SPREAD,
    Data,
    Params,
)
from slipstream.markets.market_pass import SymbolPass
from slipstream.markets.shared_rules import market_spec, name_of

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
