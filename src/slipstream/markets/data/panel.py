"""Panel: the prices of several assets on one time axis.

See docs/explanation/market-rules.md, section 10.

    rows        every bar during which the market is open, from the panel's first to its last
    a bar that an asset lacks
                the last close as open, high, low and close, volume 0, not tradable; a gap of any
                length never creates a tradable price
    a hole in all assets
                up to 12 bars: rows in which nothing is tradable; longer: no rows, and a new
                segment after it
    universe    `common`: from the last asset's first bar to the first asset's last bar;
                `union`: all bars. An asset is not listed before its first bar (price 0), nor from
                the 13th consecutive bar that it lacks (price: its last close) until its next one:
                its return is unknown at that time and changes nothing

The weekend of a forex market is no hole: it is one ordinary step, as in the forex environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.text import plural, stamp
from slipstream.markets.data.bars import (
    NUMBERS,
    Bars,
    BoolArray,
    FloatArray,
    IntArray,
    timeframe_name,
)
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import Market, load_market
from slipstream.markets.data.symbols import MarketKind

Universe = Literal["common", "union"]

LONGEST_HOLE = 12  # bars that all assets may lack inside a segment
SHORT_GAP = 3  # bars that one asset may lack without being named in the notes


class Panel(NamedTuple):
    """Bars of A assets on T rows; arrays are read-only.

    Attributes:
        symbols: names of the assets, in the config's order.
        time: UTC seconds of each bar's open, int64 [T], strictly increasing; inside a segment
            neighbours are one bar apart (except across weekends of a forex market).
        open, high, low, close: mid prices, float64 [T, A]; 0 before an asset's first bar.
        volume: float64 [T, A]; 0 if there is no bar.
        listed: from the asset's first bar on, bool [T, A]; in a `union` false after more than 12
            consecutive missing rows.
        tradable: the asset's file contains this bar, bool [T, A].
        segments: half-open row ranges, int64 [K, 2]; never stepped across.
        bar_seconds: length of a bar.
        notes: sentences for the user.
        hash: SHA-256 of the source market.
        spread: full bid-ask spread in price units, float64 [T, A]; the last known one in a gap.
        extra: other columns that all assets have, by name, float64 [T, A]; the last known value in
            a gap, 0 before an asset's first bar.
        kind: trading hours: ``fx`` or ``24/7``.
        accepted: the notes on errors that the config allows.
    """

    symbols: tuple[str, ...]
    time: IntArray
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    listed: BoolArray
    tradable: BoolArray
    segments: IntArray
    bar_seconds: int
    notes: tuple[str, ...]
    hash: str
    spread: FloatArray
    extra: Mapping[str, FloatArray]
    kind: MarketKind
    accepted: tuple[str, ...] = ()

    def bars(self, asset: int, start: int, stop: int) -> Bars:
        """Return rows ``start:stop`` of one asset; gaps are flat bars without volume."""
        part = slice(start, stop)
        columns = {name: getattr(self, name)[part, asset] for name in NUMBERS}
        extra = {name: column[part, asset] for name, column in self.extra.items()}
        return Bars(self.symbols[asset], self.time[part], **columns, extra=extra)


def load_panel(data: DataConfig, universe: Universe = "common") -> Panel:
    """Load the prices of a config and align them.

    Raises:
        DataError: see `load_market` and `align_panel`.
    """
    return align_panel(load_market(data), universe, data.bad_bars == "drop")


def align_panel(
    market: Market, universe: Universe = "common", drop_misaligned: bool = False
) -> Panel:
    """Align the assets of a market.

    Args:
        market: the assets, all of one bar length.
        universe: the rows to keep.
        drop_misaligned: drop bars that open between two bars of the others instead of refusing
            them.

    Raises:
        DataError: assets without a common period, or with bars off the common grid.
    """
    size, notes = market.bar_seconds, list(market.notes)
    assets = _on_one_grid(market, drop_misaligned, notes)
    start, stop = _period(assets, universe, size, notes)
    time = _rows(assets, start, stop, market)
    seams = np.flatnonzero(_steps(time, market) > 1) + 1
    edges = np.array([0, *seams, len(time)], dtype=np.int64)
    segments = np.stack([edges[:-1], edges[1:]], axis=1)
    latest = np.stack(
        [np.searchsorted(asset.time, time, side="right") - 1 for asset in assets], axis=1
    )
    is_listed = latest >= 0
    row = np.maximum(latest, 0)
    opens = np.stack([asset.time[row[:, a]] for a, asset in enumerate(assets)], axis=1)
    tradable = is_listed & (opens == time[:, None])
    listed = is_listed if universe == "common" else is_listed & (_silence(tradable) <= LONGEST_HOLE)

    def column(name: str, where: BoolArray) -> FloatArray:
        return _columns([getattr(asset, name) for asset in assets], row, where)

    close = column("close", is_listed)
    shared = [name for name in assets[0].extra if all(name in asset.extra for asset in assets)]
    panel = Panel(
        symbols=market.symbols,
        time=time,
        open=np.where(tradable, column("open", is_listed), close),
        high=np.where(tradable, column("high", is_listed), close),
        low=np.where(tradable, column("low", is_listed), close),
        close=close,
        volume=column("volume", tradable),
        listed=listed,
        tradable=tradable,
        segments=segments,
        bar_seconds=size,
        notes=(
            *notes,
            *_gap_notes(market.symbols, listed & ~tradable, close, time, segments, size),
        ),
        hash=market.hash,
        spread=column("spread", is_listed),
        extra={
            name: _columns([asset.extra[name] for asset in assets], row, is_listed)
            for name in shared
        },
        kind=market.kind,
        accepted=market.accepted,
    )
    for array in (*panel, *panel.extra.values()):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return panel


def _on_one_grid(market: Market, drop: bool, notes: list[str]) -> tuple[Bars, ...]:
    """Return the assets without bars that open between two bars of the others."""
    size = market.bar_seconds
    phases, counts = np.unique(
        np.concatenate([bars.time % size for bars in market.bars]), return_counts=True
    )
    phase = int(phases[np.argmax(counts)])
    assets = []
    for bars in market.bars:
        stray = bars.time % size != phase
        if not stray.any():
            assets.append(bars)
            continue
        what = (
            f"{bars.symbol}: {plural(int(stray.sum()), 'bar')} of {timeframe_name(size)} open "
            f"between two bars of the other assets, the first at "
            f"{stamp(int(bars.time[stray][0]))} UTC"
        )
        if not drop or stray.all():
            raise DataError(
                f"{what}. A panel needs bars that open at the same times. Correct the timestamps "
                "(`time_zone`, `timestamp_label`), leave the asset out of `symbols`, or drop these "
                "bars with `bad_bars: drop`."
            )
        notes.append(f"{what}: dropped.")
        assets.append(bars.take(np.flatnonzero(~stray)))
    return tuple(assets)


def _period(
    assets: tuple[Bars, ...], universe: Universe, size: int, notes: list[str]
) -> tuple[int, int]:
    """Return UTC seconds of the panel's first and last bar; note the bars that are left out."""
    first = {asset.symbol: int(asset.time[0]) for asset in assets}
    last = {asset.symbol: int(asset.time[-1]) for asset in assets}
    if universe == "union":
        start, stop = min(first.values()), max(last.values())
        late = [f"{name} from {stamp(t)}" for name, t in first.items() if t > start]
        late += [f"{name} until {stamp(t)}" for name, t in last.items() if t < stop]
        notes.append(
            f"Universe of all listed assets, {stamp(start)} to {stamp(stop)} UTC"
            + (f"; listed only {', '.join(late)}." if late else ".")
        )
        return start, stop
    start, stop = max(first.values()), min(last.values())
    newest, oldest = max(first, key=first.__getitem__), min(last, key=last.__getitem__)
    if stop - start < size:
        raise DataError(
            f"The assets must have bars at the same time, but {newest} begins at {stamp(start)} "
            f"and {oldest} ends at {stamp(stop)} UTC: leave one of them out of `symbols`, or set "
            "`universe: union`."
        )
    cut = [
        f"{plural(int(((asset.time < start) | (asset.time > stop)).sum()), 'bar')} of "
        f"{asset.symbol}"
        for asset in assets
        if asset.time[0] < start or asset.time[-1] > stop
    ]
    notes.append(
        f"Common period of {plural(len(assets), 'asset')}: {stamp(start)} to {stamp(stop)} UTC"
        + (f"; outside it and not used: {', '.join(cut)} (`universe: union`)." if cut else ".")
    )
    return start, stop


