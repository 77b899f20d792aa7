"""Openings of hold-outs are known by their prices, for a user, and are not forgotten."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.evaluation import holdout_register
from slipstream.markets.evaluation.holdout_register import (
    PriceRegister,
    PriceSeries,
    price_series,
    record_opening,
)
from slipstream.markets.synthetic import SyntheticCrypto, is_synthetic
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.parts import HoldoutRegister, Opening, get_holdout_register

HOUR = 3_600
SUNDAY = 1_704_664_800  # 2024-01-07 22:00 UTC: 17:00 New York


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "slipstream" / "holdouts"


def prices(seed=0, first=19_000, days=100):
    """A symbol's days; equal seeds are equal prices, whatever the range."""
    returns = np.random.default_rng(seed).normal(0.0, 0.01, 2_000)
    number = np.arange(first, first + days)
    return [PriceSeries.from_returns(number, returns[number - 19_000])]


def opened(folder, name, what=None, own=1):
    folder.mkdir(parents=True, exist_ok=True)
    return record_opening(
        prices() if what is None else what, name, f"study {name}", folder, own, 1.8e9
    )


def test_a_second_study_over_the_same_prices_is_the_second_opening(tmp_path):
    """The issue's case: two studies were both "first opening, promoted"."""
    assert opened(tmp_path / "a", "one") == Opening(1)
    found = opened(tmp_path / "b", "two", prices(first=19_040))
    assert found.number == 2 and found.before == ("study one (2027-01-15)",)
    assert found.opened == set(range(19_040, 19_100))  # the other forty days are new
    assert opened(tmp_path / "a", "one") == Opening(1)  # resumed: it opened once
    third = opened(tmp_path / "b", "three", prices(first=19_040))
    assert third.number == 3 and len(third.before) == 2 and len(third.opened) == 100


def test_prices_are_the_same_by_their_returns(tmp_path):
    (plain,) = prices()
    opened(tmp_path, "one", [plain])
    assert opened(tmp_path, "other", prices(seed=1)).number == 1
    noise = np.random.default_rng(5).normal(0.0, 1.0, 100)
    returns = np.diff(plain.close, prepend=0.0)
    for share, same in ((0.5, False), (0.2, True)):  # correlations of 0.9 and of 0.98
        similar = PriceSeries.from_returns(plain.day, returns + share * 0.01 * noise)
        assert (opened(tmp_path / str(share), f"near {share}", [similar]).number > 1) == same
    assert opened(tmp_path, "short", prices(first=19_041)).number == 1  # 59 days are shared
    assert opened(tmp_path, "long", prices(first=19_040)).number >= 2


def daily(hourly, roll):
    """Log closes of days that begin at an hour."""
    hours = np.arange(len(hourly))
    day = (hours - roll) // 24
    ends = np.flatnonzero(np.diff(day, append=day[-1] + 1))
    number, inside = 19_000 + day[ends], np.ones(len(ends), np.bool_)
    return PriceSeries(holdout_register.DAY, number, hourly[ends], number, inside)


@pytest.mark.parametrize("days", [62, 250])
def test_daily_prices_are_the_same_whenever_their_days_begin(tmp_path, days):
    draw = np.random.default_rng(days)
    steps = draw.normal(0.0, 0.002, (2, 24 * days))
    hourly = np.cumsum(steps[0])
    opened(tmp_path, "one", [daily(hourly, 0)])
    for roll in (1, 2, 3):
        for sign in (1, -1):  # inverted, too
            found = opened(tmp_path, f"{roll} {sign}", [daily(sign * hourly, roll)])
            assert "study one (2027-01-15)" in found.before
    for share in (0.5, 0.9):  # other prices, however well their returns correlate
        other = np.cumsum(share * steps[0] + np.sqrt(1 - share**2) * steps[1])
        for roll in (0, 2):
            assert holdout_register._align(daily(hourly, 0), daily(other, roll)) is None


def test_one_symbol_of_several_is_enough(tmp_path):
    opened(tmp_path, "one", [*prices(seed=3), *prices(seed=4)])
    assert opened(tmp_path, "two", [*prices(seed=5), *prices(seed=4)]).number == 2


def test_an_opening_is_found_under_another_home_and_from_another_folder(tmp_path, monkeypatch):
    opened(tmp_path / "studies", "one")
    assert opened(tmp_path / "elsewhere", "two").number == 2
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    found = opened(tmp_path / "studies", "three")
    assert found.number == 2 and found.before[0].startswith("study one")


