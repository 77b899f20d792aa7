"""A small market of two symbols, traded through the real kernel without compiling it."""

import numpy as np
import polars as pl
import pytest
from pictures import blank_pictures as blank_pictures
from pictures import small_pictures as small_pictures

from slipstream.markets.evaluation.market_backtest import SymbolSplitBacktest
from slipstream.training.environments.factory import resolve_environment

HOUR = 3_600
MONDAY = 1_704_664_800  # 2024-01-07 22:00 UTC: Sunday 17:00 New York


def write_market(folder, bars=2_000, seed=0):
    """Hourly bars of EURUSD and USDJPY, weekends left out."""
    random = np.random.default_rng(seed)
    week = np.arange(0, 120) * HOUR
    time = MONDAY + np.concatenate([week + k * 168 * HOUR for k in range(bars // 120 + 1)])[:bars]
    for symbol, price, digits in (("EURUSD", 1.1, 5), ("USDJPY", 150.0, 3)):
        close = price * np.exp(np.cumsum(random.normal(0, 1.2e-3, bars)))
        opened = np.concatenate([[price], close[:-1]]) * np.exp(random.normal(0, 1e-4, bars))
        wick = price * np.abs(random.normal(0, 4e-4, (2, bars)))
        pl.DataFrame(
            {
                "time": pl.from_epoch(time, time_unit="s").dt.replace_time_zone("UTC"),
                "open": np.round(opened, digits),
                "high": np.round(np.maximum(opened, close) + wick[0], digits),
                "low": np.round(np.minimum(opened, close) - wick[1], digits),
                "close": np.round(close, digits),
                "volume": random.integers(50, 500, bars).astype(float),
            }
        ).write_parquet(folder / f"{symbol}.parquet")


def settings(folder, **env):
    return {
        "data": {"folder": str(folder), "spread_pips": 0.8, "price_side": "mid"},
        "split": {"train": 0.3, "validation": 0.2, "test": 0.5},
        "slippage_pips": 0.1,
        "commission_per_million": 20.0,
        **env,
    }


@pytest.fixture(scope="session")
def market_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prices")
    write_market(folder)
    return folder


@pytest.fixture(scope="session")
def forex(market_folder):
    return resolve_environment("forex", settings(market_folder))


@pytest.fixture(scope="session")
def forex_continuous(market_folder):
    return resolve_environment("forex", settings(market_folder, action="continuous"))


@pytest.fixture(scope="session")
def passes_of():
    """Function: (environment, split) -> the passes, stepped without compiling."""

    def make(environment, split="test"):
        return SymbolSplitBacktest(environment.kernel, environment.loaded, split, "serial")

    return make


@pytest.fixture(scope="session")
def some_agent():
    """Function: (passes, seed) -> tracks of positions held at random for a random while."""

    def make(backtests, seed=0):
        random = np.random.default_rng(seed)
        actions = []
        for record in range(len(backtests.params)):
            first, last = backtests.window(record)
            n = last - first
            positions = np.repeat(random.integers(-1, 2, n), random.integers(1, 9, n))[:n]
            actions.append(backtests.encode_positions(positions))
        return backtests.replay(actions)

    return make
