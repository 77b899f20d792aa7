"""Invariants for any actions: cash, value, causality, segments, independence of assets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from portfolio_world import BAR, KERNEL, World, build, make_panel, random_panel

from slipstream.kernels.env_checker import allocate_buffers, random_actions
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import member_indices

modes = st.fixed_dictionaries(
    {
        "orders": st.sampled_from(["weights", "weights", "units"]),
        "action_map": st.sampled_from(["softmax", "simplex", "change"]),
        "rebalance_threshold": st.sampled_from([0.0, 0.05, 0.3]),
        "decide_every": st.sampled_from([1, 3]),
        "min_holding": st.sampled_from([0, 4]),
        "cash_reserve": st.sampled_from([0.0, 0.2]),
        "max_position": st.sampled_from([1.0, 0.3]),
        "trailing_stop": st.sampled_from([None, 0.01]),
        "quantity_step": st.sampled_from([0.0, 1e-8, 0.5]),
        "min_notional": st.sampled_from([0.0, 3000.0]),
        "fee": st.sampled_from([0.0, 0.001, 0.02]),
        "fee_tiers": st.sampled_from([(), ((0.0, 0.02), (1e5, 0.001))]),
        "slippage_bp": st.sampled_from([0.0, 7.0]),
        "benchmark_costs": st.booleans(),
        "reward": st.sampled_from(["excess_log_return", "log_return", "excess_value", "mixed"]),
    }
)

OF_WEIGHTS = ("action_map", "rebalance_threshold", "quantity_step", "min_notional")


def options(mode: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A drawn mode as settings; unit orders large enough to be cut by cash."""
    units = {"norm_action": 3e5, "forced_sale_bars": 6, "final_reward": "plain"}
    if mode["orders"] == "weights":
        return {**mode, "initial_equity": 1e5, **more}
    kept = {key: value for key, value in mode.items() if key not in OF_WEIGHTS}
    return {**kept, "initial_equity": 1e5, "units": units, **more}


@settings(max_examples=60, deadline=None)
@given(mode=modes, seed=st.integers(0, 10_000), spread=st.sampled_from([0.0, 0.001]))
def test_cash_stays_and_value_changes_by_prices_minus_costs(
    mode: dict, seed: int, spread: float
) -> None:
    """A start near midnight, so that days and fee tiers change; sold at the end."""
    draw = np.random.default_rng(seed)
    tradable = draw.random((30, 3)) > 0.15
    panel = random_panel(30, 3, seed, tradable=tradable, spread=spread, start=86_400 - 15 * BAR)
    world = World(panel, **options(mode))
    a, ended, action = world.p.assets, False, world.random_action(draw)
    while not ended:
        s, d = world.s, world.d
        if draw.random() < 0.7:
            action = world.random_action(draw)
        units, equity, costs = np.array(s.units), float(s.equity), float(s.costs)
        row = int(s.bar) + 1
        ended = any(world.step(action)[1:])
        prices = d.prices
        before, after = prices[row - 1, :a], prices[row, :a]
        fill = after
        if mode["orders"] == "weights":
            fill = np.where(prices[row, a : 2 * a] > 0.0, prices[row, a : 2 * a], after)
        held = np.array(s.units)
        if ended:  # everything was sold: what was held until then follows from the orders
            held = units.copy()
            moved = float(units @ (fill - before))
            if mode["orders"] == "units":
                assert s.equity - equity == pytest.approx(moved - (s.costs - costs), abs=1e-6)
        else:
            moved = float(units @ (fill - before) + held @ (after - fill))
            assert s.equity - equity == pytest.approx(moved - (s.costs - costs), abs=1e-6)
            assert s.equity == pytest.approx(s.cash + held @ after)
            closed = prices[row, a : 2 * a] <= 0.0
            assert (held[closed] == units[closed]).all()
        assert s.cash >= 0.0 and (np.array(s.units) >= 0.0).all()
        assert s.costs == pytest.approx(s.cost_fee + s.cost_spread + s.cost_slippage)
    assert s.equity == s.cash and not np.any(s.units)


@settings(max_examples=30, deadline=None)
@given(mode=modes, seed=st.integers(0, 10_000))
def test_prices_that_stand_still_earn_minus_the_costs(mode: dict, seed: int) -> None:
    draw = np.random.default_rng(seed)
    world = World(make_panel(np.full((25, 3), [3.0, 40.0, 500.0])), **options(mode))
    ended = False
    while not ended:
        ended = any(world.step(world.random_action(draw))[1:])
        assert world.s.equity == pytest.approx(1e5 - world.s.costs, abs=1e-6)
        assert world.s.equity <= 1e5 + 1e-6


@settings(max_examples=30, deadline=None)
@given(mode=modes, seed=st.integers(0, 10_000))
def test_the_future_changes_nothing_up_to_now(mode: dict, seed: int) -> None:
    first, second = random_panel(40, 3, seed), random_panel(40, 3, seed + 1)
    now = 25
    close, opened = first.close.copy(), first.open.copy()
    close[now + 1 :] = second.close[now + 1 :]
    opened[now + 1 :] = second.open[now + 1 :]
    worlds = [World(panel, **options(mode)) for panel in (first, make_panel(close, opened))]
    draw = np.random.default_rng(0)
    for _ in range(now):
        action = worlds[0].random_action(draw)
        rewards = [world.step(action) for world in worlds]
        assert rewards[0] == rewards[1]
        assert np.array_equal(worlds[0].observe(), worlds[1].observe())


