"""Formats: files as vendors write them, and stamps in every spelling."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from vendors import HOUR, Truth, binance_months, second, truth, units

from slipstream.core.errors import DataError, ResourceError
from slipstream.core.timeline import DAY, NEW_YORK, local_time
from slipstream.markets.data import raw_table
from slipstream.markets.data.check import check, render
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.dialect import sniff
from slipstream.markets.data.file_discovery import price_files
from slipstream.markets.data.market import load_market
from slipstream.markets.data.raw_table import read_table
from slipstream.markets.starter_config import describe_folder, propose_section

PRICES = "1.10,1.12,1.09,1.11"
JAN3 = 1577999700  # 2020-01-02 21:15 UTC


def bars_of(tmp_path: Path, text: str | bytes, name: str = "EURUSD.csv", **options: object):
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / name).write_bytes(content)
    return load_market(DataConfig(folder=str(tmp_path), **options)).bars[0]


def dialect_of(tmp_path: Path, **options: object) -> str:
    config = DataConfig(folder=str(tmp_path), time_zone="UTC", **options)
    return read_table("EURUSD", tmp_path / "EURUSD.csv", config).dialect.name


def seconds(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp())


METATRADER_5 = (
    "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\r\n"
    "2020.01.02\t00:00:00\t1.10\t1.12\t1.09\t1.11\t100\t0\t12\r\n"
    "2020.01.02\t00:15:00\t1.11\t1.13\t1.10\t1.12\t90\t0\t14\r\n"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_metatrader_5(tmp_path, encoding):
    text = METATRADER_5.encode(encoding)
    with pytest.raises(DataError, match=r"time_zone: America/New_York\+7"):
        bars_of(tmp_path, text)
    bars = bars_of(tmp_path, text, time_zone="America/New_York+7", price_side="bid")
    assert bars.time[0] == seconds(2020, 1, 1, 22, 0)  # the server's midnight is 17:00 New York
    np.testing.assert_allclose(bars.spread, [12e-5, 14e-5])
    np.testing.assert_allclose(bars.close, [1.11006, 1.12007])
    assert bars.volume.tolist() == [100.0, 90.0]
    assert list(bars.extra) == ["vol"]
    assert dialect_of(tmp_path) == "MetaTrader"


def test_metatrader_4_without_header(tmp_path):
    text = f"2020.01.02,00:00,{PRICES},100\n2020.01.02,00:15,{PRICES},90\n"
    bars = bars_of(tmp_path, text, time_zone="UTC")
    assert bars.time.tolist() == [seconds(2020, 1, 2), seconds(2020, 1, 2, 0, 15)]
    assert bars.volume.tolist() == [100.0, 90.0]
    assert dialect_of(tmp_path) == "MetaTrader"


def test_histdata(tmp_path):
    text = "20200102 170000;1.10;1.12;1.09;1.11;0\n20200102 170100;1.11;1.13;1.10;1.12;0\n"
    with pytest.raises(DataError, match=r"time_zone: Etc/GMT\+5"):
        bars_of(tmp_path, text)
    bars = bars_of(tmp_path, text, time_zone="Etc/GMT+5")
    assert bars.time.tolist() == [seconds(2020, 1, 2, 22, 0), seconds(2020, 1, 2, 22, 1)]
    assert dialect_of(tmp_path) == "HistData"


def test_dukascopy_states_gmt_in_its_header(tmp_path):
    text = (
        "Gmt time,Open,High,Low,Close,Volume\n"
        f"02.01.2020 22:00:00.000,{PRICES},5\n02.01.2020 23:00:00.000,{PRICES},6\n"
    )
    bars = bars_of(tmp_path, text)
    assert bars.time.tolist() == [seconds(2020, 1, 2, 22), seconds(2020, 1, 2, 23)]
    assert dialect_of(tmp_path) == "Dukascopy"


def test_dukascopy_local_time_carries_its_offset(tmp_path):
    text = (
        "Local time,Open,High,Low,Close,Volume\n"
        f"29.03.2020 00:00:00.000 GMT+0100,{PRICES},5\n"
        f"29.03.2020 01:00:00.000 GMT+0100,{PRICES},6\n"
        f"29.03.2020 03:00:00.000 GMT+0200,{PRICES},6\n"
    )
    bars = bars_of(tmp_path, text)
    assert bars.time.tolist() == [seconds(2020, 3, 28, 23) + 3600 * k for k in range(3)]


@pytest.mark.parametrize("epoch", [25_569, 719_529])
@pytest.mark.parametrize("decimals", [5, 9])
def test_day_numbers_of_spreadsheets(tmp_path, epoch, decimals):
    """2020-01-02 21:15 as Excel and MATLAB write it, in the zone that the config names."""
    rows = [f"{(JAN3 + 300 * k) / DAY + epoch:.{decimals}f},{PRICES},1" for k in range(40)]
    text = "time,open,high,low,close,volume\n" + "\n".join(rows)
    with pytest.raises(DataError, match="time_zone"):
        bars_of(tmp_path, text)
    assert bars_of(tmp_path, text, time_zone="UTC").time.tolist() == [
        JAN3 + 300 * k for k in range(40)
    ]


def test_small_numbers_are_no_days(tmp_path):
    rows = "\n".join(f"{k},{PRICES},1" for k in range(40_000, 40_040))
    text = f"time,open,high,low,close,volume\n20,{PRICES},1\n{rows}"
    with pytest.raises(DataError, match="stamps"):
        bars_of(tmp_path, text, time_zone="UTC")


@pytest.mark.parametrize("factor", [1, 1e3, 1e6, 1e9])
def test_epoch_stamps_in_every_unit(tmp_path, factor):
    rows = [f"{int(JAN3 * factor)},{PRICES},1", f"{int((JAN3 + 300) * factor)},{PRICES},1"]
    text = "open_time,open,high,low,close,volume\n" + "\n".join(rows)
    bars = bars_of(tmp_path, text)
    assert bars.time.tolist() == [JAN3, JAN3 + 300]
    frame = pl.read_csv(tmp_path / "EURUSD.csv")
    (tmp_path / "EURUSD.csv").unlink()
    frame.write_parquet(tmp_path / "EURUSD.parquet")
    assert load_market(DataConfig(folder=str(tmp_path))).bars[0].time.tolist() == [
        JAN3,
        JAN3 + 300,
    ]


AWARE = [
    "2020-01-02T21:15:00Z",
    "2020-01-02 21:15:00+00:00",
    "2020-01-02 22:15:00.000+0100",
    "2020-01-02T21:15Z",
    "2020-01-02 21:15:00 UTC",
    "02.01.2020 23:15:00.000 GMT+0200",
]


@pytest.mark.parametrize("stamp", AWARE)
def test_stamps_with_a_zone(tmp_path, stamp):
    later = stamp.replace("15:00", "30:00") if "15:00" in stamp else stamp.replace("15Z", "30Z")
    text = f"time,open,high,low,close\n{stamp},{PRICES}\n{later},{PRICES}\n"
    assert bars_of(tmp_path, text).time.tolist() == [JAN3, JAN3 + 900]


NAIVE = [
    ("2020-01-02 21:15:00", "2020-01-02 21:30:00"),
    ("2020-01-02 21:15:00.000", "2020-01-02 21:30:00.000"),
    ("2020-01-02T21:15:00", "2020-01-02T21:30:00"),
    ("2020-01-02 21:15", "2020-01-02 21:30"),
    ("2020.01.02 21:15:00", "2020.01.02 21:30:00"),
    ("2020/01/02 21:15", "2020/01/02 21:30"),
    ("20200102 211500", "20200102 213000"),
    ("20200102 21:15:00", "20200102 21:30:00"),
    ("20200102211500", "20200102213000"),
    ("02.01.2020 21:15:00.000", "02.01.2020 21:30:00.000"),
]


@pytest.mark.parametrize(("first", "second"), NAIVE)
def test_stamps_without_a_zone(tmp_path, first, second):
    text = f"time,open,high,low,close\n{first},{PRICES}\n{second},{PRICES}\n"
    with pytest.raises(DataError, match="time_zone: UTC"):
        bars_of(tmp_path, text)
    assert bars_of(tmp_path, text, time_zone="UTC").time.tolist() == [JAN3, JAN3 + 900]


def test_dates_alone_are_midnight(tmp_path):
    text = f"Date,Open,High,Low,Close\n2020-01-02,{PRICES}\n2020-01-03,{PRICES}\n"
    assert bars_of(tmp_path, text, time_zone="UTC").time[1] == seconds(2020, 1, 3)


def test_a_date_beside_a_full_time_is_ignored(tmp_path):
    text = f"unix,date,open,high,low,close\n{JAN3},x,{PRICES}\n{JAN3 + 60},y,{PRICES}\n"
    assert bars_of(tmp_path, text).time.tolist() == [JAN3, JAN3 + 60]


def test_slashed_dates_are_ambiguous_until_told(tmp_path):
    text = f"time,open,high,low,close\n01/02/2020 21:15,{PRICES}\n01/02/2020 21:30,{PRICES}\n"
    with pytest.raises(DataError, match=r"time_format: '%d/%m/%Y %H:%M'"):
        bars_of(tmp_path, text, time_zone="UTC")
    american = bars_of(tmp_path, text, time_zone="UTC", time_format="%m/%d/%Y %H:%M")
    assert american.time[0] == JAN3
    with pytest.raises(DataError, match="fits no stamp"):
        bars_of(tmp_path, text, time_zone="UTC", time_format="%Y-%m-%d")


def test_one_unreadable_stamp_is_refused_with_its_row(tmp_path):
    rows = [f"2020-01-02 {h:02d}:00:00,{PRICES}" for h in range(20)]
    rows[12] = f"yesterday,{PRICES}"
    text = "time,open,high,low,close\n" + "\n".join(rows)
    with pytest.raises(DataError, match=r"1 unreadable time stamp, the first in data row 13"):
        bars_of(tmp_path, text, time_zone="UTC")
    assert len(bars_of(tmp_path, text, time_zone="UTC", bad_bars="drop")) == 19


def months(symbol: str, **options: object) -> Truth:
    return truth(symbol, HOUR, "2024-11-11", 120, **options)


def test_a_folder_of_monthly_klines_is_joined(tmp_path):
    """Binance's dumps: what was an asset a month is one symbol, across the change of units."""
    truths = [months("BTCUSDT"), months("ETHUSDT", seed=1)]
    for one in truths:
        binance_months(tmp_path, one)
    assert len(list(tmp_path.iterdir())) == 10
    report = check(DataConfig(folder=str(tmp_path)))
    assert report.symbols == ("BTCUSDT", "ETHUSDT") and report.loadable
    assert {one.kind for one in report.issues} <= {"weekend", "bounce", "calendar"}
    section = propose_section(describe_folder(tmp_path).data_section).section
    files = {"BTCUSDT": "BTCUSDT-1h-202*.csv", "ETHUSDT": "ETHUSDT-1h-202*.csv"}
    assert section["files"] == {k: v.replace("202*", "20*") for k, v in files.items()}
    for written in ({}, {"symbols": ["ETHUSDT", "BTCUSDT"]}, {"files": files}, section):
        market = load_market(DataConfig(**{"folder": str(tmp_path), **written}))
        for one in truths:
            np.testing.assert_array_equal(market.symbol(one.symbol).time, one.time)
            np.testing.assert_allclose(market.symbol(one.symbol).close, one.prices["close"])
    alone = DataConfig(folder=str(tmp_path), symbols=("BTCUSDT-1h-2024-12",))
    assert len(load_market(alone).bars[0]) == 31 * 24


