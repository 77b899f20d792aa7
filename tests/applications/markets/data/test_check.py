"""The data check: one planted defect a test, each found under its name, and nothing else."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from slipstream.core.errors import DataError
from slipstream.markets.data.check import check, render
from slipstream.markets.data.config import DataConfig
from slipstream.markets.starter_config import describe_folder

PRICES = ("open", "high", "low", "close")


def findings(folder: str, **options: object) -> dict[str, object]:
    """Findings by kind, the harmless count of weekends left out."""
    report = check(DataConfig(folder=folder, **options))
    return {one.kind: one for one in report.issues if one.kind != "weekend"}


def scaled(frame: pl.DataFrame, factor: object) -> pl.DataFrame:
    return frame.with_columns(pl.col(name) * factor for name in PRICES)


def repriced(frame: pl.DataFrame, close: np.ndarray) -> pl.DataFrame:
    """The frame with other closes and opens, and the tightest possible ranges."""
    opens = np.concatenate([close[:1], close[:-1]])
    columns = (opens, np.maximum(opens, close), np.minimum(opens, close), close)
    pairs = zip(PRICES, columns, strict=True)
    return frame.with_columns(pl.Series(name, column) for name, column in pairs)


def test_sound_data_raises_no_alarm(folder, frame):
    path = folder(EURUSD=frame(), GBPUSD=frame(seed=4))
    report = check(DataConfig(folder=path))
    assert [(one.kind, one.count, one.size) for one in report.issues] == [("weekend", 5, 192)] * 2
    assert report.loadable
    assert "all symbols: 5 weekends of 192 bars; they count as one step." in render(report)
    assert "\nLoadable, with 0 warnings.\n`slipstream init forex " in render(report)


def test_weekends_in_the_weeks_when_clocks_change(folder, frame):
    report = check(DataConfig(folder=folder(EURUSD=frame(bars=25_000))))
    (weekend,) = report.issues
    assert weekend.count == 52
    assert "192 bars (188 once and 196 once, when clocks change)" in weekend.message


def test_single_holes_by_size(folder, frame):
    keep = np.ones(2400, dtype=bool)
    keep[[50, 150, 300, 301]] = False
    report = check(DataConfig(folder=folder(EURUSD=frame().filter(pl.Series(keep)))))
    gaps = [(one.size, one.count) for one in report.issues_of_kind("gap", "EURUSD")]
    assert gaps == [(1, 2), (2, 1)]
    assert report.issues_of_kind("gap")[0].times[0] == int(frame()["timestamp"][50].timestamp())
    assert "nothing is filled" in report.issues_of_kind("gap")[0].action
    assert report.loadable


def test_holidays_are_not_gaps(folder, frame):
    one = frame(bars=25_000)
    stamp = pl.col("timestamp")
    start, stop = pl.datetime(2020, 12, 25, 8, time_zone="UTC"), pl.datetime(
        2020, 12, 25, 22, time_zone="UTC"
    )  # fmt: skip
    report = check(DataConfig(folder=folder(EURUSD=one.filter((stamp < start) | (stamp >= stop)))))
    (holiday,) = report.issues_of_kind("holiday")
    assert holiday.size == 56
    assert holiday.message.startswith("Christmas hole of 56 missing bars")
    assert not report.issues_of_kind("gap")


def test_an_exchange_outage_is_told_from_a_gap(folder, frame):
    one = coins(frame)
    close = one["close"].to_numpy().copy()
    close[986:1000] = close[985]
    volume = one["volume"].to_numpy().copy()
    volume[986:1000] = 0.0
    one = repriced(one, close).with_columns(pl.Series("volume", volume))
    keep = np.ones(len(one), dtype=bool)
    keep[1000:1016] = False
    found = findings(folder(BTCUSD=one.filter(pl.Series(keep))))
    assert found["outage"].size == 16
    assert "after 14 flat zero-volume bars" in found["outage"].message
    assert "gap" not in found
    assert "stale" not in found
    assert found["zero_volume"].count == 14


def coins(frame, bars: int = 3000) -> pl.DataFrame:
    """A sound frame without weekends."""
    first = frame()["timestamp"][0]
    one = frame(bars=bars)
    offsets = pl.Series("timestamp", np.arange(bars) * 300_000_000).cast(pl.Duration("us"))
    return one.with_columns(timestamp=pl.lit(first) + offsets)


def test_zero_volume_and_flat_bars(folder, frame, put):
    one = coins(frame)
    close = one["close"].to_numpy().copy()
    close[100:2000:10] = close[99:1999:10]
    one = put(repriced(one, close), "volume", range(60), 0.0)
    found = findings(folder(BTCUSD=one))
    assert (found["zero_volume"].count, found["zero_volume"].severity) == (60, "warning")
    # 190 of them, and the first bar, which has no open of its own.
    assert (found["flat"].count, found["flat"].severity) == (191, "warning")
    assert "(2 %)" in found["zero_volume"].message


def test_stale_prices(folder, frame):
    one = frame()
    close = one["close"].to_numpy().copy()
    close[500:520] = close[499]
    found = findings(folder(EURUSD=repriced(one, close)))
    assert found["stale"].count == 20
    assert "1 run of up to 20" in found["stale"].message


def test_large_moves(folder, frame):
    one = coins(frame)
    close = one["close"].to_numpy() * np.where(np.arange(3000) < 1500, 1.0, 1.12)
    found = findings(folder(BTCUSD=repriced(one, close)))
    assert found["large_move"].count == 1
    assert "+12" in found["large_move"].message


def test_a_coarse_tick(folder, frame):
    one = coins(frame)
    close = np.round(one["close"].to_numpy() * 8.0, 2)
    found = findings(folder(AVAXUSD=repriced(one, close)))
    assert "the tick of 0.01 is 11" in found["coarse_tick"].message


def test_bid_ask_bounce(folder, frame):
    one = frame()
    flicker = 1.0 + 4e-4 * np.where(np.random.default_rng(1).random(2400) < 0.5, -1.0, 1.0)
    found = findings(folder(EURUSD=repriced(one, one["close"].to_numpy() * flicker)))
    assert set(found) - {"flat"} == {"bounce"}  # the first bar has no open of its own
    assert "fills at the same close would earn the bounce" in found["bounce"].message


def with_column(one: pl.DataFrame, name: str, values: np.ndarray) -> pl.DataFrame:
    return one.with_columns(pl.Series(name, values))


@pytest.mark.parametrize("kind", ["return", "noisy", "price", "sum"])
def test_a_column_that_holds_the_future_is_found(folder, frame, kind):
    """The next bar's return, the same among noise, the next close, a sum of such returns."""
    one = frame()
    random = np.random.default_rng(1)
    close = one["close"].to_numpy()
    ahead = np.append(np.diff(np.log(close)), 0.0)
    column = {
        "return": ahead,
        "noisy": ahead + 4.0 * ahead.std() * random.standard_normal(len(ahead)),
        "price": close * np.exp(ahead),
        "sum": np.cumsum(ahead),
    }[kind]
    found = findings(folder(EURUSD=with_column(one, "hint", column)))
    assert "look_ahead" in found
    assert "`hint` correlates with the next bar's return (t = " in found["look_ahead"].message