def _rows(assets: tuple[Bars, ...], start: int, stop: int, market: Market) -> IntArray:
    """Return the opens of the panel's bars: those of any asset, and of short holes."""
    grid = np.arange(start, stop + 1, market.bar_seconds, dtype=np.int64)
    is_used = np.zeros(len(grid), dtype=np.bool_)
    for asset in assets:
        inside = asset.between(start, stop + 1).time
        is_used[(inside - start) // market.bar_seconds] = True
    if market.kind == "fx":
        open_ = is_used | ~is_weekend(grid)
        grid, is_used = grid[open_], is_used[open_]
    used_rows = np.flatnonzero(is_used)
    missing = np.diff(used_rows) - 1
    for index in np.flatnonzero((missing > 0) & (missing <= LONGEST_HOLE)):
        is_used[used_rows[index] : used_rows[index + 1]] = True
    return grid[is_used]


def _silence(tradable: BoolArray) -> IntArray:
    """Return rows since each asset's latest bar, counted from before row 0, int64 [T, A]."""
    rows = np.arange(len(tradable))[:, None]
    latest: IntArray = np.maximum.accumulate(np.where(tradable, rows, -1), axis=0)
    return rows - latest


def _steps(time: IntArray, market: Market) -> IntArray:
    """Return bars from each row to the next while the market is open, int64 [T - 1]."""
    steps = np.diff(time) // market.bar_seconds
    if market.kind == "fx":
        for row in np.flatnonzero(steps > 1):
            skipped = np.arange(time[row] + market.bar_seconds, time[row + 1], market.bar_seconds)
            steps[row] = 1 + np.count_nonzero(~is_weekend(skipped))
    return steps


def _columns(parts: list[FloatArray], row: IntArray, where: BoolArray) -> FloatArray:
    """Return one column of all assets at their own rows, 0 unless `where`, float64 [T, A]."""
    values = np.stack([part[row[:, a]] for a, part in enumerate(parts)], axis=1)
    return np.where(where, values, 0.0)


def _gap_notes(
    symbols: tuple[str, ...],
    gap: BoolArray,
    close: FloatArray,
    time: IntArray,
    segments: IntArray,
    size: int,
) -> list[str]:
    """Describe missing bars and their effects."""
    notes = []
    filled = [
        f"{symbol} {int(gap[:, a].sum()):,}" for a, symbol in enumerate(symbols) if gap[:, a].any()
    ]
    if filled:
        notes.append(
            f"Bars missing, marked at the last close and not tradable: {', '.join(filled)}."
        )
    for a, symbol in enumerate(symbols):
        begin, end = (
            np.flatnonzero(np.diff(gap[:, a].astype(np.int8), prepend=0, append=0)).reshape(-1, 2).T
        )
        longest = int((end - begin).max(initial=0))
        if longest > SHORT_GAP:
            at = int(time[begin[np.argmax(end - begin)]])
            notes.append(
                f"{symbol} cannot be traded in a gap of {plural(longest, 'bar')} from "
                f"{stamp(at)} UTC, the longest of its {plural(len(begin), 'gap')}."
            )
    for row in segments[1:, 0].tolist():
        bars = int(time[row] - time[row - 1]) // size - 1
        is_held = close[row - 1] > 0.0
        percent = 100.0 * float(np.mean(close[row, is_held] / close[row - 1, is_held] - 1.0))
        notes.append(
            f"All assets lack {plural(bars, 'bar')} after {stamp(int(time[row - 1]))} UTC: a new "
            "segment begins after the hole, and features warm up again. A pass is sold out before "
            f"the hole and begins in cash after it: no result contains the price change in the "
            f"hole, {percent:+.2g} % on average."
        )
    return notes
