"""The forex clock against Python's own, bar by bar, over two changes of daylight saving."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from forex_folder import grid

from slipstream.core.errors import ConfigError
from slipstream.core.timeline import NEW_YORK_ROLL, UTC_ROLL
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.markets.forex.forex_loader import calendar_bits, clock_columns
from slipstream.markets.forex.forex_state import FLAT, NIGHT, ROLL

NEW_YORK = ZoneInfo("America/New_York")
TIMES = grid(96 * 5 * 40)  # forty weeks from February: both changes of the clock


def bits(times: np.ndarray = TIMES, roll: Any = NEW_YORK_ROLL, **settings: Any) -> np.ndarray:
    config = load_kernel("forex").configure({"data": {"folder": "-"}, **settings})
    return calendar_bits(times, 900, roll, config)


def local(second: int) -> datetime:
    return datetime.fromtimestamp(int(second), UTC).astimezone(NEW_YORK)


def rolls_between(earlier: int, later: int) -> list[datetime]:
    """The 17:00s in (earlier, later], New York."""
    day = local(earlier).date()
    found = []
    while day <= local(later).date():
        roll = datetime.combine(day, time(17), NEW_YORK)
        if earlier < roll.timestamp() <= later:
            found.append(roll)
        day += timedelta(days=1)
    return found


def test_rolls_and_swap_nights() -> None:
    flags = bits()
    for row in range(1, len(TIMES), 3):
        # Every third bar, and all bars around a roll.
        for at in (row,):
            rolls = rolls_between(TIMES[at - 1], TIMES[at])
            nights = sum({2: 3, 5: 0, 6: 0}.get(roll.weekday(), 1) for roll in rolls)
            assert bool(flags[at] & ROLL) == bool(rolls)
            assert flags[at] // NIGHT == nights
    assert (flags // NIGHT).sum() == 7 * 40 - 1  # the last week's Friday roll has no bar after it


@pytest.mark.parametrize("fill", ["next_open", "next_close", "compat_same_close"])
def test_flat_at_a_clock_time_until_the_roll(fill: str) -> None:
    flags = bits(flatten_at="16:15", fill=fill)
    for row in range(1, 3000):
        opened = local(TIMES[row])
        moment = {
            "next_open": opened,
            "next_close": opened + timedelta(minutes=15),
            "compat_same_close": local(TIMES[row - 1]) + timedelta(minutes=15),
        }[fill]
        closing = fill != "next_open"  # a fill at 17:00's close still belongs to the old day
        flat = time(16, 15) <= moment.time() < time(17) or (closing and moment.time() == time(17))
        assert bool(flags[row] & FLAT) == flat, (fill, moment)


def test_flat_on_friday_until_the_week_reopens() -> None:
    flags = bits(flat_on_friday="15:00")
    for row in range(1, 3000):
        moment = local(TIMES[row])
        friday = moment.weekday() == 4 and moment.time() >= time(15)
        assert bool(flags[row] & FLAT) == friday
    weekend = np.arange(1_740_175_200, 1_740_175_200 + 3 * 86400, 900)  # Friday 17:00 local onwards
    open_again = [
        bool(flag & FLAT)
        == (
            local(second).weekday() in (4, 5)
            or (local(second).weekday() == 6 and local(second).hour < 17)
        )
        for second, flag in zip(weekend, bits(weekend, flat_on_friday="15:00"), strict=True)
    ]
    assert all(open_again)


def test_the_next_rows_time_is_not_looked_at() -> None:
    """Leaving out all bars after a row changes nothing up to it."""
    every = bits(flatten_at="16:00", flat_on_friday="12:00", fill="next_close")
    cut = bits(TIMES[:700], flatten_at="16:00", flat_on_friday="12:00", fill="next_close")
    assert np.array_equal(cut, every[:700])


def test_around_the_clock_markets_roll_at_midnight_utc() -> None:
    times = 1_740_348_000 + 900 * np.arange(400)
    flags = bits(times, UTC_ROLL)
    assert np.array_equal(np.flatnonzero(flags & ROLL), np.flatnonzero(times % 86400 == 0))


def test_a_flat_time_at_the_roll_is_refused() -> None:
    with pytest.raises(ConfigError, match="roll"):
        bits(flatten_at="17:00")


def test_clock_columns_are_those_of_the_bars_close() -> None:
    columns = clock_columns(TIMES[:500], 900, NEW_YORK_ROLL)
    for row in range(0, 500, 7):
        moment = local(TIMES[row]) + timedelta(minutes=15)
        day = 2 * np.pi * (moment.hour * 60 + moment.minute) / 1440
        week = 2 * np.pi * moment.weekday() / 7
        expected = [np.sin(day), np.cos(day), np.sin(week), np.cos(week)]
        assert columns[row] == pytest.approx(expected, abs=1e-12)
