"""Portfolio environment: all assets in one account, on real bars, with an equal-weight benchmark.

The agent observes the complete bar t. Target weights fill at the open of the next bar, unit orders
at its close, and equity is marked at that close. Orders and their costs are in `orders`, arrays and
state in `portfolio_state`, loading in `portfolio_loader`. Spaces and metrics come last in this
file. Rewards are those of docs/explanation/market-rules.md, sections 8 and 10, and Cappuccino's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.jit.alignment import prefetch_element
from slipstream.kernels.spec import EnvSpec, Metric
from slipstream.markets.backtest_spec import PortfolioBacktestSpec
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.orders import (
    fee_rate,
    init_volumes,
    record_step_costs,
    sell,
    trade_to_weights,
    trade_units,
)
from slipstream.markets.portfolio.portfolio_loader import (
    load,
    load_folds,
    load_window,
    timeline,
    with_params,
)
from slipstream.markets.portfolio.portfolio_state import (
    CHANGE,
    EXCESS_LOG_RETURN,
    LOG_RETURN,
    MIXED,
    SIMPLEX,
    STATE,
    Data,
    Params,
)
from slipstream.markets.shared_rules import (
    decode_symbols,
    finalize_metrics,
    log_growth,
    market_spec,
    start_episode,
    update_metrics,
)

# Chosen on two kinds of synthetic markets, regimes of 288 bars and edges of one bar (table in
# docs/explanation/fees-and-exploration.md). The horizon of the advantage matters most: later
# rewards are noise for an edge of one bar, and a longer regime also pays in the next bar.
DEFAULT_HYPERPARAMS = {
    "ppo": {
        "agent": {
            "n_steps": 256,
            "batch_size": 256,
            "n_epochs": 4,
            "learning_rate": 3e-4,
            "gamma": 0.8,
            "gae_lambda": 0.3,
        },
        "training": {"num_envs": 12, "total_timesteps": 100_000},
    },
    # SAC learns less than PPO here (docs/explanation/agent-defaults.md).
    "sac": {
        "agent": {
            "net_arch": [64, 64],
            "gamma": 0.8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "utd_ratio": 0.125,
            "init_ent_coef": 0.05,
        },
        "training": {"num_envs": 1, "total_timesteps": 100_000},
    },
}


def reset(s: Any, p: Any, d: Any) -> None:
    """Start an episode in cash, with a benchmark that buys the listed assets."""
    start_episode(s, p, d)
    s.last -= p.early_end
    s.benchmark = p.initial_equity
    s.benchmark_cash = p.initial_equity
    if p.benchmark_costs:
        _allocate_benchmark(s, p, d)
    else:
        _buy_free_benchmark(s, p, d, s.bar - p.anchor_back)
    if p.tiered:
        init_volumes(s, p, d, s.bar + 1)


def prefetch(s: Any, p: Any, d: Any) -> None:
    """Prefetch the next bar, since environments are at distant bars and each is read from memory.

    With 4,096 environments, a step spends more time waiting for memory than computing.
    """
    row = s.bar + 1
    for k in range(0, 3 * len(s.units), 8):  # floats per cache line
        prefetch_element(d.prices, row, k)
    for k in range(0, p.num_features, 16):
        prefetch_element(d.features, row, k)


def _buy_free_benchmark(s: Any, p: Any, d: Any, row: int) -> None:
    """Invest equal capital in every asset listed at `row`, at its close."""
    listed = 0
    for i in range(p.assets):
        if d.prices[row, i] > 0.0:
            listed += 1
    if listed == 0:
        return
    capital = p.initial_equity / float(listed)
    value = 0.0
    for i in range(p.assets):
        if d.prices[row, i] > 0.0:
            s.benchmark_units[i] = capital / d.prices[row, i]
            value += s.benchmark_units[i] * d.prices[s.bar, i]
    s.benchmark_cash = 0.0
    s.benchmark = value


def _allocate_benchmark(s: Any, p: Any, d: Any) -> None:
    """Reserve equal capital for each asset listed at the start; assets listed later get none."""
    listed = 0
    for i in range(p.assets):
        if d.prices[s.bar, i] > 0.0:
            listed += 1
    s.benchmark_waiting = listed
    if listed > 0:
        capital = p.initial_equity * (1.0 - p.cash_reserve) / float(listed)
        for i in range(p.assets):
            s.benchmark_share[i] = capital if d.prices[s.bar, i] > 0.0 else 0.0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    """Advance from bar t to t + 1: delistings, orders, purchases of the benchmark, marking."""
    row = s.bar + 1
    s.bar = row
    before = s.equity
    benchmark_before = s.benchmark
    fee = fee_rate(s, p, d, row)
    if p.union:
        _sell_delisted(s, p, d, row, fee)
    if p.unit_orders:
        trade_units(s, action, p, d, row, fee)
    else:
        trade_to_weights(s, action, p, d, row, fee)
    if s.benchmark_waiting > 0:
        _buy_benchmark(s, p, d, row, fee)
    held = 0.0
    market = 0.0
    for i in range(len(s.units)):
        held += s.units[i] * d.prices[row, i]
        market += s.benchmark_units[i] * d.prices[row, i]
    if p.trailing_stop > 0.0:
        for i in range(p.assets):
            s.high[i] = max(s.high[i], d.prices[row, i]) if s.units[i] > 0.0 else 0.0
    s.equity = s.cash + held
    s.benchmark = s.benchmark_cash + market
    ended = row >= s.last
    if ended and p.sells_at_end:
        _liquidate(s, p, d, row, fee)
        held = 0.0
    if s.traded > 0.0:
        record_step_costs(s, p, before, fee)
    s.exposure = held / s.equity if s.equity > 0.0 else 0.0
    s.exposure_sum += s.exposure
    update_metrics(s, before, s.equity)
    gain = reward(s, p, d, row, before, benchmark_before)
    terminated = False
    if p.discounted_end:
        s.discounted = s.discounted * p.gamma + gain
        if ended:
            gain = s.discounted
            terminated = True
    return gain, terminated, ended and not terminated


def _sell_delisted(s: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Sell delisted assets at their last close, in the account and in the benchmark."""
    n = p.assets
    for i in range(n):
        if d.prices[row, i] > 0.0:
            continue
        price = d.prices[row - 1, i]
        spread = d.prices[row - 1, 2 * n + i] * p.cost_multiple
        adverse = spread + p.slippage * p.cost_multiple * price
        if s.units[i] > 0.0:
            sell(s, p, i, s.units[i], price, spread, fee)
        if s.benchmark_share[i] > 0.0:  # never traded: its share remains in cash
            s.benchmark_share[i] = 0.0
            s.benchmark_waiting -= 1
        if s.benchmark_units[i] > 0.0:
            cost = fee * price + adverse if p.benchmark_costs else 0.0
            s.benchmark_cash += s.benchmark_units[i] * (price - cost)
            s.benchmark_costs += s.benchmark_units[i] * cost
            s.benchmark_units[i] = 0.0


