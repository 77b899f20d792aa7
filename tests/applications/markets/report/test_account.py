"""Tracks joined into one account on one clock."""

import numpy as np
import pytest

from slipstream.kernels.spec import MarketSpec
from slipstream.markets.evaluation.performance import (
    build_account,
    compute_performance,
    holding_times,
    slice_by_hour,
    slice_by_symbol,
    slice_by_weekday,
)
from slipstream.training.episode_result import EpisodeResult

HOUR = 3_600
START = 1_704_664_800  # Sunday 2024-01-07 17:00 New York
MARKET = MarketSpec(
    ("A", "B"), "USD", 100.0, HOUR, 6_240.0, 260.0, "17:00 America/New_York", ("cost_spread",)
)


def track(name, rows, equity, exposure=None, cost=0.0):
    n = len(rows)
    exposure = np.ones(n) if exposure is None else np.asarray(exposure, float)
    trace = {
        "bar": np.asarray(rows, np.int64),
        "equity": np.asarray(equity, float),
        "exposure": exposure,
        "cost_spread": np.full(n, cost),
    }
    return EpisodeResult(name, 0.0, n, {}, np.zeros((n, 1), np.int64), trace)


def clock(n):
    return START + np.arange(n) * HOUR


def test_two_symbols_are_one_account_of_equal_capitals():
    tracks = [track("A", [1, 2], [110, 120], cost=2.0), track("B", [1, 2], [90, 80], cost=1.0)]
    joined = build_account(tracks, MARKET, clock(3))
    assert joined.equity.tolist() == [200, 200, 200]
    assert joined.total_return == 0.0
    assert joined.total_costs.tolist() == [0, 3, 3]
    assert joined.gross_equity.tolist() == [200, 203, 203]


def test_a_symbol_keeps_its_mark_where_it_has_no_bar():
    time = np.concatenate([clock(4), clock(4)])  # two symbols end to end
    tracks = [track("A", [1, 2, 3], [110, 120, 130]), track("B", [6], [90])]
    joined = build_account(tracks, MARKET, time)
    assert joined.equity.tolist() == [200, 210, 210, 220]


def test_exposures_offset_net_but_not_gross():
    tracks = [track("A", [1], [100], [1.0]), track("B", [1], [100], [-0.5])]
    joined = build_account(tracks, MARKET, clock(2))
    assert joined.net_exposure.tolist() == [0.25]
    assert joined.gross_exposure.tolist() == [0.75]


def test_days_roll_at_five_in_new_york():
    rows = np.arange(1, 50)
    equity = 100.0 + np.arange(1, 50)
    joined = build_account([track("A", rows, equity)], MARKET, clock(50))
    assert joined.days == 3
    # the day that began at the first bar holds bars 0..23, so its last mark is bar 23's
    assert joined.daily_returns.tolist() == pytest.approx(
        [123 / 100 - 1, 147 / 123 - 1, 149 / 147 - 1]
    )


def test_an_early_end_stays_flat_on_the_full_clock():
    full = build_account([track("A", range(1, 49), np.full(48, 100.0))], MARKET, clock(49))
    ended = build_account(
        [track("A", range(1, 5), [99, 98, 97, 50], [1, 1, 1, 0])], MARKET, clock(49), full.time
    )
    assert ended.days == full.days
    assert ended.equity[-1] == 50
    assert ended.gross_exposure[4:].max() == 0.0


def test_ruin_is_floored_so_that_returns_exist():
    joined = build_account([track("A", [1, 2], [-5, -5])], MARKET, clock(3))
    assert joined.equity[-1] == pytest.approx(1e-4)
    assert np.isfinite(joined.bar_returns).all()


def test_an_account_that_never_moves_has_no_ratios():
    joined = build_account(
        [track("A", range(1, 800), np.full(799, 100.0), np.zeros(799))], MARKET, clock(800)
    )
    found = compute_performance(joined)
    assert (
        found.sharpe is found.interval is found.bar_sharpe is found.sortino is found.calmar is None
    )
    assert found.total_return == found.exposure == found.time_in_market == 0.0


def test_slices_add_up_to_the_whole():
    random = np.random.default_rng(0)
    equity = 100.0 * np.cumprod(1.0 + random.normal(0, 1e-3, 300))
    tracks = [track("A", range(1, 301), equity)]
    joined = build_account(tracks, MARKET, clock(301))
    for rows in (
        slice_by_weekday(joined),
        slice_by_hour(joined),
        slice_by_symbol(tracks, MARKET, clock(301)),
    ):
        assert sum(row.profit for row in rows) == pytest.approx(joined.total_return)
        assert sum(row.bars for row in rows) == 300
    assert [row.name for row in slice_by_weekday(joined)][:2] == ["Monday", "Tuesday"]


@pytest.mark.parametrize(
    ("exposure", "lengths"),
    [
        ([0, 0], []),
        ([1, 1, 0, -1], [2, 1]),
        ([1, -1, -1], [1, 2]),
        ([0.5, 0.7, 0.6], [3]),
    ],
)
def test_holding_times(exposure, lengths):
    assert holding_times(np.array(exposure, float)).tolist() == lengths
