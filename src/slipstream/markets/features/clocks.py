"""Time of day and day of week on circles, from the moment at which a bar opens, in UTC."""

from __future__ import annotations

import numpy as np

from slipstream.core.days import NEW_YORK
from slipstream.markets.data.bars import Bars, FloatArray
from slipstream.markets.data.calendar import minutes_since_midnight, weekday


def hour_sin(bars: Bars, n: int) -> FloatArray:
    """Sine of the time of day, UTC."""
    return np.sin(_day_angle(bars, "UTC"))


def hour_cos(bars: Bars, n: int) -> FloatArray:
    """Cosine of the time of day, UTC."""
    return np.cos(_day_angle(bars, "UTC"))


def new_york_hour_sin(bars: Bars, n: int) -> FloatArray:
    """Sine of the time of day in New York, which follows the sessions through summer time."""
    return np.sin(_day_angle(bars, NEW_YORK))


def new_york_hour_cos(bars: Bars, n: int) -> FloatArray:
    """Cosine of the time of day in New York."""
    return np.cos(_day_angle(bars, NEW_YORK))


def day_of_week_sin(bars: Bars, n: int) -> FloatArray:
    """Sine of the weekday, UTC, Monday at angle 0, seven days a turn."""
    return np.sin(_week_angle(bars))


def day_of_week_cos(bars: Bars, n: int) -> FloatArray:
    """Cosine of the weekday, UTC."""
    return np.cos(_week_angle(bars))


def _day_angle(bars: Bars, zone: str) -> FloatArray:
    return minutes_since_midnight(bars.time, zone).astype(np.float64) * (2.0 * np.pi / 1440.0)


def _week_angle(bars: Bars) -> FloatArray:
    return weekday(bars.time, "UTC").astype(np.float64) * (2.0 * np.pi / 7.0)