def _buy_benchmark(s: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Buy each benchmark asset with its share of the capital, at its first tradable fill.

    The share includes the costs. A gap at the first bar must not leave the benchmark in cash
    (docs/explanation/market-rules.md, section 10).
    """
    n = p.assets
    for i in range(n):
        if s.benchmark_share[i] > 0.0 and d.prices[row, n + i] > 0.0:
            price = d.prices[row, i] if p.unit_orders else d.prices[row, n + i]
            spread = d.prices[row, 2 * n + i] * p.cost_multiple
            cost = fee * price + spread + p.slippage * p.cost_multiple * price
            s.benchmark_units[i] = s.benchmark_share[i] / (price + cost)
            s.benchmark_costs += s.benchmark_units[i] * cost
            s.benchmark_cash -= s.benchmark_share[i]
            s.benchmark_share[i] = 0.0
            s.benchmark_waiting -= 1


def _liquidate(s: Any, p: Any, d: Any, row: int, fee: float) -> None:
    """Sell everything at the last close; the benchmark pays the same costs."""
    n = p.assets
    for i in range(n):
        price = d.prices[row, i]
        spread = d.prices[row, 2 * n + i] * p.cost_multiple
        adverse = spread + p.slippage * p.cost_multiple * price
        if s.units[i] > 0.0:
            sell(s, p, i, s.units[i], price, spread, fee)
        if p.benchmark_costs:
            cost = s.benchmark_units[i] * (fee * price + adverse)
            s.benchmark -= cost
            s.benchmark_costs += cost
    s.equity = s.cash


def finalize_episode(s: Any, p: Any, d: Any) -> None:
    """Compute the metrics of the whole episode; standard deviation with ddof 1."""
    s.benchmark_return = s.benchmark / p.initial_equity - 1.0
    variance = finalize_metrics(s, p)
    if variance > 0.0:
        share = 1.0 / float(s.steps)
        s.sharpe = s.return_sum * share * math.sqrt((1.0 - share) / variance)


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    """Write the observation.

    Target weights: features, newest bar first, then weights and the cash share of equity. Unit
    orders: cash, coins and features, each with its factor. With `union`, one flag per asset that
        has a bar now
    follows (whether a missing asset returns is not known yet). If not every bar decides, the
    elapsed fraction of the decision interval follows.
    """
    n = len(s.units)
    bar = s.bar
    offset = 0
    if p.unit_orders:
        out[0] = s.cash * p.norm_cash
        for i in range(n):
            out[1 + i] = s.units[i] * p.norm_stocks
        offset = 1 + n
    columns = p.num_features
    factor = p.norm_features
    for k in range(p.lookback):
        row = d.features[bar - k]
        part = out[offset : offset + columns]  # indexed from 0, so that it is vectorised
        if factor == 1.0:
            for column in range(columns):
                part[column] = row[column]
        else:
            for column in range(columns):
                part[column] = float(row[column]) * factor
        offset += columns
    if not p.unit_orders:
        share = 1.0 / s.equity if s.equity > 0.0 else 0.0
        for i in range(n):
            out[offset + i] = s.units[i] * d.prices[bar, i] * share
        out[offset + n] = s.cash * share
        offset += n + 1
    if p.union:
        for i in range(n):
            out[offset + i] = 1.0 if d.prices[bar, n + i] > 0.0 else 0.0
        offset += n
    if p.decide_every > 1:
        out[offset] = float(s.steps % p.decide_every) / float(p.decide_every)


_MAX_WEIGHT = 0.4  # weight of one asset above which concentration is penalised
_MIN_ACTIVE_WEIGHT = 0.01  # smallest weight of an active asset
_MIN_ACTIVE_ASSETS = 3  # number of active assets below which concentration is penalised
_EVEN_GINI = 0.4  # Gini coefficient below which evenness is rewarded


def reward(s: Any, p: Any, d: Any, row: int, before: float, benchmark_before: float) -> float:
    """Return the reward of the step into bar `row`, after equity and benchmark were marked there.

    Args:
        s, p, d: state, params and data.
        row: the bar entered.
        before, benchmark_before: values at the previous bar, account currency.
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
        gain *= max(1.0 - float(s.steps) / _decay_bars(s, p), p.time_decay_floor)
    if p.reward == MIXED:
        gain += _mixed_cash_reward(s, p, benchmark_before)
    if p.concentration_penalty > 0.0:
        gain -= p.concentration_penalty * _concentration(s, p, d, row)
    if p.drawdown_penalty > 0.0:
        gain -= p.drawdown_penalty * s.drawdown
    if p.volatility_penalty > 0.0:
        gain -= p.volatility_penalty * _return_deviation(s)
    return gain


def _decay_bars(s: Any, p: Any) -> float:
    """Return the number of bars over which rewards decay: a training episode, or the window."""
    if p.from_start:
        return float(max(s.last - s.bar + s.steps, 1))
    return float(p.max_steps)


def _mixed_cash_reward(s: Any, p: Any, benchmark_before: float) -> float:
    """Reward cash while the market falls, and penalise cash below the reserve."""
    gain = 0.0
    share = s.cash / s.equity if s.equity > 0.0 else 0.0
    if benchmark_before > 0.0 and s.benchmark < benchmark_before and share > 0.1:
        fall = 1.0 - s.benchmark / benchmark_before
        gain = 0.2 * 0.1 * fall * share * p.norm_reward
    lacking = p.cash_reserve - s.cash / p.initial_equity
    if p.cash_reserve > 0.0 and lacking > 0.0:
        gain -= 0.5 * lacking * p.norm_reward
    return gain


def _concentration(s: Any, p: Any, d: Any, row: int) -> float:
    """Return the penalty: weight above 0.4, 0.5 per missing active asset, less for evenness."""
    if s.equity <= 0.0:
        return 0.0
    share = 1.0 / s.equity
    largest = 0.0
    total = 0.0
    active = 0
    for i in range(p.assets):
        weight = s.units[i] * d.prices[row, i] * share
        largest = max(largest, weight)
        if weight > _MIN_ACTIVE_WEIGHT:
            active += 1
            total += weight
    value = max(largest - _MAX_WEIGHT, 0.0)
    if active < _MIN_ACTIVE_ASSETS:
        return value + 0.5 * float(_MIN_ACTIVE_ASSETS - active)
    distance = 0.0  # sum over all ordered pairs of active assets
    for i in range(p.assets):
        weight = s.units[i] * d.prices[row, i] * share
        if weight > _MIN_ACTIVE_WEIGHT:
            for j in range(p.assets):
                other = s.units[j] * d.prices[row, j] * share
                if other > _MIN_ACTIVE_WEIGHT:
                    distance += abs(weight - other)
    gini = distance / (2.0 * float(active) * total)
    return value - 0.1 * max(_EVEN_GINI - gini, 0.0)


def _return_deviation(s: Any) -> float:
    """Return the standard deviation (ddof 1) of the episode's simple returns per bar so far."""
    if s.steps < 2:
        return 0.0
    count = float(s.steps)
    mean = s.return_sum / count
    variance = (s.return_square_sum / count - mean * mean) * count / (count - 1.0)
    return math.sqrt(max(variance, 0.0))


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


def spec(p: Params, d: Data) -> EnvSpec:
    """Return spaces, metrics and market metadata; feature columns carry their training moments."""
    mean = np.tile(d.feature_mean[p.scaling], p.lookback)
    deviation = np.tile(d.feature_std[p.scaling], p.lookback)
    if p.unit_orders:  # scaled by the original's factors
        width = 1 + p.assets + len(mean)
        mean, deviation = np.zeros(width), np.ones(width)
    else:
        mean = np.concatenate([mean, np.zeros(p.assets + 1)])
        deviation = np.concatenate([deviation, np.ones(p.assets + 1)])
    num_extra = p.assets * p.union + (p.decide_every > 1)
    mean = np.concatenate([mean, np.zeros(num_extra)])
    deviation = np.concatenate([deviation, np.ones(num_extra)])
    actions = p.assets if p.unit_orders else p.assets + 1
    return EnvSpec(
        observation_space=spaces.Box(-np.inf, np.inf, mean.shape, np.float32),
        action_space=spaces.Box(-1.0, 1.0, (actions,), np.float32),
        metrics=_METRICS,
        trace=_TRACE,
        max_episode_steps=None if p.from_start else p.max_steps,
        stagger_episodes=not p.from_start,
        scale_reward=True,
        fixed_mean=mean.astype(np.float32),
        fixed_std=deviation.astype(np.float32),
        market=market_spec(p, d, decode_symbols(d), COST_FIELDS),
    )


_NO_RULES: dict[str, Any] = {
    "unit_orders": False,
    "action_map": SIMPLEX,
    "rebalance_threshold": 0.0,
    "decide_every": 1,
    "min_holding": 0,
    "max_position": 1.0,
    "trailing_stop": 0.0,
}


def backtest_spec(p: Params, d: Data) -> PortfolioBacktestSpec:
    """Return the fill prices and costs of an evaluation pass."""
    start, stop = d.segments[p.first_segment]
    first, last, n = int(start), int(stop) - 1 - p.early_end, p.assets
    close, open_prices = d.prices[:, :n], d.prices[:, n : 2 * n]
    followed = p._replace(**_NO_RULES)
    tier = int(np.searchsorted(d.fee_tiers[:, 0], p.start_volume, side="right")) - 1
    flat = np.zeros(n + (not p.unit_orders), np.float32)
    if not (p.unit_orders or p.action_map == CHANGE):
        flat[:], flat[-1] = -1.0, 1.0
    return PortfolioBacktestSpec(
        names=decode_symbols(d),
        first=first,
        last=last,
        time=d.time,
        close=close,
        opened=open_prices,
        fill=close if p.unit_orders else np.where(open_prices > 0.0, open_prices, close),
        half_spread=d.prices[:, 2 * n : 3 * n],
        initial_equity=p.initial_equity,
        fee=float(d.fee_tiers[0, 1]) if p.tiered else p.fee,
        start_fee=float(d.fee_tiers[tier, 1]),
        slippage=p.slippage,
        cost_multiple=p.cost_multiple,
        cash_reserve=p.cash_reserve,
        cash_action=flat,
        weights_params=followed,
        buy_and_hold_params=followed._replace(min_holding=last - first + 1, cash_reserve=0.0),
        # With volume-dependent fees or a cash reserve, mixed portfolios can be better. With a union
        # universe, assets are sold at times that no plan can anticipate.
        is_corner_optimal=not (p.tiered or p.cash_reserve > 0.0 or p.union),
    )
