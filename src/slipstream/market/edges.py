"""Edges of the forex week in a file's own clock, and which zone puts them where they belong.

The market is open from Sunday to Friday 17:00 New York. A bar that lies wholly outside proves a
zone wrong; a missing bar at an edge proves nothing, for vendors start late and stop early. So a
zone is judged by how many weekends hold a bar *outside* under it, and only among equals by how many
lack an hour at an edge. Christmas and New Year end at 17:00 New York too, but not at every broker:
they decide only between zones that all weekends fit equally well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slipstream.market import symbols
from slipstream.market.bars import IntArray
from slipstream.market.calendar import local_time
from slipstream.market.stamps import MISSING
from slipstream.market.table import RawTable
from slipstream.market.zone import DAY, NEW_YORK, clock

HOUR = 3600
LONGEST_BAR = 4 * HOUR  # longer bars do not show when a week begins
_WEEK = 7 * DAY
_SUNDAY = 3 * DAY + 17 * HOUR  # 1970-01-04 17:00
# A weekend's hole: 48 hours, 47 or 49 when clocks change, less a bar of any length that spans an
# edge, more where a vendor starts late or stops early.
_SHORTEST, _LONGEST = 40 * HOUR, 58 * HOUR
_HOLIDAY = (8 * HOUR, 34 * HOUR)
_HOLIDAYS = {(12, 25), (1, 1)}

# Zones that price files are known to come in, likelier ones first.
ZONES = (
    "UTC",
    "America/New_York+7",
    "America/New_York",
    "Etc/GMT+5",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Athens",
    "Etc/GMT-2",
    "Etc/GMT-3",
    "America/Chicago",
    "America/Los_Angeles",
    "Asia/Dubai",
    "Asia/Kolkata",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Pacific/Auckland",
)


class Edges(NamedTuple):
    """Where weeks end and begin in the readings of one file or of several.

    Attributes:
        last, first: stamps of the bars before and after each weekend, seconds of the file's clock,
            int64 [k].
        reopened: stamps of the first bars after Christmas and New Year, int64 [h].
        opens: seconds after Sunday 17:00 New York at which the market opens, int64 [k].
        size: length of a bar of each weekend's file, int64 [k].
        holiday_size: the same for `reopened`, int64 [h].
    """

    last: IntArray
    first: IntArray
    reopened: IntArray
    opens: IntArray
    size: IntArray
    holiday_size: IntArray

    def __len__(self) -> int:  # type: ignore[override]
        return len(self.last)


class Fit(NamedTuple):
    """How well one reading of the stamps fits the week.

    Attributes:
        zone, time_is: the reading.
        outside: weekends with a bar wholly outside trading hours.
        lacking: weekends at which an hour or more is missing at an edge.
        holidays: those with a bar before their evening.
        exact: share of weekends whose first bar opens with the market.
        moments: UTC seconds of all edges under this reading, int64 [2 k + h].
    """

    zone: str
    time_is: str
    outside: int
    lacking: int
    holidays: int
    exact: float
    moments: IntArray


def edges_of(table: RawTable, bar_seconds: int) -> Edges:
    """The edges in one file's readings; none where its market or its bars do not show them."""
    # Where only some stamps need a zone, the readings are of two clocks.
    mixed = table.readings.origin == "mixed"
    seconds = table.stamps.time if mixed else table.readings.seconds
    seconds = np.unique(seconds[(seconds != MISSING) & ~table.silent])
    nothing = np.zeros(0, dtype=np.int64)
    if not 0 < bar_seconds <= LONGEST_BAR or len(seconds) < 2:
        return Edges(*(nothing,) * 6)
    hole = np.diff(seconds) - bar_seconds
    row = np.flatnonzero((hole >= _SHORTEST) & (hole <= _LONGEST))
    after = seconds[1:][(hole >= _HOLIDAY[0]) & (hole <= _HOLIDAY[1])]
    reopened = after[[_is_holiday(second) for second in after.tolist()]] if len(after) else nothing
    pair = symbols.pair_in(table.symbol)
    late = HOUR if pair is not None and pair.base in symbols.METALS else 0
    return Edges(
        seconds[row],
        seconds[row + 1],
        reopened,
        np.full(len(row), late),
        np.full(len(row), bar_seconds),
        np.full(len(reopened), bar_seconds),
    )


def _is_holiday(second: int) -> bool:
    """Whether a stamp is the evening of a closed day, or the day after in a zone further east."""
    for back in (0, DAY // 2):
        day = np.datetime64(second - back, "s").astype("datetime64[D]").item()
        if (day.month, day.day) in _HOLIDAYS:
            return True
    return False


def pooled(edges: Sequence[Edges]) -> Edges:
    """The edges of several files of one source."""
    return Edges(*(np.concatenate(columns) for columns in zip(*edges, strict=True)))


def fit(edges: Edges, zone: str, time_is: str) -> Fit:
    """Judges one reading."""
    back = time_is == "close"
    last, first, again = (
        _utc(stamps, zone) - back * size
        for stamps, size in (
            (edges.last, edges.size),
            (edges.first, edges.size),
            (edges.reopened, edges.holiday_size),
        )
    )
    late = _centred(local_time(first, NEW_YORK) - _SUNDAY - edges.opens, _WEEK)
    early = _centred(_SUNDAY + 5 * DAY - local_time(last, NEW_YORK) - edges.size, _WEEK)
    evening = _centred(local_time(again, NEW_YORK) - 17 * HOUR, DAY)
    outside = (late <= -edges.size) | (early <= -edges.size)
    lacking = (late >= HOUR) | (early >= HOUR)
    return Fit(
        zone,
        time_is,
        int(outside.sum()),
        int(lacking.sum()),
        int((evening <= -edges.holiday_size).sum()),
        float(np.mean(late == 0)) if len(late) else 0.0,
        np.concatenate([last, first, again]),
    )


def fits(edges: Edges, time_is: str) -> list[Fit]:
    """All known zones, the best first, those that mean the same moments once."""
    found: list[Fit] = []
    for zone in ZONES:
        one = fit(edges, zone, time_is)
        if not any(np.array_equal(one.moments, other.moments) for other in found):
            found.append(one)
    return sorted(found, key=likelier)


def likelier(one: Fit) -> tuple[int, int, int]:
    """Sorts readings, the best first."""
    return one.outside, one.lacking, one.holidays


def alike(edges: Edges, chosen: Fit) -> list[str]:
    """All known zones under which the edges are the same moments."""
    readings = (fit(edges, zone, chosen.time_is) for zone in ZONES)
    return [one.zone for one in readings if np.array_equal(one.moments, chosen.moments)]


def _utc(stamps: IntArray, zone: str) -> IntArray:
    return stamps if zone == "UTC" else clock(zone, stamps).utc(stamps)[0]


def _centred(seconds: IntArray, period: int) -> IntArray:
    return (seconds + period // 2) % period - period // 2