def test_overlapping_parts_must_agree(tmp_path):
    """A day that two months hold: taken once where it is equal, refused where it is not."""
    one = months("BTCUSDT")
    binance_months(tmp_path / "equal", one, 1.0)
    report = check(DataConfig(folder=str(tmp_path / "equal")))
    assert not [found for found in report.issues if found.severity != "info"]
    market = load_market(DataConfig(folder=str(tmp_path / "equal")))
    np.testing.assert_array_equal(market.bars[0].time, one.time)
    binance_months(tmp_path / "differing", one, 1.00001)
    config = DataConfig(folder=str(tmp_path / "differing"))
    with pytest.raises(
        DataError, match="96 bars of 96 bars that two of its files hold differ"
    ) as no:
        load_market(config)
    assert re.search(r" in BTCUSDT-\S+\.csv and BTCUSDT-\S+\.csv, whose bars stay", str(no.value))
    taken = load_market(config.model_copy(update={"allow_issues": ("overlap",)}))
    np.testing.assert_array_equal(taken.bars[0].time, one.time)


def test_files_of_two_bar_lengths_are_two_symbols(tmp_path):
    binance_months(tmp_path, months("BTCUSDT"))
    binance_months(tmp_path, truth("BTCUSDT", 300, "2025-01-01", 60))
    with pytest.raises(DataError, match=r"BTCUSDT-1h 1h, BTCUSDT-5m 5m"):
        load_market(DataConfig(folder=str(tmp_path)))


