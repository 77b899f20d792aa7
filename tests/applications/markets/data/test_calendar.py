"""Calendars against zoneinfo one moment at a time."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.core.timeline import clock, validate_zone
from slipstream.markets.data import calendar as cal

NEW_YORK = ZoneInfo("America/New_York")


def moments(zone: str, *texts: str) -> np.ndarray:
    stamps = [datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)) for text in texts]
    return np.array([int(stamp.timestamp()) for stamp in stamps], dtype=np.int64)


@pytest.fixture
def two_years() -> np.ndarray:
    """Moments every 47 minutes and 13 seconds, 2019 to 2021."""
    return np.arange(1546300800, 1609459200, 2833, dtype=np.int64)


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/London", "Asia/Tokyo", "UTC"])
def test_local_time_equals_zoneinfo(two_years, zone):
    local = cal.local_time(two_years, zone)
    for row in range(0, len(two_years), 7):
        moment = datetime.fromtimestamp(int(two_years[row]), UTC).astimezone(ZoneInfo(zone))
        naive = moment.replace(tzinfo=UTC)
        assert local[row] == int(naive.timestamp())


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Athens", "America/New_York+7"])
def test_local_time_and_back(two_years, zone):
    there = clock(zone, two_years)
    back, skipped = there.utc(there.local(two_years))
    wrong = back != two_years
    assert not skipped.any()
    # Only the second pass of an autumn hour may come back as the first, where nothing repeats.
    assert wrong.sum() <= 4
    assert set(np.unique((two_years - back)[wrong])) <= {3600}


def test_zone_plus_hours_has_midnight_at_five_in_new_york():
    summer, winter = moments("America/New_York", "2020-07-01 17:00", "2020-01-02 17:00")
    local = cal.local_time(np.array([summer, winter]), "America/New_York+7")
    assert (local % 86400 == 0).all()
    with pytest.raises(ConfigError, match="must name a zone"):
        validate_zone("Nowhere+7")


def test_day_number_rolls_at_five_in_new_york(two_years):
    days = cal.day_number(two_years)
    for row in range(0, len(two_years), 11):
        local = datetime.fromtimestamp(int(two_years[row]), UTC).astimezone(NEW_YORK)
        ends_on = local.date() + timedelta(days=local.hour >= 17)
        assert days[row] == (ends_on - date(1970, 1, 1)).days
    times = moments("America/New_York", "2020-03-06 16:59", "2020-03-08 16:59", "2020-03-08 17:00")
    assert cal.day_weekday(cal.day_number(times)).tolist() == [4, 6, 0]
    assert (cal.day_number(two_years, "00:00 UTC") == two_years // 86400).all()
    with pytest.raises(ConfigError, match="day_roll"):
        cal.day_number(two_years, "noon")


def test_swap_nights_charge_seven_a_week_and_wednesday_three():
    texts = [f"2020-06-{day:02d} {hour}" for day in range(1, 8) for hour in ("16:59", "17:00")]
    nights = cal.swap_nights(moments("America/New_York", *texts))
    assert nights[1::2].tolist() == [1, 1, 3, 1, 1, 0, 0]  # Monday's roll to Sunday's
    assert nights[::2].tolist() == [0] * 7
    hourly = np.arange(1546300800, 1546300800 + 52 * 7 * 86400, 3600, dtype=np.int64)
    assert cal.swap_nights(hourly).sum() == pytest.approx(52 * 7, abs=3)
    weekend = moments("America/New_York", "2020-06-05 16:45", "2020-06-07 17:00")
    assert cal.swap_nights(weekend).tolist() == [0, 1]


def test_minutes_and_weekday():
    times = moments("America/New_York", "2020-07-03 16:30", "2020-12-04 00:15", "2020-12-06 17:00")
    local = cal.local_time(times, cal.NEW_YORK)
    assert (local % cal.DAY // 60).tolist() == [990, 15, 1020]
    assert cal.day_weekday(local // cal.DAY).tolist() == [4, 4, 6]


def test_weekends_last_48_hours_but_47_and_49_when_clocks_change():
    for friday, hours in (("2020-03-06", 47), ("2020-10-30", 49), ("2020-06-05", 48)):
        start = moments("America/New_York", f"{friday} 17:00")
        sunday = (date.fromisoformat(friday) + timedelta(days=2)).isoformat()
        stop = moments("America/New_York", f"{sunday} 17:00")
        assert cal.closed_seconds(start, stop).tolist() == [hours * 3600]
        assert cal.closed_seconds(start - 7200, stop + 7200).tolist() == [hours * 3600]
        assert cal.closed_seconds(start - 7200, start).tolist() == [0]
        assert cal.is_weekend(np.concatenate([start - 1, start, stop - 1, stop])).tolist() == [
            False,
            True,
            True,
            False,
        ]


def test_years():
    fx = cal.get_calendar("fx", 900)
    assert (fx.bars_per_year, fx.days_per_year, fx.day_roll) == (
        24960,
        260,
        "17:00 America/New_York",
    )
    coins = cal.get_calendar("24/7", 300)
    assert (coins.bars_per_year, coins.days_per_year, coins.day_roll) == (105120, 365, "00:00 UTC")
    assert cal.get_calendar("fx", 3600).bars_per_year == 6240
    assert cal.get_calendar("fx", 86400).bars_per_year == 260


def test_a_warning_when_the_year_is_not_the_calendars():
    time = np.arange(1546300800, 1546300800 + 200 * 86400, 300, dtype=np.int64)
    assert cal.calendar_warning(time, 300, cal.get_calendar("24/7", 300)) is None
    assert "off by more than 2 %" in (
        cal.calendar_warning(time, 300, cal.get_calendar("fx", 300)) or ""
    )
    assert cal.calendar_warning(time[:288], 300, cal.get_calendar("fx", 300)) is None
