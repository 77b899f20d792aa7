"""A file that grows is read by its last lines, and as a whole where anything else has changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from live_markets import table, week

from slipstream.markets.live.bar_store import BarGroup, BarSchema
from slipstream.markets.live.feed import FeedUpdate, PriceFeed

BARS = 700
TIME = week(BARS)
SHAPE = BarSchema(("EURUSD", "USDJPY"), (), 900, "fx", (), "auto")
FRAMES = {
    name: table(TIME, price, k)
    for k, (name, price) in enumerate({"EURUSD": 1.1, "USDJPY": 150.0}.items())
}


class Tail:
    """A feed of two files, and how often it read all of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.whole, self.clock = folder, 0, float(TIME[-1] + 3_600)
        monkeypatch.setattr("slipstream.markets.live.feed.time.time", lambda: self.clock)
        own = PriceFeed._read_bars

        def bars(feed: PriceFeed) -> object:
            self.whole += 1
            return own(feed)

        monkeypatch.setattr(PriceFeed, "_read_bars", bars)
        self.data: dict[str, object] = {}
        self.feed = self.opened()

    def opened(self) -> PriceFeed:
        return PriceFeed(f"tail:{self.folder}", self.data, SHAPE, 5.0, True, 10)

    def write(self, name: str, frame: pl.DataFrame) -> None:
        frame.write_csv(self.folder / f"{name}.csv")
        self.clock += 1.0
        os.utime(self.folder / f"{name}.csv", (self.clock, self.clock))

    def look(self, after: int) -> tuple[list[BarGroup], FeedUpdate, int]:
        """A look, the moments that a new feed gives, and how often the look read all."""
        self.whole = 0
        told = self.feed.poll(after)
        whole, fresh = self.whole, self.opened().poll(after)
        assert told.groups == fresh.groups
        return told.groups, told, whole


@pytest.fixture
def tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tail:
    made = Tail(tmp_path, monkeypatch)
    for name, frame in FRAMES.items():
        made.write(name, frame[:600])
    moments, _, whole = made.look(-1)
    assert len(moments) == 600 and whole == 1
    return made


def test_appended_lines_are_read_alone(tail: Tail) -> None:
    for rows in (601, 602, 610, 690):
        for name, frame in FRAMES.items():
            tail.write(name, frame[:rows])
        moments, told, whole = tail.look(int(TIME[599]))
        assert whole == 0 and len(moments) == rows - 600
        assert len(told.bars[0]) < 400  # by these a revision is seen; bytes cover the others
    assert tail.look(int(TIME[689]))[0] == []


def test_an_open_bar_may_change(tail: Tail) -> None:
    for factor in (1.0, 1.0001):
        for name, frame in FRAMES.items():
            last = pl.int_range(pl.len()) == 600
            close = pl.when(last).then(pl.col("low") * factor).otherwise("close")
            tail.write(name, frame[:601].with_columns(close=close))
        moments, _, whole = tail.look(int(TIME[599]))
        assert whole == 0 and len(moments) == 1


@pytest.mark.parametrize("row", [100, 590])
def test_a_corrected_bar_makes_it_read_everything(tail: Tail, row: int) -> None:
    for name, frame in FRAMES.items():
        changed = pl.int_range(pl.len()) == row
        volume = pl.when(changed).then(pl.col("volume") + 1.0).otherwise("volume")
        tail.write(name, frame[:601].with_columns(volume=volume))
    _, told, whole = tail.look(int(TIME[599]))
    assert whole == 1
    assert told.bars[0].volume[row] != FRAMES["EURUSD"]["volume"][row]


def test_other_changes_make_it_read_everything(tail: Tail) -> None:
    for name, frame in FRAMES.items():  # the newest line first
        tail.write(name, frame[:601].reverse())
    assert tail.look(int(TIME[599]))[2] == 1
    for name, frame in FRAMES.items():
        tail.write(name, frame[:602].reverse())
    assert tail.look(int(TIME[600]))[2] == 1
    for name, frame in FRAMES.items():  # lines are lost
        tail.write(name, frame[300:603])
    assert tail.look(int(TIME[601]))[2] == 1
    tail.write("GBPUSD", FRAMES["EURUSD"][:603])  # another file
    assert tail.look(int(TIME[601]))[2] == 1


def test_an_account_that_is_far_behind_gets_all_bars(tail: Tail) -> None:
    for name, frame in FRAMES.items():
        tail.write(name, frame[:601])
    moments, _, whole = tail.look(int(TIME[50]))
    assert whole == 1 and np.array_equal([one.time for one in moments], TIME[51:601])