@pytest.mark.parametrize(
    ("names", "symbols"),
    [
        (["DAT_ASCII_EURUSD_M1_2019", "DAT_ASCII_EURUSD_M1_202001"], ["DAT_ASCII_EURUSD"]),
        (["EURUSD_BID_01.01.2019-31.12.2019", "EURUSD_BID_01.01.2020-31.12.2020"], ["EURUSD_BID"]),
        (["ETH-1d-2024-01-30", "ETH-1d-2024-01-31"], ["ETH"]),
        (["EURUSD_H1_201901020000_201912312300", "GBPUSD"], None),
        (["EURUSD_2020"], None),
        (["A", "B2020", "B2021"], None),
    ],
)
def test_names_of_parts(tmp_path, names, symbols):
    for name in names:
        (tmp_path / f"{name}.csv").touch()
    assert [symbol for symbol, _ in price_files(tmp_path)] == (symbols or sorted(names))


def test_days_before_hours_stop(tmp_path):
    """Years of days and then hours, in one file: not rare, and trained as hours."""
    one = truth("EURUSD", HOUR, "2019-01-07", 7 * 150)
    split = second("2021-01-04")
    daily = local_time(one.time, NEW_YORK) % DAY // HOUR == 17
    mixed = one.rows((one.time >= split) | daily)
    units(1.0, spread="price")(tmp_path, mixed)
    config = DataConfig(folder=str(tmp_path))
    (found,) = check(config).issues_of_kind("spacing")
    assert re.match("520 bars of 1d from 2019-01-07 22:00 to 2021-01", found.message)
    with pytest.raises(DataError, match="among bars of 1h; loading refuses"):
        load_market(config)
    units(1.0, spread="price")(tmp_path, one.rows(np.arange(len(one.time)) % 7 != 3))
    assert check(config).loadable


