"""FinRL_Crypto's pickles: read without running them, written as prices that load."""

from __future__ import annotations

import os
import pickle

import numpy as np
import polars as pl
import pytest

from slipstream import make_vec
from slipstream.cli.main import main
from slipstream.compat.cappuccino import import_finrl
from slipstream.core.errors import ConfigError, DataError

ROWS = 320
PRICE = 100.0 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 2e-3, (ROWS, 3)), axis=0))
TECH = np.random.default_rng(2).normal(size=(ROWS, 6))
TIMES = np.datetime64("2022-05-01T00:00:00", "ns") + np.timedelta64(300, "s") * np.arange(ROWS)
COINS = ["BTC", "ETH", "LTC"]


def code(words):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def folder(path, protocol=5, **other):
    """A folder of theirs; `other` names contents, pickled unless they are bytes."""
    path.mkdir(exist_ok=True)
    held = {"price_array": PRICE, "tech_array": TECH, "time_array": TIMES, **other}
    for name, value in held.items():
        content = value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol)
        (path / name).write_bytes(content)
    return path


def written(path, symbol):
    return pl.read_parquet(path / f"{symbol}.parquet")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_columns_and_what_is_said(tmp_path, protocol):
    price = PRICE.copy()
    price[5, 1] = 0.0  # how the original writes a bar that is missing
    source = folder(tmp_path / "data", protocol, price_array=np.asfortranarray(price))
    said = " ".join(import_finrl(source, tmp_path / "out", symbols=COINS))
    frame = written(tmp_path / "out", "BTC")
    assert frame.columns == ["timestamp", "open", "high", "low", "close", "tech_0", "tech_1"]
    for name in ("open", "high", "low", "close"):
        assert np.array_equal(frame[name].to_numpy(), PRICE[:, 0])
    assert np.array_equal(written(tmp_path / "out", "LTC")["tech_1"].to_numpy(), TECH[:, 5])
    assert frame.schema["timestamp"].time_zone == "UTC"
    assert np.array_equal(frame["timestamp"].dt.replace_time_zone(None).to_numpy(), TIMES)
    assert len(written(tmp_path / "out", "ETH")) == ROWS - 1
    assert "320 bars of 3 assets (BTC, ETH, LTC); 1 without a price were skipped" in said
    assert "no volume" in said and "close of the bar after" in said and "read as UTC" in said


def test_what_is_written_is_a_market(tmp_path):
    import_finrl(folder(tmp_path / "data"), tmp_path / "out", symbols=COINS)
    data = {"folder": str(tmp_path / "out"), "timeframe": "5m"}
    env = make_vec(
        "portfolio", 1, backend="serial", data=data, orders="units", features=["tech_0", "tech_1"]
    )
    assert env.reset(seed=1).shape == (1, 1 + 3 + 6)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_indexes_of_pandas_are_read_without_pandas(tmp_path, protocol, monkeypatch):
    pd = pytest.importorskip("pandas")
    naive = pd.DatetimeIndex(TIMES)
    berlin = naive.tz_localize("Europe/Berlin")
    cases = [
        (naive, {}, TIMES),
        (pd.date_range(TIMES[0], periods=ROWS, freq="5min"), {}, TIMES),
        (naive.tz_localize("UTC"), {"time_zone": "America/New_York"}, TIMES),  # it says its own
        (berlin, {}, TIMES - np.timedelta64(2, "h")),
        (naive, {"time_zone": "Europe/Berlin"}, TIMES - np.timedelta64(2, "h")),
        (pd.RangeIndex(ROWS), {"start": "2022-05-01", "timeframe": "5m"}, TIMES),
    ]
    for k, (index, more, expected) in enumerate(cases):
        source = folder(tmp_path / f"data{k}", protocol, time_array=index)
        monkeypatch.setattr("pandas.core.indexes.datetimes._new_DatetimeIndex", None)
        import_finrl(source, tmp_path / f"out{k}", symbols=COINS, **more)
        monkeypatch.undo()
        stamps = written(tmp_path / f"out{k}", "BTC")["timestamp"].dt.replace_time_zone(None)
        assert np.array_equal(stamps.to_numpy(), expected)