@pytest.mark.parametrize("kind", ["noise", "past", "price", "constant", "empty"])
def test_a_column_that_holds_the_past_raises_no_alarm(folder, frame, kind):
    """Returns that bounce are predicted by themselves, which no column foresees."""
    one = frame()
    random = np.random.default_rng(2)
    flicker = 1.0 + 4e-4 * np.where(random.random(len(one)) < 0.5, -1.0, 1.0)
    one = repriced(one, one["close"].to_numpy() * flicker)
    close = one["close"].to_numpy()
    past = np.diff(np.log(close), prepend=np.log(close[0]))
    column = {
        "noise": random.standard_normal(len(close)),
        "past": past,
        "price": 0.5 * (close + np.append(close[0], close[:-1])),
        "constant": np.ones(len(close)),
        "empty": np.full(len(close), np.nan),
    }[kind]
    assert "look_ahead" not in findings(folder(EURUSD=with_column(one, "hint", column)))


def test_unequal_ends(folder, frame):
    found = findings(folder(EURUSD=frame(), GBPUSD=frame(seed=4)[96:2300]))
    assert found["unequal_ends"].symbol == "all"
    assert "splits are by time" in found["unequal_ends"].action


def test_prices_in_points(folder, frame):
    one = frame().with_columns((pl.col(name) * 1e5).round().cast(pl.Int64) for name in PRICES)
    found = findings(folder(EURUSD=one))
    assert found["integer_prices"].severity == "error"
    assert found["integer_prices"].fixes == ({"price_scale": {"EURUSD": 1e-5}},)


