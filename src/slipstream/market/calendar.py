"""The market's clock: zones with daylight saving, trading days, rolls, swap nights, bars a year.

See docs/rules.md, sections 7 and 8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from slipstream.core.errors import ConfigError
from slipstream.market.bars import BoolArray, IntArray
from slipstream.market.symbols import MarketKind

DayRoll = Literal["17:00 America/New_York", "00:00 UTC"]
NEW_YORK_ROLL: DayRoll = "17:00 America/New_York"
UTC_ROLL: DayRoll = "00:00 UTC"

MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY = range(7)
_EPOCH_WEEKDAY = THURSDAY  # 1970-01-01
_ROLL_SECOND = 17 * 3600
# Swap nights charged at the roll that ends each weekday, Monday first: Wednesday's has three.
_NIGHTS = np.array([1, 1, 3, 1, 1, 0, 0], dtype=np.int64)
DAY = 86400
NEW_YORK = "America/New_York"


@dataclass(frozen=True, eq=False)
class Clock:
    """A zone's offsets over some range of time.

    Attributes:
        transitions: UTC seconds at which the offset changes, int64 [k].
        offsets: seconds east of UTC before, between and after them, int64 [k + 1].
    """

    transitions: IntArray
    offsets: IntArray

    def local(self, time: IntArray) -> IntArray:
        """Wall-clock seconds (as if they were UTC) at UTC seconds `time`."""
        return time + self.offsets[np.searchsorted(self.transitions, time, side="right")]

    def utc(self, local: IntArray) -> tuple[IntArray, BoolArray]:
        """UTC seconds of wall-clock seconds, and which of those the clock skipped in spring.

        In autumn an hour happens twice. The first row with such a label is taken as the first
        pass; a label that already occurred is taken as the second.
        """
        before, after = self.offsets[:-1], self.offsets[1:]
        side = np.searchsorted(self.transitions + before, local, side="right")
        skipped = np.zeros(len(local), dtype=np.bool_)
        inside = side > 0
        skipped[inside] = (
            local[inside] < (self.transitions + np.maximum(before, after))[side[inside] - 1]
        )
        second = np.searchsorted(self.transitions + np.minimum(before, after), local, side="right")
        twice = second > side
        if twice.any():
            rows = np.flatnonzero(twice)
            _, first = np.unique(local[rows], return_index=True)
            repeated = np.ones(len(rows), dtype=np.bool_)
            repeated[first] = False
            side[rows[repeated]] = second[rows[repeated]]
        return local - self.offsets[side], skipped


class Calendar(NamedTuple):
    """What turns bars into years.

    Attributes:
        kind: ``"fx"`` (24 hours, five days) or ``"24/7"``.
        day_roll: when the trading day ends.
        bars_per_year, days_per_year: for annualisation.
    """

    kind: MarketKind
    day_roll: DayRoll
    bars_per_year: float
    days_per_year: float


def calendar(kind: MarketKind, bar_seconds: int) -> Calendar:
    """The calendar of a market: 260 days a year for fx (M15: 24,960 bars), 365 for 24/7."""
    days = 260.0 if kind == "fx" else 365.0
    per_year = days * DAY / bar_seconds if bar_seconds <= DAY else 365.0 * DAY / bar_seconds
    return Calendar(kind, NEW_YORK_ROLL if kind == "fx" else UTC_ROLL, per_year, days)


def calendar_warning(time: IntArray, bar_seconds: int, days: Calendar) -> str | None:
    """A sentence when a series and its calendar differ by more than 2 % in bars per year.

    Years of 365.25 days, from the first open to the last close. Series shorter than 90 days are
    not judged: one holiday would decide.
    """
    if len(time) < 2 or time[-1] - time[0] < 90 * DAY:
        return None
    measured = len(time) * 365.25 * DAY / (float(time[-1] - time[0]) + bar_seconds)
    if abs(measured / days.bars_per_year - 1.0) <= 0.02:
        return None
    return (
        f"has {measured:,.0f} bars per year, its {days.kind} calendar says "
        f"{days.bars_per_year:,.0f}: annualised figures use the calendar and are off by more "
        "than 2 %"
    )


def day_number(time: IntArray, roll: DayRoll = NEW_YORK_ROLL) -> IntArray:
    """Trading-day number of each bar, int64 [n].

    The number is that of the calendar date on which the trading day ends (days since 1970-01-01):
    with a roll at 17:00 New York, Sunday 17:00 already belongs to Monday.
    """
    if roll == UTC_ROLL:
        return time // DAY
    if roll == NEW_YORK_ROLL:
        return (local_time(time, NEW_YORK) + DAY - _ROLL_SECOND) // DAY
    raise ConfigError(f"`day_roll` must be '{NEW_YORK_ROLL}' or '{UTC_ROLL}', got {roll!r}.")


def day_weekday(day: IntArray) -> IntArray:
    """Weekday (Monday = 0) of day numbers, int64 [n]."""
    return np.asarray((day + _EPOCH_WEEKDAY) % 7, dtype=np.int64)


def swap_nights(time: IntArray, roll: DayRoll = NEW_YORK_ROLL) -> IntArray:
    """Swap nights charged on a position held into each bar from the bar before, int64 [n].

    One night for each weekday roll in between, three for Wednesday's, none for Saturday's and
    Sunday's: seven a week. The first bar has none.
    """
    day = day_number(time, roll)
    # All nights charged at rolls that ended days before `day`, counted from a Monday.
    monday_based = day + _EPOCH_WEEKDAY
    week, weekday = np.divmod(monday_based, 7)
    before = np.concatenate([[0], np.cumsum(_NIGHTS)])[weekday] + week * int(_NIGHTS.sum())
    nights: IntArray = np.diff(before, prepend=before[:1])
    return nights


def local_time(time: IntArray, zone: str = NEW_YORK) -> IntArray:
    """Wall-clock seconds in `zone`, as if they were UTC, int64 [n]."""
    return clock(zone, time).local(np.asarray(time, dtype=np.int64))


def minutes_since_midnight(time: IntArray, zone: str = NEW_YORK) -> IntArray:
    """Minutes since local midnight of each bar's open, int64 [n]."""
    return local_time(time, zone) % DAY // 60


