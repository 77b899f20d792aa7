"""The demo's prices, and the real ones where they are there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.markets.data.bars import Bars
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.data.panel import Panel, load_panel


@pytest.fixture(scope="session")
def demo_bars() -> Bars:
    """Hourly EURUSD of 2017 from the demo, ask prices as they are in the file."""
    config = DataConfig(
        folder="package:slipstream/cli/demo/prices",
        files={"EURUSD": "FOREX_EURUSD_1H_ASK.csv"},
        time_zone="UTC",
    )
    return load_market(config).symbol("EURUSD")


def real_data() -> Path:
    """The folder of real prices, which may be absent."""
    return Path(os.environ.get("SLIPSTREAM_MARKET_DATA", Path(__file__).parents[5] / "shared/data"))


@pytest.fixture(scope="session")
def eurusd() -> Bars:
    """15-minute EURUSD, or a skip where it is absent."""
    file = real_data() / "forex_m15" / "EURUSD.parquet"
    if not file.is_file():
        pytest.skip(f"no real prices: set SLIPSTREAM_MARKET_DATA to the parent of {file.parent}")
    return load_market(DataConfig(folder=str(file))).symbol("EURUSD")


@pytest.fixture(scope="session")
def crypto_panel() -> Panel:
    """Seven coins of 5-minute bars, or a skip where they are absent."""
    folder = real_data() / "crypto_5m"
    if not folder.is_dir():
        pytest.skip(f"no real prices: set SLIPSTREAM_MARKET_DATA to the parent of {folder}")
    return load_panel(DataConfig(folder=str(folder)))