def test_of_a_mixed_folder_the_longer_history_is_named_and_no_way_twice(tmp_path):
    """It named a day of bitcoin, with and without an `allow_issues` that changed nothing."""
    units(1.0)(tmp_path, truth("BTCUSDT", 300, "2022-08-01", 1))
    units(1.0, spread="price")(tmp_path, truth("EURUSD", HOUR, "2024-01-01", 60))
    report = check(DataConfig(folder=str(tmp_path)))
    assert next(way["symbols"] for way in report.fixes) == ["EURUSD"]
    assert not any("allow_issues" in way for way in report.fixes)


def test_packed_files_are_named(tmp_path):
    """A folder of Binance's dumps as they come held "no file": they want unpacking."""
    (tmp_path / "BTCUSDT-5m-2024-01.zip").write_bytes(b"PK")
    for look in (check, lambda config: describe_folder(config.folder)):
        with pytest.raises(DataError, match=r"BTCUSDT-5m-2024-01\.zip is packed: unpack it there"):
            look(DataConfig(folder=str(tmp_path)))


def test_a_check_without_a_readable_file_sends_nobody_to_init(tmp_path):
    (tmp_path / "EURUSD.csv").write_text("time,open,high,low,close,close\n2024-01-02,1,1,1,1,1\n")
    assert "slipstream init" not in render(check(DataConfig(folder=str(tmp_path))))


