"""Remedies: whatever a refusal prints is pasted into the config, and the prices load."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from vendors import load, remedies, units

from slipstream.core.errors import ConfigError, DataError
from slipstream.markets.data.check import check, render
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import ACCEPTABLE, CATALOGUE
from slipstream.markets.data.file_discovery import override_data_config
from slipstream.markets.data.market import load_market
from slipstream.markets.starter_config import describe_folder, propose_section

PRICES = ("open", "high", "low", "close")
ROOT = Path(__file__).parents[4]


def scaled(one: pl.DataFrame, factor: float, digits: int | None = None) -> pl.DataFrame:
    columns = [pl.col(name) * factor for name in PRICES]
    return one.with_columns(c.round(digits) if digits is not None else c for c in columns)


def stamps(one: pl.DataFrame, shift: int = 0, zone: str | None = None) -> pl.DataFrame:
    column = pl.col("timestamp") + pl.duration(seconds=shift)
    if zone is not None:
        column = column.dt.convert_time_zone(zone).dt.replace_time_zone(None)
    return one.with_columns(column)


def halves(one: pl.DataFrame, zone: str = "Europe/London") -> pl.DataFrame:
    """Text stamps, the second half without a zone."""
    aware = pl.col("timestamp").dt.strftime("%Y-%m-%d %H:%M:%S+00:00")
    local = pl.col("timestamp").dt.convert_time_zone(zone).dt.strftime("%Y-%m-%d %H:%M:%S")
    return one.with_columns(
        timestamp=pl.when(pl.int_range(pl.len()) < 5000).then(aware).otherwise(local)
    )


def spread(one: pl.DataFrame, value: object) -> pl.DataFrame:
    return one.with_columns(spread=value)


def swapped(one: pl.DataFrame) -> pl.DataFrame:
    """The pair the other way round."""
    turned = {"open": "open", "high": "low", "low": "high", "close": "close"}
    return one.with_columns((1.0 / pl.col(theirs)).alias(ours) for ours, theirs in turned.items())


def broken(one: pl.DataFrame) -> pl.DataFrame:
    return one.with_columns(close=pl.when(pl.int_range(pl.len()) != 7).then("close"))


POINTS = (pl.int_range(pl.len()) % 9 + 8).cast(pl.Float64)
YEN = 120.0
# Finding -> what was done to EURUSD and USDJPY (at 132), and the section's own keys.
DEFECTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "integer_prices": (lambda o: scaled(o, 1e5, 0), lambda o: scaled(o, 1e3, 0), {}),
    "integer_prices, noise": (
        lambda o: scaled(scaled(o, 1e5, 0), 1.0 + 1e-12), lambda o: scaled(o, 1e3, 0), {}
    ),
    "units, pips": (lambda o: scaled(o, 1e4, 1), lambda o: scaled(o, 1e2, 1), {}),
    "units, one symbol": (lambda o: o, lambda o: scaled(o, 0.01), {}),
    "units, scaled already": (lambda o: o, lambda o: o, {"price_scale": 0.01}),
    "units, inverse": (lambda o: o, swapped, {}),
    "spread_unit, points": (lambda o: spread(scaled(o, 1.0, 5), POINTS), lambda o: o, {}),
    "spread_unit, pips": (lambda o: spread(o, POINTS * 0.13), lambda o: o, {}),
    "spread_unit, config": (lambda o: o, lambda o: o, {"spread_pips": 9e3}),
    "point_size": (
        lambda o: scaled(o, 1.0, 4).with_columns(spread_points=POINTS),
        lambda o: scaled(o, 1.0, 2).with_columns(spread_points=POINTS),
        {},
    ),
    "local_time": (lambda o: stamps(o, zone="Asia/Tokyo"), lambda o: o, {"time_zone": "UTC"}),
    "close_labelled": (lambda o: stamps(o, 900), lambda o: stamps(o, 900), {}),
    "open_labelled": (lambda o: o, lambda o: o, {"timestamp_label": "right"}),
    "naive_time": (lambda o: stamps(o, zone="America/New_York"), lambda o: o, {}),
    "naive_time, some": (halves, lambda o: o, {}),
    "no_spread": (lambda o: o, lambda o: o, {"price_side": "bid"}),
    "timeframe": (lambda o: o, lambda o: o[::4], {}),
    "timeframe, asserted": (lambda o: o, lambda o: o, {"timeframe": "1h"}),
    "too_few": (lambda o: o, lambda o: o[:1], {}),
    "columns": (lambda o: o.rename({"close": "Kurs"}), lambda o: o, {}),
    "nan": (broken, broken, {}),
}  # fmt: skip


FIRST = {name.partition(",")[0]: name for name in reversed(DEFECTS)}.values()  # of each kind


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST)) for name in DEFECTS]
)
def test_every_remedy_works_when_pasted(tmp_path, frame, name):
    euro, yen, own = DEFECTS[name]
    one = frame(bars=10_000)
    euro(one).write_parquet(tmp_path / "EURUSD.parquet")
    yen(scaled(one, YEN)).write_parquet(tmp_path / "USDJPY.parquet")
    section = {"folder": str(tmp_path), **own}
    with pytest.raises(DataError) as refusal:
        load(section)
    report = check(DataConfig(**section))
    kind = name.partition(",")[0]
    assert kind in {one.kind for one in report.issues if one.severity == "error"}
    ways = remedies(refusal.value)
    assert ways == [dict(way) for way in report.fixes]
    assert any("allow_issues" in way for way in ways) == CATALOGUE[kind].acceptable
    assert [way for way in ways if "allow_issues" not in way] or own.get("spread_pips")
    for way in ways:
        market = load({**section, **way})
        assert bool(market.accepted) == ("allow_issues" in way)
        accepted = [f"allow_issues` names {found}" for found in way.get("allow_issues", ())]
        assert all(any(words in note for note in market.accepted) for words in accepted)


def test_a_remedy_keeps_what_stands_in_the_config(tmp_path, frame):
    """A pasted key replaces the one before: it must hold the old entries, too."""
    scaled(frame(), 1e5, 0).rename({"close": "Kurs"}).write_parquet(tmp_path / "EURUSD.parquet")
    scaled(frame(), YEN * 1e3, 0).write_parquet(tmp_path / "USDJPY.parquet")
    section = {
        "folder": str(tmp_path),
        "columns": {"Kurs": "close"},
        "price_scale": {"USDJPY": 1e-3},
        "allow_issues": ["bogus"],
    }
    with pytest.raises(ConfigError, match="not an issue that can be allowed"):
        load(section)
    with pytest.raises(DataError) as refusal:
        load({**section, "allow_issues": ["scale_jump"]})
    mending, accepting = remedies(refusal.value)
    assert mending == {"price_scale": {"USDJPY": 1e-3, "EURUSD": 1e-5}}
    assert accepting == {"allow_issues": ["scale_jump", "integer_prices"]}


def test_unreadable_files_are_left_out_by_the_remedy(tmp_path, frame):
    frame().write_parquet(tmp_path / "EURUSD.parquet")
    (tmp_path / "notes.csv").write_text("buy milk\n")
    with pytest.raises(DataError, match=r"notes \(notes.csv\) must hold a time") as refusal:
        load({"folder": str(tmp_path)})
    (way,) = remedies(refusal.value)
    assert load({"folder": str(tmp_path), **way}).symbols == ("EURUSD",)


def test_an_index_without_a_name_is_quoted(tmp_path, frame):
    lines = frame().write_csv().replace("timestamp", "", 1)
    (tmp_path / "EURUSD.csv").write_text(lines)
    with pytest.raises(DataError, match=r"""`columns: \{"": time\}`"""):
        load({"folder": str(tmp_path)})


def test_naive_stamps_among_aware_ones_are_counted(tmp_path, frame):
    halves(frame(bars=6428)).write_csv(tmp_path / "EURUSD.csv")
    with pytest.raises(DataError, match=r"1,428 of 6,428 time stamps, such as .* carry no zone"):
        load({"folder": str(tmp_path)})
    market = load({"folder": str(tmp_path), "time_zone": "Europe/London"})
    np.testing.assert_array_equal(market.bars[0].time, frame(bars=6428)["timestamp"].dt.epoch("s"))


def test_points_and_their_unit_are_said(tmp_path):
    from vendors import VENDORS, truth

    VENDORS["MetaTrader, Python, csv"].write(tmp_path, truth(days=40))
    market = load({"folder": str(tmp_path), "time_zone": "America/New_York+7"})
    assert any("spreads are points of 1e-05" in note for note in market.notes)


@pytest.mark.parametrize("symbol", ["EURUSD", "USDJPY", "GBPUSD", "XAUUSD", "EURJPY"])
@pytest.mark.parametrize("factor", [1e-3, 1e-2, 0.1, 10.0, 100.0, 1e3, 1e5])
def test_other_units_of_every_symbol(tmp_path, symbol, factor):
    from vendors import truth

    if symbol == "XAUUSD" and factor == 0.1:
        pytest.skip("an ounce of gold did cost so little")
    units(factor)(tmp_path, truth(symbol, 3600, days=20))
    with pytest.raises(DataError) as refusal:
        load({"folder": str(tmp_path)})
    assert remedies(refusal.value)[0] == {"price_scale": {symbol: pytest.approx(1.0 / factor)}}


@pytest.mark.parametrize(
    ("values", "ways"),
    [
        ([12.0], ["spread_points"]),
        ([8.0, 15.0, 31.0], ["spread_points"]),
        ([1.0, 2.0], ["spread_points", "spread_pips"]),
        ([0.7, 1.2], ["spread_pips"]),
        ([1.234, 0.876], ["spread_points", "spread_pips"]),
    ],
)
def test_units_of_a_spread_are_proven_or_asked_for(tmp_path, frame, values, ways):
    one = scaled(frame(), 1.0, 5)
    column = np.resize(np.array(values), len(one))
    one.with_columns(spread=pl.Series(column)).write_parquet(tmp_path / "EURUSD.parquet")
    (finding,) = check(DataConfig(folder=str(tmp_path))).issues_of_kind("spread_unit")
    assert [way["columns"]["spread"] for way in finding.fixes] == ways
    section = propose_section(describe_folder(tmp_path).data_section).section
    assert section.get("columns") == ({"spread": ways[0]} if len(ways) == 1 else None)


def test_acceptance_is_by_name(folder, frame):
    path = folder(EURUSD=scaled(frame(), 100.0))
    taken = load({"folder": path, "allow_issues": "units"})
    assert taken.accepted[0].endswith("loaded, because `allow_issues` names units.")
    assert "data check found warnings" not in " ".join(taken.notes)
    with pytest.raises(ConfigError, match="nan cannot be allowed: its fix is `bad_bars: drop`"):
        load({"folder": path, "allow_issues": ["nan"]})
    with pytest.raises(ConfigError, match="did you mean `units`"):
        load({"folder": path, "allow_issues": ["unit"]})
    with pytest.raises(ConfigError, match="not an issue that can be allowed"):
        load({"folder": path, "allow_issues": [{}]})
    with pytest.raises(ConfigError, match=r"symbols"):
        load({"folder": path, "symbols": [[[]]]})


def test_the_documents_have_the_same_table():
    page = (ROOT / "docs/reference/data-issues.md").read_text().replace("\n  ", " ")
    effects = ("error", "fixed", "warning", "info")
    found = dict[str, tuple[str, bool, str]]()
    for effect, section in zip(effects, page.split("\n## ")[1:], strict=True):
        item = r"^- \*\*`(\w+)`\*\*( \(acceptable\))?: [A-Z](.+?\.)(?: Fix: (.+)\.)?$"
        for name, accepted, _, fix in re.findall(item, section, re.MULTILINE):
            found[name] = (effect, bool(accepted), fix)
    assert found == {
        name: (entry.effect, name in ACCEPTABLE, entry.fix) for name, entry in CATALOGUE.items()
    }
    assert list(found) == list(CATALOGUE)


def test_terminal_escapes_in_names_are_shown_not_sent(tmp_path, frame):
    frame().write_parquet(tmp_path / "\x1b[31mEURUSD\u202e.parquet")
    (tmp_path / "a\x1b]0;x\x07\nb.csv").write_text("x,y\n")
    text = render(check(DataConfig(folder=str(tmp_path))))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"\x1b[31mEURUSD" in text and r"a\x1b]0;x\x07\nb" in text
    with pytest.raises(DataError) as refusal:
        load_market(DataConfig(folder=str(tmp_path)))
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_a_file_name_that_is_not_utf_8_is_refused_in_words(tmp_path, frame, suffix):
    write = {"parquet": pl.DataFrame.write_parquet, "feather": pl.DataFrame.write_ipc}[suffix]
    write(frame(), tmp_path / "EURUSD")
    name = os.fsdecode(b"EURUSD\xff." + suffix.encode())
    (tmp_path / "EURUSD").rename(tmp_path / name)
    with pytest.raises(DataError, match=r"cannot be read\. The path .* cannot be used here"):
        load_market(DataConfig(folder=str(tmp_path)))


def test_what_only_moves_the_fault_to_another_file_is_not_printed(tmp_path):
    """Two files in two zones: no `time_zone` is right for both, whichever stops now."""
    from vendors import NAIVE, iso, truth

    zones = {"EURUSD": "Europe/Athens", "USDJPY": "Asia/Tokyo"}
    for symbol, zone in zones.items():
        iso(NAIVE, "time", zone)(tmp_path, truth(symbol, 3600, days=90))
    for symbol, zone in zones.items():
        section = {"folder": str(tmp_path), "time_zone": zone}
        with pytest.raises(DataError, match="they are in another zone than") as refusal:
            load(section)
        assert remedies(refusal.value) == [{"allow_issues": ["local_time"]}]
        assert load({**section, "symbols": [symbol]}).symbols == (symbol,)


@pytest.mark.parametrize("key", ["price_scale", "point", "columns"])
def test_entries_that_nothing_has_are_refused(tmp_path, frame, key):
    """They were accepted and meant nothing; the remedy takes them out and keeps the others."""
    frame().rename({"close": "Kurs"}).write_parquet(tmp_path / "EURUSD.parquet")
    kept = {"EURUSD": 1.0} if key != "columns" else {"Kurs": "close"}
    strange = {"EURUSDD": 2.0} if key != "columns" else {"Kurz": "close_2"}
    section = {"folder": str(tmp_path), "columns": {"Kurs": "close"}, key: {**kept, **strange}}
    with pytest.raises(DataError, match=f"`{key}` names '{next(iter(strange))}', which") as refusal:
        load(section)
    (way,) = remedies(refusal.value)
    assert way == {key: kept}
    load({**section, **way})


def test_the_scale_of_a_symbol_that_is_not_loaded_may_stand_there(folder, frame):
    path = folder(EURUSD=frame(), GBPUSD=frame())
    load({"folder": path, "symbols": ["EURUSD"], "price_scale": {"GBPUSD": 0.5}})


def test_other_prices_need_no_units_of_symbols_that_are_not_there(folder, frame):
    path = folder(EURUSD=frame())
    units = {"EURUSD": 1.0, "USDJPY": 0.01}
    data = DataConfig(folder="elsewhere", price_scale=units, point=0.1)
    chosen = override_data_config(data, path, ["EURUSD"])
    assert chosen.price_scale == {"EURUSD": 1.0} and chosen.point == 0.1
    assert load_market(chosen).symbols == ("EURUSD",)
