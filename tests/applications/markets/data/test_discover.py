"""Discovery: what `init` can say about a folder."""

import shlex

import numpy as np
import pytest
from vendors import HOUR, binance, iso, metatrader_5, truth

from slipstream.core.config import validate
from slipstream.core.errors import DataError
from slipstream.markets.data.check import check, render
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.data.symbols import market_kind
from slipstream.markets.starter_config import describe_folder, propose_section


def test_a_folder_of_named_pairs(folder, frame):
    found = describe_folder(folder(EURGBP=frame(), EURUSD=frame(seed=4)))
    assert [(one.symbol, one.rows, one.bar_seconds) for one in found.files] == [
        ("EURGBP", 2400, 900),
        ("EURUSD", 2400, 900),
    ]
    market = load_market(validate(DataConfig, found.data_section))
    assert market.symbols == ("EURGBP", "EURUSD")


def test_the_demos_package_is_described_and_loads():
    found = describe_folder("package:slipstream/cli/demo/prices")
    one = found.files[0]
    assert (one.symbol, one.price_side) == ("EURUSD", "ask")
    section = found.data_section
    assert section["files"] == {"EURUSD": "FOREX_EURUSD_1H_ASK.csv"}
    assert "time_zone" not in section
    proposal = propose_section(section)
    section = proposal.section
    assert section["time_zone"] == "UTC"
    assert "the openings and closings of 51 weekends fit UTC" in proposal.reasons[0]
    assert len(load_market(validate(DataConfig, section)).bars[0]) == 6225


def test_problems_are_described_not_raised(tmp_path, folder, frame):
    path = folder(USDJPY=frame().with_columns(spread=0.01))
    (tmp_path / "BAD.csv").write_text("")
    found = describe_folder(path)
    assert found.files[0].problem is not None
    assert found.files[1].spread == "spread"
    assert "spread_pips" not in found.data_section
    assert [one.symbol for one in found.usable] == ["USDJPY"]


def test_mixed_bar_lengths_keep_the_common_one(folder, frame):
    found = describe_folder(
        folder(EURUSD=frame(), GBPUSD=frame(), USDJPY=frame(bars=500, bar_seconds=3600))
    )
    assert found.data_section["symbols"] == ["EURUSD", "GBPUSD"]
    assert found.data_section["timeframe"] == "15m"


@pytest.mark.parametrize(("coin_size", "days"), [(300, 4), (HOUR, 400)])
def test_a_folder_of_bitcoin_and_euros(tmp_path, coin_size, days):
    """Forex takes the pair, whose own prices, spread and zone are then written; not the coin's."""
    binance(tmp_path, truth("BTCUSDT", coin_size, days=days))
    one = truth("EURUSD", HOUR)
    metatrader_5("America/New_York+7")(tmp_path, one)
    (tmp_path / "EURUSD.csv").rename(tmp_path / "EURUSD_H1.csv")
    section = propose_section(describe_folder(tmp_path, "fx").data_section).section
    assert section == {
        "folder": str(tmp_path),
        "symbols": ["EURUSD"],
        "files": {"EURUSD": "EURUSD_H1.csv"},
        "timeframe": "1h",
        "price_side": "bid",
        "time_zone": "America/New_York+7",
    }
    bars = load_market(validate(DataConfig, section)).bars[0]
    np.testing.assert_array_equal(bars.time, one.time)
    other = describe_folder(tmp_path)  # nobody prefers a market: the file with more bars
    assert [file.symbol for file in other.usable] == ["EURUSD" if coin_size == 300 else "BTCUSDT"]


def test_the_pair_in_a_longer_name_decides_hours_and_pip(tmp_path):
    """`EURUSD_H1.csv` was taken for a coin; the check names the command for it."""
    iso("%Y-%m-%d %H:%M:%S+00:00", "time")(tmp_path, truth("USDJPY", HOUR, days=60))
    (tmp_path / "USDJPY.csv").rename(tmp_path / "USDJPY_H1.csv")
    report = check(DataConfig(folder=str(tmp_path), spread_pips=1.0))
    assert "market fx" in report.summary[0] and "(median 0.01)" in report.summary[0]
    assert f"`slipstream init forex {shlex.quote(str(tmp_path))} > my.yaml` writes" in render(
        report
    )
    assert [market_kind(name) for name in ("EURUSDT", "EURUSDT_1h", "mEURUSD", "XAUUSD.pro")] == [
        "24/7",
        "24/7",
        "24/7",
        "fx",
    ]


def test_no_folder_no_files(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        describe_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no"):
        describe_folder(tmp_path)