def test_symbols_that_never_meet_stop(tmp_path):
    """Their common period was said to run from 2021-06 to 2021-05."""
    starts = {"BTCUSDT": "2021-01-04", "ETHUSDT": "2021-06-01", "SOLUSDT": "2021-06-20"}
    for symbol, start in starts.items():
        one = truth("ETHUSDT", HOUR, start, 60)
        units(1.0)(tmp_path, replace(one, symbol=symbol))
    config = DataConfig(folder=str(tmp_path))
    with pytest.raises(DataError, match="no moment at which all have bars") as refusal:
        load_market(config)
    assert "`symbols: [ETHUSDT, SOLUSDT]`" in str(refusal.value)
    assert check(config.model_copy(update={"allow_issues": ("no_common_period",)})).loadable


def test_semicolons_and_decimal_commas(tmp_path):
    rows = "\n".join(f"2020-01-02 0{h}:00:00;1,10;1,12;1,09;1,11" for h in range(3))
    bars = bars_of(tmp_path, f"time;open;high;low;close\n{rows}\n", time_zone="UTC")
    np.testing.assert_allclose(bars.close, 1.11)


@pytest.mark.parametrize("thousands", ["", "."])
def test_decimal_commas_beside_round_prices_and_grouped_thousands(tmp_path, thousands):
    """A spreadsheet writes 103428 without a comma, and 103428,5 with one."""

    def written(price):
        text = f"{price:,.1f}".removesuffix(".0")
        return text.replace(".", "#").replace(",", thousands).replace("#", ",")

    prices = np.array([103400.0, 103431.0, 103390.0, 103428.0]) + np.arange(3)[:, None] * 0.5
    rows = "\n".join(
        ";".join([f"2020-01-02 0{h}:00:00", *map(written, prices[h].tolist())]) for h in range(3)
    )
    text = f"time;open;high;low;close\n{rows}\n"
    bars = bars_of(tmp_path, text, time_zone="UTC", allow_issues=("units",))
    np.testing.assert_array_equal([bars.open, bars.high, bars.low, bars.close], prices.T)


def test_words_among_numbers_are_missing_numbers(tmp_path):
    rows = [f"2020-01-02 {h:02d}:00:00,{PRICES}" for h in range(20)]
    rows[5] = "2020-01-02 05:00:00,1.10,1.12,1.09,n/a"
    text = "time,open,high,low,close\n" + "\n".join(rows)
    with pytest.raises(DataError, match=r"1 bar with no number in column close.*05:00"):
        bars_of(tmp_path, text, time_zone="UTC")


def test_two_columns_of_one_name_do_not_pass_for_two(tmp_path):
    with pytest.raises(DataError, match="two columns of one name, 'open' and 'open': remove"):
        bars_of(tmp_path, f"time,open,open,low,close\n{JAN3},{PRICES}\n")
    rows = f"{JAN3},{PRICES},1.105\n{JAN3 + 900},{PRICES},1.105\n"
    with pytest.raises(DataError, match=r"'close' and '<CLOSE>': .*, or map it to a distinct name"):
        bars_of(tmp_path, f"time,open,high,low,close,<CLOSE>\n{rows}")
    bars = bars_of(tmp_path, f"time,open,high,low,close,Close\n{rows}", columns={"Close": "mine"})
    assert (bars.close == 1.11).all() and (bars.extra["mine"] == 1.105).all()


@pytest.mark.parametrize("blank", ["", "   ", ",,,,", " , ,,,"])
@pytest.mark.parametrize("header", ["time,open,high,low,close\n", ""])
@pytest.mark.parametrize("zone", ["+00:00", ""])
def test_blank_lines_are_no_bars(tmp_path, blank, header, zone):
    lines = [f"2020-01-02 21:{minute}{zone},{PRICES}" for minute in (15, 30, 45)]
    text = f"{blank}\n{header}{blank}\n" + f"\n{blank}\n".join(lines) + f"\n{blank}\n\n"
    bars = bars_of(tmp_path, text, **({} if zone else {"time_zone": "UTC"}))
    np.testing.assert_array_equal(bars.time, JAN3 + 900 * np.arange(3))


