"""An account that continues its replay decides as one that replays all bars for every decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from live_markets import Make, table, week, write

from slipstream.markets.data.bars import Bars
from slipstream.markets.features.indicators import IndicatorStreams, StreamHistoryError, outputs
from slipstream.markets.live import paper_account
from slipstream.markets.live.bar_store import BarGroup, BarSchema, group_bars
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.feed import FeedUpdate
from slipstream.markets.live.journal import Decision
from slipstream.markets.live.paper_account import PaperAccount
from slipstream.markets.live.price_replay import PriceReplay

COINS = 1_641_081_000 + 300 * np.arange(1_760)
# What TA-Lib sums or averages since the first bar, and windows of NumPy.
WINDOWS = [
    "sma_20_rel",
    "bb_pct_20",
    "bb_width_15",
    "ema_50_rel",
    "cci_20",
    "volume_z_60",
    "adx_14",
]


def coins() -> dict[str, pl.DataFrame]:
    """LTC begins late, lacks 20 bars and returns; UNI is gone for good; ETH has flat bars."""
    made = {
        name: table(COINS, 10.0**k, k, 3e-3)
        for k, name in enumerate(("BTCUSD", "ETHUSD", "LTCUSD", "UNIUSD"))
    }
    keep = np.ones(len(COINS), np.bool_)
    keep[:300] = keep[1_560:1_580] = keep[1_700] = False
    made["LTCUSD"] = made["LTCUSD"].filter(pl.Series(keep))
    made["UNIUSD"] = made["UNIUSD"][:1_600]
    rows = np.arange(len(COINS))
    still = pl.Series((rows >= 1_610) & (rows < 1_640))
    last = made["ETHUSD"]["close"][1_609]
    flat = {
        name: pl.when(still).then(last).otherwise(pl.col(name)).alias(name)
        for name in ("open", "high", "low", "close")
    }
    quiet = pl.when(still).then(0.0).otherwise(pl.col("volume")).alias("volume")
    made["ETHUSD"] = made["ETHUSD"].with_columns(*flat.values(), quiet)
    return made


def pairs() -> dict[str, pl.DataFrame]:
    """EURGBP, whose profits GBPUSD converts, lacks bars and ends early; GBPUSD lacks 6 once."""
    time, made = week(1_720), dict[str, pl.DataFrame]()
    for k, (name, price) in enumerate({"EURGBP": 0.85, "GBPUSD": 1.25, "USDJPY": 150.0}.items()):
        made[name] = table(time, price, k)
    keep = np.ones((2, len(time)), np.bool_)
    keep[0, [1_620, 1_650, 1_651]] = keep[0, 1_700:] = keep[1, 1_660:1_666] = False
    for name, own in zip(("EURGBP", "GBPUSD"), keep, strict=True):
        made[name] = made[name].filter(pl.Series(own))
    return made


class Lead:
    """An account of a deployment, led by hand."""

    def __init__(self, found: Deployment, folder: Path, start: int) -> None:
        self.policy, self.folder, self.start = found.policy(), folder, start
        self.schema = BarSchema.from_mapping(self.policy.metadata["shape"])
        self.open()

    def open(self) -> None:
        self.account = PaperAccount(self.folder, self.policy, self.schema, self.start, max_gap=30)

    def take(self, moments: list[BarGroup]) -> None:
        self.account.process(
            FeedUpdate(moments, (), moments[-1].time + self.schema.bar_seconds + 5.0)
        )

    def rows(self) -> dict[str, list[Decision]]:
        return {
            name: self.account.journal.decisions(name) for name in self.account.journal.pass_names()
        }


def led(
    found: Deployment,
    tmp_path: Path,
    start: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[int, int]:
    """Lead two accounts over the same random looks, and compare all that they keep.

    Returns:
        Looks that continued the replay, and all looks after the first decision.
    """
    continued, own, turn = list[bool](), PriceReplay.advance, [0]

    def advance(self: PriceReplay, market: Any) -> Any:
        if turn[0] == 1:
            return None
        continued.append(False)
        made = own(self, market)
        continued[-1] = made is not None
        return made

    monkeypatch.setattr(PriceReplay, "advance", advance)
    monkeypatch.setattr(
        paper_account, "SPARE_BARS", 70
    )  # less than the bars that come: it is used up
    one, two = (Lead(found, tmp_path / name, start) for name in ("continued", "replayed"))
    moments = group_bars(one.schema.read({"folder": str(tmp_path / "prices")}), one.schema)
    place = sum(one.time <= start for one in moments)
    draw, looks, before = np.random.default_rng(seed), 0, 0
    while before < len(moments):
        if looks in (20, 45):  # a restart
            one.account.close()
            one.open()
        for turn[0], each in enumerate((one, two)):
            each.take(moments[before:place])
        assert one.account.equity == two.account.equity
        if len(one.account.equity) == 1:
            assert one.account.target == two.account.target
        before, looks = place, looks + 1
        place += int(draw.choice([1, 1, 1, 2, 3, 7]))
    rows = one.rows()
    assert rows == two.rows()
    assert min(len({row.action for row in own}) for own in rows.values()) > 1
    for each in (one, two):
        each.account.close()
    return sum(continued), looks - 1


@pytest.mark.parametrize(
    ("universe", "features"),
    [
        ("union", WINDOWS),
        pytest.param("common", ["finrl_crypto"], marks=pytest.mark.slow),
        pytest.param("union", ["portfolio"], marks=pytest.mark.slow),
        pytest.param("union", ["cappuccino"], marks=pytest.mark.slow),
        pytest.param("common", WINDOWS, marks=pytest.mark.slow),
    ],
)
def test_a_portfolio_is_continued_as_it_is_replayed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, universe: str, features: list[str]
) -> None:
    tables = coins()
    if universe == "common":
        tables = {name: tables[name] for name in ("BTCUSD", "ETHUSD", "LTCUSD")}
    prices = write(tmp_path / "prices", tables)
    found = make("portfolio", prices, universe=universe, features=features, lookback=2)
    done, looks = led(found, tmp_path, int(COINS[1_540]), 0, monkeypatch)
    assert looks > 60 and done > 0.5 * looks


@pytest.mark.parametrize(
    ("action", "features"),
    [
        ("discrete", WINDOWS[:5]),
        pytest.param(
            "continuous",
            ["log_return_1", "rsi_14", "atr_14_rel", "obv", "macd_rel"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_forex_is_continued_as_it_is_replayed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, features: list[str]
) -> None:
    tables = pairs()
    prices = write(tmp_path / "prices", tables)
    data = {"folder": str(prices), "symbols": ["EURGBP", "USDJPY"]}
    found = make("forex", data, action=action, features=features, lookback=3)
    start = int(week(1_720)[1_600])
    done, looks = led(found, tmp_path, start, 1, monkeypatch)
    assert looks > 35 and done > 0.9 * looks


CALLS: list[tuple[str, tuple[str, ...], tuple[float, ...]]] = [
    *((name, ("close",), (14,)) for name in ("RSI", "EMA", "SMA")),
    *((name, ("high", "low", "close"), (14,)) for name in ("ATR", "CCI", "DX", "ADX")),
    ("MACD", ("close",), (12, 26, 9)),
    ("BBANDS", ("close",), (20, 2.0, 2.0)),
    ("ULTOSC", ("high", "low", "close"), (7, 14, 28)),
    ("OBV", ("close", "volume"), ()),
    ("HT_DCPHASE", ("close",), ()),
]


def walk(rows: int) -> Bars:
    frame, time = table(COINS, 10.0, 3, 3e-3)[:rows], COINS[:rows]
    return Bars("BTCUSD", time, *(frame[name].to_numpy() for name in frame.columns[1:]))


@pytest.mark.parametrize("call", CALLS, ids=[one[0] for one in CALLS])
def test_streams_give_the_bits_of_all_bars(call: Any) -> None:
    name, columns, parameters = call
    streams, whole = IndicatorStreams(), outputs(name, walk(900), columns, *parameters)
    with streams.activate(continues=False):
        outputs(name, walk(400), columns, *parameters)  # the last one is not fed
    for rows in (400, 401, 402, 450, 600):
        with streams.activate(continues=True):
            made = outputs(name, walk(rows + 1).take(slice(350, None)), columns, *parameters)
        for one, full in zip(made, whole, strict=True):
            assert one[:-1].tobytes() == full[350:rows].tobytes()


def test_bars_that_do_not_continue_a_stream_are_refused() -> None:
    streams, call = IndicatorStreams(), ("RSI", ("close",), 14)

    def rsi(bars: Bars, continues: bool) -> None:
        with streams.activate(continues):
            outputs(call[0], bars, call[1], call[2])

    rsi(walk(400), False)
    for strange in (walk(500).take(slice(450, None)), walk(500).take(np.r_[300:380, 381:500])):
        with pytest.raises(StreamHistoryError):
            rsi(strange, True)
    with pytest.raises(StreamHistoryError, match="not computed"):
        rsi(Bars("ETHUSD", *list(walk(420).columns().values())), True)
    rsi(walk(10), False)  # too few for the function
    with pytest.raises(StreamHistoryError):
        rsi(walk(12), True)
