"""Daily returns of test passes, by hand."""

import numpy as np
import pytest

from slipstream.core.spec import MarketSpec
from slipstream.studies.engine.passes import PassGrowth, join_passes, pass_growth

DAY, HOUR = 86_400, 3_600
MIDNIGHT = 20_000 * DAY
UNITS = {"fills": "count", "cost_fee": "account currency", "mean_exposure": "equity"}
METRICS = {"fills": 3.0, "mean_exposure": 0.5, "total_return": 0.1, "cost_fee": 2.0}


def joined(accounts, groups):
    return join_passes(accounts, groups, UNITS)


def market(roll="00:00 UTC", symbols=("A",)):
    return MarketSpec(symbols, "USD", 100.0, 12 * HOUR, 730.0, 365.0, roll)


def half_days(first, count):
    """Ends of `count` bars of twelve hours, the first of which begins `first` bars after 0:00."""
    return MIDNIGHT + 12 * HOUR * (first + 1 + np.arange(count))


def test_days_are_compounded_and_a_bar_that_ends_at_midnight_belongs_to_its_day():
    values = {
        "equity": np.array([110.0, 121.0, 121.0, 60.5, 66.55]),
        "benchmark": np.array([100.0, 101.0, 102.0, 100.0, 90.0]),
    }
    found = pass_growth(half_days(0, 5), values, market(), METRICS, 5)
    assert found.days.tolist() == [20_000, 20_001, 20_002]
    assert np.allclose(found.growth, [1.21, 0.5, 1.1])
    assert np.allclose(found.benchmark, [1.01, 100 / 101, 0.9])


def test_new_york_days():
    """17:00 in New York is 22:00 UTC in winter: a bar that ends there ends the day."""
    winter = 19_737 * DAY  # Monday, 2024-01-15
    time = np.array([winter + 21 * HOUR, winter + 22 * HOUR, winter + 23 * HOUR])
    values = {"equity": np.array([101.0, 102.0, 103.0])}
    found = pass_growth(time, values, market("17:00 America/New_York"), METRICS, 3)
    assert found.days.tolist() == [19_737, 19_738]
    assert np.allclose(found.growth, [1.02, 103 / 102])
    assert found.benchmark.tolist() == [1.0, 1.0]


def test_a_closed_account_keeps_its_days():
    values = {"equity": np.array([50.0, 0.0])}
    found = pass_growth(half_days(1, 8), values, market(), METRICS, 2)
    assert found.days.tolist() == [20_000, 20_001, 20_002, 20_003, 20_004]
    assert found.growth.tolist() == [0.5, 0.0, 1.0, 1.0, 1.0]


def one(symbol, days, growth, steps=10, **metrics):
    factors = np.array(growth, np.float64)
    return PassGrowth(
        (symbol,), np.array(days), factors, factors**0.5, {**METRICS, **metrics}, steps
    )


def test_groups_follow_each_other_and_share_no_return():
    passes = joined([one("A", [5, 6], [1.1, 1.2]), one("A", [6, 7], [0.5, 2.0])], [0, 1])
    assert passes.days.tolist() == [5, 6, 6, 7]
    assert np.allclose(passes.returns, [0.1, 0.2, -0.5, 1.0])
    assert passes.group.tolist() == [0, 0, 1, 1]
    assert passes.metrics == [METRICS, METRICS]


def test_symbols_of_a_group_are_accounts_of_equal_capital():
    """Day 1: 1.5 and 0.5 are worth 1.0 each on average; day 2: 3.0 and 0.5, 1.75 of 1.0."""
    passes = joined([one("A", [1, 2], [1.5, 2.0]), one("B", [1, 2], [0.5, 1.0])], [0, 0])
    assert np.allclose(passes.returns, [0.0, 0.75])
    assert passes.metrics[0]["fills"] == 6.0 and passes.metrics[0]["cost_fee"] == 4.0
    assert passes.metrics[0]["mean_exposure"] == 0.5
    assert passes.metrics[0]["total_return"] == pytest.approx(0.75)


def test_a_symbol_without_a_day_stands_still():
    passes = joined([one("A", [1, 3], [2.0, 2.0]), one("B", [2], [3.0])], [0, 0])
    assert passes.days.tolist() == [1, 2, 3]
    assert np.allclose(1 + passes.returns, [1.5, 2.5 / 1.5, 3.5 / 2.5])


def test_stretches_of_one_account_in_a_group():
    """A hole in the data: two passes, the day between them compounded, averages by steps."""
    first = one("A", [1, 2], [1.1, 1.1], steps=30, mean_exposure=1.0)
    second = one("A", [2, 3], [1.5, 0.5], steps=10, mean_exposure=0.2)
    passes = joined([first, second], [0, 0])
    assert np.allclose(1 + passes.returns, [1.1, 1.65, 0.5])
    assert passes.metrics[0]["mean_exposure"] == pytest.approx(0.8)
