"""The forex week in a file: do stamps open and close it where they should, and if not, why?"""

from __future__ import annotations

import numpy as np

from slipstream.market.bars import Bars
from slipstream.market.calendar import day_number, in_weekend
from slipstream.market.config import DataConfig
from slipstream.market.edges import HOUR, Edges, Fit, edges_of, fit, fits
from slipstream.market.finding import Finding, first_times, plural, stamp
from slipstream.market.proof import EXACT, FEWEST, beaten, tolerated
from slipstream.market.remedy import Remedy
from slipstream.market.table import RawTable


def week_findings(
    table: RawTable, bars: Bars, bar_seconds: int, config: DataConfig
) -> list[Finding]:
    """Stamps in a wrong zone, of the wrong end of the bar, weekend bars of one forex symbol."""
    edges = edges_of(table, bar_seconds)
    if len(edges) >= FEWEST:
        zone = "UTC" if table.readings.origin in ("aware", "mixed") else table.zone or "UTC"
        current = fit(edges, zone, config.time_is)
        found = _other_end(table, edges, current) or _other_zone(table, edges, current)
        if found is not None:
            return [found]
    return _broker_time(table, edges, config) + _weekend_bars(bars, bar_seconds)


def _explains(other: Fit, current: Fit, edges: Edges) -> bool:
    """Whether under another reading hardly a bar lies in the weekend, where now many do.

    Or, for bars of hours, whether all weeks begin and end to the bar, where now most lack an hour.
    A few bars outside are a vendor's mistakes, and no reason to look for another reading.
    """
    if other.outside > tolerated(edges) or not beaten(current, other, edges):
        return False
    if current.outside > tolerated(edges):
        return True
    most = 2 * (current.lacking - other.lacking) >= len(edges)
    return most and 10 * other.lacking <= len(edges)


def _other_end(table: RawTable, edges: Edges, current: Fit) -> Finding | None:
    """Stamps that mark the closes of bars where opens were expected, or the reverse."""
    time_is = "open" if current.time_is == "close" else "close"
    other = fit(edges, current.zone, time_is)
    if not _explains(other, current, edges) or 2 * current.outside < len(edges):
        return None
    if time_is == "close" and other.exact < EXACT:
        return None
    what = (
        "the week's first stamp is one bar after 17:00 New York and its last at 17:00: stamps "
        "mark the close of the bars"
        if time_is == "close"
        else "with `time_is: close` the week would open and close one bar before 17:00 New York: "
        "stamps mark the open of the bars"
    )
    return Finding(
        table.symbol,
        f"{time_is}_labelled",
        "error",
        current.outside,
        what,
        "loading refuses",
        remedies=({"time_is": time_is},),
    )


def _other_zone(table: RawTable, edges: Edges, current: Fit) -> Finding | None:
    """A zone under which no bar lies in the weekend, where many do as the stamps are."""
    found = [one for one in fits(edges, current.time_is) if _explains(one, current, edges)]
    if not found and current.time_is == "open":
        found = [one for one in fits(edges, "close") if _explains(one, current, edges)]
        found = [one for one in found if one.exact >= EXACT]
    stated = table.readings.origin in ("aware", "mixed")
    if stated:  # a file that says its zone is believed but for weeks that begin and end elsewhere
        found = [one for one in found if 10 * one.lacking <= len(edges)]
    if not found:
        return None
    best = found[0]
    moved = current.moments - best.moments
    hours = float(np.median(moved[moved != 0])) / HOUR
    # One season off by an hour may be a vendor who keeps UTC hours; a file that states its zone is
    # then believed, unless the hour comes and goes with another zone's clocks.
    changes = min(int((moved == 0).sum()), int((moved != 0).sum())) >= FEWEST
    believed = table.readings.origin in ("aware", "mixed", "epoch")
    doubtful = believed and abs(hours) < 2.0 and not changes
    remedies: list[Remedy] = []
    if not stated:
        end = fit(edges, current.zone, "open" if current.time_is == "close" else "close")
        if _explains(end, current, edges) and not beaten(end, best, edges):
            remedies.append({"time_is": end.time_is})
        ways = [best, *(one for one in found[1:] if not beaten(one, best, edges))]
        for one in ways:
            marks = {} if one.time_is == current.time_is else {"time_is": one.time_is}
            remedies.append({"time_zone": one.zone, **marks})
    count, of = current.outside, plural(len(edges), "weekend")
    odd = "have bars while the market is closed"
    if not count:
        count, of = current.lacking, plural(len(edges), "weekend")
        odd = "lack bars while the market is open"
    shift = f"{abs(hours):.3g} hour{'s' if abs(hours) > 1 else ''}"
    return Finding(
        table.symbol,
        "local_time",
        "warning" if doubtful else "error",
        count,
        f"{count} of {of} {odd}, and none would if the stamps there "
        f"were {shift} {'earlier' if hours > 0 else 'later'}: they are in another zone"
        + (" than they state, so write the file anew" if stated else f" than {current.zone}"),
        "loading takes them as they are" if doubtful else "loading refuses",
        remedies=() if doubtful else tuple(remedies),
    )


def _broker_time(table: RawTable, edges: Edges, config: DataConfig) -> list[Finding]:
    """MetaTrader's epochs that nothing places."""
    broker = table.dialect.name == "MetaTrader" and table.readings.origin == "epoch"
    if not broker or config.time_zone is not None:
        return []
    if len(edges) >= FEWEST:
        utc, *others = sorted(fits(edges, config.time_is), key=lambda one: one.zone != "UTC")
        if utc.zone == "UTC" and all(beaten(one, utc, edges) for one in others):
            return []
    return [
        Finding(
            table.symbol,
            "broker_time",
            "warning",
            len(table),
            "MetaTrader counts the seconds of the broker's clock, which is rarely UTC (most "
            "brokers keep America/New_York+7), and these weekends do not show which: set "
            "`time_zone`",
            "loading takes them as UTC",
        )
    ]


def _weekend_bars(bars: Bars, bar_seconds: int) -> list[Finding]:
    """Bars while the market is closed; at half the weekends they are no vendor's mistakes."""
    if bar_seconds > 4 * HOUR:
        return []
    inside = in_weekend(bars.time) & in_weekend(bars.time + bar_seconds - 1)
    if not inside.any():
        return []
    times = first_times(bars.time, inside)
    week = day_number(bars.time) // 7
    bad, of = len(np.unique(week[inside])), int(week[-1] - week[0]) + 1
    wrong = bad >= FEWEST and 2 * bad >= of
    return [
        Finding(
            bars.symbol,
            "weekend_bars",
            "error" if wrong else "warning",
            int(inside.sum()),
            f"{plural(int(inside.sum()), 'bar')} between Friday and Sunday 17:00 New York, at "
            f"{bad} of {plural(of, 'weekend')}, first {stamp(times[0])} UTC",
            "loading refuses: no known zone explains them" if wrong else "loading keeps them",
            times,
        )
    ]