def test_suspicious_units(folder, frame):
    found = findings(folder(USDJPY=scaled(frame(), 1.3)))
    assert found["units"].severity == "error"
    assert found["units"].fixes == ({"price_scale": {"USDJPY": 100.0}},)


@pytest.mark.parametrize("factor", [10.0, 100.0, 0.1, 1000.0])
def test_scale_jumps(folder, frame, factor):
    jump = pl.when(pl.int_range(pl.len()) >= 1200).then(factor).otherwise(1.0)
    found = findings(folder(EURUSD=scaled(frame(), jump)))
    assert found["scale_jump"].count == 1
    assert found["scale_jump"].severity == "error"


LOCAL = ["Europe/London", "Asia/Tokyo", "America/New_York", "Europe/Athens", "America/New_York+7"]


def in_zone(one: pl.DataFrame, zone: str) -> pl.DataFrame:
    """The frame with naive stamps of a zone's clock."""
    base, plus, hours = zone.partition("+")
    local = pl.col("timestamp").dt.convert_time_zone(base).dt.replace_time_zone(None)
    return one.with_columns(local + pl.duration(hours=int(hours) if plus else 0)).unique(
        "timestamp", maintain_order=True
    )


@pytest.mark.parametrize("zone", LOCAL)
def test_stamps_in_another_zone_than_the_config_says(folder, frame, zone):
    found = findings(folder(EURUSD=in_zone(frame(bars=20_000), zone)), time_zone="Asia/Dubai")
    assert found["local_time"].severity == "error"
    assert found["local_time"].fixes == ({"time_zone": zone},)


@pytest.mark.parametrize("zone", LOCAL)
def test_no_zone_is_hinted_where_stamps_state_one(folder, frame, zone):
    one = in_zone(frame(bars=20_000), zone)
    path = folder(EURUSD=one.with_columns(pl.col("timestamp").dt.replace_time_zone("UTC")))
    found = findings(path)["local_time"]
    assert (found.severity, found.fixes) == ("error", ())
    assert "time_zone" not in render(check(DataConfig(folder=path)))


def test_metals_open_an_hour_later(folder, frame):
    local = pl.col("timestamp").dt.convert_time_zone("America/New_York")
    gold = frame(bars=20_000).filter(local.dt.hour() != 17)
    assert "local_time" not in findings(folder(XAUUSD=gold))


def test_close_labelled_bars(folder, frame):
    late = frame().with_columns(pl.col("timestamp") + pl.duration(minutes=15))
    path = folder(EURUSD=late)
    found = findings(path)
    assert found["close_labelled"].severity == "error"
    assert found["close_labelled"].fixes == ({"timestamp_label": "right"},)
    assert not findings(path, timestamp_label="right")
    assert findings(folder(EURUSD=frame()), timestamp_label="right")["open_labelled"].fixes == (
        {"timestamp_label": "left"},
    )


def weekend_rows(frame, moving: bool) -> pl.DataFrame:
    """Four candles on each Saturday between the frame's first and last."""
    one = frame()
    rows = []
    for friday in one.filter(pl.col("timestamp").dt.weekday() == 5)["timestamp"].dt.date().unique():
        for minute in (0, 15, 30, 45):
            moment = pl.datetime(friday.year, friday.month, friday.day, 23, minute, time_zone="UTC")
            low = 1.1 - 0.001 * moving
            rows.append(
                pl.select(
                    moment.dt.cast_time_unit("us").alias("timestamp"),
                    *(pl.lit(1.1 if name != "low" else low).alias(name) for name in PRICES),
                    pl.lit(float(moving)).alias("volume"),
                )
            )
    return pl.concat([one, *[row.cast(one.schema) for row in rows]]).sort("timestamp")


