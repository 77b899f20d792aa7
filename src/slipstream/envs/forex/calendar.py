"""The forex environment's clock: one integer a bar, and four columns of the observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.envs.forex.config import Config, clock_minutes
from slipstream.envs.forex.record import FLAT, NIGHT, ROLL
from slipstream.market.calendar import (
    DAY,
    FRIDAY,
    NEW_YORK,
    NEW_YORK_ROLL,
    SATURDAY,
    DayRoll,
    day_number,
    day_weekday,
    local_time,
    swap_nights,
)


def calendar_bits(
    time: NDArray[np.int64], bar_seconds: int, roll: DayRoll, config: Config
) -> NDArray[np.int64]:
    """Rolls, forced-flat fills and swap nights of each bar, int64 [n]; bits in `record`."""
    day = day_number(time, roll)
    rolled = np.diff(day, prepend=day[:1]) != 0
    flat = _flat(time, bar_seconds, roll, config)
    return rolled * ROLL + flat * FLAT + swap_nights(time, roll) * NIGHT


def _flat(
    time: NDArray[np.int64], bar_seconds: int, roll: DayRoll, config: Config
) -> NDArray[np.bool_]:
    """Whether the fill of the step into each bar happens at a time that must be flat.

    Only the fill's own clock time counts: whether another bar follows is not known then.
    """
    if config.fill == "next_open":
        return _flat_at(time, roll, config)
    closed = time + bar_seconds
    if config.fill == "compat_same_close":
        closed = np.concatenate([closed[:1], closed[:-1]])
    # A fill at the last close before the roll belongs to the day that ends there.
    return _flat_at(closed, roll, config) | _flat_at(closed - 1, roll, config)


def _flat_at(moment: NDArray[np.int64], roll: DayRoll, config: Config) -> NDArray[np.bool_]:
    local = local_time(moment, NEW_YORK) if roll == NEW_YORK_ROLL else moment
    roll_second = 17 * 3600 if roll == NEW_YORK_ROLL else 0
    flat = np.zeros(len(moment), dtype=np.bool_)
    if config.flat_at is not None:
        start = (60 * clock_minutes(config.flat_at) - roll_second) % DAY
        if start == 0:
            raise ConfigError(
                f"`env.flat_at` must lie before the day's roll ({roll}), got {config.flat_at!r}: "
                "positions would always be flat."
            )
        flat |= (local - roll_second) % DAY >= start
    if config.flat_on_friday is not None:
        friday = day_weekday(local // DAY) == FRIDAY
        flat |= friday & (local % DAY >= 60 * clock_minutes(config.flat_on_friday))
        flat |= day_weekday(day_number(moment, roll)) >= SATURDAY
    return flat


def clock_columns(time: NDArray[np.int64], bar_seconds: int, roll: DayRoll) -> NDArray[np.float64]:
    """Sine and cosine of time of day and of day of week at each bar's close, float64 [n, 4]."""
    closed = time + bar_seconds
    local = local_time(closed, NEW_YORK) if roll == NEW_YORK_ROLL else closed
    day_angle = 2.0 * np.pi * (local % DAY) / DAY
    week_angle = 2.0 * np.pi * day_weekday(local // DAY) / 7.0
    return np.stack(
        [np.sin(day_angle), np.cos(day_angle), np.sin(week_angle), np.cos(week_angle)],
        axis=1,
    )
