"""The outside of the portfolio environment: spaces, metrics, and what reports need to know."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.kernels.spec import Metric, Spec
from slipstream.markets.market_pass import PortfolioPass
from slipstream.markets.portfolio.record import CHANGE, SIMPLEX, Data, Params
from slipstream.markets.shared_rules import market_spec, names_of

COST_FIELDS = ("cost_fee", "cost_spread", "cost_slippage")
_TRACE = ("bar", "equity", "benchmark", "exposure", "cash", "units", *COST_FIELDS, "fills")
_METRICS = (
    Metric("total_return", "fraction"),
    Metric("benchmark_return", "fraction"),
    Metric("max_drawdown", "fraction"),
    Metric("turnover", "equity"),
    Metric("sharpe", "per bar"),
    Metric("trades", "count"),
    Metric("fills", "count"),
    Metric("costs", "account currency"),
    Metric("mean_exposure", "equity"),
    Metric("cost_fee", "account currency"),
    Metric("cost_spread", "account currency"),
    Metric("cost_slippage", "account currency"),
    Metric("benchmark_costs", "account currency"),
)


def spec(p: Params, d: Data) -> Spec:
    """Spaces, metrics and what reports need; feature columns come with their training moments."""
    mean = np.tile(d.feature_mean[p.scale], p.lookback)
    deviation = np.tile(d.feature_std[p.scale], p.lookback)
    if p.unit_orders:  # the original's factors are the scale
        width = 1 + p.assets + len(mean)
        mean, deviation = np.zeros(width), np.ones(width)
    else:
        mean = np.concatenate([mean, np.zeros(p.assets + 1)])
        deviation = np.concatenate([deviation, np.ones(p.assets + 1)])
    more = p.assets * p.union + (p.decide_every > 1)
    mean = np.concatenate([mean, np.zeros(more)])
    deviation = np.concatenate([deviation, np.ones(more)])
    actions = p.assets if p.unit_orders else p.assets + 1
    return Spec(
        observation=spaces.Box(-np.inf, np.inf, mean.shape, np.float32),
        action=spaces.Box(-1.0, 1.0, (actions,), np.float32),
        metrics=_METRICS,
        trace=_TRACE,
        max_episode_steps=None if p.from_start else p.max_steps,
        stagger=not p.from_start,
        scale_reward=True,
        fixed_mean=mean.astype(np.float32),
        fixed_std=deviation.astype(np.float32),
        market=market_spec(p, d, names_of(d), COST_FIELDS),
    )


_NO_RULES: dict[str, Any] = {
    "unit_orders": False,
    "action_map": SIMPLEX,
    "band": 0.0,
    "decide_every": 1,
    "min_holding": 0,
    "max_position": 1.0,
    "trailing_stop": 0.0,
}


def market_pass(p: Params, d: Data) -> PortfolioPass:
    """What the pass of an evaluation record could trade at, and what that costs."""
    start, stop = d.segments[p.first_segment]
    first, last, n = int(start), int(stop) - 1 - p.early_end, p.assets
    close, opened = d.prices[:, :n], d.prices[:, n : 2 * n]
    followed = p._replace(**_NO_RULES)
    tier = int(np.searchsorted(d.fee_tiers[:, 0], p.start_volume, side="right")) - 1
    flat = np.zeros(n + (not p.unit_orders), np.float32)
    if not (p.unit_orders or p.action_map == CHANGE):
        flat[:], flat[-1] = -1.0, 1.0
    return PortfolioPass(
        names=names_of(d),
        first=first,
        last=last,
        time=d.time,
        close=close,
        opened=opened,
        fill=close if p.unit_orders else np.where(opened > 0.0, opened, close),
        half_spread=d.prices[:, 2 * n : 3 * n],
        initial_equity=p.initial_equity,
        fee=float(d.fee_tiers[0, 1]) if p.tiered else p.fee,
        start_fee=float(d.fee_tiers[tier, 1]),
        slippage=p.slippage,
        cost_multiple=p.cost_multiple,
        reserve=p.reserve,
        flat=flat,
        followed=followed,
        held=followed._replace(min_holding=last - first + 1, reserve=0.0),
        # Fees that follow volume, and a reserve, make mixes better; assets that come and go are
        # sold at times that no plan sees.
        corner=not (p.tiered or p.reserve > 0.0 or p.union),
    )
