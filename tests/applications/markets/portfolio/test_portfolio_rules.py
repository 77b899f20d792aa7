"""Hand-computed cases of the portfolio's rules: weights, costs, options, the benchmark."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from portfolio_world import BAR, World, build, make_panel

from slipstream.core.errors import ConfigError
from slipstream.markets.portfolio import kernel as portfolio
from slipstream.markets.portfolio.kernel import reward
from slipstream.markets.portfolio.orders import fee_rate

E0 = 100_000.0
EXACT = {
    "action_map": "simplex",
    "rebalance_threshold": 0.0,
    "min_notional": 0.0,
    "quantity_step": 0.0,
}
DAY = 86_400


def flat(rows: int = 6, assets: int = 2, price: float = 10.0) -> Any:
    return make_panel(np.full((rows, assets), price))


def shares(world: World) -> list[float]:
    """Weights of all assets at the last close."""
    closes = world.d.prices[world.s.bar, : world.p.assets]
    return [float(u * c / world.s.equity) for u, c in zip(world.s.units, closes, strict=True)]


def test_targets_fill_at_the_next_open_and_hold_after_costs() -> None:
    panel = make_panel([[10.0], [12.0], [12.0]], open=[[10.0], [11.0], [12.0]])
    world = World(panel, split="train", fee=0.01, benchmark_costs=False, **EXACT)
    world.step([1.0, 0.0])
    # V' + 0.01 V' = 100,000 buys V' / 11 coins
    units = E0 / 1.01 / 11.0
    assert world.s.units[0] == pytest.approx(units, rel=1e-12)
    assert world.s.cash == pytest.approx(0.0, abs=1e-6)
    assert world.s.equity == pytest.approx(units * 12.0)
    assert world.s.costs == world.s.cost_fee == pytest.approx(E0 - E0 / 1.01)
    assert world.s.turnover == pytest.approx(1.0 / 1.01)


def test_the_value_after_costs_is_a_fixed_point() -> None:
    """V' = V - sum k |w V' - q p|, here with costs that differ by asset."""
    panel = make_panel(np.full((4, 3), [5.0, 20.0, 100.0]), spread=0.2)
    world = World(panel, split="train", fee=0.002, slippage_bp=5.0, **EXACT)
    for wish in ([0.2, 0.3, 0.5, 0.0], [0.6, 0.0, 0.1, 0.3], [0.0, 0.0, 1.0, 0.0]):
        world.step(wish)
        world_value = world.s.equity
        assert shares(world) == pytest.approx(np.float32(wish[:3]), abs=1e-7)
        assert world.s.cash == pytest.approx(wish[3] * world_value, abs=0.01)


def test_costs_of_one_round_trip() -> None:
    """Fee on the notional at mid, half the spread and the slippage on each leg."""
    world = World(
        make_panel(np.full((5, 1), 10.0), spread=0.02),
        split="train",
        fee=0.001,
        slippage_bp=3.0,
        **EXACT,
    )
    world.step([1.0, 0.0])
    notional = E0 / (1.0 + 0.001 + 0.001 + 0.0003)
    assert world.s.units[0] * 10.0 == pytest.approx(notional)
    world.step([0.0, 1.0])
    s = world.s
    assert s.cost_fee == pytest.approx(2 * 0.001 * notional)
    assert s.cost_spread == pytest.approx(2 * 0.001 * notional)
    assert s.cost_slippage == pytest.approx(2 * 0.0003 * notional)
    assert s.equity == s.cash == pytest.approx(E0 - s.costs)
    assert (s.fills, s.trades) == (2, 1)


def test_softmax_reaches_the_corners() -> None:
    world = World(
        flat(), split="train", action_map="softmax", sharpness=5.0, fee=0.0, rebalance_threshold=0.0
    )
    world.step([1.0, -1.0, -1.0])
    assert shares(world)[0] == pytest.approx(1.0 / (1.0 + 2.0 * math.exp(-10.0)), abs=1e-9)
    world.step([0.0, 0.0, 0.0])
    assert shares(world) == pytest.approx([1 / 3, 1 / 3], abs=1e-6)
    world.step([-1.0, -1.0, 1.0])
    assert world.s.cash / world.s.equity > 0.9999


def test_the_simplex_projection_is_the_nearest_point() -> None:
    draw = np.random.default_rng(0)
    world = World(flat(40, 5), split="train", fee=0.0, **EXACT)
    for _ in range(39):
        action = draw.uniform(-1.0, 1.0, 6).astype(np.float32)
        world.step(action)
        high = np.sort(action.astype(np.float64))[::-1]
        levels = (high.cumsum() - 1.0) / np.arange(1, 7)
        level = levels[np.flatnonzero(high > levels)[-1]]
        wanted = np.maximum(action - level, 0.0)
        assert shares(world) == pytest.approx(wanted[:5], abs=1e-7)


def test_an_action_may_be_a_change_of_weights() -> None:
    rules = {**EXACT, "action_map": "change", "max_change": 0.2}
    world = World(flat(), split="train", fee=0.0, **rules)
    world.step([0.0, 0.0, 0.0])
    assert world.s.fills == 0
    world.step([1.0, 0.0, -1.0])
    assert shares(world) == pytest.approx([0.2, 0.0])
    world.step([1.0, 0.5, -1.0])
    assert shares(world) == pytest.approx([0.4 - 0.1 / 3, 0.1 - 0.1 / 3], abs=1e-7)


def test_the_band_keeps_small_changes_and_fits_the_others_beside_them() -> None:
    rules = {**EXACT, "rebalance_threshold": 0.1, "fee": 0.0, "cash_reserve": 0.1}
    world = World(flat(), split="train", **rules)
    world.step([0.5, 0.5, 0.0])
    assert shares(world) == pytest.approx([0.45, 0.45])
    before = list(world.s.units)
    world.step([0.6, 0.4, 0.0])  # 0.54 and 0.36: both within the band
    assert list(world.s.units) == before
    world.step([0.58, 0.42, 0.0])
    assert list(world.s.units) == before
    panel = make_panel([[10.0, 10.0], [10.0, 10.0], [20.0, 10.0], [20.0, 10.0], [20.0, 10.0]])
    world = World(panel, split="train", **{**rules, "cash_reserve": 0.0})
    world.step([0.5, 0.5, 0.0])
    world.step([0.5, 0.5, 0.0])  # the first doubles: now 2/3 and 1/3
    assert shares(world) == pytest.approx([2 / 3, 1 / 3])
    world.step([0.6, 0.4, 0.0])  # kept 2/3; the second is within the band too
    world.step([0.6, 0.0, 0.4])
    assert shares(world) == pytest.approx([2 / 3, 0.0])


def test_decisions_come_every_so_many_bars() -> None:
    world = World(flat(9), split="train", decide_every=3, **EXACT)
    phases = []
    for action in ([1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]):
        phases.append(float(world.observe()[-1]))
        world.step(action)
    assert phases == pytest.approx([0.0, 1 / 3, 2 / 3, 0.0])
    assert world.s.fills == 3 and shares(world)[0] == 0.0  # bought, then changed at the fourth


def test_a_holding_is_kept_for_its_minimum() -> None:
    world = World(flat(9), split="train", min_holding=3, **EXACT)
    held = []
    for action in ([1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]):
        world.step(action)
        held.append(bool(world.s.units[0] > 0.0))
    assert held == [True, True, True, False, False]


def test_small_orders_are_dropped_and_quantities_rounded_toward_zero() -> None:
    rules = {**EXACT, "fee": 0.0, "quantity_step": {"AVAX": 30.0}, "min_quantity": {"AAVE": 4000.0}}
    world = World(flat(), split="train", **rules)
    world.step([0.39, 0.61, 0.0])
    assert list(world.s.units) == [0.0, 6090.0]
    world.step([0.41, 0.59, 0.0])  # sells 190: rounded to 180
    assert world.s.units[0] == pytest.approx(4_090.0)  # cash is short of 4,100
    assert world.s.units[1] == 5_910.0
    world = World(flat(), split="train", **{**EXACT, "min_notional": 2000.0})
    world.step([0.5, 0.5, 0.0])
    world.step([0.51, 0.49, 0.0])
    assert world.s.fills == 2
    with pytest.raises(ConfigError, match=r"`env.min_quantity` contains DOGE.*AAVE, AVAX"):
        World(flat(), min_quantity={"DOGE": 1.0})


def test_all_buys_shrink_alike_when_cash_is_short() -> None:
    """A sale that is too small to be made leaves less cash than planned."""
    panel = make_panel([[10.0, 10.0, 10.0]] * 2 + [[10.0, 20.0, 20.0]] * 3)
    world = World(panel, split="train", fee=0.0, **{**EXACT, "min_quantity": {"AAVE": 6000.0}})
    world.step([1.0, 0.0, 0.0, 0.0])
    world.step([0.5, 0.3, 0.2, 0.0])
    assert list(world.s.units) == [10_000.0, 0.0, 0.0]


def test_what_cannot_be_traded_is_kept() -> None:
    tradable = np.ones((5, 2), dtype=bool)
    tradable[2, 0] = False
    panel = make_panel(np.full((5, 2), 10.0), tradable=tradable)
    world = World(panel, split="train", fee=0.0, **EXACT)
    world.step([0.5, 0.5, 0.0])
    before = float(world.s.units[0])
    world.step([0.0, 1.0, 0.0])  # the first asset has no bar here
    assert world.s.units[0] == before
    assert shares(world) == pytest.approx([0.5, 0.5])
    world.step([0.0, 1.0, 0.0])
    assert shares(world) == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_assets_come_and_go(orders: str) -> None:
    """Unlisted: no trade; delisted: sold at the last price, by the benchmark too."""
    listed = np.ones((8, 2), dtype=bool)
    listed[:3, 0] = False
    listed[6:, 0] = False
    close = np.full((8, 2), 10.0)
    close[5, 0] = 12.0
    rules: dict[str, Any] = {"orders": orders, "universe": "union", "fee": 0.01}
    if orders == "weights":
        rules |= EXACT
    world = World(make_panel(close, listed=listed), split="train", **rules)
    action = [0.5, 0.5, 0.0] if orders == "weights" else [0.01, 0.01]
    seen = []
    for _ in range(7):
        assert world.observe()[-2:].tolist() == [float(listed[world.s.bar, 0]), 1.0]
        world.step(action)
        seen.append(float(world.s.units[0]))
    # Listed from row 3 on: seen there first, traded at row 4, sold at row 6 at row 5's close.
    assert seen[:3] == [0.0] * 3 and seen[3] > 0.0 and seen[4] > 0.0 and seen[5:] == [0.0, 0.0]
    assert world.s.trades >= 1


def test_delisting_sells_at_the_last_price() -> None:
    listed = np.ones((5, 1), dtype=bool)
    listed[3:] = False
    panel = make_panel([[10.0], [10.0], [15.0], [15.0], [15.0]], listed=listed)
    world = World(panel, split="train", universe="union", fee=0.01, **EXACT)
    world.step([1.0, 0.0])
    units = float(world.s.units[0])
    world.step([1.0, 0.0])
    world.step([1.0, 0.0])
    assert world.s.cash == pytest.approx(units * 15.0 * 0.99, rel=1e-9)
    assert world.s.benchmark == pytest.approx(world.s.equity, rel=1e-9)


def test_equal_weight_is_bought_once_with_the_same_costs() -> None:
    """Known answer: two assets, one doubles; fee 1 %, reserve 20 %, sold at the end."""
    panel = make_panel([[10.0, 5.0], [10.0, 5.0], [20.0, 5.0]])
    world = World(panel, fee=0.01, cash_reserve=0.2, **EXACT)
    world.step([0.0, 0.0, 1.0])
    held = 0.4 * E0 / 1.01
    assert world.s.benchmark == pytest.approx(0.2 * E0 + 2 * held)
    world.step([0.0, 0.0, 1.0])
    assert world.s.benchmark == pytest.approx(0.2 * E0 + 3 * held * 0.99)
    assert world.s.benchmark_return == pytest.approx(world.s.benchmark / E0 - 1.0)
    assert world.s.equity == E0


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_equal_weight_buys_each_asset_at_its_own_first_tradable_fill(orders: str) -> None:
    """Holes of 7 and of 2 bars at the start: a third each, whenever it can be bought."""
    tradable = np.ones((10, 3), dtype=bool)
    tradable[1:8, 0] = False
    tradable[1:3, 1] = False
    close = np.full((10, 3), 10.0)
    close[3:, 1] = 12.0
    close[8:, 0] = 8.0
    opened = np.concatenate([close[:1], close[:-1]])
    opened[3, 1], opened[8, 0] = 12.0, 8.0
    rules: dict[str, Any] = {"orders": orders, "fee": 0.01, "benchmark_costs": True}
    panel = make_panel(close, open=opened, tradable=tradable)
    world = World(panel, initial_equity=E0, **rules, **(EXACT if orders == "weights" else {}))
    idle = [0.0, 0.0, 0.0, 1.0] if orders == "weights" else [0.0] * 3
    seen = []
    for _ in range(9):
        world.step(idle)
        seen.append([float(units) for units in world.s.benchmark_units])
    third = E0 / 3 / 1.01
    bought = [third / 8, third / 12, third / 10]
    assert seen[0] == pytest.approx([0.0, 0.0, bought[2]])
    assert seen[1] == seen[0]
    assert seen[2] == pytest.approx([0.0, *bought[1:]])
    assert seen[7] == seen[8] == pytest.approx(bought)
    assert world.s.benchmark == pytest.approx(3 * third * 0.99)
    assert world.s.benchmark_cash == pytest.approx(0.0, abs=1e-9)
    assert world.s.equity == E0


def test_equal_weight_gives_later_listings_nothing_and_keeps_the_share_of_what_never_trades() -> (
    None
):
    listed = np.ones((8, 3), dtype=bool)
    listed[:3, 0] = False  # comes later
    listed[4:, 1] = False  # goes before it was ever tradable
    tradable = listed.copy()
    tradable[:, 1] = False
    panel = make_panel(np.full((8, 3), 10.0), listed=listed, tradable=tradable)
    world = World(panel, split="train", universe="union", fee=0.0, **EXACT)
    for _ in range(7):
        world.step([0.0, 0.0, 0.0, 1.0])
    assert list(world.s.benchmark_units) == [0.0, 0.0, E0 / 2 / 10]
    assert world.s.benchmark == pytest.approx(E0)
    assert world.s.benchmark_waiting == 0


def test_equal_weight_is_free_in_the_compatibility_mode() -> None:
    panel = make_panel([[10.0, 5.0], [10.0, 5.0], [20.0, 5.0]])
    world = World(panel, fee=0.01, benchmark_costs=False, **EXACT)
    world.step([0.0, 0.0, 1.0])
    world.step([0.0, 0.0, 1.0])
    assert world.s.benchmark == pytest.approx(1.5 * E0)


def test_the_default_reward_is_zero_for_holding_equal_weight() -> None:
    panel = make_panel([[10.0, 5.0], [11.0, 5.0], [13.0, 4.0], [12.0, 6.0]])
    world = World(panel, split="train", fee=0.001, **EXACT)
    first = world.step([0.5, 0.5, 0.0])[0]
    later = [world.step([0.5, 0.5, 0.0])[0] for _ in range(2)]
    assert first == pytest.approx(0.0, abs=1e-12)
    world = World(panel, split="train", fee=0.001, **{**EXACT, "rebalance_threshold": 0.4})
    kept = [world.step([0.5, 0.5, 0.0])[0] for _ in range(3)]
    assert kept == pytest.approx([0.0] * 3, abs=1e-12)
    assert later != kept[1:]


def test_an_evaluation_ends_sold() -> None:
    world = World(flat(3), fee=0.01, **EXACT)
    assert world.step([1.0, 0.0, 0.0])[1:] == (False, False)
    _, terminated, truncated = world.step([1.0, 0.0, 0.0])
    assert truncated and not terminated
    assert list(world.s.units) == [0.0, 0.0] and world.s.equity == world.s.cash
    assert world.s.equity == pytest.approx(E0 / 1.01 * 0.99)
    held = World(flat(3), split="train", fee=0.01, **EXACT)
    held.s.bar = 0
    held.step([1.0, 0.0, 0.0])
    held.step([1.0, 0.0, 0.0])
    assert held.s.equity == pytest.approx(E0 / 1.01)


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_the_trailing_stop_sells_all(orders: str) -> None:
    panel = make_panel([[10.0], [10.0], [12.0], [11.5], [10.5], [10.4], [10.4]])
    rules: dict[str, Any] = {"orders": orders, "trailing_stop": 0.1, "fee": 0.0}
    world = World(panel, split="train", **(rules | (EXACT if orders == "weights" else {})))
    world.s.bar = 0
    first, later = ([1.0, 0.0], [1.0, 0.0]) if orders == "weights" else ([0.1], [0.0])
    held = []
    for k in range(6):
        world.step(first if k == 0 else later)
        held.append(bool(world.s.units[0] > 0.0))
    # Close 10.5 is 12.5 % below 12: seen there, sold at the next fill, be it open or close.
    assert held[:5] == [True, True, True, True, False]


def test_the_position_limit() -> None:
    world = World(flat(), split="train", fee=0.0, max_position=0.3, **EXACT)
    world.step([1.0, 0.0, 0.0])
    assert shares(world) == pytest.approx([0.3, 0.0])
    large = {"norm_action": 1e6}
    units = World(flat(), split="train", orders="units", units=large, fee=0.0, max_position=0.3)
    for _ in range(4):
        units.step([1.0, 0.0])
    assert shares(units)[0] == pytest.approx(0.3, abs=1e-9)


def test_the_reserve_of_unit_orders_is_of_the_initial_equity() -> None:
    large = {"norm_action": 1e6}
    world = World(
        flat(20), split="train", orders="units", units=large, cash_reserve=0.25, fee=0.001
    )
    for _ in range(15):
        world.step([1.0, 1.0])
    assert 0.25e6 <= world.s.cash < 0.26e6


TIERS = ((0.0, 0.01), (150_000.0, 0.005), (500_000.0, 0.001))


def test_fee_tiers_follow_the_30_complete_days() -> None:
    days = 40
    panel = make_panel(np.full((days * 288, 1), 10.0))
    world = World(panel, split="train", fee_tiers=TIERS, **EXACT)
    world.s.bar, world.s.day = 0, 0
    fees = [fee_rate(world.s, world.p, world.d, 1)]
    world.s.day_volume = 200_000.0
    assert fee_rate(world.s, world.p, world.d, 287) == 0.01  # today does not count yet
    assert fee_rate(world.s, world.p, world.d, 288) == 0.005
    world.s.day_volume = 400_000.0
    assert fee_rate(world.s, world.p, world.d, 2 * 288) == 0.001
    assert fee_rate(world.s, world.p, world.d, 30 * 288) == 0.001  # both days are among the last 30
    assert fee_rate(world.s, world.p, world.d, 31 * 288) == 0.005  # day 0 is the 31st
    assert fee_rate(world.s, world.p, world.d, 32 * 288) == 0.01
    assert fees == [0.01]


def test_the_start_volume_leaves_day_by_day() -> None:
    panel = make_panel(np.full((32 * 288, 1), 10.0))
    world = World(panel, split="train", fee_tiers=TIERS, start_volume=600_000.0, **EXACT)
    world.s.bar, world.s.day = 0, 0
    fees = [fee_rate(world.s, world.p, world.d, day * 288) for day in range(31)]
    assert fees[:6] == [0.001] * 6 and fees[6:23] == [0.005] * 17 and fees[23:] == [0.01] * 8


def test_a_bar_without_data_for_days_empties_the_volume() -> None:
    panel = make_panel(np.full((50 * 288, 1), 10.0))
    world = World(panel, split="train", fee_tiers=TIERS, start_volume=600_000.0, **EXACT)
    world.s.bar, world.s.day = 0, 0
    assert fee_rate(world.s, world.p, world.d, 45 * 288) == 0.01


def test_tiered_fees_are_charged_on_notional() -> None:
    panel = make_panel(np.full((600, 1), 10.0))
    world = World(panel, split="train", fee_tiers=((0.0, 0.01), (1.0, 0.002)), **EXACT)
    world.s.bar, world.s.day = 284, 0
    world.step([1.0, 0.0])
    assert world.s.cost_fee == pytest.approx(E0 - E0 / 1.01)
    for _ in range(3):
        world.step([1.0, 0.0])
    before = float(world.s.cost_fee)
    worth = float(world.s.equity)
    world.step([0.0, 1.0])  # row 289: the next day
    assert world.s.cost_fee - before == pytest.approx(0.002 * worth)


def moved(world: World, equity: float, benchmark: float, **fields: float) -> float:
    """Reward of a bar that took both values from 100,000 to these."""
    for name, value in {"equity": equity, "benchmark": benchmark, **fields}.items():
        setattr(world.s, name, value)
    return reward(world.s, world.p, world.d, int(world.s.bar), E0, E0)


def test_rewards() -> None:
    made = {name: World(flat(), reward=name) for name in ("excess_log_return", "log_return")}
    assert moved(made["log_return"], 1.1 * E0, 1.2 * E0) == pytest.approx(math.log(1.1))
    assert moved(made["excess_log_return"], 1.1 * E0, 1.2 * E0) == pytest.approx(
        math.log(1.1 / 1.2)
    )
    value = World(flat(), reward="excess_value", norm_reward=0.001)
    assert moved(value, 1.1 * E0, 1.2 * E0) == pytest.approx(-10.0)


def test_cappuccinos_mixed_reward() -> None:
    world = World(flat(), reward="mixed", norm_reward=0.01, cash_reserve=0.3)
    got = moved(world, 0.99 * E0, 0.95 * E0, cash=0.2 * E0)
    alpha, absolute = 0.04 * E0 * 0.01, -0.01 * 0.01
    bonus = 0.05 * (0.2 / 0.99) * 0.01 * 0.1
    lacking = -0.1 * 0.01 * 0.5
    assert got == pytest.approx(0.5 * alpha + 0.3 * absolute + 0.2 * bonus + lacking)
    rising = moved(world, 1.01 * E0, 1.05 * E0, cash=E0)
    assert rising == pytest.approx(0.5 * -0.04 * E0 * 0.01 + 0.3 * 0.01 * 0.01)


def test_rewards_decay_with_the_episode() -> None:
    world = World(flat(), split="train", reward="log_return", time_decay_floor=0.4, max_steps=10)
    full = math.log(1.1)
    got = [moved(world, 1.1 * E0, E0, steps=steps) / full for steps in (1, 5, 9)]
    assert got == pytest.approx([0.9, 0.5, 0.4])


def test_penalties() -> None:
    quiet = {"reward": "log_return"}
    fall = World(flat(), drawdown_penalty=0.5, **quiet)
    assert moved(fall, E0, E0, drawdown=0.2) == pytest.approx(-0.1)
    rough = World(flat(), volatility_penalty=2.0, **quiet)
    returns = np.array([0.01, -0.02, 0.03])
    sums = {"return_sum": returns.sum(), "return_square_sum": (returns**2).sum(), "steps": 3}
    assert moved(rough, E0, E0, **sums) == pytest.approx(-2.0 * returns.std(ddof=1))
    for held, cost in (
        ([6000.0, 2000.0, 2000.0, 0.0], 0.2 - 0.1 * (0.4 - 0.8 / 3)),
        ([6000.0, 0.0, 0.0, 0.0], 0.2 + 1.0),
        ([2500.0, 2500.0, 2500.0, 2500.0], -0.1 * 0.4),
        ([0.0] * 4, 1.5),
    ):
        narrow = World(flat(assets=4), concentration_penalty=3.0, **quiet)
        narrow.s.units[:] = held
        assert moved(narrow, E0, E0) == pytest.approx(-3.0 * cost), held


def test_the_discounted_return_is_the_last_reward_of_unit_orders() -> None:
    panel = make_panel(10.0 * np.exp(np.cumsum(np.full((6, 1), 0.01), axis=0)))
    units = {"start": "first", "gamma": 0.5}
    plain = World(panel, orders="units", units={**units, "final_reward": "plain"})
    paid = World(panel, orders="units", units=units)
    rewards = [plain.step([0.1])[0] for _ in range(5)]
    last = [paid.step([0.1])[0] for _ in range(5)][-1]
    total = sum(r * 0.5 ** (4 - k) for k, r in enumerate(rewards))
    assert last == pytest.approx(total)


def test_full_unit_orders_below_the_smallest_are_refused() -> None:
    """CA-11: Cappuccino's own numbers never trade."""
    rules = {"orders": "units", "initial_equity": 500.0}
    with pytest.raises(ConfigError, match=r"norm_action.*trades 0.005 coins of AAVE.*Lower it"):
        build(flat(), **rules, units={"action_scale": "value", "norm_action": 10_000.0})
    with pytest.raises(ConfigError, match=r"norm_action.*Raise it"):
        build(flat(), **rules, units={"norm_action": 0.05})
    loaded = build(flat(), **rules, units={"action_scale": "value", "norm_action": 10.0})
    assert loaded.params["train"]


