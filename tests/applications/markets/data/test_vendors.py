"""Vendors: truth -> a file -> what `init` writes -> load: the truth, or a refusal that helps.

What must never happen is that other bars than the vendor's are loaded without a word.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from vendors import (
    HOUR,
    NAIVE,
    VENDORS,
    ZONES,
    Truth,
    Vendor,
    christmas_trader,
    in_winter,
    iso,
    load,
    metatrader_5,
    remedies,
    sampled,
    second,
    truth,
    units,
    with_bars,
)

from slipstream.core.errors import DataError
from slipstream.core.timeline import DAY
from slipstream.markets.data.check import check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import Market
from slipstream.markets.data.symbols import pip_size
from slipstream.markets.starter_config import describe_folder, propose_section

FX = [name for name, vendor in VENDORS.items() if "fx" in vendor.markets]


CRYPTO = [name for name, vendor in VENDORS.items() if "24/7" in vendor.markets]


def assert_true(market: Market, truths: list[Truth], vendor: Vendor, section: dict) -> None:
    found = {re.sub("[^A-Z]", "", name): market.symbol(name) for name in market.symbols}
    assert set(found) == {one.symbol for one in truths}
    for one in truths:
        bars = found[one.symbol]
        np.testing.assert_array_equal(bars.time, one.time)
        shift = {"mid": 0.0, "bid": 0.5, "ask": -0.5}[section.get("price_side", "mid")]
        for name, quoted in one.prices.items():
            loaded = getattr(bars, name) - shift * bars.spread
            np.testing.assert_allclose(loaded, quoted, rtol=3e-7)
        if vendor.spread:
            np.testing.assert_allclose(bars.spread, one.points * one.point, rtol=1e-6)
        elif "spread_pips" in section:
            np.testing.assert_allclose(bars.spread, pip_size(one.symbol))


def through(folder: Path, vendor: Vendor, truths: list[Truth]) -> str:
    """Writes, initialises, loads, compares; says what it took."""
    for one in truths:
        vendor.write(folder, one)
    section = propose_section(describe_folder(folder).data_section).section
    assert section.get("price_side", "mid") == vendor.side
    try:
        market = load(section)
        outcome = "proven"
        if any("MetaTrader counts" in note for note in market.notes):
            section, outcome = {**section, "time_zone": vendor.zone}, "said"
            market = load(section)
    except DataError as error:
        # Only a zone, or the order of day and month, may be left to the user.
        assert re.search("time_zone|time_format", str(error)), error
        section, outcome = {**section, "time_zone": vendor.zone, **vendor.needs}, "asked"
        try:
            market = load(section)
        except DataError as next_error:
            section = {**section, **remedies(next_error)[0]}
            market = load(section)
    assert_true(market, truths, vendor, section)
    return outcome


@pytest.mark.parametrize(("name", "bar_seconds"), sampled(FX, (900, HOUR)))
def test_a_year_of_forex_leaves_nothing_to_write(tmp_path, name, bar_seconds):
    truths = [truth("EURUSD", bar_seconds), truth("USDJPY", bar_seconds, seed=1)]
    assert through(tmp_path, VENDORS[name], truths) == "proven"


@pytest.mark.parametrize("name", CRYPTO)
def test_exchanges(tmp_path, name):
    vendor = VENDORS[name]
    truths = [truth("BTCUSDT", HOUR, days=90), truth("ETHUSDT", HOUR, days=90, seed=1)]
    outcome = through(tmp_path, vendor, truths)
    assert outcome == ("proven" if vendor.zone is None else "asked")


SHORT = {
    "a week": (900, "2021-05-03", 5),
    "two weeks": (900, "2021-11-28", 14),
    "a winter month": (HOUR, "2021-01-01", 31),
    "a summer month": (300, "2021-07-01", 31),
    "a month of new clocks": (HOUR, "2021-03-01", 40),
    "minutes": (60, "2021-10-25", 15),
    "four hours": (4 * HOUR, "2021-01-04", 364),
    "days": (24 * HOUR, "2020-01-06", 728),
}


# Daily bars are of the server's days, whose midnight is 17:00 New York in one of them only; and
# no weekend shows which end of a day its stamp is.
NOT_DAILY = {"MetaTrader 5, EU DST", "MetaTrader 5, no DST"}
UNKNOWABLE = {"a week", "two weeks", "days"}


@pytest.mark.parametrize(("name", "span"), sampled(FX, SHORT))
def test_short_and_coarse_files_are_never_read_wrongly(tmp_path, name, span):
    vendor, (bar_seconds, start, days) = VENDORS[name], SHORT[span]
    if (span == "days" and name in NOT_DAILY) or (span in UNKNOWABLE and "close" in name):
        pytest.skip("nothing in such a file tells")
    outcome = through(tmp_path, vendor, [truth("EURUSD", bar_seconds, start, days)])
    if vendor.zone is None and bar_seconds <= 4 * HOUR:
        assert outcome == "proven"


STARTS = ("2021-01-04", "2021-03-01", "2021-07-01", "2021-10-11")


@pytest.mark.parametrize(("zone", "start"), sampled(ZONES, STARTS, share=13))
def test_a_wrong_zone_is_refused_with_one_that_helps(tmp_path, zone, start):
    """Six weeks of every clock, read as if in every other one."""
    one = truth("EURUSD", 900, start, 42)
    iso(NAIVE, "time", zone)(tmp_path, one)
    vendor = Vendor(iso(NAIVE, "time", zone), zone)
    for written in ZONES:
        section = {"folder": str(tmp_path), "symbols": ["EURUSD"], "time_zone": written}
        try:
            market = load(section)
        except DataError as error:
            ways = [way for way in remedies(error) if "allow_issues" not in way]
            loaded = [load({**section, **way}) for way in ways]
            if not any(np.array_equal(one.time, found.bars[0].time) for found in loaded):
                pytest.fail(f"{written}: none of {ways} is {zone}")
        else:
            assert_true(market, [one], vendor, section)


FIRST_HOURS = {
    "in winter": lambda late, one: late & in_winter(one),
    "in summer": lambda late, one: late & ~in_winter(one),
    "all year": lambda late, one: late,
}


@pytest.mark.parametrize(("name", "when"), sampled(FX, FIRST_HOURS))
def test_a_missing_first_hour_of_the_week_proves_nothing(tmp_path, name, when):
    if name in ("Dukascopy", "JForex"):
        pytest.skip("their candles without trades leave no hour out")
    if name == "close-labelled" and when == "all year":
        pytest.skip("the week then begins one bar late and ends one bar late: it could be any hour")
    vendor, one = VENDORS[name], truth("EURUSD", HOUR)
    monday = np.append(False, np.diff(one.time) > 24 * HOUR)
    one = one.rows(~FIRST_HOURS[when](monday, one))
    outcome = through(tmp_path, vendor, [one])
    if vendor.zone is None:
        assert outcome == "proven"


def subsets(path: Path) -> dict[str, pl.DataFrame]:
    """A real file by months, stretches, hours and days."""
    whole = pl.read_parquet(path).sort("timestamp")
    stamp = pl.col("timestamp")
    months = whole.group_by(stamp.dt.strftime("%Y%m"), maintain_order=True)
    found = {f"month {name[0]}": part for name, part in months}
    found |= {f"rows {k}": whole[k : k + 700] for k in range(0, len(whole) - 700, len(whole) // 9)}
    ohlc = [
        pl.col("open").first(),
        pl.col("high").max(),
        pl.col("low").min(),
        pl.col("close").last(),
        pl.col("volume").sum(),
    ]
    for every in ("1h", "4h", "1d"):
        found[every] = whole.group_by_dynamic("timestamp", every=every).agg(ohlc)
    return found


def judged(folder: Path, symbol: str, part: pl.DataFrame, **options: object) -> set[str]:
    part.write_parquet(folder / f"{symbol}.parquet")
    found = check(DataConfig(folder=str(folder), symbols=(symbol,), **options))
    assert not found.errors, (symbol, found.errors)
    return {one.kind for one in found.issues if one.severity == "warning"}


def test_real_forex_prices_in_parts_raise_no_false_alarm(tmp_path, forex_m15):
    for path in sorted(forex_m15.iterdir()):
        for part in subsets(path).values():
            kinds = judged(tmp_path, path.stem, part)
            assert kinds <= {"gap", "bounce", "flat", "stale", "calendar"}


def test_real_crypto_prices_in_parts_raise_no_false_alarm(tmp_path, crypto_5m):
    harmless = {"outage", "gap", "zero_volume", "flat", "stale", "large_move", "bounce"}
    for path in sorted(crypto_5m.iterdir()):
        for part in subsets(path).values():
            assert judged(tmp_path, path.stem, part) <= {*harmless, "coarse_tick"}


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/London", "Europe/Helsinki", "UTC"])
def test_real_forex_prices_prove_their_zone(tmp_path, forex_m15, zone):
    for path in sorted(forex_m15.iterdir()):
        whole = pl.read_parquet(path)
        local = pl.col("timestamp").dt.convert_time_zone(zone).dt.replace_time_zone(None)
        whole.with_columns(local).write_parquet(tmp_path / path.name)
        section = propose_section(describe_folder(tmp_path / path.name).data_section).section
        section = {**section, "symbols": [path.stem]}
        np.testing.assert_array_equal(load(section).bars[0].time, whole["timestamp"].dt.epoch("s"))


@pytest.mark.parametrize("symbol", ["EURUSD", "USDJPY", "XAUUSD"])
@pytest.mark.parametrize("span", SHORT)
def test_clean_files_raise_no_alarm(tmp_path, symbol, span):
    bar_seconds, start, days = SHORT[span]
    units(1.0, spread="price")(tmp_path, truth(symbol, bar_seconds, start, days))
    found = check(DataConfig(folder=str(tmp_path)))
    assert {one.kind for one in found.issues} <= {"weekend", "gap", "coarse_tick", "calendar"}
    assert not found.errors


def shown_zones(error: Exception) -> list[str]:
    """Every zone that a message names as something to write."""
    return re.findall(r"`time_zone: ([^`]+)`", str(error))


def test_a_broker_who_trades_on_christmas_evening(tmp_path):
    """None of 149 weekends is outside and all four holidays are, which proves the zone."""
    one = christmas_trader()
    assert through(tmp_path, VENDORS["MetaTrader 5, US DST"], [one]) == "proven"
    for wrong in ("UTC", "Europe/Athens", "America/New_York"):
        section = {"folder": str(tmp_path), "price_side": "bid", "time_zone": wrong}
        with pytest.raises(DataError, match="weekends have bars while the market") as refusal:
            load(section)
        assert shown_zones(refusal.value)[0] == "America/New_York+7"


@pytest.mark.parametrize("span", ["two weeks", "a winter month", "a summer month", "a week"])
@pytest.mark.parametrize("zone", ["America/New_York+7", "Asia/Tokyo", "Etc/GMT+11"])
def test_no_zone_is_named_that_the_file_contradicts(tmp_path, zone, span):
    """Examples of what to write load, or none is given; UTC was named and is wrong everywhere."""
    bar_seconds, start, days = SHORT[span]
    one = truth("EURUSD", bar_seconds, start, days + 3)
    iso(NAIVE, "time", zone)(tmp_path, one)
    with pytest.raises(DataError, match="must state their zone") as refusal:
        load({"folder": str(tmp_path)})
    for named in shown_zones(refusal.value):
        load({"folder": str(tmp_path), "time_zone": named})
    assert "UTC" not in shown_zones(refusal.value)


def test_bars_at_half_the_weekends_stop_though_no_zone_explains_them(tmp_path):
    """A clock that goes wrong by the week."""
    one = truth("EURUSD", HOUR, days=7 * 40)
    week = (one.time - one.time[0]) // (7 * DAY)
    one = replace(one, time=one.time + np.where(week % 2, 5, -4) * HOUR)
    iso(NAIVE, "time")(tmp_path, one)
    section = {"folder": str(tmp_path), "time_zone": "UTC"}
    with pytest.raises(DataError, match=r"at \d+ of 41 weekends, .* no known zone") as refusal:
        load(section)
    assert remedies(refusal.value) == [{"allow_issues": ["weekend_bars"]}]
    assert load({**section, "allow_issues": "weekend_bars"}).accepted
    with pytest.raises(DataError, match="fit no known zone") as refusal:
        load({"folder": str(tmp_path)})
    assert not shown_zones(refusal.value)


STRAYS = {
    "America/New_York+7": ("no Sunday", "2020-03-13T21:00"),
    "Europe/Athens": ("no Friday", "2020-03-22T20:00"),
}


@pytest.mark.parametrize("zone", STRAYS)
def test_one_stray_bar_sends_nobody_from_zone_to_zone(tmp_path, zone):
    """132 weeks that all lack an hour, and a bar outside in a week when clocks differ."""
    lacking, stray = STRAYS[zone]
    one = truth("EURUSD", HOUR, "2019-07-29", 7 * 132)
    hole = np.diff(one.time) > 24 * HOUR
    edge = np.append(False, hole) if lacking == "no Sunday" else np.append(hole, True)
    one = with_bars(one.rows(~edge), np.array([second(stray)]))
    metatrader_5(zone)(tmp_path, one)
    section = {"folder": str(tmp_path), "price_side": "bid", "time_zone": zone}
    np.testing.assert_array_equal(load(section).bars[0].time, one.time)
    path = [section["time_zone"] for section in remedies_followed(tmp_path)]
    assert len(path) == len(set(path)), f"in a circle: {path}"


def remedies_followed(folder: Path) -> list[dict[str, Any]]:
    """The sections of somebody who begins with each zone that is named and does as he is told."""
    section: dict[str, Any] = {"folder": str(folder), "price_side": "bid"}
    followed = []
    for zone in ("America/New_York+7", "Europe/Athens"):
        section["time_zone"] = zone
        for _ in range(6):
            try:
                load(section)
            except DataError as error:
                section = {**section, **(remedies(error) or [{}])[0]}
                followed.append(section)
            else:
                break
    return followed


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 30), marks=pytest.mark.slow)])
def test_sloppy_vendors_raise_no_alarm(tmp_path, seeds):
    """Bars on some Sundays before the market opens, in the right zone: no other explains them."""
    for seed in seeds:
        one = truth("EURUSD", HOUR, seed=seed)
        draw = np.random.default_rng(seed)
        monday = np.flatnonzero(np.diff(one.time) > 24 * HOUR) + 1
        early = np.sort(draw.choice(monday, draw.integers(1, 20), replace=False))
        rows = np.sort(np.concatenate([np.arange(len(one.time)), early]))
        time = one.time[rows]
        doubled = np.append(np.diff(rows) == 0, False)
        time[doubled] -= HOUR
        padded = replace(one.rows(rows), time=time)
        zone = ["UTC", "America/New_York", "America/New_York+7", "Europe/London"][seed % 4]
        iso(NAIVE, "time", zone)(tmp_path, padded)
        kinds = {
            found.kind for found in check(DataConfig(folder=str(tmp_path), time_zone=zone)).issues
        }
        assert "weekend_bars" in kinds and not kinds & {"local_time", "close_labelled"}


@pytest.mark.parametrize(
    ("zone", "symbol"),
    sampled(["UTC", "Etc/GMT+5", "America/New_York+7", "Europe/Helsinki"], ["EURUSD", "XAUUSD"]),
)
def test_thin_minutes_prove_their_zone(tmp_path, symbol, zone):
    """Gold opens an hour later; every fifth minute has no trade, and most weeks begin late."""
    one = truth(symbol, 60, "2021-01-11", 130)
    one = one.rows(np.random.default_rng(0).random(len(one.time)) > 0.2)
    assert through(tmp_path, Vendor(iso(NAIVE, "time", zone), zone), [one]) == "proven"
