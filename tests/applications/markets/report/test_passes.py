"""Replays of passes: baselines, matched random traders, scaled costs, delays."""

import math

import numpy as np
import pytest

from slipstream.markets.evaluation import market_backtest
from slipstream.markets.evaluation.market_backtest import (
    break_even,
    ema,
    ema_cross,
    pad_actions,
    percentile,
    random_returns,
    run_stress_test,
    shuffle_positions,
)
from slipstream.report.inputs import BUY_AND_HOLD, FLAT, ORACLE, SHORT
from slipstream.training.episode_result import EpisodeResult


@pytest.fixture(scope="module")
def passes(forex, passes_of):
    return passes_of(forex)


@pytest.fixture(scope="module")
def comparison(passes, some_agent):
    return passes.compare(some_agent(passes), draws=5)


def final(tracks):
    return [float(t.trace["equity"][-1]) for t in tracks]


def test_tracks_are_named_by_symbol(passes, comparison):
    assert passes.symbols == ("EURUSD", "USDJPY")
    assert [t.name for t in comparison.tracks[FLAT]] == ["EURUSD", "USDJPY"]


def test_flat_earns_and_costs_nothing(comparison):
    assert final(comparison.tracks[FLAT]) == [100_000.0, 100_000.0]


def test_buy_and_hold_by_hand(passes, comparison):
    for record, symbol in enumerate(passes.symbols):
        one = passes.specs[record]
        mid, rate, leg = one.mid, one.rate, one.cost
        units = np.floor(100_000.0 / (mid[0] * rate[0]))
        # the fill's spread is part of the entry price, so it is converted at the last rate
        half = leg[0] / rate[0] - mid[0] * passes.params[record].commission
        gain = units * (mid[-1] - mid[0] - half) * rate[-1]
        costs = units * (mid[0] * rate[0] * passes.params[record].commission + leg[-1])
        track = comparison.tracks[BUY_AND_HOLD][record]
        assert track.trace["equity"][-1] == pytest.approx(100_000.0 + gain - costs, rel=1e-9), (
            symbol
        )
        assert track.metrics["fills"] == 2


def test_short_mirrors_the_price_of_a_dollar_quote(comparison):
    """A short loses what a long wins, apart from both costs."""
    gain = [final(comparison.tracks[n])[0] - 100_000.0 for n in (BUY_AND_HOLD, SHORT)]
    costs = [comparison.tracks[n][0].metrics["costs"] for n in (BUY_AND_HOLD, SHORT)]
    assert sum(gain) == pytest.approx(-sum(costs), abs=0.5)


def test_oracle_is_what_its_programme_promised(comparison):
    replayed = np.mean(final(comparison.tracks[ORACLE])) / 100_000.0
    assert replayed == pytest.approx(comparison.oracle_growth, rel=1e-3)


def test_oracle_is_an_upper_bound(passes, comparison, some_agent):
    bound = final(comparison.tracks[ORACLE])
    for name, tracks in comparison.tracks.items():
        assert all(a <= b + 1e-6 for a, b in zip(final(tracks), bound, strict=True)), name
    for seed in range(3):
        assert all(a <= b for a, b in zip(final(some_agent(passes, seed)), bound, strict=True))


def test_ema_cross_sees_no_future(passes):
    decided = ema_cross(passes, 0)
    first, last = passes.window(0)
    assert len(decided) == last - first
    bars = passes.data.bars
    kept = bars[first + 60 :, 3].copy()
    bars.setflags(write=True)
    try:
        bars[first + 60 : last, 3] *= 1.5
        assert (ema_cross(passes, 0)[:60] == decided[:60]).all()
    finally:
        bars[first + 60 :, 3] = kept


def test_ema_by_hand():
    assert ema(np.array([1.0, 4.0, 4.0]), 2).tolist() == pytest.approx([1.0, 3.0, 11 / 3])


def test_baselines_ignore_the_agents_own_stops(passes):
    for record in passes.baseline_params():
        assert record.exposure == 1.0
        assert record.stop_loss == record.take_profit == 0.0
        assert record.commission == passes.params[0].commission


def test_continuous_actions_reach_the_same_long(forex_continuous, comparison, passes_of):
    own = passes_of(forex_continuous).rule_baselines().tracks
    assert final(own[BUY_AND_HOLD])[0] == pytest.approx(
        final(comparison.tracks[BUY_AND_HOLD])[0], rel=1e-9
    )
    assert final(own[FLAT]) == [100_000.0, 100_000.0]


