"""The forex week in a file: does it open at 17:00 New York, and what if it does not?"""

from __future__ import annotations

import numpy as np

from slipstream.market import symbols
from slipstream.market.bars import Bars, BoolArray, IntArray
from slipstream.market.calendar import in_weekend, local_time
from slipstream.market.config import DataConfig
from slipstream.market.finding import Finding, first_times, plural, stamp
from slipstream.market.zone import DAY, NEW_YORK, clock

_WEEK = 7 * DAY
_FEWEST_WEEKS = 2
_SHARE = 0.1  # holidays let some weeks open late
_CANDIDATES = (
    "UTC",
    "America/New_York",
    "Etc/GMT+5",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Athens",
    "America/New_York+7",
    "Etc/GMT-2",
    "Etc/GMT-3",
    "Asia/Tokyo",
    "Asia/Shanghai",
)


def week_findings(bars: Bars, bar_seconds: int, config: DataConfig) -> list[Finding]:
    """Local-time stamps, close-labelled bars, weekend bars of one forex symbol."""
    if bar_seconds > 4 * 3600:
        return []
    late, early = _week_edges(bars.time, bar_seconds)
    pair = symbols.parse(bars.symbol)
    if pair is not None and pair.base in symbols.METALS:
        late = late - 3600  # metals open at 18:00
    if len(late) < _FEWEST_WEEKS:
        return _weekend_bars(bars, bar_seconds)
    closing_label = (late == bar_seconds) & (early == -bar_seconds)
    if closing_label.mean() > 0.5:
        return [
            Finding(
                bars.symbol,
                "close_labelled",
                "warning",
                len(late),
                "the week's first bar is stamped one bar after 17:00 New York and its last at "
                "17:00: stamps mark the close of the bars" + _close_advice(config),
                "loading takes them as opens",
            )
        ]
    wrong = _off(late, bar_seconds)
    if wrong.mean() >= _SHARE and wrong.sum() >= _FEWEST_WEEKS:
        return [_local_time(bars, bar_seconds, late[wrong], config)]
    return _weekend_bars(bars, bar_seconds)


def _week_edges(time: IntArray, bar_seconds: int) -> tuple[IntArray, IntArray]:
    """Seconds of a week's first open after Sunday 17:00, of its last close before Friday 17:00.

    Both New York time, in (-3.5, 3.5] days; a week whose neighbours are missing is left out.
    """
    row = np.flatnonzero(np.diff(time) >= 30 * 3600)
    local = local_time(time, NEW_YORK)
    sunday = 3 * DAY + 17 * 3600  # 1970-01-04 17:00
    late = _centred(local[row + 1] - sunday)
    early = _centred(sunday + 5 * DAY - local[row] - bar_seconds)
    return late, early


def _centred(seconds: IntArray) -> IntArray:
    return (seconds + _WEEK // 2) % _WEEK - _WEEK // 2


def _off(late: IntArray, bar_seconds: int) -> BoolArray:
    """Weeks that open before 17:00 by a bar or more, or an hour or more after it."""
    return (late <= -bar_seconds) | (late >= max(3600, bar_seconds))


def _local_time(bars: Bars, bar_seconds: int, late: IntArray, config: DataConfig) -> Finding:
    typical = int(np.median(late)) / 3600
    # Undo the zone that was applied, then try others on the bare clock readings.
    naive = clock(config.time_zone or "UTC", bars.time).local(bars.time)
    best, fewest = None, len(late)
    for zone in _CANDIDATES:
        moments, _ = clock(zone, naive).utc(naive)
        wrong = int(_off(_week_edges(np.unique(moments), bar_seconds)[0], bar_seconds).sum())
        if wrong < fewest:
            best, fewest = zone, wrong
    advice = f": `time_zone: {best}` would fit" if best is not None else ""
    return Finding(
        bars.symbol,
        "local_time",
        "warning",
        len(late),
        f"{plural(len(late), 'week')} open {typical:+.3g} hours from Sunday 17:00 New York: "
        f"stamps seem to be in local time{advice}",
        "loading takes the stamps as they are",
    )


def _weekend_bars(bars: Bars, bar_seconds: int) -> list[Finding]:
    """Bars with prices that move while the market is closed."""
    inside = in_weekend(bars.time)
    if not inside.any():
        return []
    times = first_times(bars.time, inside)
    return [
        Finding(
            bars.symbol,
            "weekend_bars",
            "warning",
            int(inside.sum()),
            f"{plural(int(inside.sum()), 'bar')} between Friday and Sunday 17:00 New York, first "
            f"{stamp(times[0])} UTC",
            "loading keeps them",
            times,
        )
    ]


def _close_advice(config: DataConfig) -> str:
    return ": set `time_is: close`" if config.time_is == "open" else ""
