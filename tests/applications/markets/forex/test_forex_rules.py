"""Hand-computed cases of the forex account's rules."""

from __future__ import annotations

import math

import pytest
from forex_world import Bar, World, flat_bar

from slipstream.markets.forex.forex_state import FLAT, NIGHT, ROLL

SHORT, FLAT_ACTION, LONG = 0, 1, 2
E0 = 100_000.0


def quiet(price: float = 1.0, count: int = 3) -> list[Bar]:
    return [flat_bar(price)] * count


def test_known_answer_in_yen() -> None:
    """100,000 USDJPY from 150 to 135 loses 11,111 USD."""
    bars = [flat_bar(150.0), flat_bar(150.0), flat_bar(135.0)]
    world = World(bars, pip=0.01, inverse=True)
    world.step(LONG)
    assert world.s.units == 100_000.0
    world.step(LONG)
    assert world.s.equity - E0 == pytest.approx(-11_111.11, abs=0.01)


def test_the_order_fills_at_the_next_open_and_the_new_position_earns_the_rest_of_the_bar() -> None:
    bars = [flat_bar(1.0), Bar(1.1, 1.2, 1.1, 1.2), Bar(1.5, 1.5, 1.2, 1.2)]
    world = World(bars)
    reward, _, _ = world.step(LONG)
    units = math.floor(E0 / 1.1)
    assert world.s.units == units and world.s.entry == 1.1
    assert world.s.equity == pytest.approx(E0 + units * 0.1)
    assert reward == pytest.approx(math.log((E0 + units * 0.1) / E0))
    before = world.s.equity
    world.step(FLAT_ACTION)  # closed at 1.5: the old position earns close to open, nothing after
    assert world.s.equity == pytest.approx(before + units * 0.3)


def test_fill_at_the_next_close() -> None:
    bars = [flat_bar(1.0), Bar(1.1, 1.2, 1.1, 1.2), flat_bar(1.3)]
    world = World(bars, fill="next_close")
    world.step(LONG)
    assert world.s.equity == E0 and world.s.entry == 1.2
    world.step(LONG)
    assert world.s.equity == pytest.approx(E0 + math.floor(E0 / 1.2) * 0.1)


def test_fill_at_the_same_close_is_the_compatibility_mode() -> None:
    world = World([flat_bar(1.0), flat_bar(1.1), flat_bar(1.1)], fill="compat_same_close")
    world.step(LONG)
    assert world.s.entry == 1.0
    assert world.s.equity == pytest.approx(1.1 * E0)


def test_costs_of_one_round_trip() -> None:
    """Half the spread and the slippage on each leg, commission on notional."""
    bars = [flat_bar(1.0, spread=0.0002)] * 4
    world = World(bars, slippage_pips=0.5, commission_per_million=50.0)
    world.step(LONG)
    assert world.s.entry == pytest.approx(1.00015)
    assert world.s.equity == pytest.approx(E0 - 15.0 - 5.0)
    world.step(FLAT_ACTION)
    s = world.s
    assert s.equity == s.cash == pytest.approx(E0 - 40.0)
    assert s.cost_spread == pytest.approx(20.0)
    assert s.cost_slippage == pytest.approx(10.0)
    assert s.cost_commission == pytest.approx(10.0)
    assert s.costs == pytest.approx(40.0)
    assert (s.trades, s.wins, s.fills) == (1, 0, 2)
    assert s.gross_loss == pytest.approx(40.0)
    assert s.turnover == pytest.approx(2.0, rel=1e-3)


def test_a_flip_is_one_order() -> None:
    world = World([flat_bar(1.0)] * 4, commission_per_million=10.0)
    world.step(LONG)
    world.step(SHORT)
    assert world.s.units < 0.0
    assert (world.s.fills, world.s.trades) == (2, 1)
    assert world.s.cost_commission == pytest.approx(1.0 + 2.0, rel=1e-4)


def test_a_discrete_position_is_held_not_rebalanced() -> None:
    world = World([flat_bar(1.0), flat_bar(1.0), flat_bar(1.5), flat_bar(2.0)])
    for _ in range(3):
        world.step(LONG)
    assert world.s.units == 100_000.0 and world.s.fills == 1