def test_a_full_value_order_is_worth_the_same_in_every_asset() -> None:
    panel = make_panel(np.full((4, 3), [7.0, 93_000.0, 0.4]))
    units = {"action_scale": "value", "norm_action": 20.0, "buy_share": 1.0}
    world = World(panel, split="train", orders="units", units=units, min_quantity=0.0, fee=0.0)
    world.step([1.0, 1.0, 1.0])
    worth = np.array(world.s.units) * [7.0, 93_000.0, 0.4]
    assert worth == pytest.approx([50_000.0] * 3)


def test_impossible_settings_are_named() -> None:
    for settings, message in (
        ({"fee_tiers": [[5.0, 0.1]]}, "fee_tiers"),
        ({"fee_tiers": [[0.0, 0.01], [0.0, 0.005]]}, "increase"),
        ({"rebalance_threshold": 0.5, "cash_reserve": 0.6}, "nothing can be bought"),
        ({"features": []}, "at least one name"),
        ({"units": {"norm_acton": 3}}, "norm_action"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(flat(), **settings)


def test_timeline_is_when_equity_is_marked() -> None:
    loaded = build(flat(5))
    moments = portfolio.timeline(loaded.params["window"][0], loaded.data)
    assert moments.tolist() == [BAR * k for k in (2, 3, 4, 5)]
