"""Holes: bars that are not there, told apart into weekends, holidays, outages and gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.market.bars import Bars, BoolArray, IntArray
from slipstream.market.calendar import DAY, NEW_YORK, closed_seconds, local_time
from slipstream.market.finding import Finding, plural, stamp
from slipstream.market.symbols import MarketKind

_KEPT_SIZES = 8
_HOLIDAY_SECONDS = 3 * 3600  # shorter holes around Christmas are ordinary gaps
_OUTAGE_BARS = 3  # bars without trading before a hole that make it an outage
_WEEKEND_SECONDS = 40 * 3600
_CLOSED_DAYS = {"Christmas": (12, 25), "New Year": (1, 1)}


@dataclass(frozen=True, eq=False)
class Holes:
    """Places where the next bar is late.

    Attributes:
        row: row of the bar before each hole, int64 [k].
        start, stop: UTC seconds of the first missing open and of the bar after the hole, int64 [k].
        missing: bars missing in all, int64 [k].
        in_session: those of them that fall into trading hours, int64 [k].
    """

    row: IntArray
    start: IntArray
    stop: IntArray
    missing: IntArray
    in_session: IntArray


def find_holes(time: IntArray, bar_seconds: int, kind: MarketKind) -> Holes:
    """All holes of a series of bar opens."""
    row = np.flatnonzero(np.diff(time) > bar_seconds)
    start, stop = time[row] + bar_seconds, time[row + 1]
    missing = -((start - stop) // bar_seconds)
    closed = closed_seconds(start, stop) if kind == "fx" else np.zeros_like(start)
    in_session = -((start - stop + closed) // bar_seconds)
    return Holes(row, start, stop, missing, np.maximum(in_session, 0))


def hole_findings(bars: Bars, bar_seconds: int, kind: MarketKind) -> list[Finding]:
    """Weekends counted; holidays, outages and gaps reported, gaps by size."""
    if bar_seconds > DAY:
        return []
    holes = find_holes(bars.time, bar_seconds, kind)
    findings = _weekends(bars.symbol, holes) if kind == "fx" else []
    open_holes = holes.in_session > 0
    quiet_run = _run_length(silent(bars))
    for index in np.flatnonzero(open_holes):
        holiday = _holiday(holes, int(index), bar_seconds) if kind == "fx" else None
        quiet = int(quiet_run[holes.row[index]])
        size = int(holes.in_session[index])
        begin, end = int(holes.start[index]), int(holes.stop[index])
        if holiday is not None:
            open_holes[index] = False
            findings.append(
                Finding(
                    bars.symbol,
                    "holiday",
                    "info",
                    1,
                    f"{holiday} hole of {plural(size, 'missing bar')}, {stamp(begin)} to "
                    f"{stamp(end)} UTC",
                    "loading leaves the hole: nothing is filled",
                    (begin,),
                    size,
                )
            )
        elif quiet >= _OUTAGE_BARS:
            open_holes[index] = False
            last = int(bars.time[holes.row[index]])
            findings.append(
                Finding(
                    bars.symbol,
                    "outage",
                    "warning",
                    1,
                    f"exchange outage: {plural(size, 'missing bar')} between {stamp(last)} and "
                    f"{stamp(end)} UTC, after {quiet} flat zero-volume bars",
                    "loading leaves the hole and keeps the flat bars",
                    (last,),
                    size,
                )
            )
    return findings + _gaps(bars.symbol, holes, open_holes)


def is_weekend_hole(holes: Holes) -> BoolArray:
    """Which holes span a forex weekend."""
    return closed_seconds(holes.start, holes.stop) >= _WEEKEND_SECONDS


def silent(bars: Bars) -> BoolArray:
    """Bars in which nothing traded: flat, without volume, bool [n]."""
    quiet: BoolArray = (bars.high == bars.low) & (bars.volume == 0.0)
    return quiet


def _weekends(symbol: str, holes: Holes) -> list[Finding]:
    weekend = is_weekend_hole(holes)
    if not weekend.any():
        return []
    sizes, counts = np.unique((holes.missing - holes.in_session)[weekend], return_counts=True)
    usual = int(sizes[np.argmax(counts)])
    others = [
        f"{size} once" if count == 1 else f"{size} in {count}"
        for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)
        if size != usual
    ]
    exceptions = f" ({' and '.join(others)}, when clocks change)" if others else ""
    return [
        Finding(
            symbol,
            "weekend",
            "info",
            int(weekend.sum()),
            f"{plural(int(weekend.sum()), 'weekend')} of {usual} bars{exceptions}",
            "they count as one step",
            tuple(holes.start[weekend][:10].tolist()),
            usual,
        )
    ]


def _gaps(symbol: str, holes: Holes, chosen: BoolArray) -> list[Finding]:
    sizes, counts = np.unique(holes.in_session[chosen], return_counts=True)
    findings = []
    listed = sizes if len(sizes) <= _KEPT_SIZES else sizes[np.argsort(counts)[-_KEPT_SIZES:]]
    action = "loading leaves the hole: nothing is filled"
    for size in np.sort(listed).tolist():
        starts = holes.start[chosen & (holes.in_session == size)]
        first = (
            f"at {stamp(int(starts[0]))}" if len(starts) == 1 else f"first {stamp(int(starts[0]))}"
        )
        message = f"{plural(len(starts), 'hole')} of {plural(size, 'missing bar')}, {first} UTC"
        times = tuple(starts[:10].tolist())
        findings.append(
            Finding(symbol, "gap", "warning", len(starts), message, action, times, size)
        )
    rest = chosen & ~np.isin(holes.in_session, listed)
    if rest.any():
        starts, largest = holes.start[rest], int(holes.in_session[rest].max())
        message = f"{plural(len(starts), 'hole')} of other sizes, up to {largest:,} missing bars"
        times = tuple(starts[:10].tolist())
        findings.append(
            Finding(symbol, "gap", "warning", len(starts), message, action, times, largest)
        )
    return findings


def _holiday(holes: Holes, index: int, bar_seconds: int) -> str | None:
    """Name of the closed day that a hole overlaps (from 17:00 the day before), if long enough."""
    if holes.in_session[index] * bar_seconds < _HOLIDAY_SECONDS:
        return None
    moments = np.arange(holes.start[index], holes.stop[index], 3600, dtype=np.int64)[: 24 * 14]
    days = np.unique((local_time(moments, NEW_YORK) + 7 * 3600) // DAY)
    dates = [(day.month, day.day) for day in days.astype("datetime64[D]").tolist()]
    for name, date in _CLOSED_DAYS.items():
        if date in dates:
            return name
    return None


def _run_length(mask: BoolArray) -> IntArray:
    """For each row the number of true values in a row that end there, int64 [n]."""
    rows = np.arange(1, len(mask) + 1)
    return rows - np.maximum.accumulate(np.where(mask, 0, rows))
