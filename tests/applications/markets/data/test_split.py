"""Splits by time, with an embargo in bars."""

import numpy as np
import pytest

from slipstream.core.config import validate
from slipstream.core.errors import ConfigError, DataError
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.market import market_from_bars
from slipstream.markets.folds import SplitConfig, split_times
from slipstream.markets.synthetic import SyntheticForex

SPLIT = SplitConfig()


def hourly(symbol: str, first: int, count: int) -> Bars:
    time = 1_600_000_000 + 3600 * np.arange(first, first + count, dtype=np.int64)
    ones = np.ones(count)
    return Bars(symbol, time, ones, ones, ones, ones, ones, ones)


def test_fractions_of_time_and_an_embargo_after_each_boundary():
    market = market_from_bars((hourly("A", 0, 1000),), 3600, "24/7")
    times = split_times(market, SPLIT, embargo_bars=24)
    start = 1_600_000_000
    assert times == {
        "train": (start, start + 600 * 3600),
        "validation": (start + 624 * 3600, start + 800 * 3600),
        "test": (start + 824 * 3600, start + 1000 * 3600),
    }


def test_the_embargo_counts_bars_not_hours_over_weekends():
    (bars,) = SyntheticForex().generate(4800, seed=1)
    market = market_from_bars((bars,), 900)
    times = split_times(market, SPLIT, embargo_bars=300)
    for before, after in (("train", "validation"), ("validation", "test")):
        between = bars.between(times[before][1], times[after][0])
        assert len(between) == 300


def test_no_symbols_training_overlaps_anothers_test():
    market = market_from_bars((hourly("A", 0, 1000), hourly("B", 300, 900)), 3600, "24/7")
    times = split_times(market, SPLIT, embargo_bars=50)
    edges = [moment for name in ("train", "validation", "test") for moment in times[name]]
    assert edges == sorted(edges)
    for bars in market.bars:
        for before, after in (("train", "validation"), ("validation", "test")):
            skipped = bars.between(times[before][1], times[after][0])
            ended = bars.time[-1] < times[after][0]
            assert ended or len(skipped) >= 50


def test_a_split_may_be_left_out():
    market = market_from_bars((hourly("A", 0, 1000),), 3600, "24/7")
    two = split_times(market, SplitConfig(train=0.7, validation=0.0, test=0.3), 10)
    assert list(two) == ["train", "test"]


@pytest.mark.parametrize("embargo", [200, 5000])
def test_too_few_bars_is_an_error(embargo):
    market = market_from_bars((hourly("A", 0, 1000),), 3600, "24/7")
    with pytest.raises(DataError, match=r"Split `validation` .* all its bars are 200"):
        split_times(market, SPLIT, embargo_bars=embargo)


@pytest.mark.parametrize(
    "values",
    [
        {"train": 0.6, "validation": 0.2, "test": 0.3},
        {"train": -0.2, "validation": 0.6, "test": 0.6},
        {"train": 0.0, "validation": 0.5, "test": 0.5},
        {"train": 1.2, "validation": -0.1, "test": -0.1},
    ],
)
def test_impossible_fractions(values):
    with pytest.raises(ConfigError, match="split"):
        validate(SplitConfig, values, "split")
