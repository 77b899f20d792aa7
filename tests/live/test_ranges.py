"""What a feature was in training is frozen with a deployment, and what lies outside is remarked."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from live_markets import Make, table, week, write

from slipstream.live.account import JOURNAL
from slipstream.live.journal import Journal
from slipstream.live.paper import paper
from slipstream.live.ranges import Ranges


def jumping(jumps: dict[int, float]) -> pl.DataFrame:
    """A random walk of bars of M15 that jumps at some of them."""
    frame, factor = table(week(420), 1.1, 0, 1e-5), np.ones(420)
    for row, jump in jumps.items():
        factor[row:] *= jump
    prices = ("open", "high", "low", "close")
    moved = frame.with_columns(pl.col(prices) * pl.Series(factor))
    bounds = {"high": pl.max_horizontal(prices), "low": pl.min_horizontal(prices)}
    return moved.with_columns(**bounds)


def test_ranges_of_training_and_a_bar_outside(make: Make, tmp_path: Path) -> None:
    jumps = {330: 1.005, 360: 0.997}
    prices = write(tmp_path / "prices", {"EURUSD": jumping(jumps)})
    found = make("forex", prices, features=["log_return_1", "close_location"])
    deployed = found.policy()
    ranges = Ranges.of(deployed.facts)
    assert ranges is not None and len(ranges.low) % 2 == 0
    assert ranges.low[-2] == pytest.approx(np.log(0.997), abs=5e-5)
    assert ranges.high[-2] == pytest.approx(np.log(1.005), abs=5e-5)
    assert ranges.outside(deployed, ranges.high) == (0.0, "log_return_1")
    row = ranges.low - [0.25, 0.0] * (len(ranges.low) // 2) * (ranges.high - ranges.low)
    told = ranges.outside(deployed, row)
    assert told.share == pytest.approx(0.25) and "log_return_1 lies outside" in str(told)
    later = write(tmp_path / "later", {"EURUSD": jumping(jumps | {410: 1.009})})
    paper("demo", f"replay:{later}", start=int(week(420)[405]))
    with closing(Journal(found.account(1) / JOURNAL)) as journal:
        (remark,) = journal.remarks()
    share = 100 * (np.log(1.009) - np.log(1.005)) / (np.log(1.005) - np.log(0.997))
    assert "log_return_1 lies outside its range in training, by " in remark[1]
    assert float(remark[1].split("by ")[1].split(" %")[0]) == pytest.approx(share, abs=2.0)