def test_weekend_candles(folder, frame):
    path = folder(EURUSD=weekend_rows(frame, moving=False))
    assert findings(path)["weekend_flat"].count == 20
    assert "loading drops them" in findings(path)["weekend_flat"].action
    path = folder(EURUSD=weekend_rows(frame, moving=True))
    assert findings(path)["weekend_bars"].count == 20


def test_bid_only_data(tmp_path, frame):
    one = frame()
    stamps = one["timestamp"].dt.replace_time_zone(None).dt.strftime("%Y%m%d %H%M%S")
    one.with_columns(stamps).write_csv(tmp_path / "EURUSD.csv", include_header=False, separator=";")
    found = findings(str(tmp_path), time_zone="UTC")
    assert "HistData holds bid prices only" in found["bid_only"].message
    shifted = findings(str(tmp_path), time_zone="UTC", price_side="bid", spread_pips=1.0)
    assert "bid_only" not in shifted


def test_a_name_that_says_ask_is_believed_by_check_and_init(tmp_path, frame):
    """The check called such a file of MetaTrader's bid, and `init` wrote ask."""
    names = {"timestamp": "<DATE>", "volume": "<TICKVOL>"} | {n: f"<{n.upper()}>" for n in PRICES}
    one = frame().rename(names)
    one.write_csv(tmp_path / "EURUSD_ASK.csv", separator="\t")
    (described,) = describe_folder(tmp_path).files
    assert described.price_side == "ask"
    (found,) = check(DataConfig(folder=str(tmp_path))).issues_of_kind("ask_only")
    assert found.message.startswith("a file of this name holds ask prices only")


def test_negative_and_wide_spreads(folder, frame, put):
    one = frame().with_columns(pl.lit(0.0001).alias("spread"))
    wide = findings(folder(EURUSD=put(one, "spread", [5, 6, 7], 0.0060)))
    assert wide["wide_spread"].count == 3
    assert "the widest 60 pips" in wide["wide_spread"].message
    negative = findings(folder(EURUSD=put(one, "spread", [5], -0.0001)))
    assert negative["negative_spread"].severity == "error"


def test_symbol_names_that_do_not_parse(folder, frame):
    found = findings(folder(EURUSD_M15=frame()), market="fx")
    assert "contains EURUSD: `files: {EURUSD: EURUSD_M15.parquet}`" in found["symbol_name"].message
    assert found["symbol_name"].severity == "warning"
    assert findings(folder(EURUSD_M15=coins(frame)))["symbol_name"].severity == "warning"


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("close", float("nan"), "nan"),
        ("open", -1.0, "non_positive"),
        ("high", 0.5, "high_below_low"),
        ("close", 1.5, "outside_range"),
        ("volume", -2.0, "negative_volume"),
    ],
)
def test_impossible_numbers(folder, frame, put, column, value, kind):
    found = findings(folder(EURUSD=put(frame(), column, [40, 41], value)))
    assert (found[kind].count, found[kind].severity) == (2, "error")
    assert "bad_bars: drop" in found[kind].action
    assert found["gap"].size == 2  # what would be left if they were dropped
    assert len(found) == 2


def test_duplicates_and_disorder(folder, frame):
    one = frame()
    found = findings(folder(EURUSD=pl.concat([one[1000:], one[:1001]])))
    assert (found["duplicate"].count, found["unsorted"].count) == (1, 1)
    assert "keeps the last" in found["duplicate"].action
    assert len(found) == 2


def test_misaligned_stamps(folder, frame):
    moved = pl.when(pl.int_range(pl.len()) == 70).then(7).otherwise(0)
    one = frame().with_columns(pl.col("timestamp") + pl.duration(seconds=moved))
    found = findings(folder(EURUSD=one))
    assert found["misaligned"].count == 1


def test_naive_and_unreadable_stamps(tmp_path, frame):
    one = frame().with_columns(pl.col("timestamp").dt.strftime("%Y-%m-%d %H:%M:%S"))
    broken = pl.when(pl.int_range(pl.len()) == 9).then(pl.lit("??")).otherwise(pl.col("timestamp"))
    one.with_columns(broken.alias("timestamp")).write_csv(tmp_path / "EURUSD.csv")
    found = findings(str(tmp_path))
    assert found["naive_time"].fixes == ({"time_zone": "UTC"},)
    assert "openings and closings of 5 weekends fit UTC" in found["naive_time"].message
    assert "data row 10" in found["bad_time"].message


