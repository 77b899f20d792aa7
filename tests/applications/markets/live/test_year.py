"""A year of forex and of coins through `paper`: every action is the one of `evaluate`.

Whole weeks are told at once, as to an account that was away; bars around the weekends on which the
clocks change, and around Christmas, come one after the other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from live_markets import Make, check_equal, table, week, write

from slipstream.markets.live.account_runner import run_account

DAYS = ("2025-03-09", "2025-11-02", "2025-12-25")  # New York's clocks change; Christmas
NEAR = 6 * 3_600  # seconds before and after the hole that such a day makes
YEAR_FOREX, YEAR_COINS = 24_900, 105_120


def seconds(day: str) -> int:
    return int(np.datetime64(day, "s").astype(np.int64))


def without_christmas(times: np.ndarray) -> np.ndarray:
    """Without 56 bars of M15: the market shuts on Christmas Eve for 14 hours."""
    shut = seconds("2025-12-24") + 22 * 3_600
    return times[(times < shut) | (times >= shut + 56 * 900)]


def singly(times: np.ndarray) -> set[int]:
    """Opens of bars near those days, each the last one that is told."""
    found: set[int] = set()
    for day in map(seconds, DAYS):
        before = times[times < day + 12 * 3_600][-1]
        near = (times > before - NEAR) & (times < before + NEAR + 3 * 86_400)
        found.update(times[near][:40].tolist())
    return found


@pytest.mark.slow
def test_a_year_of_forex(make: Make, tmp_path: Path, blocks: set[int]) -> None:
    times = without_christmas(week(YEAR_FOREX))
    prices = write(tmp_path / "prices", {"EURUSD": table(times, 1.1, 0)})
    make("forex", prices, backend="compiled", features=["log_return_1", "rsi_14", "ema_20_rel"])
    blocks |= singly(times)
    decided = run_account("demo", f"replay:{prices}", max_gap=60)
    assert decided > YEAR_FOREX - 400
    check_equal("demo", YEAR_FOREX - 400)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_year_of_coins(make: Make, tmp_path: Path, blocks: set[int]) -> None:
    times = seconds("2025-02-01") + 300 * np.arange(YEAR_COINS)
    tables = {name: table(times, 10.0, k, 2e-3) for k, name in enumerate(("BTCUSD", "ETHUSD"))}
    keep = np.ones(YEAR_COINS, np.bool_)
    keep[40_000:40_003] = False  # an outage of one of them
    tables["ETHUSD"] = tables["ETHUSD"].filter(pl.Series(keep))
    prices = write(tmp_path / "prices", tables)
    make("portfolio", prices, backend="compiled", features=["log_return_1", "rsi_14"])
    near = singly(times)
    blocks |= set(sorted(near)[:: max(len(near) // 12, 1)])
    decided = run_account("demo", f"replay:{prices}")
    assert decided > YEAR_COINS - 400
    check_equal("demo", YEAR_COINS - 400)
