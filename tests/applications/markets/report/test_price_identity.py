"""The same prices are identified by their returns, and development days are never fresh."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import polars as pl
import pytest

from slipstream.core.storage.folder_registry import state_folder
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.evaluation.holdout_register import (
    DAY,
    FILE,
    HOUR,
    Opening,
    PriceSeries,
    count_trials,
    get_searched_days,
    price_series,
    record_opening,
    register_search,
)
from slipstream.studies.outcome.outcome_text import describe_earlier_studies
from slipstream.training.environments.factory import resolve_environment

SUNDAY = 1_704_664_800  # 2024-01-07 22:00 UTC
HOURS = 24 * 7 * 30


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def walk(seed=0, noise=0.0):
    """Times and closes of an hourly week-day market, about 150 trading days."""
    random = np.random.default_rng(seed)
    time = SUNDAY + HOUR * np.arange(HOURS)
    time = time[~is_weekend(time)]
    close = np.cumsum(np.random.default_rng(0).normal(0, 1.2e-3, len(time)))
    return time, close + noise * np.cumsum(random.normal(0, 1.2e-3, len(time)))


def hourly(time, close, inside=slice(None)):
    chosen = np.zeros(len(time), np.bool_)
    chosen[inside] = True
    return PriceSeries(HOUR, time // HOUR, close, time // DAY, chosen)


def daily(time, close, roll=0, inside=slice(None)):
    day = (time - roll * HOUR) // DAY
    ends = np.flatnonzero(np.diff(day, append=-1))
    chosen = np.zeros(len(ends), np.bool_)
    chosen[inside] = True
    return PriceSeries(DAY, day[ends], close[ends], day[ends], chosen)


def opened(folder, name, series, own=1):
    folder.mkdir(parents=True, exist_ok=True)
    return record_opening([series], f"{name}/trial 1", f"study {name}", folder, own, 1.8e9)


TIME, CLOSE = walk()
SAME = {
    "equal": hourly(TIME, CLOSE),
    "an hour late": hourly(TIME + HOUR, CLOSE),
    "seven hours early": hourly(TIME - 7 * HOUR, CLOSE),
    "26 hours late": hourly(TIME + 26 * HOUR, CLOSE),
    "inverted": hourly(TIME, -CLOSE),
    "inverted and late": hourly(TIME + 2 * HOUR, -CLOSE),
    "in points": hourly(TIME, CLOSE + np.log(1e5)),
    "with a noisy spread": hourly(*walk(7, 0.2)),
    "days of UTC": daily(TIME, CLOSE),
    "days of New York": daily(TIME, CLOSE, roll=22),
    "days, inverted": daily(TIME, -CLOSE, roll=3),
}
FEW = np.unique(TIME // DAY)[59] > TIME // DAY
OTHER = {
    "another market": hourly(TIME, walk(3, 0.5)[1]),  # correlation 0.89
    "27 hours late": hourly(TIME + 27 * HOUR, CLOSE),
    "a flat line": hourly(TIME, np.zeros(len(TIME))),
    "59 days": hourly(TIME[FEW], CLOSE[FEW]),
}


@pytest.mark.parametrize(
    ("first", "name"),
    [
        *(("equal", name) for name in SAME),
        # two daily files whose days begin at other hours correlate to 0.92
        *(("days of UTC", name) for name in SAME if name not in list(SAME)[-2:]),
    ],
)
def test_the_same_prices_are_found(name, first, tmp_path):
    before = opened(tmp_path, "one", SAME[first])
    found = opened(tmp_path, "two", SAME[name])
    assert before == Opening(1) and found.number == 2
    assert len(found.opened) > 0.97 * len(SAME[name].days)


@pytest.mark.parametrize("name", OTHER)
def test_other_prices_are_not(name, tmp_path):
    opened(tmp_path, "one", SAME["equal"])
    found = opened(tmp_path, "two", OTHER[name])
    assert found.number == 1 and not found.opened
    assert bool(found.compared_days) == (name == "59 days")


def test_a_shifted_hold_out_loses_the_days_that_were_opened_and_no_other(tmp_path):
    opened(tmp_path, "one", hourly(TIME, CLOSE, slice(0, 2_000)))
    new = hourly(TIME + 3 * HOUR, CLOSE, slice(1_000, 3_000))
    days = new.day[1_000:2_000]
    assert opened(tmp_path, "two", new).opened == set(days.tolist())


def test_days_that_a_study_searched_on_are_not_fresh(tmp_path):
    development = hourly(TIME, CLOSE, slice(0, 2_000))
    register_search([development], "one", "study one", tmp_path, 1.8e9)
    register_search([development], "one", "study one", tmp_path, 1.8e9)  # resumed
    held_out = hourly(TIME, -CLOSE, slice(1_500, 3_000))
    found = opened(tmp_path, "two", held_out)
    assert found.number == 1 and found.searched == ("study one (2027-01-15)",)
    assert found.opened == set(held_out.day[1_500:2_000].tolist())
    assert found.as_dict()["searched"] == found.searched
    assert get_searched_days("one", [held_out], tmp_path) == found.opened
    assert get_searched_days("three", [held_out], tmp_path) is None


def test_trials_of_earlier_searches_on_the_same_days_are_counted(tmp_path):
    first, second = (hourly(TIME, CLOSE, slice(a, a + 2_000)) for a in (0, 1_000))
    assert register_search([first], "one", "study one", tmp_path, 1.8e9, trials=40) == {}
    known = register_search([second], "two", "study two", tmp_path, 1.8e9, trials=7)
    one = "study one (2027-01-15)"
    assert known == {"studies": [one], "trials": 40, "unknown": 0}
    count_trials("one", 31, tmp_path)  # it ended early
    known = register_search([second], "two", "study two", tmp_path, 1.8e9, trials=7)  # resumed
    assert known["trials"] == 31
    with closing(sqlite3.connect(tmp_path / ".openings.db")) as db, db:
        db.execute("DELETE FROM trials WHERE key LIKE 'one%'")
    with closing(sqlite3.connect(state_folder("holdouts") / FILE)) as db, db:
        db.execute("DELETE FROM trials WHERE key LIKE 'one%'")
    third = register_search([first], "three", "study three", tmp_path, 1.8e9, trials=5)
    assert third["trials"] == 7 and third["unknown"] == 1 and len(third["studies"]) == 2
    far = hourly(TIME, CLOSE, slice(3_200, None))
    assert register_search([far], "four", "study four", tmp_path, 1.8e9, trials=5) == {}
    told = describe_earlier_studies(third)
    assert "2, which tried 7 trials (unknown for 1 of them): study one" in told
    assert describe_earlier_studies(None) == ""


def test_a_studys_own_development_days_do_not_stand_in_its_way(tmp_path):
    register_search([hourly(TIME, CLOSE, slice(0, 2_000))], "one", "study one", tmp_path)
    assert opened(tmp_path, "one", hourly(TIME, CLOSE, slice(2_000, None))) == Opening(1)


def test_a_file_that_grows_is_stored_once(tmp_path):
    for end in (2_500, 2_600, 2_700):
        series = hourly(TIME[:end], CLOSE[:end], slice(end - 300, end))
        opened(tmp_path, f"night {end}", series)
    found = opened(tmp_path, "last", hourly(TIME, CLOSE, slice(2_200, 2_800)))
    assert found.number == 4 and len(found.before) == 3
    with closing(sqlite3.connect(tmp_path / ".openings.db")) as db:
        assert db.execute("SELECT count(*) FROM series").fetchall() == [(1,)]


def environment(folder, name, time, close, minutes=60):
    """A forex environment over a file of that name, and its test split's series."""
    folder.mkdir()
    opens = np.exp(np.concatenate([close[:1], close[:-1]]))
    last = np.exp(close)
    pl.DataFrame(
        {
            "time": pl.from_epoch(time, time_unit="s").dt.replace_time_zone("UTC"),
            "open": opens,
            "high": np.maximum(opens, last) + 1e-4,
            "low": np.minimum(opens, last) - 1e-4,
            "close": last,
        }
    ).write_parquet(folder / f"{name}.parquet")
    data = {"folder": str(folder), "spread_pips": 0.8}
    split = {"train": 0.3, "validation": 0.2, "test": 0.5}
    settings = {"data": data, "split": split, "features": ["log_return_1"]}
    return price_series(resolve_environment("forex", settings), "test")


def test_only_a_splits_days_are_in_question_and_all_before_identify_prices(tmp_path):
    (series,) = environment(tmp_path / "a", "EURUSD", TIME, CLOSE)
    assert series.step == HOUR and 0.4 < series.selected.mean() < 0.6
    rows = np.isin(TIME // HOUR, series.row_index)
    assert rows.sum() == len(series.row_index) > 0.9 * len(TIME)
    assert np.allclose(series.close, CLOSE[rows])
    (window,) = [series._replace(selected=~series.selected)]
    register_search([window], "one", "study one", tmp_path)
    assert not (window.days & series.days) or len(window.days & series.days) == 1
    (late,) = environment(tmp_path / "b", "GBPUSD", TIME, -CLOSE)
    found = record_opening([late], "two/trial 1", "study two", tmp_path, 1)
    assert len(found.opened) <= 1  # of the hold-out only the day at its edge