def test_units_are_rounded_toward_zero() -> None:
    for action, units in ((LONG, 76_000.0), (SHORT, -76_000.0)):
        world = World([flat_bar(1.3)] * 3, unit_step=1000.0)
        world.step(action)
        assert world.s.units == units
    world = World([flat_bar(1.3)] * 3, unit_step=100_000.0)
    world.step(LONG)  # below one step: no trade
    assert world.s.units == 0.0 and world.s.fills == 0


def test_the_band_and_its_exceptions() -> None:
    world = World([flat_bar(1.0)] * 12, action="continuous", rebalance_threshold=0.1)
    expected = [
        (0.05, 0.0),  # from flat, too little
        (0.5, 50_000.0),
        (0.45, 50_000.0),  # within the band
        (0.38, 38_000.0),
        (0.45, 38_000.0),
        (-0.02, -2_000.0),  # change of side: traded however small
        (-0.1, -2_000.0),
        (0.0, 0.0),  # zero: traded however small
        (-1.0, -100_000.0),
    ]
    for action, units in expected:
        world.step(action)
        assert world.s.units == pytest.approx(units, abs=1.0), action


def test_reductions_close_pro_rata_and_additions_average() -> None:
    bars = [flat_bar(1.0), flat_bar(1.0), flat_bar(1.25), flat_bar(1.25)]
    world = World(bars, action="continuous", rebalance_threshold=0.0)
    world.step(0.5)
    world.step(1.0)
    s = world.s
    # Worth 112,500 at 1.25, so 90,000 units: 50,000 at 1.00 and 40,000 at 1.25.
    assert s.units == 90_000.0
    assert s.entry == pytest.approx((50_000 * 1.0 + 40_000 * 1.25) / 90_000)
    entry = s.entry
    world.step(0.5)
    assert s.units == 45_000.0 and s.entry == entry
    assert s.cash == pytest.approx(E0 + 45_000 * (1.25 - entry))


def test_orders_are_cut_to_the_margin_that_equity_covers_after_costs() -> None:
    bars = [flat_bar(1.0, spread=0.002)] * 3
    world = World(bars, exposure=10.0, leverage=10.0, commission_per_million=100.0)
    world.step(LONG)
    # units / 10 <= 100,000 - units (0.001 + 0.0001)
    assert world.s.units == math.floor(E0 / (0.1 + 0.0011))
    assert world.s.units * 1.0 / 10.0 <= world.s.equity


def test_stop_out_at_the_level_inside_the_bar() -> None:
    bars = [flat_bar(1.0), flat_bar(1.0), Bar(1.0, 1.0, 0.5, 0.9), flat_bar(0.9)]
    world = World(bars, exposure=10.0, leverage=20.0)
    world.step(LONG)
    _, terminated, truncated = world.step(LONG)
    assert terminated and not truncated
    # E0 + u (x - 1) = 0.5 u x / 20 with u = 1,000,000
    level = 0.9 / (1.0 - 0.025)
    assert world.s.cash == pytest.approx(E0 + 1_000_000 * (level - 1.0))
    assert world.s.equity == pytest.approx(0.025 * 1_000_000 * level)
    assert world.s.stop_outs == 1


def test_stop_out_at_the_open_after_a_gap_may_leave_debt() -> None:
    bars = [flat_bar(1.0), flat_bar(1.0), flat_bar(0.8), flat_bar(0.8)]
    world = World(bars, exposure=10.0)
    world.step(LONG)
    reward, terminated, _ = world.step(LONG)
    assert terminated
    assert world.s.equity == pytest.approx(-100_000.0)
    assert reward == pytest.approx(math.log(1e-6))


def test_short_stop_out_mirrors() -> None:
    bars = [flat_bar(1.0), flat_bar(1.0), Bar(1.0, 1.5, 1.0, 1.1), flat_bar(1.1)]
    world = World(bars, exposure=10.0, leverage=20.0)
    world.step(SHORT)
    assert world.step(SHORT)[1]
    level = 1.1 / 1.025
    assert world.s.cash == pytest.approx(E0 - 1_000_000 * (level - 1.0))


STOPS = {"stop_loss": 100.0, "take_profit": 100.0}


