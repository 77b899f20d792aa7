"""Holes: bars that are not there, told apart into weekends, holidays, outages and gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.market.bars import Bars, BoolArray, IntArray
from slipstream.market.calendar import DAY, NEW_YORK, closed_seconds, local_time
from slipstream.market.finding import Finding, first_times, plural, stamp
from slipstream.market.symbols import MarketKind

_KEPT_SIZES = 8
_HOLIDAY_SECONDS = 3 * 3600  # shorter holes around Christmas are ordinary gaps
_OUTAGE_BARS = 3  # bars without trading before a hole that make it an outage
_WEEKEND_SECONDS = 40 * 3600
_LEFT = "loading leaves the hole: nothing is filled"
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
    quiet_run = _run_length(bars.silent)
    for index in np.flatnonzero(open_holes).tolist():
        holiday = _holiday(holes, index, bar_seconds) if kind == "fx" else None
        row, size = int(holes.row[index]), int(holes.in_session[index])
        begin, last, quiet = int(holes.start[index]), int(bars.time[row]), int(quiet_run[row])
        missing, end = plural(size, "missing bar"), stamp(int(holes.stop[index]))
        if holiday is not None:
            kind_of_hole, since, action = "holiday", begin, _LEFT
            message = f"{holiday} hole of {missing}, {stamp(begin)} to {end} UTC"
        elif quiet >= _OUTAGE_BARS:
            kind_of_hole, since = "outage", last
            action = "loading leaves the hole and keeps the flat bars"
            message = (
                f"exchange outage: {missing} between {stamp(last)} and {end} UTC, after {quiet} "
                "flat zero-volume bars"
            )
        else:
            continue
        open_holes[index] = False
        findings.append(
            Finding.of(bars.symbol, kind_of_hole, message, 1, action, times=(since,), size=size)
        )
    return findings + _gaps(bars.symbol, holes, open_holes)


def _weekends(symbol: str, holes: Holes) -> list[Finding]:
    weekend = closed_seconds(holes.start, holes.stop) >= _WEEKEND_SECONDS
    if not weekend.any():
        return []
    sizes, counts = np.unique((holes.missing - holes.in_session)[weekend], return_counts=True)
    usual, count = int(sizes[np.argmax(counts)]), int(weekend.sum())
    others = [
        f"{size} once" if times == 1 else f"{size} in {times}"
        for size, times in zip(sizes.tolist(), counts.tolist(), strict=True)
        if size != usual
    ]
    exceptions = f" ({' and '.join(others)}, when clocks change)" if others else ""
    message = f"{plural(count, 'weekend')} of {usual} bars{exceptions}"
    first = first_times(holes.start, weekend)
    action = "they count as one step"
    return [Finding.of(symbol, "weekend", message, count, action, times=first, size=usual)]


def _gaps(symbol: str, holes: Holes, chosen: BoolArray) -> list[Finding]:
    sizes, counts = np.unique(holes.in_session[chosen], return_counts=True)
    listed = sizes if len(sizes) <= _KEPT_SIZES else sizes[np.argsort(counts)[-_KEPT_SIZES:]]
    findings = []

    def report(rows: BoolArray, said: str, size: int) -> None:
        count, times = int(rows.sum()), first_times(holes.start, rows)
        message = f"{plural(count, 'hole')} of {said}"
        if size in listed:  # the rows are those of one size
            message += f", {'at' if count == 1 else 'first'} {stamp(times[0])} UTC"
        findings.append(Finding.of(symbol, "gap", message, count, _LEFT, times=times, size=size))

    for size in np.sort(listed).tolist():
        report(chosen & (holes.in_session == size), plural(size, "missing bar"), size)
    rest = chosen & ~np.isin(holes.in_session, listed)
    if rest.any():
        largest = int(holes.in_session[rest].max())
        report(rest, f"other sizes, up to {largest:,} missing bars", largest)
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