def test_a_bar_without_a_stamp_is_counted(tmp_path):
    lines = [f"2020-01-02 21:{minute}+00:00,{PRICES}" for minute in (15, 30, 45)]
    with pytest.raises(DataError, match="1 unreadable time stamp, the first in data row 2"):
        bars_of(
            tmp_path, "\n".join(["time,open,high,low,close", lines[0], f",{PRICES}", *lines[1:]])
        )


@pytest.mark.parametrize("name", ["close", "volume", "spread"])
@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum, pl.Binary])
@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_numbers_as_categories_and_bytes(tmp_path, frame, name, kind, suffix):
    one = frame(bars=300).with_columns(spread=0.0001)
    text = one[name].cast(pl.String)
    coded = pl.Enum(text.unique().sort()) if kind is pl.Enum else kind
    write = pl.DataFrame.write_parquet if suffix == "parquet" else pl.DataFrame.write_ipc
    write(one.with_columns(text.cast(coded)), tmp_path / f"EURUSD.{suffix}")
    bars = load_market(DataConfig(folder=str(tmp_path))).bars[0]
    np.testing.assert_array_equal(getattr(bars, name), one[name])


def test_unnamed_index_columns_are_ignored(tmp_path):
    text = f",time,open,high,low,close\n0,{JAN3},{PRICES}\n1,{JAN3 + 60},{PRICES}\n"
    assert bars_of(tmp_path, text).extra == {}


def test_headerless_files_that_say_nothing_are_refused(tmp_path):
    with pytest.raises(DataError, match="must begin with a line that names its columns"):
        bars_of(tmp_path, f"{JAN3},{PRICES},1,2,3,4\n")
    with pytest.raises(DataError, match="name the field separator"):
        bars_of(tmp_path, "time open high low close\n1 2 3 4 5\n")


def test_bytes_that_are_no_text_are_called_so(tmp_path):
    with pytest.raises(DataError, match="is not a text file") as error:
        bars_of(tmp_path, bytes(range(14, 256)) * 8)
    assert "separator" not in str(error.value)


def test_autumn_hour_happens_twice_and_spring_hour_never(tmp_path):
    # London leaves summer time on 2020-10-25 at 01:00 UTC: 01:00 to 02:00 local comes twice.
    rows = ["00:00", "00:30", "01:00", "01:30", "01:00", "01:30", "02:00"]
    text = "time,open,high,low,close\n" + "\n".join(f"2020-10-25 {r},{PRICES}" for r in rows)
    bars = bars_of(tmp_path, text, time_zone="Europe/London")
    assert np.diff(bars.time).tolist() == [1800] * 6
    spring = text.replace("2020-10-25", "2020-03-29").replace("01:30", "01:45")
    with pytest.raises(DataError, match="clocks of Europe/London skipped"):
        bars_of(tmp_path, spring, time_zone="Europe/London")


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_rows_that_do_not_fit_into_memory_are_refused_before_they_are_read(
    tmp_path, monkeypatch, ending
):
    path = tmp_path / f"EURUSD.{ending}"
    prices = pl.DataFrame(
        {"time": range(1000), **dict.fromkeys(("open", "high", "low", "close"), 1.0)}
    )
    prices.write_parquet(path) if ending == "parquet" else prices.write_ipc(path)
    monkeypatch.setattr(raw_table, "free_memory", lambda: 8 * 1000 * 28)
    for name in ("read_parquet", "read_ipc"):
        monkeypatch.setattr(raw_table.pl, name, lambda *_, **__: pytest.fail("its rows were read"))
    with pytest.raises(ResourceError, match=r"EURUSD.*has 1,000 rows.*fewer"):
        raw_table.read_table("EURUSD", path, DataConfig(folder=str(tmp_path)))


def test_a_row_that_is_cut_off_does_not_decide_the_order_of_prices():
    rows = "".join(f"20200101 {hour:02}0000;1.1;1.3;1.0;1.2;0\n" for hour in range(20))
    found = sniff(rows + "20200101 200000;1.1", None, "cut")
    assert found.columns[1:5] == ("open", "high", "low", "close")