def test_stop_inside_the_bar_slips_and_is_flat_for_the_rest_of_it() -> None:
    bars = [*quiet(count=2), Bar(1.0, 1.0, 0.98, 1.0), *quiet()]
    world = World(bars, slippage_pips=1.0, **STOPS)
    world.step(LONG)
    world.step(LONG)
    # bought at 1.0001; stop at 0.99 fixed from the fill's mid, sold at 0.9899
    assert world.s.units == 0.0 and world.s.stop_exits == 1
    assert world.s.equity == pytest.approx(E0 - 100_000 * 0.0102)


def test_the_stop_lives_on_the_exit_side() -> None:
    """A long sells at the bid: a low of 0.9905 less 0.001 / 2 reaches a stop at 0.99."""
    for low, hit in ((0.99049, 1), (0.99051, 0)):
        bars = [*quiet(count=2), Bar(1.0, 1.0, low, 1.0, spread=0.001), *quiet()]
        world = World(bars, **STOPS)
        world.step(LONG)
        world.step(LONG)
        assert world.s.stop_exits == hit
        if hit:
            assert world.s.cash == pytest.approx(E0 - 1000.0)  # at the level itself, bid
            assert world.s.cost_spread == pytest.approx(100_000 * 0.0005)


def test_a_stop_gapped_over_fills_at_the_open() -> None:
    bars = [*quiet(count=2), Bar(0.95, 0.96, 0.95, 0.96, spread=0.0002), *quiet(0.96)]
    world = World(bars, slippage_pips=1.0, **STOPS)
    world.step(LONG)
    world.step(LONG)
    assert world.s.cash == pytest.approx(E0 + 100_000 * (0.95 - 0.0001 - 0.0001 - 1.0001))


def test_a_target_fills_without_slippage() -> None:
    bars = [*quiet(count=2), Bar(1.0, 1.02, 1.0, 1.0), *quiet()]
    world = World(bars, slippage_pips=1.0, **STOPS)
    world.step(LONG)
    world.step(LONG)
    assert world.s.target_exits == 1
    assert world.s.cash == pytest.approx(E0 + 100_000 * (1.01 - 1.0001))


def test_a_target_gapped_over_fills_at_the_better_open() -> None:
    bars = [*quiet(count=2), flat_bar(1.05), *quiet(1.05)]
    world = World(bars, **STOPS)
    world.step(LONG)
    world.step(LONG)
    assert world.s.target_exits == 1
    assert world.s.cash == pytest.approx(E0 * 1.05)


@pytest.mark.parametrize(
    ("intrabar_fill", "gain"), [("adverse_first", -1000.0), ("favourable_first", 1000.0)]
)
def test_both_levels_in_one_bar(intrabar_fill: str, gain: float) -> None:
    bars = [*quiet(count=2), Bar(1.0, 1.02, 0.98, 1.0), *quiet()]
    for action in (LONG, SHORT):
        world = World(bars, intrabar_fill=intrabar_fill, **STOPS)
        world.step(action)
        world.step(action)
        assert world.s.both_touched == 1
        assert world.s.cash == pytest.approx(E0 + gain)


def test_the_nearer_of_stop_and_stop_out_comes_first() -> None:
    bars = [*quiet(count=2), Bar(1.0, 1.0, 0.8, 0.9), *quiet()]
    near = World(bars, exposure=10.0, stop_loss=100.0)
    near.step(LONG)
    assert not near.step(LONG)[1]
    assert near.s.stop_exits == 1
    far = World(bars, exposure=10.0, stop_loss=1500.0)
    far.step(LONG)
    assert far.step(LONG)[1]
    assert far.s.stop_outs == 1 and far.s.cash > -1.0


def test_a_stop_is_active_on_the_fill_bar_itself_when_filled_at_the_open() -> None:
    bars = [flat_bar(1.0), Bar(1.0, 1.0, 0.98, 1.0), *quiet()]
    world = World(bars, **STOPS)
    world.step(LONG)
    assert world.s.stop_exits == 1 and world.s.units == 0.0
    late = World(bars, fill="next_close", **STOPS)
    late.step(LONG)
    assert late.s.stop_exits == 0 and late.s.units > 0.0


