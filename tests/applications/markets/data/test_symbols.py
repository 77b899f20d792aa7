"""Symbols and bar lengths by name."""

import pytest

from slipstream.core.errors import ConfigError
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import timeframe_name, timeframe_seconds


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("EURUSD", ("EUR", "USD")),
        ("eur_usd", ("EUR", "USD")),
        ("USD/JPY", ("USD", "JPY")),
        ("XAUUSD", ("XAU", "USD")),
        ("BTCUSDT", ("BTC", "USDT")),
        ("BTC-USD", ("BTC", "USD")),
        ("DOGEEUR", ("DOGE", "EUR")),
        ("BTCBUSD", ("BTC", "BUSD")),
        ("ETHTUSD", ("ETH", "TUSD")),
        ("BNBUSD", ("BNB", "USD")),  # not BN in BUSD
        ("DOTUSD", ("DOT", "USD")),
        ("SHIBUSD", ("SHIB", "USD")),
        ("SHIBBUSD", ("SHIB", "BUSD")),
        ("BTC", None),
        ("EURUSD_M15", None),
        ("USDUSD", None),
        ("hello", None),
    ],
)
def test_parse(name, pair):
    assert symbols.parse(name) == pair


def test_kinds_pips_and_points():
    assert symbols.market_kind("GBPJPY") == "fx"
    assert symbols.market_kind("XAUUSD") == "fx"
    assert symbols.market_kind("BTCUSD") == "24/7"
    assert symbols.pip_size("USDJPY") == 0.01
    assert symbols.pip_size("EURUSD") == 0.0001
    assert symbols.pip_size("BTC") == 0.0001
    assert symbols.point_size("USDJPY") == pytest.approx(0.001)


def test_pairs_hidden_in_file_names():
    assert symbols.find_pair("FOREX_EURUSD_1H_ASK") == "EURUSD"
    assert symbols.find_pair("DAT_ASCII_USDJPY_M1_2020") == "USDJPY"
    assert symbols.find_pair("STOCKS_GOOGL") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("M15", 900), ("15m", 900), ("15min", 900), ("1h", 3600), ("H4", 14400), ("1d", 86400)],
)
def test_timeframes(text, seconds):
    assert timeframe_seconds(text) == seconds


def test_timeframe_names():
    assert [timeframe_name(s) for s in (30, 300, 3600, 86400, 604800, 5400)] == [
        "30s",
        "5m",
        "1h",
        "1d",
        "1w",
        "90m",
    ]
    with pytest.raises(ConfigError, match="such as 15m"):
        timeframe_seconds("m0")
