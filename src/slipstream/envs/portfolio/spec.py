"""The outside of the portfolio environment: spaces, metrics, and what reports need to know."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from slipstream.core.spec import Metric, Spec
from slipstream.envs._market import market_spec, name_of
from slipstream.envs.portfolio.record import Data, Params

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
    whole = p.evaluation or p.from_start
    return Spec(
        observation=spaces.Box(-np.inf, np.inf, mean.shape, np.float32),
        action=spaces.Box(-1.0, 1.0, (actions,), np.float32),
        metrics=_METRICS,
        trace=_TRACE,
        max_episode_steps=None if whole else p.max_steps,
        stagger=not whole,
        scale_reward=True,
        fixed_mean=mean.astype(np.float32),
        fixed_std=deviation.astype(np.float32),
        market=market_spec(p, d, names_of(d), COST_FIELDS),
    )


def names_of(d: Data) -> tuple[str, ...]:
    """The assets' names."""
    return tuple(name_of(codes) for codes in d.symbols)
