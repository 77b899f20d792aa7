"""Loading: what is refused, what is mended, what is kept."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from slipstream.core.config import validate
from slipstream.core.errors import ConfigError, DataError
from slipstream.markets.data.check import check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market

GYM = "package:slipstream/cli/demo/prices"


def load(folder: str, **options: object):
    return load_market(DataConfig(folder=folder, **options))


def test_sound_files_load_sorted_readonly_and_without_repairs(folder, frame):
    market = load(folder(EURUSD=frame(), GBPUSD=frame(seed=4)))
    assert market.symbols == ("EURUSD", "GBPUSD")
    assert (market.bar_seconds, market.kind) == (900, "fx")
    for bars in market.bars:
        assert len(bars) == 2400
        assert (np.diff(bars.time) > 0).all()
        for column in bars.columns().values():
            assert not column.flags.writeable
            assert np.isfinite(column).all()
        with pytest.raises(ValueError, match="read-only"):
            bars.close[0] = 1.0
    assert market.notes == (
        "EURUSD, GBPUSD: no spread in the file and no `spread_pips`; the market data itself "
        "charges no spread.",
    )
    assert market.symbol("GBPUSD") is market.bars[1]
    with pytest.raises(DataError, match="did you mean `GBPUSD`"):
        market.symbol("GBUSD")


def test_symbols_keep_the_configs_order_and_hash_follows_content(folder, frame, put):
    path = folder(EURUSD=frame(), GBPUSD=frame(seed=4))
    one = load(path, symbols=("GBPUSD", "EURUSD"))
    assert one.symbols == ("GBPUSD", "EURUSD")
    assert load(path).hash == load(path).hash != one.hash
    before = load(path).hash
    folder(EURUSD=put(frame(), "volume", [7], 5.0))
    assert load(path).hash != before


def test_csv_and_feather_load_the_same_numbers(tmp_path, frame):
    one = frame()
    one.write_parquet(tmp_path / "A.parquet")
    one.write_ipc(tmp_path / "B.feather")
    one.write_csv(tmp_path / "C.csv")
    a, b, c = load(str(tmp_path)).bars
    for name in ("time", "open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(getattr(a, name), getattr(c, name))


def test_the_demos_file_loads_from_the_package():
    market = load(
        GYM,
        files={"EURUSD": "FOREX_EURUSD_1H_ASK.csv"},
        time_zone="UTC",
        price_side="ask",
        spread_pips=1.0,
        timeframe="1h",
    )
    bars = market.symbol("EURUSD")
    assert (len(bars), market.bar_seconds) == (6225, 3600)
    assert bars.time[0] == 1483308000  # 2017-01-01 22:00 UTC
    assert bars.close[0] == pytest.approx(1.05227 - 0.5e-4, abs=1e-12)
    np.testing.assert_allclose(bars.spread, 1e-4)
    assert any("ask prices were shifted" in note for note in market.notes)


def test_a_folder_may_be_one_file(tmp_path, frame):
    frame().write_parquet(tmp_path / "export.parquet")
    market = load(str(tmp_path / "export.parquet"), symbols=("EURUSD",))
    assert market.symbols == ("EURUSD",)
    assert load(str(tmp_path / "export.parquet")).symbols == ("export",)


def test_extra_numeric_columns_are_kept_by_name(folder, frame):
    one = frame().with_columns(
        pl.lit(7).alias("Open Interest"), pl.lit("x").alias("venue"), pl.lit(None).alias("empty")
    )
    extra = load(folder(EURUSD=one)).bars[0].extra
    assert list(extra) == ["open_interest"]
    assert (extra["open_interest"] == 7.0).all()


def test_columns_are_renamed(folder, frame):
    one = frame().rename({"close": "Schluss", "volume": "Stück"})
    market = load(folder(EURUSD=one), columns={"Schluss": "close", "Stück": "volume"})
    np.testing.assert_array_equal(market.bars[0].close, frame()["close"].to_numpy())
    with pytest.raises(DataError, match=r"close is missing among .*Schluss"):
        load(folder(EURUSD=one))
    with pytest.raises(DataError, match="names 'Kurs', which is not there"):
        load(folder(EURUSD=one), columns={"Kurs": "close"})


def test_bid_and_ask_prices_are_shifted_to_mid(folder, frame):
    one = frame().with_columns(pl.lit(0.0004).alias("spread"))
    path = folder(EURUSD=one)
    mid = load(path).bars[0]
    bid = load(path, price_side="bid").bars[0]
    ask = load(path, price_side="ask").bars[0]
    for name in ("open", "high", "low", "close"):
        np.testing.assert_allclose(getattr(bid, name) - getattr(mid, name), 0.0002, atol=1e-12)
        np.testing.assert_allclose(getattr(ask, name) - getattr(mid, name), -0.0002, atol=1e-12)


@pytest.mark.parametrize("side", ["bid", "ask"])
def test_one_sided_prices_need_a_spread(folder, frame, side):
    with pytest.raises(DataError, match="`spread_pips: 1` or `price_side: mid`"):
        load(folder(EURUSD=frame()), price_side=side)


def test_spread_in_points_and_pips(folder, frame):
    yen = frame().with_columns(
        [pl.col(name) * 130 for name in ("open", "high", "low", "close")]
        + [pl.lit(12).alias("spread_points")]
    )
    path = folder(USDJPY=yen)
    np.testing.assert_allclose(load(path).bars[0].spread, 0.012)
    np.testing.assert_allclose(load(path, point=0.01).bars[0].spread, 0.12)
    np.testing.assert_allclose(load(path, spread_pips=2.0).bars[0].spread, 0.02)


def test_a_spread_from_the_config_replaces_the_files_aloud(folder, frame):
    one = frame().with_columns(pl.lit(0.0004).alias("spread"))
    market = load(folder(EURUSD=one), spread_pips=1.0)
    np.testing.assert_allclose(market.bars[0].spread, 1e-4)
    assert market.notes == ("EURUSD: the file's own spread was replaced by `spread_pips: 1`.",)


def test_close_labelled_stamps_are_shifted_by_one_bar(folder, frame):
    late = frame().with_columns(pl.col("timestamp") + pl.duration(minutes=15))
    market = load(folder(EURUSD=late), timestamp_label="right")
    np.testing.assert_array_equal(market.bars[0].time, frame()["timestamp"].dt.epoch("s"))


def test_unsorted_rows_are_sorted_and_the_last_duplicate_stays(folder, frame, put):
    one = frame()
    correction = put(one[100:101], "volume", [0], 123.0)
    mixed = pl.concat([one[1200:], one[:1200], correction])
    market = load(folder(EURUSD=mixed))
    bars = market.bars[0]
    np.testing.assert_array_equal(bars.time, one["timestamp"].dt.epoch("s"))
    assert bars.volume[100] == 123.0
    assert any("loading sorts the bars" in note for note in market.notes)
    assert any("keeps the last of each" in note for note in market.notes)


BAD_BARS = [
    ("close", float("nan"), "no number in column close"),
    ("volume", float("nan"), "no number in column volume"),
    ("open", float("inf"), "no number in column open"),
    ("low", 0.0, r"a price \(low\) that is not positive"),
    ("close", -1.0, r"a price \(close\) that is not positive"),
    ("high", 0.5, "high below low"),
    ("close", 2.0, "open or close outside low to high"),
    ("volume", -2.0, "negative volume"),
]


@pytest.mark.parametrize(("column", "value", "message"), BAD_BARS)
def test_bad_bars_are_refused_or_dropped(folder, frame, put, column, value, message):
    one = frame()
    path = folder(EURUSD=put(one, column, [700, 900], value))
    moment = one["timestamp"][700].strftime("%Y-%m-%d %H:%M")
    with pytest.raises(DataError, match=f"2 bars with {message}.*{moment}"):
        load(path)
    market = load(path, bad_bars="drop")
    assert len(market.bars[0]) == 2398
    assert one["timestamp"].dt.epoch("s")[700] not in market.bars[0].time
    assert any("loading drops them" in note for note in market.notes)


def test_a_nan_in_a_volume_nobody_wants_can_be_mapped_away(folder, frame, put):
    path = folder(EURUSD=put(frame(), "volume", [5], float("nan")))
    bars = load(path, columns={"volume": "ticks"}).bars[0]
    assert (bars.volume == 0.0).all()
    assert np.isnan(bars.extra["ticks"][5])


def test_negative_and_missing_spreads_are_refused(folder, frame, put):
    one = frame().with_columns(pl.lit(0.0001).alias("spread"))
    with pytest.raises(DataError, match="negative spread"):
        load(folder(EURUSD=put(one, "spread", [4], -0.0001)))
    with pytest.raises(DataError, match="no number in column spread"):
        load(folder(EURUSD=put(one, "spread", [4], float("nan"))))


def test_a_jump_of_scale_is_refused(folder, frame):
    one = frame().with_columns(
        pl.when(pl.int_range(pl.len()) < 1000).then(pl.col(name) * 100).otherwise(pl.col(name))
        .alias(name)
        for name in ("open", "high", "low", "close")
    )  # fmt: skip
    with pytest.raises(DataError, match=r"power of ten 1 time, first x0\.0"):
        load(folder(EURUSD=one))
    mostly = one.head(1400)  # no one factor is right for all of these
    with pytest.raises(DataError, match=r"prices near 109.*power of ten 1 time") as refusal:
        load(folder(EURUSD=mostly))
    assert "price_scale" not in str(refusal.value)


def test_prices_in_points_are_refused_until_scaled(folder, frame):
    one = frame().with_columns(
        (pl.col(name) * 1e5).round().cast(pl.Int64) for name in ("open", "high", "low", "close")
    )
    path = folder(EURUSD=one)
    with pytest.raises(DataError, match=r"`price_scale: \{EURUSD: 0.00001\}`"):
        load(path)
    assert load(path, price_scale=1e-5).bars[0].open[0] == pytest.approx(1.1)
    scaled = load(path, price_scale={"EURUSD": 1e-5})
    assert scaled.bars[0].open[0] == pytest.approx(1.1)


def test_flat_weekend_candles_are_dropped(folder, frame):
    one = frame()
    friday = one.filter(pl.col("timestamp").dt.weekday() == 5)[-1]
    price = friday["close"][0]
    weekend = pl.DataFrame(
        {
            "timestamp": [friday["timestamp"][0].replace(hour=23, minute=m) for m in (0, 15, 30)],
            **dict.fromkeys(("open", "high", "low", "close"), [price] * 3),
            "volume": [0.0] * 3,
        },
        schema=one.schema,
    )
    market = load(folder(EURUSD=pl.concat([one, weekend]).sort("timestamp")))
    assert len(market.bars[0]) == len(one)
    assert any("3 flat candles without volume" in note for note in market.notes)


def test_naive_stamps_are_refused_with_a_suggestion(folder, frame):
    path = folder(EURUSD=frame().with_columns(pl.col("timestamp").dt.replace_time_zone(None)))
    with pytest.raises(DataError, match="time_zone: UTC"):
        load(path)
    assert load(path, time_zone="UTC").bars[0].time[0] == 1577916000
    with pytest.raises(DataError, match="5 of 5 weekends have bars while the market is closed"):
        load(path, time_zone="Etc/GMT+5")
    taken = load(path, time_zone="Etc/GMT+5", allow_issues=["local_time"])
    assert taken.bars[0].time[0] == 1577916000 + 5 * 3600
    assert "because `allow_issues` names local_time" in taken.accepted[0]
    assert taken.notes[0] == taken.accepted[0]


def test_a_zone_is_judged_by_its_weekends_and_not_by_holidays(folder, forex_m15):
    one = pl.read_parquet(forex_m15 / "EURUSD.parquet")
    york = pl.col("timestamp").dt.convert_time_zone("America/New_York")
    wrong = york.dt.replace_time_zone(None).dt.replace_time_zone("UTC")
    with pytest.raises(DataError, match="51 of 51 weekends have bars while"):
        load(folder(EURUSD=one.with_columns(wrong)))


def test_a_time_zone_beside_aware_stamps_is_ignored_aloud(folder, frame):
    market = load(folder(EURUSD=frame()), time_zone="Asia/Tokyo")
    assert market.bars[0].time[0] == 1577916000
    assert any("was ignored" in note for note in market.notes)


def test_timeframe_is_asserted_never_resampled(folder, frame):
    path = folder(EURUSD=frame())
    assert load(path, timeframe="M15").bar_seconds == 900
    with pytest.raises(DataError, match=r"bars of 15m where `timeframe: 1h`"):
        load(path, timeframe="1h")


def test_symbols_of_different_bar_lengths_are_refused(folder, frame):
    path = folder(EURUSD=frame(), GBPUSD=frame(bars=600, bar_seconds=3600))
    with pytest.raises(DataError, match=r"different lengths \(EURUSD 15m, GBPUSD 1h\)"):
        load(path)


def test_missing_things_are_named(tmp_path, folder, frame):
    with pytest.raises(DataError, match="does not exist"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"holds no \.parquet"):
        load(str(tmp_path))
    path = folder(EURUSD=frame())
    with pytest.raises(DataError, match="did you mean `EURUSD`"):
        load(path, symbols=("EURUSDT",))
    with pytest.raises(DataError, match="pip install no-such-thing"):
        load("package:no_such_thing/data")
    (tmp_path / "GBPUSD.csv").mkdir()
    with pytest.raises(DataError, match="is a folder, a file was expected"):
        load(path, symbols=("GBPUSD",))
    with pytest.raises(DataError, match=r"looked for .*gone\.csv"):
        load(path, files={"GBPUSD": "gone.csv"})


def test_what_never_ends_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "EURUSD.csv")
    with pytest.raises(DataError, match="named pipe, not a file"):
        load(str(tmp_path))


def test_a_large_file_of_something_else_is_refused_by_its_head(tmp_path):
    path = tmp_path / "EURUSD.csv"
    path.touch()
    os.truncate(path, 1 << 40)  # no memory holds it
    with pytest.raises(DataError, match="is not a text file"):
        load(str(path))


def test_one_symbol_in_two_files_is_refused(tmp_path, folder, frame):
    path = folder(EURUSD=frame())
    frame().write_csv(tmp_path / "EURUSD.csv")
    with pytest.raises(DataError, match=r"has 2 \(EURUSD.csv, EURUSD.parquet\)"):
        load(path)
    assert load(path, files={"EURUSD": "EURUSD.csv"}).symbols == ("EURUSD",)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv"])
@pytest.mark.parametrize("content", [b"", b"PAR1 this is not prices\n\x00\xff\x00"])
def test_empty_and_unreadable_files_are_refused(tmp_path, suffix, content):
    Path(tmp_path / f"EURUSD.{suffix}").write_bytes(content)
    with pytest.raises(DataError, match="EURUSD"):
        load(str(tmp_path))


def test_files_without_enough_bars_are_refused(folder, frame):
    with pytest.raises(DataError, match="holds no bars"):
        load(folder(EURUSD=frame()[:0]))
    with pytest.raises(DataError, match="at least two are needed"):
        load(folder(EURUSD=frame()[:1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"timeframe": "fortnight"}, "timeframe"),
        ({"separator": "::"}, "one character"),
        ({"symbols": []}, "at least one symbol"),
        ({"symbols": ["A", "A"]}, "listed only once"),
        ({"spread_pips": -1.0}, "spread_pips"),
        ({"time_zome": "UTC"}, "did you mean `time_zone`"),
    ],
)
def test_impossible_configs_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        validate(DataConfig, {"folder": "x", **options}, "data")


def test_real_files_load_whole(forex_m15):
    market = load(str(forex_m15), timeframe="15m")
    assert [len(bars) for bars in market.bars] == [24804, 24904, 24906, 24887]


ODD = {
    "lists": pl.concat_list("open", "close").alias("close"),
    "words": pl.lit("abc").alias("close"),
    "nothing": pl.lit(None).alias("close"),
    "sentinels": pl.lit(1e308).alias("close"),
    "denormals": pl.lit(5e-324).alias("low"),
    "no stamps": pl.lit(None).cast(pl.Datetime("us", "UTC")).alias("timestamp"),
    "one stamp": pl.lit(1577916000).alias("timestamp"),
    "row numbers": pl.int_range(pl.len()).alias("timestamp"),
    "infinite stamps": pl.lit(float("inf")).alias("timestamp"),
    "truth": pl.lit(True).alias("timestamp"),
    "ancient": pl.datetime(1, 1, 1, time_zone="UTC").dt.cast_time_unit("us").alias("timestamp"),
}


@pytest.mark.parametrize("column", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("bad_bars", ["refuse", "drop"])
def test_odd_columns_are_refused_in_words(folder, frame, column, bad_bars):
    path = folder(EURUSD=frame().with_columns(column))
    with pytest.raises(DataError, match="EURUSD"):
        load(path, bad_bars=bad_bars)
    assert not check(DataConfig(folder=path, bad_bars=bad_bars)).loadable
