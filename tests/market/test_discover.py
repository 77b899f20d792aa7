"""Discovery: what `init` can say about a folder."""

import pytest

from slipstream.core.config import validate
from slipstream.core.errors import DataError
from slipstream.market.config import DataConfig
from slipstream.market.discover import describe_folder, missing_pairs, propose
from slipstream.market.market import load_market


def test_a_folder_of_named_pairs(folder, frame):
    found = describe_folder(folder(EURGBP=frame(), EURUSD=frame(seed=4)))
    assert [(one.symbol, one.rows, one.bar_seconds, one.naive) for one in found.files] == [
        ("EURGBP", 2400, 900, False),
        ("EURUSD", 2400, 900, False),
    ]
    assert missing_pairs(found.usable, "USD") == ("GBPUSD",)
    market = load_market(validate(DataConfig, found.data_section))
    assert market.symbols == ("EURGBP", "EURUSD")


def test_the_demos_package_is_described_and_loads():
    found = describe_folder("package:gym_anytrading/datasets/data")
    one = found.files[0]
    assert (one.symbol, one.format, one.price_side, one.naive) == ("EURUSD", "CSV", "ask", True)
    section = found.data_section
    assert section["files"] == {"EURUSD": "FOREX_EURUSD_1H_ASK.csv"}
    assert "time_zone" not in section
    proposal = propose(section)
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


def test_no_folder_no_files(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        describe_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no"):
        describe_folder(tmp_path)