def test_a_pass_that_ended_early_is_flat_afterwards(passes, some_agent):
    agent = some_agent(passes)
    short = [
        EpisodeResult(t.name, t.episode_return, 10, t.metrics, t.actions[:10], t.trace)
        for t in agent
    ]
    full = pad_actions(passes, short)
    assert [len(a) for a in full] == [len(t.actions) for t in agent]
    assert all((a[10:] == 1).all() for a in full)


def test_round_trip_in_both_units(passes):
    trip = passes.round_trips()[0]
    # 0.8 pips of spread, 0.1 pips of slippage and 20 per million on each leg
    assert trip.basis_points == pytest.approx(1e4 * 1e-4 * (0.8 + 0.2) / 1.1 + 0.4, rel=0.05)
    assert trip.pips == pytest.approx(1.0 + 2 * 20e-6 * 1.1 * 1e4, rel=0.05)


def test_comparable_asks_for_one_position(passes, forex_continuous, passes_of):
    assert passes.is_comparable
    assert passes_of(forex_continuous).is_comparable


def runs(actions):
    """Sorted (position, length) pieces, circular: the seam is where the sequence was turned."""
    starts = np.flatnonzero(np.append(True, (actions[1:] != actions[:-1]).any(axis=1)))
    lengths = np.diff(np.append(starts, len(actions)))
    return sorted(zip(actions[starts, 0].tolist(), lengths.tolist(), strict=True))


def test_matched_random_keeps_pieces_and_exposure():
    random = np.random.default_rng(0)
    actions = np.repeat([0, 1, 2, 1, 2, 0, 2, 1], [3, 5, 2, 7, 4, 1, 6, 2])[:, None]
    seen = set()
    for _ in range(50):
        drawn = shuffle_positions(actions, random)
        assert np.bincount(drawn[:, 0]).tolist() == np.bincount(actions[:, 0]).tolist()
        assert runs(drawn) == runs(actions)
        seen.add(tuple(drawn[:, 0]))
    assert len(seen) > 10


def test_matched_random_of_a_constant_is_itself():
    actions = np.full((20, 1), 2)
    assert (shuffle_positions(actions, np.random.default_rng(0)) == actions).all()


def test_matched_random_keeps_continuous_actions():
    random = np.random.default_rng(1)
    actions = random.uniform(-1, 1, (40, 1)).astype(np.float32)
    drawn = shuffle_positions(actions, random)
    assert sorted(drawn[:, 0].tolist()) == sorted(actions[:, 0].tolist())
    assert drawn.dtype == np.float32


@pytest.mark.slow
def test_random_returns_are_reproducible(passes, some_agent):
    agent = some_agent(passes)
    first, again = (random_returns(passes, agent, 4) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert len(set(first.tolist())) == 4


def test_random_returns_do_not_depend_on_the_batch(passes, monkeypatch, some_agent):
    agent = some_agent(passes)
    together = random_returns(passes, agent, 3)
    monkeypatch.setattr(market_backtest, "_MOST_ACTIONS", 1)
    assert random_returns(passes, agent, 3).tolist() == together.tolist()


@pytest.mark.parametrize(("value", "percent"), [(0.0, 0.0), (5.0, 100.0), (2.0, 37.5), (2.5, 50.0)])
def test_percentile_counts_ties_half(value, percent):
    assert percentile(value, np.array([1.0, 2.0, 3.0, 4.0])) == percent


def test_percentile_of_nothing():
    assert percentile(1.0, np.empty(0)) is None


@pytest.mark.slow
def test_stress_of_the_agents_decisions(passes, some_agent):
    agent = some_agent(passes)
    found = run_stress_test(passes, agent)
    returns = dict(found.multiples)
    assert list(returns) == [0.0, 0.5, 1.0, 2.0, 3.0]
    assert sorted(returns.values(), reverse=True) == list(returns.values())
    own = np.mean([t.metrics["total_return"] for t in agent])
    assert returns[1.0] == pytest.approx(own)
    costless = np.mean([t.metrics["costs"] for t in agent]) / 100_000.0
    assert returns[0.0] == pytest.approx(own + costless, abs=0.1 * costless)
    assert found.delayed != own


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (lambda m: 0.03 - 0.02 * m, 1.5),
        (lambda m: m * 0 - 0.01, None),
        (lambda m: m * 0, None),
        (lambda m: m * 0 + 0.01, math.inf),
        (lambda m: 0.03 - 0.001 * m, 30.0),
    ],
)
def test_break_even(net, expected):
    found = break_even(net)
    assert found == (pytest.approx(expected, rel=2e-3) if expected else expected)
