"""Panels: alignment, gaps, segments, universes, bad input; every table small enough to read."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from slipstream.core.errors import DataError
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market, market_from_bars
from slipstream.markets.data.panel import Panel, align_panel, load_panel

BAR = 300
START = 1_700_000_100  # a multiple of 300


def asset(symbol: str, slots: list[int], price: float = 100.0) -> Bars:
    """Bars at the given slots of the grid; the close of slot k is price + k, the open 0.5 less."""
    slot = np.array(slots)
    close = price + slot
    return Bars(
        symbol,
        START + BAR * slot,
        open=close - 0.5,
        high=close + 1.0,
        low=close - 1.0,
        close=close,
        volume=10.0 + slot,
        spread=np.full(len(slot), 0.1),
    )


def panel(*assets: Bars, universe: str = "common", kind: str = "24/7") -> Panel:
    return align_panel(market_from_bars(assets, BAR, kind), universe)  # type: ignore[arg-type]


def slots(one: Panel) -> list[int]:
    return ((one.time - START) // BAR).tolist()


def without(first: int, last: int, *missing: int) -> list[int]:
    return [k for k in range(first, last) if k not in missing]


def test_a_missing_bar_is_marked_at_the_last_close_and_not_tradable():
    one = panel(asset("A", without(0, 9, 3, 4)), asset("B", list(range(9)), 50.0))
    assert slots(one) == list(range(9))
    assert one.tradable[:, 0].tolist() == [True] * 3 + [False] * 2 + [True] * 4
    assert one.tradable[:, 1].all()
    assert one.listed.all()
    for name in ("open", "high", "low", "close"):
        assert getattr(one, name)[3:5, 0].tolist() == [102.0, 102.0]
    assert one.volume[2:6, 0].tolist() == [12.0, 0.0, 0.0, 15.0]
    assert one.open[5].tolist() == [104.5, 54.5]
    assert one.high[5].tolist() == [106.0, 56.0]
    assert one.low[5].tolist() == [104.0, 54.0]
    assert one.segments.tolist() == [[0, 9]]
    assert any("not tradable: A 2." in note for note in one.notes)


def test_a_long_gap_of_one_asset_stays_in_the_segment_and_is_named():
    gap = range(5, 45)
    one = panel(asset("A", without(0, 60, *gap)), asset("B", list(range(60))))
    assert one.segments.tolist() == [[0, 60]]
    assert not one.tradable[5:45, 0].any()
    assert one.tradable[45:, 0].all()
    assert (one.close[5:45, 0] == 104.0).all()
    assert any("A cannot be traded in a gap of 40 bars" in note for note in one.notes)


@pytest.mark.parametrize(("length", "segments"), [(12, [[0, 30]]), (13, [[0, 8], [8, 17]])])
def test_a_hole_in_all_assets_longer_than_twelve_bars_starts_a_segment(length, segments):
    hole = range(8, 8 + length)
    one = panel(asset("A", without(0, 30, *hole)), asset("B", without(0, 30, *hole)))
    assert one.segments.tolist() == segments
    if length == 12:
        assert slots(one) == list(range(30))
        assert not one.tradable[8:20].any()
    else:
        assert slots(one) == [*range(8), *range(21, 30)]
        assert one.tradable.all()
        (note,) = (note for note in one.notes if "lack 13 bars" in note)
        # 107 before the hole, 121 behind it: who held them would have had it.
        assert "no result contains the price change in the hole, +13 % on average" in note


def test_overlapping_gaps_of_single_assets_are_a_hole_only_where_all_lack_the_bar():
    """A lacks 5..20, B lacks 10..25: all lack 10..20, eleven bars, and no segment ends."""
    one = panel(
        asset("A", without(0, 40, *range(5, 21))), asset("B", without(0, 40, *range(10, 26)))
    )
    assert one.segments.tolist() == [[0, 40]]
    assert not one.tradable[10:21].any()
    assert one.tradable[5:10].tolist() == [[False, True]] * 5
    assert one.tradable[21:26].tolist() == [[True, False]] * 5


def test_behind_a_seam_an_asset_that_is_late_is_marked_at_its_last_close():
    hole = range(10, 30)
    one = panel(asset("A", without(0, 40, *hole)), asset("B", without(0, 40, *hole, 30, 31)))
    assert one.segments.tolist() == [[0, 10], [10, 20]]
    assert one.close[10:13, 1].tolist() == [109.0, 109.0, 132.0]
    assert one.tradable[10:13, 1].tolist() == [False, False, True]


def test_common_period_uses_earlier_bars_to_mark_and_says_what_it_leaves_out():
    """A lacks the first common bar: it is marked at a close from before the period."""
    one = panel(asset("A", without(0, 20, 5)), asset("B", list(range(5, 25))))
    assert slots(one) == list(range(5, 20))
    assert one.listed.all()
    assert one.close[0].tolist() == [104.0, 105.0]
    assert one.tradable[0].tolist() == [False, True]
    note = next(note for note in one.notes if "Common period of 2 assets" in note)
    assert "2023-11-14 22:40 to 2023-11-14 23:50" in note
    assert "5 bars of A, 5 bars of B" in note


def test_union_lists_assets_from_their_first_bar_to_twelve_after_their_last():
    """Until then nobody knows whether an asset is gone or only late."""
    one = panel(asset("A", list(range(20))), asset("B", list(range(5, 40)), 50.0), universe="union")
    assert slots(one) == list(range(40))
    assert one.listed[:, 0].tolist() == [True] * 32 + [False] * 8
    assert one.listed[:, 1].tolist() == [False] * 5 + [True] * 35
    assert one.tradable[:, 0].tolist() == [True] * 20 + [False] * 20
    assert (one.close[20:, 0] == 119.0).all()
    assert (one.volume[20:, 0] == 0.0).all()
    for name in ("open", "high", "low", "close", "volume", "spread"):
        assert (getattr(one, name)[:5, 1] == 0.0).all()
    assert any("listed only B from" in note and "A until" in note for note in one.notes)


def test_one_asset_is_a_panel_too():
    one = panel(asset("A", without(0, 10, 4)))
    assert one.close.shape == (10, 1)
    assert one.tradable[:, 0].tolist() == [k != 4 for k in range(10)]


def test_assets_keep_their_order_and_their_own_columns():
    one, other = asset("A", list(range(8))), asset("B", list(range(8)), 7.0)
    forward, backward = panel(one, other), panel(other, one)
    assert backward.symbols == ("B", "A")
    for name in ("open", "high", "low", "close", "volume", "listed", "tradable", "spread"):
        np.testing.assert_array_equal(getattr(forward, name), getattr(backward, name)[:, ::-1])


def test_other_columns_travel_when_all_assets_have_them():
    rising = asset("A", without(0, 6, 2))
    a = Bars(**{**vars(rising), "extra": {"x": np.arange(5.0) + 1.0, "y": np.zeros(5)}})
    b = Bars(**{**vars(asset("B", list(range(6)))), "extra": {"x": np.arange(6.0) * 10.0}})
    one = panel(a, b)
    assert list(one.extra) == ["x"]
    assert one.extra["x"].T.tolist() == [[1, 2, 2, 3, 4, 5], [0, 10, 20, 30, 40, 50]]
    assert one.bars(0, 1, 4).extra["x"].tolist() == [2, 2, 3]


def test_arrays_are_read_only_and_equal_data_has_an_equal_hash():
    one, again = (panel(asset("A", list(range(9))), asset("B", list(range(9)))) for _ in range(2))
    assert one.hash == again.hash
    assert one.hash != panel(asset("A", list(range(9))), asset("B", list(range(9)), 1e3)).hash
    for array in one:
        if isinstance(array, np.ndarray):
            assert not array.flags.writeable


def test_the_forex_weekend_is_one_ordinary_step(frame, folder):
    path = folder(EURUSD=frame(seed=1), GBPUSD=frame(seed=2).slice(0, 2300))
    one = load_panel(DataConfig(folder=path))
    assert one.kind == "fx"
    assert one.segments.tolist() == [[0, 2300]]
    assert one.tradable.all()
    assert np.diff(one.time).max() > 48 * 3600


def test_forex_holidays_are_holes_however_many_weekends_they_touch(frame, folder):
    whole = frame(seed=1)
    row = int(np.flatnonzero(np.diff(whole["timestamp"].dt.epoch("s").to_numpy()) > 86400)[0])

    def lacking(before: int, after: int) -> Panel:
        kept = [k for k in range(len(whole)) if not row - before < k <= row + after]
        part = whole[kept]
        return load_panel(DataConfig(folder=folder(EURUSD=part, GBPUSD=part)))

    assert len(lacking(6, 6).segments) == 1  # twelve bars, six on each side of a weekend
    assert lacking(7, 6).segments.tolist() == [[0, row - 6], [row - 6, len(whole) - 13]]


def test_duplicates_and_order_are_mended_as_in_every_market(frame, folder):
    good = frame(symbol="ETHUSDT", seed=1)
    messy = pl.concat([good.slice(5), good.slice(0, 5), good.slice(100, 3)])
    path = folder(BTCUSDT=frame(seed=2), ETHUSDT=messy)
    one = load_panel(DataConfig(folder=path, market="24/7"))
    np.testing.assert_array_equal(one.close[:, 1][one.tradable[:, 1]], good["close"].to_numpy())
    assert any("with the stamp of another bar" in note for note in one.notes)


def test_missing_numbers_are_refused_and_never_filled(frame, folder, put):
    path = folder(A=frame(seed=1), B=put(frame(seed=2), "close", [40, 41], np.nan))
    with pytest.raises(DataError, match=r"B .*2 bars with no number in column close"):
        load_panel(DataConfig(folder=path))
    one = load_panel(DataConfig(folder=path, bad_bars="drop"))
    assert np.isfinite(one.close).all()
    assert np.flatnonzero(~one.tradable[:, 1])[:2].tolist() == [40, 41]


def test_bars_of_different_lengths_are_refused(frame, folder):
    path = folder(A=frame(), B=frame(bar_seconds=3600))
    with pytest.raises(DataError, match=r"different lengths \(A 15m, B 1h\)"):
        load_panel(DataConfig(folder=path))
    with pytest.raises(DataError, match=r"`timeframe: 5m`"):
        load_panel(DataConfig(folder=path, symbols=("A",), timeframe="5m"))


def test_assets_without_a_common_period_are_refused():
    a, b = asset("A", list(range(10))), asset("B", list(range(10, 20)))
    with pytest.raises(DataError, match=r"B begins at .* and A ends at .*`universe: union`"):
        panel(a, b)
    assert panel(a, b, universe="union").segments.tolist() == [[0, 20]]


def test_bars_off_the_grid_are_refused_or_dropped():
    good = asset("A", list(range(12)))
    time = asset("B", list(range(12))).time.copy()
    time[6] += 60
    stray = Bars(**{**vars(asset("B", list(range(12)))), "time": time})
    market = market_from_bars((good, stray), BAR, "24/7")
    with pytest.raises(DataError, match=r"B: 1 bar of 5m open between two bars.*`bad_bars: drop`"):
        align_panel(market)
    one = align_panel(market, drop_misaligned=True)
    assert np.flatnonzero(~one.tradable[:, 1]).tolist() == [6]
    assert any("dropped" in note for note in one.notes)


def test_random_gaps_against_a_slow_alignment():
    """Every cell against a dictionary walked bar by bar."""
    rng = np.random.default_rng(11)
    for universe in ("common", "union"):
        everything = []
        for name in "ABC":
            first, last = rng.integers(0, 20), rng.integers(180, 200)
            keep = [k for k in range(first, last) if rng.random() < 0.5 and not 60 <= k < 75]
            everything.append(asset(name, keep))
        one = panel(*everything, universe=universe)
        lo = [bars.time[0] for bars in everything]
        hi = [bars.time[-1] for bars in everything]
        assert one.time[0] == (max(lo) if universe == "common" else min(lo))
        assert one.time[-1] == (min(hi) if universe == "common" else max(hi))
        for a, bars in enumerate(everything):
            known = {int(t): row for row, t in enumerate(bars.time)}
            for row, t in enumerate(one.time.tolist()):
                past = [k for s, k in known.items() if s <= t]
                here = known.get(t)
                assert one.tradable[row, a] == (here is not None)
                latest = max((s for s in known if s <= t), default=0)
                rest = np.count_nonzero(one.time[: row + 1] > latest)
                here_or_late = universe == "common" or rest <= 12
                assert one.listed[row, a] == (bool(past) and here_or_late)
                expected = bars.close[past[-1]] if past else 0.0
                assert one.close[row, a] == expected
                assert one.open[row, a] == (expected if here is None else bars.open[here])
                assert one.volume[row, a] == (0.0 if here is None else bars.volume[here])
        for low, high in one.segments.tolist():
            assert (np.diff(one.time[low:high]) == BAR).all()
        assert len(one.segments) == 2


def test_the_coins_at_hand(crypto_5m):
    """The exchange's outage of 2023-03-24 is the only seam; ends are unequal."""
    config = DataConfig(folder=str(crypto_5m))
    market = load_market(config)
    one = load_panel(config)
    assert one.symbols == ("AAVE", "AVAX", "BTC", "ETH", "LINK", "LTC", "UNI")
    assert one.bar_seconds == 300
    assert one.tradable.all()
    assert len(one.segments) == 2
    seam = int(one.segments[1, 0])
    assert one.time[seam] - one.time[seam - 1] == 17 * 300
    assert one.time[-1] == min(int(bars.time[-1]) for bars in market.bars)
    union = load_panel(config, "union")
    assert union.time[-1] == max(int(bars.time[-1]) for bars in market.bars)
    assert not union.listed[-1, 0]
    aave = market.symbol("AAVE")
    np.testing.assert_array_equal(one.close[:, 0], aave.close)