def test_names_of_older_versions_are_known(tmp_path):
    pd = pytest.importorskip("pandas")
    index = pickle.dumps(pd.DatetimeIndex(TIMES).tz_localize("UTC"), protocol=2)
    for new, old in (
        (b"cpandas\nDatetimeIndex\n", b"cpandas.core.indexes.datetimes\nDatetimeIndex\n"),
        (b"cpandas.arrays\nDatetimeArray\n", b"cpandas.core.arrays.datetimes\nDatetimeArray\n"),
        (b"cpandas\nDatetimeTZDtype\n", b"cpandas.core.dtypes.dtypes\nDatetimeTZDtype\n"),
        (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"),
    ):
        assert new in index
        index = index.replace(new, old)
    import_finrl(folder(tmp_path / "data", time_array=index), tmp_path / "out", symbols=COINS)
    stamps = written(tmp_path / "out", "ETH")["timestamp"].dt.replace_time_zone(None)
    assert np.array_equal(stamps.to_numpy(), TIMES)


class Runs:
    """A pickle that runs a program where it is loaded."""

    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda mark: Runs(os.system, f"touch '{mark}'"), "(posix|nt).system"),
        (lambda mark: Runs(eval, f"open({mark!r}, 'w')"), "builtins.eval"),
        (lambda mark: np.array([[Runs(os.mkdir, mark)]], object), "(posix|nt).mkdir"),
        (lambda mark: Runs(pickle.loads, b"x"), "_pickle.loads"),
        (lambda mark: Runs(np.load, mark), r"numpy.*load"),
    ],
)
@pytest.mark.parametrize("name", ["price_array", "tech_array", "time_array"])
def test_a_pickle_with_anything_else_in_it_runs_nothing(tmp_path, what, named, name):
    mark = str(tmp_path / "ran")
    source = folder(tmp_path / "data", **{name: what(mark)})
    with pytest.raises(DataError, match=rf"{name} cannot be loaded: it contains {named}.*asarray"):
        import_finrl(source, tmp_path / "out", symbols=COINS)
    assert not os.path.exists(mark) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("held", "more", "match"),
    [
        ({"price_array": b"PK\x03\x04"}, {}, "price_array is no pickled array"),
        ({"price_array": pickle.dumps(PRICE)[:200]}, {}, "price_array is no pickled array"),
        ({"price_array": [1.0, 2.0]}, {}, r"array of numbers \[bars, columns\], got list"),
        ({"price_array": PRICE[:, 0]}, {}, r"got \(320,\)"),
        ({"tech_array": TECH[:, :4]}, {}, "each of its 3 assets.*a symbol is missing"),
        ({"tech_array": TECH[1:]}, {}, "the rows of price_array"),
        ({"time_array": TIMES[1:]}, {}, "319 timestamps, but price_array has 320 rows"),
        (
            {"time_array": np.arange(ROWS)},
            {},
            "only row numbers.*--start 2022-01-01 --timeframe 5m",
        ),
        ({}, {"symbols": ["BTC", "ETH"]}, "3 columns, but there are 2 names.*a symbol is missing"),
        ({}, {"time_zone": "Mars/North"}, "--time-zone Mars/North"),
        ({}, {"start": "soon", "timeframe": "5m"}, "--start must be a date.*got soon"),
        ({}, {"start": "2022-01-01", "timeframe": "5 bars"}, "5 bars"),
    ],
)
def test_what_cannot_be_imported_is_one_paragraph(tmp_path, held, more, match):
    source = folder(tmp_path / "data", **held)
    with pytest.raises((ConfigError, DataError), match=match) as caught:
        import_finrl(source, tmp_path / "out", **{"symbols": COINS, **more})
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_market_that_is_given_their_folder_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"`slipstream data import-finrl .*data'? prices`"):
        make_vec("portfolio", 1, data={"folder": str(folder(tmp_path / "data"))})


def test_the_command(tmp_path, capsys):
    source = folder(tmp_path / "data")
    words = ["data", "import-finrl", str(source), str(tmp_path / "out"), "--symbols", "BTC,ETH,LTC"]
    assert code(words) == 0
    said = capsys.readouterr().out
    assert "tune crypto --data-dir" in said and "[tech_0,tech_1]" in said
    assert code(["data", "import-finrl", str(tmp_path), str(tmp_path / "x")]) == 2
    assert "price_array is missing" in capsys.readouterr().err