def test_an_unwritable_state_folder_makes_others_unknown(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    found = opened(tmp_path / "studies", "one")
    assert found.number == 1 and str(tmp_path / "file") in found.unknown
    found = opened(tmp_path / "studies", "two")  # beside it, it is still known
    assert found.number == 2 and found.unknown


def test_a_damaged_register_is_not_taken_for_an_empty_one(tmp_path, state):
    opened(tmp_path, "one")
    (state / holdout_register.FILE).write_bytes(b"no database at all" * 100)
    assert "not a database" in opened(tmp_path / "b", "two").unknown


def test_the_studys_own_second_opening_has_no_fresh_day(tmp_path):
    """Whatever became of the registers: its ledger counts, too."""
    found = opened(tmp_path, "one", own=2)
    assert found.number == 2 and len(found.opened) == 100


def _open_in_a_process(folder, name, barrier, found):
    barrier.wait()
    found.put(opened(Path(folder), name).number)


def test_of_studies_at_once_one_is_the_first(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, found = context.Barrier(5), context.Queue()
    each = [
        context.Process(target=_open_in_a_process, args=(tmp_path, f"s{k}", barrier, found))
        for k in range(5)
    ]
    for process in each:
        process.start()
    numbers = sorted(found.get(timeout=60) for _ in each)
    for process in each:
        process.join()
    assert numbers == [1, 2, 3, 4, 5]


def test_a_kill_forgets_no_opening(tmp_path):
    child = os.fork()
    if child == 0:
        opened(tmp_path, "one")
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert opened(tmp_path, "two").number == 2


def write(folder, symbol, hours):
    """One path of forty weeks in bars of so many hours."""
    random = np.random.default_rng(0)
    time = SUNDAY + HOUR * np.arange(40 * 168)
    time = time[~is_weekend(time)][: 40 * 120]
    close = 1.1 * np.exp(np.cumsum(random.normal(0, 1.2e-3, len(time))))
    opens = np.concatenate([[1.1], close[:-1]])
    high = np.maximum(opens, close) + 1e-4
    low = np.minimum(opens, close) - 1e-4
    rows = len(time) // hours
    folder.mkdir()
    pl.DataFrame(
        {
            "time": pl.from_epoch(time[::hours], time_unit="s").dt.replace_time_zone("UTC"),
            "open": opens[::hours],
            "high": high.reshape(rows, hours).max(axis=1),
            "low": low.reshape(rows, hours).min(axis=1),
            "close": close[hours - 1 :: hours],
            "volume": random.integers(50, 500, rows).astype(float),
        }
    ).write_parquet(folder / f"{symbol}.parquet")
    data = {"folder": str(folder), "spread_pips": 0.8}
    split = {"train": 0.3, "validation": 0.2, "test": 0.5}
    features = ["log_return_1"]  # remembers little
    return resolve_environment("forex", {"data": data, "split": split, "features": features})


def test_other_names_and_bar_lengths_are_the_same_prices(tmp_path):
    hourly = write(tmp_path / "a", "EURUSD", 1)
    longer = write(tmp_path / "b", "GBPUSD", 2)
    (series,) = price_series(hourly, "test")
    assert len(series.days) > 60 and np.isfinite(series.close).all()
    opened(tmp_path, "one", [series])
    (other,) = price_series(longer, "test")
    found = opened(tmp_path, "two", [other])
    assert found.number == 2
    assert found.opened == series.days & other.days


def test_looks_are_listed_and_take_no_day_away(tmp_path):
    environment = write(tmp_path / "a", "EURUSD", 1)
    PriceRegister(environment).record_access("run runs/first")
    assert PriceRegister(environment).record_access("run runs/first") == ()  # again: listed once
    (before,) = get_holdout_register(environment).record_access("run runs/second")
    assert before.startswith("run runs/first (")
    assert (
        PriceRegister(environment).record_access("run runs/first") == ()
    )  # nothing was there before it
    found = opened(tmp_path, "one", price_series(environment, "test"))
    assert found.number == 1 and not found.opened and not found.before
    assert len(found.accesses) == 2 and found.accesses[0].startswith("run runs/first (")


def test_a_path_that_the_locale_cannot_decode_is_registered(tmp_path):
    environment = write(tmp_path / "a", "EURUSD", 1)
    path = "runs/früh".encode().decode("ascii", "surrogateescape")  # as with LC_ALL=C
    PriceRegister(environment).record_access(f"run {path}")
    (before,) = PriceRegister(environment).record_access("run runs/second")
    assert before.startswith("run runs/früh (")


def test_without_prices_nothing_is_registered():
    register = get_holdout_register(resolve_environment("cartpole", {}))
    assert type(register) is HoldoutRegister
    assert register.open("key", "study one", Path(), 1) == Opening(1)
    assert register.record_access("run runs/first") == ()


def test_markets_of_our_own_generators_are_exempt(tmp_path):
    SyntheticCrypto().write(tmp_path / "planted", 9_000, 0)
    assert is_synthetic(str(tmp_path / "planted"))
    environment = resolve_environment("portfolio", {"data": {"folder": str(tmp_path / "planted")}})
    assert price_series(environment, "test") == []
    assert opened(tmp_path, "one", []) == opened(tmp_path, "two", []) == Opening(1)
    file = tmp_path / "planted" / "BTC.parquet"
    pl.read_parquet(file).with_columns(pl.col("volume") + 1.0).write_parquet(file)
    assert not is_synthetic(str(tmp_path / "planted"))  # not as the generator wrote it
    assert len(price_series(environment, "test")) == 7
