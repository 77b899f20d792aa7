"""Market calendar: weekdays, weekends, swap nights, bars per year.

See docs/explanation/market-rules.md, sections 7 and 8.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.core.timeline import (
    DAY,
    NEW_YORK,
    NEW_YORK_ROLL,
    ROLL_SECOND,
    UTC_ROLL,
    DayRoll,
    day_number,
    local_time,
)
from slipstream.markets.data.bars import BoolArray, IntArray
from slipstream.markets.data.symbols import MarketKind

MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY = range(7)
_EPOCH_WEEKDAY = THURSDAY  # 1970-01-01
# Swap nights charged at the roll that ends each weekday, Monday first: Wednesday's has three.
_NIGHTS = np.array([1, 1, 3, 1, 1, 0, 0], dtype=np.int64)


class Calendar(NamedTuple):
    """Annualisation factors of a market.

    Attributes:
        kind: ``"fx"`` (24 hours, five days) or ``"24/7"``.
        day_roll: end of the trading day.
        bars_per_year, days_per_year: for annualisation.
    """

    kind: MarketKind
    day_roll: DayRoll
    bars_per_year: float
    days_per_year: float


def get_calendar(kind: MarketKind, bar_seconds: int) -> Calendar:
    """Return a market's calendar: 260 days a year for fx (M15: 24,960 bars), 365 for 24/7."""
    days = 260.0 if kind == "fx" else 365.0
    per_year = days * DAY / bar_seconds if bar_seconds <= DAY else 365.0 * DAY / bar_seconds
    return Calendar(kind, NEW_YORK_ROLL if kind == "fx" else UTC_ROLL, per_year, days)


def calendar_warning(time: IntArray, bar_seconds: int, days: Calendar) -> str | None:
    """Return a sentence if a series and its calendar differ by more than 2 % in bars per year.

    Years have 365.25 days, from the first open to the last close. Series shorter than 90 days are
    not checked: one holiday would decide.
    """
    if len(time) < 2 or time[-1] - time[0] < 90 * DAY:
        return None
    measured = len(time) * 365.25 * DAY / (float(time[-1] - time[0]) + bar_seconds)
    if abs(measured / days.bars_per_year - 1.0) <= 0.02:
        return None
    return (
        f"has {measured:,.0f} bars per year, its {days.kind} calendar has "
        f"{days.bars_per_year:,.0f}: annualised figures use the calendar and are off by more "
        "than 2 %"
    )


def day_weekday(day: IntArray) -> IntArray:
    """Return the weekday (Monday = 0) of day numbers, int64 [n]."""
    return np.asarray((day + _EPOCH_WEEKDAY) % 7, dtype=np.int64)


def swap_nights(time: IntArray, roll: DayRoll = NEW_YORK_ROLL) -> IntArray:
    """Return swap nights charged on a position held into each bar from the bar before, int64 [n].

    One night for each weekday roll in between, three for Wednesday's, none for Saturday's and
    Sunday's: seven per week. The first bar has none.
    """
    day = day_number(time, roll)
    # All nights charged at rolls that ended days before `day`, counted from a Monday.
    monday_based = day + _EPOCH_WEEKDAY
    week, weekday = np.divmod(monday_based, 7)
    before = np.concatenate([[0], np.cumsum(_NIGHTS)])[weekday] + week * int(_NIGHTS.sum())
    nights: IntArray = np.diff(before, prepend=before[:1])
    return nights


def closed_seconds(start: IntArray, stop: IntArray) -> IntArray:
    """Return weekend seconds (Friday to Sunday 17:00 New York) in [start, stop), int64 [n]."""
    return _closed_before(stop) - _closed_before(start)


def is_weekend(time: IntArray) -> BoolArray:
    """Return True for bars that open while the forex market is closed, bool [n]."""
    return _week(local_time(time, NEW_YORK))[1] >= 5 * DAY


def _week(local: IntArray) -> tuple[IntArray, IntArray]:
    """Return the forex week (from Sunday 17:00 New York) and local seconds since it opened."""
    return np.divmod(local + DAY - ROLL_SECOND + (_EPOCH_WEEKDAY - MONDAY) * DAY, 7 * DAY)


def _closed_before(time: IntArray) -> IntArray:
    """Return weekend seconds between a fixed time and `time`.

    Computed in local time and then corrected: New York changes its clocks at 02:00 on Sundays,
    inside the weekend, so a weekend lasts 47 or 49 hours twice a year.
    """
    local = local_time(time, NEW_YORK)
    week, second = _week(local)
    nominal = week * 2 * DAY + np.maximum(second - 5 * DAY, 0)
    elapsed: IntArray = nominal - (local - time)
    return elapsed