@pytest.mark.parametrize(("bars_blocked", "first_entry"), [(0, 3), (1, 4), (2, 5)])
def test_reentry_on_the_same_side_is_blocked(bars_blocked: int, first_entry: int) -> None:
    bars = [*quiet(count=2), Bar(1.0, 1.0, 0.98, 1.0), *quiet(count=6)]
    world = World(bars, stop_cooldown=bars_blocked, **STOPS)
    while world.s.bar < 8:
        world.step(LONG)
        if world.s.bar >= 2:
            assert (world.s.units > 0.0) == (world.s.bar >= first_entry)
    other = World(bars, stop_cooldown=bars_blocked, **STOPS)
    other.step(LONG)
    other.step(LONG)
    other.step(SHORT)  # the other side is free at the next bar
    assert other.s.units < 0.0


def test_cooldown_allows_reductions_only() -> None:
    world = World([flat_bar(1.0)] * 9, cooldown=2)
    world.step(LONG)
    world.step(SHORT)  # within the cooldown: the flip only closes, and that is a fill too
    assert world.s.units == 0.0
    for expected in (0.0, 0.0, -100_000.0):
        world.step(SHORT)
        assert world.s.units == expected


@pytest.mark.parametrize(
    ("unit", "distance", "level"),
    [("pips", 50.0, 0.995), ("atr", 2.0, 0.99), ("fraction", 0.02, 0.98)],
)
def test_stop_units(unit: str, distance: float, level: float) -> None:
    bars = [flat_bar(1.0, atr=0.005)] * 3
    world = World(bars, stop_loss=distance, take_profit=distance, stop_unit=unit)
    world.step(LONG)
    assert world.s.stop == pytest.approx(level)
    assert world.s.target == pytest.approx(2.0 - level)


def test_swap_is_booked_at_the_roll_on_positions_held_over_it() -> None:
    bars = [flat_bar(1.0), flat_bar(1.0), flat_bar(1.0, flag=ROLL | 3 * NIGHT), flat_bar(1.0)]
    world = World(bars, swap_long=-3.65, swap_short=1.825)
    world.step(LONG)
    world.step(FLAT_ACTION)  # closed at the open right after the roll
    assert world.s.cost_swap == pytest.approx(30.0)
    assert world.s.equity == pytest.approx(E0 - 30.0)
    world = World(bars, swap_long=-3.65, swap_short=1.825)
    world.step(SHORT)
    world.step(SHORT)
    assert world.s.equity == pytest.approx(E0 + 15.0)
    world = World(bars, swap_long=-3.65)
    world.step(FLAT_ACTION)
    world.step(LONG)  # opened after the roll
    assert world.s.costs == 0.0


def test_a_cost_multiple_scales_charged_swaps_and_no_credits() -> None:
    bars = [flat_bar(1.0), flat_bar(1.0), flat_bar(1.0, flag=ROLL | 3 * NIGHT), flat_bar(1.0)]
    for action, multiple, gain in ((LONG, 2.0, -60.0), (LONG, 0.0, 0.0), (SHORT, 2.0, 15.0)):
        world = World(bars, swap_long=-3.65, swap_short=1.825)
        world.p.cost_multiple = multiple
        world.step(action)
        world.step(action)
        assert world.s.equity == pytest.approx(E0 + gain)
        assert world.s.cost_swap == pytest.approx(-gain)


def test_daily_drawdown_blocks_until_the_next_roll() -> None:
    bars = [
        *quiet(count=2),
        flat_bar(0.97),
        flat_bar(0.97),
        flat_bar(0.97),
        flat_bar(0.97, flag=ROLL),
    ]
    world = World([*bars, flat_bar(0.97)], max_daily_drawdown=0.02)
    world.step(LONG)
    _, terminated, _ = world.step(LONG)  # the loss is seen at this close ...
    assert world.s.breached == 1 and not terminated and world.s.units > 0.0
    world.step(LONG)  # ... and closed at the next open
    assert world.s.units == 0.0
    world.step(SHORT)
    assert world.s.units == 0.0
    world.step(LONG)  # the roll comes before this bar, and the breach is over after it
    assert world.s.breached == 0
    world.step(LONG)
    assert world.s.units > 0.0


