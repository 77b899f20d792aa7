"""Rewards of the portfolio environment: docs/rules.md, sections 8 and 10, and Cappuccino's."""

from __future__ import annotations

import math
from typing import Any

from slipstream.envs._market import log_growth
from slipstream.envs.portfolio.record import EXCESS_LOG_RETURN, LOG_RETURN, MIXED

_LARGEST_WEIGHT = 0.4  # of one asset, from which concentration costs
_ACTIVE = 0.01  # smallest weight of an asset that counts as held
_FEWEST = 3  # active assets below which concentration costs
_EVEN = 0.4  # Gini coefficient below which evenness pays


def reward(s: Any, p: Any, d: Any, row: int, before: float, benchmark_before: float) -> float:
    """Reward of the step into bar `row`, after equity and benchmark were marked there.

    Args:
        before, benchmark_before: values at the bar before, account currency.
    """
    gain = 0.0
    if p.reward == EXCESS_LOG_RETURN:
        gain = log_growth(s.equity, before, p.initial_equity)
        gain -= log_growth(s.benchmark, benchmark_before, p.initial_equity)
    elif p.reward == LOG_RETURN:
        gain = log_growth(s.equity, before, p.initial_equity)
    else:
        market = s.benchmark - benchmark_before
        gain = (s.equity - before - market) * p.norm_reward
        if p.reward == MIXED:
            gain = 0.5 * gain + 0.3 * (s.equity - before) / p.initial_equity * p.norm_reward
    if p.time_decay_floor < 1.0:
        gain *= max(1.0 - float(s.steps) / _length(s, p), p.time_decay_floor)
    if p.reward == MIXED:
        gain += _mixed_cash(s, p, benchmark_before)
    if p.concentration_penalty > 0.0:
        gain -= p.concentration_penalty * _concentration(s, p, d, row)
    if p.drawdown_penalty > 0.0:
        gain -= p.drawdown_penalty * s.drawdown
    if p.volatility_penalty > 0.0:
        gain -= p.volatility_penalty * _deviation(s)
    return gain


def _length(s: Any, p: Any) -> float:
    """Bars over which rewards decay: of a training episode, or of the window."""
    if p.evaluation or p.from_start:
        return float(max(s.last - s.bar + s.steps, 1))
    return float(p.max_steps)


def _mixed_cash(s: Any, p: Any, benchmark_before: float) -> float:
    """Pays for cash while the market falls, and charges for what the reserve lacks."""
    gain = 0.0
    share = s.cash / s.equity if s.equity > 0.0 else 0.0
    if benchmark_before > 0.0 and s.benchmark < benchmark_before and share > 0.1:
        fall = 1.0 - s.benchmark / benchmark_before
        gain = 0.2 * 0.1 * fall * share * p.norm_reward
    lacking = p.reserve - s.cash / p.initial_equity
    if p.reserve > 0.0 and lacking > 0.0:
        gain -= 0.5 * lacking * p.norm_reward
    return gain


def _concentration(s: Any, p: Any, d: Any, row: int) -> float:
    """Weight above 0.4 in one asset, half for every active asset too few, less for evenness."""
    if s.equity <= 0.0:
        return 0.0
    share = 1.0 / s.equity
    largest = 0.0
    total = 0.0
    active = 0
    for i in range(p.assets):
        weight = s.units[i] * d.prices[row, i] * share
        largest = max(largest, weight)
        if weight > _ACTIVE:
            active += 1
            total += weight
    value = max(largest - _LARGEST_WEIGHT, 0.0)
    if active < _FEWEST:
        return value + 0.5 * float(_FEWEST - active)
    apart = 0.0  # sum over all ordered pairs of active assets
    for i in range(p.assets):
        weight = s.units[i] * d.prices[row, i] * share
        if weight > _ACTIVE:
            for j in range(p.assets):
                other = s.units[j] * d.prices[row, j] * share
                if other > _ACTIVE:
                    apart += abs(weight - other)
    gini = apart / (2.0 * float(active) * total)
    return value - 0.1 * max(_EVEN - gini, 0.0)


def _deviation(s: Any) -> float:
    """Standard deviation of the episode's simple returns per bar so far (ddof 1)."""
    if s.steps < 2:
        return 0.0
    count = float(s.steps)
    mean = s.return_sum / count
    variance = (s.return_square_sum / count - mean * mean) * count / (count - 1.0)
    return math.sqrt(max(variance, 0.0))