def test_the_reserve_and_the_position_limit_hold_when_all_is_traded() -> None:
    draw = np.random.default_rng(3)
    rules = {
        "rebalance_threshold": 0.0,
        "cash_reserve": 0.2,
        "max_position": 0.4,
        "action_map": "simplex",
    }
    world = World(random_panel(60, 4, 3), "train", **rules)
    for _ in range(40):
        world.step(world.random_action(draw))
        row = int(world.s.bar)
        worth = np.array(world.s.units) * world.d.prices[row, 4:8]  # at the fill
        value = float(world.s.cash + worth.sum())
        assert world.s.cash >= 0.2 * value * (1.0 - 1e-9)
        assert worth.max() <= 0.4 * value * (1.0 + 1e-9) + 1e-6


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_the_order_of_assets_matters_only_where_cash_is_spent_in_order(orders: str) -> None:
    """FC-21. Unit orders that cash cannot pay go to the first assets."""
    panel = random_panel(40, 3, 9)
    swap = np.array([2, 0, 1])
    other = panel._replace(close=panel.close[:, swap], open=panel.open[:, swap])
    rules = {"orders": orders, "min_quantity": 0.0, "initial_equity": 1e5}
    if orders == "units":
        rules["units"] = {"norm_action": 1e6}
    worlds = [World(one, "train", **rules) for one in (panel, other)]
    for world in worlds:
        world.s.bar = 0
    draw = np.random.default_rng(1)
    apart = 0.0
    for _ in range(30):
        action = worlds[0].random_action(draw)
        worlds[0].step(action)
        worlds[1].step(np.concatenate([action[swap], action[3:]]))
        apart = max(apart, abs(worlds[0].s.equity / worlds[1].s.equity - 1.0))
    assert (apart < 1e-9) == (orders == "weights")


def copies(loaded: Any, count: int, seed: int = 4) -> KernelVectorEnv:
    return KernelVectorEnv(KERNEL, loaded, *member_indices([seed], count))


def test_starts_are_spread_and_segments_never_left() -> None:
    """FC-5, CA-2: starts in proportion to valid ones, episodes inside their segment."""
    segments = [[0, 300], [300, 1000]]
    panel = random_panel(1000, 3, 0, segments=segments)
    loaded = build(panel, max_steps=100, lookback=3)
    env = copies(loaded, 300)
    out = allocate_buffers(env)
    env.reset(out.obs)
    bars = env.read(("bar", "segment"))
    first, second = (bars["bar"][bars["segment"] == k] for k in (0, 1))
    # 298 - 100 starts against 698 - 100; a start sees two bars before it.
    assert len(second) / 300 == pytest.approx(598 / 796, abs=0.08)
    assert first.min() >= 2 and first.max() < 200 and second.min() >= 302 and second.max() < 900
    assert len(np.unique(bars["bar"])) > 150
    draw = np.random.default_rng(0)
    edges = np.array(segments)
    for t in range(250):
        before = env.read(("bar", "segment", "steps"))
        env.step(random_actions(env.spec, 300, draw), out, t)
        after = env.read(("bar", "segment", "steps"))
        went = after["steps"] > 0
        assert (after["bar"][went] == before["bar"][went] + 1).all()
        assert (after["segment"][went] == before["segment"][went]).all()
        low, high = edges[after["segment"]].T
        assert ((after["bar"] >= low + 2) & (after["bar"] < high)).all()
    env.drain_final_obs()
    ended = env.drain_episodes()
    assert ended.length.max() == 100


def test_an_episode_that_reaches_the_end_of_its_segment_is_cut_there() -> None:
    env = copies(build(random_panel(60, 3, 0), max_steps=2000), 8)
    out = allocate_buffers(env)
    env.reset(out.obs)
    for t in range(70):
        env.step(np.zeros((8, 4), np.float32), out, t)
        assert not out.terminated.any()
    episodes = env.drain_episodes()
    assert len(episodes.length) >= 8 and episodes.length.max() < 60


def test_running_figures_are_those_of_the_equity_curve() -> None:
    world = World(random_panel(80, 3, 4), rebalance_threshold=0.0)
    draw = np.random.default_rng(4)
    equity, benchmark, exposure, ended = [1e5], [1e5], [], False
    while not ended:
        ended = any(world.step(world.random_action(draw))[1:])
        equity.append(float(world.s.equity))
        benchmark.append(float(world.s.benchmark))
        exposure.append(float(world.s.exposure))
    curve = np.array(equity)
    returns = curve[1:] / curve[:-1] - 1.0
    assert world.s.sharpe == pytest.approx(returns.mean() / returns.std(ddof=1), rel=1e-9)
    assert world.s.total_return == pytest.approx(curve[-1] / 1e5 - 1.0)
    assert world.s.benchmark_return == pytest.approx(benchmark[-1] / 1e5 - 1.0)
    falls = 1.0 - curve / np.maximum.accumulate(curve)
    assert world.s.max_drawdown == pytest.approx(falls.max())
    assert world.s.mean_exposure == pytest.approx(np.mean(exposure))


def test_observations_are_features_weights_and_cash() -> None:
    world = World(random_panel(30, 2, 1), lookback=2, fee=0.0, sharpness=5.0)
    assert world.observe().shape == (2 * 2 * 2 + 3,)
    world.step([1.0, -1.0, -1.0])
    row, bar = world.observe(), int(world.s.bar)
    features = world.d.features[:, :4]
    assert np.array_equal(row[:8], np.concatenate([features[bar], features[bar - 1]]))
    assert row[8:].sum() == pytest.approx(1.0, abs=1e-6) and row[8] > 0.99


def test_different_actions_give_different_trajectories() -> None:
    ends = set()
    for asset in range(3):
        world = World(random_panel(30, 3, 5))
        action = np.full(4, -1.0)
        action[asset] = 1.0
        for _ in range(20):
            world.step(action)
        ends.add(float(world.s.equity))
    assert len(ends) == 3