def test_a_breach_on_the_last_bar_of_a_day_still_holds_for_the_roll_bars_order() -> None:
    """What docs/explanation/market-rules.md says of the roll bar: closed at its open, entered in
    the bar after it."""
    bars = [*quiet(count=2), flat_bar(0.97), flat_bar(0.97, flag=ROLL), flat_bar(0.97)]
    world = World(bars, max_daily_drawdown=0.02)
    world.step(LONG)
    world.step(LONG)
    assert world.s.breached == 1 and world.s.units > 0.0
    world.step(LONG)
    assert world.s.units == 0.0 and world.s.breached == 0
    assert world.s.day_equity == pytest.approx(0.97 * E0)
    world.step(LONG)
    assert world.s.units > 0.0


def test_daily_drawdown_may_end_the_episode() -> None:
    world = World(
        [*quiet(count=2), flat_bar(0.97), flat_bar(0.97)],
        max_daily_drawdown=0.02,
        on_breach="terminate",
    )
    world.step(LONG)
    assert world.step(LONG)[1:] == (True, False)


def test_the_day_starts_with_the_equity_at_the_roll() -> None:
    bars = [*quiet(count=2), flat_bar(0.985), flat_bar(0.97, flag=ROLL), flat_bar(0.97)]
    world = World(bars, max_daily_drawdown=0.02)
    for _ in range(3):
        world.step(LONG)
    assert world.s.breached == 0  # 1.5 % on each day
    assert world.s.day_equity == pytest.approx(0.985 * E0)


def test_forced_flat_bars_close_and_refuse_entries() -> None:
    bars = [*quiet(count=2), flat_bar(1.0, flag=FLAT), flat_bar(1.0, flag=FLAT), *quiet()]
    world = World(bars)
    held = []
    for _ in range(5):
        world.step(LONG)
        held.append(world.s.units > 0.0)
    assert held == [True, False, False, True, True]


def test_the_segment_ends_truncated_and_marked_at_mid_in_training() -> None:
    bars = [flat_bar(1.0, spread=0.001)] * 3
    world = World(bars)
    assert world.step(LONG)[1:] == (False, False)
    assert world.step(LONG)[1:] == (False, True)
    assert world.s.units > 0.0 and world.s.equity == pytest.approx(E0 - 50.0)


def test_evaluation_closes_and_pays_the_last_leg() -> None:
    bars = [flat_bar(1.0, spread=0.001)] * 3
    world = World(bars, evaluation=True, slippage_pips=1.0)
    world.step(SHORT)
    world.step(SHORT)
    assert world.s.units == 0.0 and world.s.trades == 1
    assert world.s.equity == world.s.cash == pytest.approx(E0 - 120.0)


def test_mirrored_prices_give_mirrored_results() -> None:
    """A long unit earns the same as a short one if prices are mirrored about 1."""
    moves = [0.0, 0.001, -0.002, 0.003, -0.003, 0.002]
    up = [Bar(1 + m, 1.002 + m, 0.999 + m, 1.001 + m, 0.0002) for m in moves]
    down = [Bar(1 - m, 1.001 - m, 0.998 - m, 0.999 - m, 0.0002) for m in moves]
    for stops in ({}, {"stop_loss": 25.0}, {"take_profit": 35.0}):
        long, short = (World(b, slippage_pips=0.2, **stops) for b in (up, down))
        units = [0.0, 0.0]
        for _ in range(4):
            long.step(LONG)
            short.step(SHORT)
            units = [max(abs(w.s.units), old) for w, old in zip((long, short), units, strict=True)]
            gains = [(w.s.equity - E0) / u for w, u in zip((long, short), units, strict=True)]
            assert gains[0] == pytest.approx(gains[1], abs=1e-12)
            if long.s.units == 0.0:
                break


def test_gross_position_figures() -> None:
    world = World([flat_bar(1.0)] * 5)
    for action in (LONG, LONG, FLAT_ACTION, FLAT_ACTION):
        world.step(action)
    assert world.s.holding_bars == 2
    assert world.s.mean_exposure == pytest.approx(0.5)