def test_odd_calendars(folder, frame):
    every_second_day = frame(bars=40_000).filter(pl.col("timestamp").dt.ordinal_day() % 2 == 0)
    found = findings(folder(EURUSD=every_second_day))
    assert "off by more than 2 %" in found["calendar"].message


def test_every_problem_of_a_folder_is_reported_at_once(tmp_path, folder, frame, put):
    path = folder(
        EURUSD=put(frame(), "close", [3], float("nan")),
        GBPUSD=frame(bars=600, bar_seconds=3600),
        USDCHF=frame()[:1],
        NZDUSD=frame(),
    )
    Path(tmp_path / "USDCAD.parquet").write_bytes(b"rubbish")
    frame().write_csv(tmp_path / "NZDUSD.csv")
    report = check(DataConfig(folder=path))
    kinds = {(one.symbol, one.kind) for one in report.issues if one.severity == "error"}
    assert kinds == {
        ("EURUSD", "nan"),
        ("USDCHF", "too_few"),
        ("USDCAD", "unreadable"),
        ("NZDUSD", "file"),
        ("all", "timeframe"),
    }
    assert not report.loadable
    assert "Errors: loading refuses this data:" in render(report)
    assert "Not loadable: 5 errors" in render(report)
    assert report.fixes[0]["bad_bars"] == "drop"


def test_nothing_to_check_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no"):
        check(DataConfig(folder=str(tmp_path)))
    with pytest.raises(DataError, match="does not exist"):
        check(DataConfig(folder=str(tmp_path / "nowhere")))


def test_real_forex_prices(forex_m15):
    report = check(DataConfig(folder=str(forex_m15)))
    assert report.loadable
    weekends = {one.symbol: one.count for one in report.issues_of_kind("weekend")}
    assert weekends == {"EURUSD": 51, "GBPUSD": 52, "USDCHF": 52, "USDJPY": 52}
    assert all("188 once and 196 once" in one.message for one in report.issues_of_kind("weekend"))
    holidays = [(one.symbol, one.size) for one in report.issues_of_kind("holiday")]
    assert holidays == [(symbol, size) for symbol in weekends for size in (56, 96)]
    gaps = {(one.symbol, one.size): one.count for one in report.issues_of_kind("gap")}
    assert gaps == {
        ("EURUSD", 1): 4,
        ("GBPUSD", 1): 2,
        ("GBPUSD", 2): 1,
        ("USDCHF", 1): 2,
        ("USDJPY", 1): 1,
        ("USDJPY", 20): 1,
    }
    assert [one.symbol for one in report.issues_of_kind("bounce")] == ["EURUSD", "GBPUSD"]
    kinds = {one.kind for one in report.issues}
    assert kinds == {"weekend", "holiday", "gap", "bounce", "flat", "unequal_ends"}


def test_real_crypto_prices(crypto_5m):
    report = check(DataConfig(folder=str(crypto_5m)))
    assert report.loadable
    assert [(one.size, one.times) for one in report.issues_of_kind("outage")] == [
        (16, (1679661300,))
    ] * 7
    assert all(
        "after 14 flat zero-volume bars" in one.message for one in report.issues_of_kind("outage")
    )
    assert not report.issues_of_kind("gap")
    assert report.issues_of_kind("zero_volume", "AAVE")[0].count == 303
    assert "(3.9 %)" in report.issues_of_kind("flat", "AAVE")[0].message
    assert [one.symbol for one in report.issues_of_kind("coarse_tick")] == ["AVAX"]
    assert {one.symbol for one in report.issues_of_kind("bounce")} == set(report.symbols) - {"AVAX"}
    moves = {one.symbol: one.count for one in report.issues_of_kind("large_move")}
    assert moves == {"AAVE": 3, "AVAX": 1, "LINK": 2, "LTC": 1, "UNI": 2}
    assert len(report.issues_of_kind("unequal_ends")) == 1