def weekday(time: IntArray, zone: str = NEW_YORK) -> IntArray:
    """Local weekday (Monday = 0) of each bar's open, int64 [n]."""
    return day_weekday(local_time(time, zone) // DAY)


def closed_seconds(start: IntArray, stop: IntArray) -> IntArray:
    """Seconds of the weekend (Friday to Sunday 17:00 New York) in [start, stop), int64 [n]."""
    return _closed_before(stop) - _closed_before(start)


def in_weekend(time: IntArray) -> BoolArray:
    """Whether a bar opens while the forex market is closed, bool [n]."""
    return _week_second(time) >= 5 * DAY


def _week_second(time: IntArray) -> IntArray:
    """Local seconds since the forex week opened (Sunday 17:00 New York)."""
    shifted = local_time(time, NEW_YORK) + DAY - _ROLL_SECOND
    return (shifted + (_EPOCH_WEEKDAY - MONDAY) * DAY) % (7 * DAY)


def _closed_before(time: IntArray) -> IntArray:
    """Weekend seconds between a fixed moment and `time`.

    Counted in local time and then corrected: New York changes its clocks at 02:00 on Sundays,
    inside the weekend, so a weekend lasts 47 or 49 hours twice a year.
    """
    local = local_time(time, NEW_YORK)
    shifted = local + DAY - _ROLL_SECOND + (_EPOCH_WEEKDAY - MONDAY) * DAY
    week, second = np.divmod(shifted, 7 * DAY)
    nominal = week * 2 * DAY + np.maximum(second - 5 * DAY, 0)
    elapsed: IntArray = nominal - (local - time)
    return elapsed


def span(days: int, per_year: float) -> str:
    """A span in words: "1.16 years"; below a year "42 trading days", in a 24/7 market "42 days"."""
    if days >= per_year:
        return f"{days / per_year:.2f} years"
    kind = "day" if per_year >= 365.0 else "trading day"
    return f"{days} {kind}{'' if days == 1 else 's'}"


def clock(zone: str, time: IntArray) -> Clock:
    """The zone's clock over the range of `time` (seconds, UTC or local), two days of margin."""
    if len(time) == 0:
        return _clock(zone, 0, 0)
    return _clock(zone, int(time.min()) // DAY - 2, int(time.max()) // DAY + 3)


def validate_zone(zone: str) -> str:
    """Returns `zone` if it names one; raises ConfigError otherwise."""
    _split(zone)
    return zone


@lru_cache(maxsize=64)
def _clock(zone: str, first_day: int, last_day: int) -> Clock:
    info, shift = _split(zone)

    def offset(second: int) -> int:
        moment = datetime.fromtimestamp(second, UTC).astimezone(info)
        delta = moment.utcoffset()
        return (int(delta.total_seconds()) if delta is not None else 0) + shift

    transitions: list[int] = []
    low = first_day * DAY
    offsets = [offset(low)]
    for day in range(first_day + 1, last_day + 1):
        high = day * DAY
        here = offset(high)
        if here != offsets[-1]:
            left, right = low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (middle, right) if offset(middle) == offsets[-1] else (left, middle)
            transitions.append(right)
            offsets.append(here)
        low = high
    return Clock(np.array(transitions, dtype=np.int64), np.array(offsets, dtype=np.int64))


@lru_cache(maxsize=64)
def _split(zone: str) -> tuple[ZoneInfo, int]:
    """A zone and extra seconds: brokers keep New York plus seven hours, which has no IANA name."""
    try:
        return ZoneInfo(zone), 0
    except (KeyError, ValueError, OSError):
        pass
    match = re.fullmatch(r"([A-Za-z_/]+)([+-])(\d{1,2})(?::(\d{2}))?", zone.strip())
    if match:
        base, sign, hours, minutes = match.groups()
        seconds = int(hours) * 3600 + int(minutes or 0) * 60
        try:
            return ZoneInfo(base), seconds if sign == "+" else -seconds
        except (KeyError, ValueError, OSError):
            pass
    raise ConfigError(
        f"`time_zone` must name a zone such as UTC, America/New_York, Etc/GMT+5 or "
        f"America/New_York+7 (a zone plus hours), got {zone!r}."
    )
