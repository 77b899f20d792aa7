"""A feed that contradicts the prices a policy was trained on stops before its first decision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from live_markets import Make, table, week, write

from slipstream.core.errors import DataError
from slipstream.markets.data.bars import Bars
from slipstream.markets.live.account_runner import run_account
from slipstream.markets.live.drift import NUM_STORED_BARS, TrainingPrices, compare

FEATURES = ["log_return_1", "rsi_14"]
TIME, SPREAD = week(420), 2e-4


def bars(time=TIME, close=None, spread=SPREAD):
    if close is None:
        close = 1.1 * np.exp(np.cumsum(3e-4 * np.random.default_rng(0).standard_normal(len(time))))
    ones = np.ones(len(time))
    return Bars("EURUSD", time, close, close, close, close, ones, spread * ones)


TRAINED = bars()
KNOWN = {
    "EURUSD": TrainingPrices.from_metadata(TrainingPrices.from_bars(TRAINED, None).to_metadata())
}


def moved(rows, size=3 * SPREAD):
    close = TRAINED.close.copy()
    close[rows] += size
    return bars(close=close)


def test_equal_bars_agree():
    assert compare(KNOWN, [TRAINED]) == (
        f"The feed agrees with the training prices on {len(TIME)} common bars."
    )
    close = TRAINED.close + 0.9 * SPREAD  # another side of the quote
    assert "agrees" in compare(KNOWN, [bars(close=close)])


def test_few_differences_are_reported_and_more_than_one_percent_stop():
    told = compare(KNOWN, [moved([5, 100, 400])])
    assert "on 420 common bars but 3, by up to 0.0006." in told
    with pytest.raises(DataError, match=r"EURUSD.* 5 of 420 common bars .* up to 0\.0006"):
        compare(KNOWN, [moved(np.arange(0, 420, 100))])


@pytest.mark.parametrize("lag", [-1, 1, 8])
def test_shifted_stamps_are_named(lag):
    time = TRAINED.time + 900 * lag
    with pytest.raises(DataError) as caught:
        compare(KNOWN, [bars(time, TRAINED.close)])
    when = "earlier" if lag < 0 else "later"
    assert f"Its stamps are {abs(lag)} bar{'s' * (abs(lag) > 1)} {when}" in str(caught.value)
    with pytest.raises(DataError) as caught:
        compare(KNOWN, [bars(close=1.0 / TRAINED.close)])
    assert "stamps are" not in str(caught.value)


def test_a_feed_without_a_common_bar_is_not_compared():
    later = bars(TIME + 86_400 * 70)
    assert "not compared" in compare(KNOWN, [later]) and "not compared" in compare({}, [later])


def test_the_ends_of_training_and_of_the_file_are_kept():
    time = week(3_000)
    kept = TrainingPrices.from_bars(bars(time), float(time[1_500]))
    assert np.array_equal(
        kept.time, np.r_[time[1_500 - NUM_STORED_BARS : 1_500], time[-NUM_STORED_BARS:]]
    )
    assert kept.tolerance == SPREAD
    assert 0 < TrainingPrices.from_bars(bars(time, spread=0.0), None).tolerance < 3e-4


@pytest.mark.parametrize("shift", [0, -900])
def test_a_deployment_compares_its_feed_before_it_decides(
    make: Make, tmp_path: Path, shift: int
) -> None:
    prices = write(tmp_path / "prices", {"EURUSD": table(TIME, 1.1, 0)})
    make("forex", prices, features=FEATURES)
    told: list[str] = []
    begin = int(TIME[300])
    feed = tmp_path / "feed"
    file = table(TIME, 1.1, 0).with_columns(
        time=pl.Series([f"{np.datetime64(int(t), 's')}Z" for t in TIME + shift])
    )
    write(feed, {"EURUSD": file})
    if shift:
        with pytest.raises(DataError, match="stamps are 1 bar earlier"):
            run_account("demo", f"replay:{feed}", start=begin, notify=told.append)
        assert run_account("demo", f"replay:{prices}", start=begin) > 0  # nothing wrong was kept
        return
    assert run_account("demo", f"replay:{feed}", start=begin, notify=told.append) > 0
    assert sum("agrees with the training prices" in text for text in told) == 1


def test_a_feed_that_reaches_the_kept_closes_later_is_compared_there(
    make: Make, tmp_path: Path
) -> None:
    long = week(NUM_STORED_BARS + 900)
    prices = write(tmp_path / "prices", {"EURUSD": table(long, 1.1, 0)})
    make("forex", prices, features=FEATURES)
    feed = write(tmp_path / "feed", {"EURUSD": table(long, 1.1, 1)})  # other prices, same stamps
    with pytest.raises(DataError, match="contradicts the prices that the policy was trained on"):
        run_account("demo", f"replay:{feed}", start=int(long[300]))
