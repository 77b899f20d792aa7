"""Invariants for any actions: money changes only by prices and costs."""

from __future__ import annotations

import numpy as np
import pytest
from forex_world import World, flat_bar, random_bars
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.markets.forex.forex_state import CLOSE, OPEN, RATE_CLOSE

FILLS = ("next_open", "next_close", "compat_same_close")
modes = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["discrete", "continuous"]),
        "fill": st.sampled_from(FILLS),
        "slippage_pips": st.sampled_from([0.0, 0.4]),
        "commission_per_million": st.sampled_from([0.0, 60.0]),
        "exposure": st.sampled_from([0.7, 1.0, 3.0]),
        "max_exposure": st.sampled_from([0.7, 3.0]),
        "cooldown": st.sampled_from([0, 2]),
        "leverage": st.just(500.0),
    }
)


def random_action(world: World, draw: np.random.Generator) -> float:
    discrete = world.config.action == "discrete"
    return int(draw.integers(3)) if discrete else float(draw.uniform(-1.2, 1.2))


@settings(max_examples=25, deadline=None)
@given(mode=modes, seed=st.integers(0, 10_000))
def test_equity_changes_by_price_moves_minus_costs(mode: dict, seed: int) -> None:
    draw = np.random.default_rng(seed)
    bars = [bar._replace(flag=0, rate_open=1.0, rate_close=1.0) for bar in random_bars(40, seed)]
    world = World(bars, **mode).begin_at(0)
    for row in range(1, len(bars)):
        s, d = world.s, world.d
        units, equity, costs = float(s.units), float(s.equity), float(s.costs)
        world.step(random_action(world, draw))
        before, opened, after = d.bars[row - 1, CLOSE], d.bars[row, OPEN], d.bars[row, CLOSE]
        turn = {"next_open": opened, "next_close": after, "compat_same_close": before}[mode["fill"]]
        moves = units * (turn - before) + s.units * (after - turn)
        assert s.equity - equity == pytest.approx(moves - (s.costs - costs), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(mode=modes, seed=st.integers(0, 10_000), stop=st.sampled_from([None, 8.0]))
def test_equity_is_cash_plus_the_marked_position(mode: dict, seed: int, stop: float | None) -> None:
    draw = np.random.default_rng(seed)
    bars = random_bars(40, seed)
    world = World(bars, stop_loss=stop, take_profit=stop, swap_long=-4.0, **mode).begin_at(0)
    for row in range(1, len(bars)):
        ended = any(world.step(random_action(world, draw))[1:])
        s, bar = world.s, world.d.bars[row]
        marked = s.units * (bar[CLOSE] - s.entry) * bar[RATE_CLOSE]
        assert s.equity == pytest.approx(s.cash + marked, abs=1e-9 * 1e5)
        if s.units == 0.0:
            assert s.equity == s.cash
        if ended:
            break


@settings(max_examples=25, deadline=None)
@given(mode=modes, seed=st.integers(0, 10_000), spread=st.sampled_from([0.0, 0.0003]))
def test_trading_on_prices_that_stand_still_earns_minus_the_costs(
    mode: dict, seed: int, spread: float
) -> None:
    """Opening a position earns nothing, short no more than long."""
    draw = np.random.default_rng(seed)
    world = World([flat_bar(1.25, spread=spread)] * 30, **mode)
    while world.s.bar < world.s.last:
        world.step(random_action(world, draw))
        assert world.s.equity == pytest.approx(1e5 - world.s.costs, abs=1e-6)
        assert world.s.equity <= 1e5 + 1e-6


@pytest.mark.parametrize("action", [0, 2])
def test_ending_in_a_position_equals_closing_it_at_the_last_price(action: int) -> None:
    bars = [bar._replace(flag=0, rate_open=1.0, rate_close=1.0) for bar in random_bars(12, 3)]
    bars[-1] = flat_bar(bars[-2].close, spread=bars[-2].spread)
    costs = {"slippage_pips": 0.3, "commission_per_million": 40.0}
    ended = World(bars[:-1], evaluation=True, **costs).begin_at(0)
    covered = World(bars, **costs).begin_at(0)
    for _ in range(10):
        ended.step(action)
        covered.step(action)
    covered.step(1)
    assert ended.s.equity == pytest.approx(covered.s.equity, abs=1e-6)
    assert ended.s.units == covered.s.units == 0.0


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("action", ["discrete", "continuous"])
def test_the_future_changes_nothing_up_to_now(fill: str, action: str) -> None:
    bars = random_bars(40, 11)
    now = 25
    other = [*bars[: now + 1], *random_bars(40, 12, price=bars[now].close)[now + 1 :]]
    rules = {"fill": fill, "action": action, "stop_loss": 15.0, "max_daily_drawdown": 0.01}
    first, second = (World(b, **rules).begin_at(0) for b in (bars, other))
    draw = np.random.default_rng(0)
    for _ in range(now):
        wish = random_action(first, draw)
        assert first.step(wish) == second.step(wish)
        assert np.array_equal(first.observe(), second.observe())


def test_different_actions_give_different_trajectories() -> None:
    bars = random_bars(30, 5)
    ends = set()
    for action in (0, 1, 2):
        world = World(bars).begin_at(0)
        for _ in range(29):
            world.step(action)
        ends.add(float(world.s.equity))
    assert len(ends) == 3


def test_running_figures_are_those_of_the_equity_curve() -> None:
    draw = np.random.default_rng(4)
    world = World(random_bars(80, 4), slippage_pips=0.3).begin_at(0)
    equity = [1e5]
    for _ in range(79):
        world.step(random_action(world, draw))
        equity.append(float(world.s.equity))
    curve = np.array(equity)
    returns = curve[1:] / curve[:-1] - 1.0
    assert world.s.sharpe == pytest.approx(returns.mean() / returns.std(ddof=1), rel=1e-9)
    assert world.s.total_return == pytest.approx(curve[-1] / 1e5 - 1.0)
    falls = 1.0 - curve / np.maximum.accumulate(curve)
    assert world.s.max_drawdown == pytest.approx(falls.max())
    assert world.s.drawdown == pytest.approx(falls[-1])
    still = World([flat_bar(1.0)] * 5)
    still.step(1)
    still.step(1)
    assert still.s.sharpe == 0.0


def test_observation_scales() -> None:
    """Position one-hot, unrealised profit in ATR with its sign, drawdown in a day's ATR."""
    bars = [flat_bar(1.0), flat_bar(1.0), flat_bar(0.99, atr=0.002), flat_bar(0.99)]
    world = World(bars)
    world.step(0)
    world.step(0)
    short = world.observe()
    assert short[5:8].tolist() == [1.0, 0.0, 0.0]
    assert short[8] == pytest.approx(5.0, rel=1e-5) and short[9] == 0.0
    world = World(bars)
    world.step(2)
    world.step(2)
    long = world.observe()
    assert long[5:8].tolist() == [0.0, 0.0, 1.0]
    assert long[8] == pytest.approx(-5.0, rel=1e-5)
    assert long[9] == pytest.approx(0.01 * 0.99 / (0.002 * np.sqrt(96.0)), rel=1e-5)
    world = World(bars, action="continuous", reward="differential_sharpe", max_exposure=2.0)
    world.step(-0.5)
    row = world.observe()
    assert row.shape == (1 + 4 + 1 + 2 + 2,)
    assert row[5] == pytest.approx(-1.0)
    assert row[8:] == pytest.approx([0.0, 1.0 - 1.0 / 96.0], abs=1e-6)
