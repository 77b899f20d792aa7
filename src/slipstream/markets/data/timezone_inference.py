"""Time-zone inference from the forex week: its edges, the zone that they prove, contradictions.

The market is open from Sunday to Friday 17:00 New York. A bar entirely outside these hours proves a
zone wrong. A missing bar at an edge proves nothing: vendors start late and stop early. A zone is
therefore ranked by the number of weekends with a bar *outside*, then by the number that lack an
hour at an edge. Christmas and New Year also end at 17:00 New York, but not at every broker: they
decide only between zones that fit all weekends equally well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.text import plural
from slipstream.core.timeline import DAY, NEW_YORK, clock, day_number, local_time
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import Bars, IntArray
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.data.cleaning import get_market_kind
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import DataIssue, SuggestedFix
from slipstream.markets.data.raw_table import RawTable
from slipstream.markets.data.timestamps import MISSING, LocalTimestamps, bar_length

HOUR = 3600
LONGEST_BAR = 4 * HOUR  # longer bars do not resolve the beginning of a week
_WEEK = 7 * DAY
_SUNDAY = 3 * DAY + 17 * HOUR  # 1970-01-04 17:00
# A weekend's hole: 48 hours, 47 or 49 when clocks change, less a bar of any length that spans an
# edge, more where a vendor starts late or stops early.
_SHORTEST, _LONGEST = 40 * HOUR, 58 * HOUR
_HOLIDAY = (8 * HOUR, 34 * HOUR)
_HOLIDAYS = {(12, 25), (1, 1)}

# Common zones of price files, likelier ones first.
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
# Weekends by which another zone must be worse, and share of weekends tolerated outside.
MIN_WEEKENDS = 2
MAX_OUTSIDE_SHARE = 0.02  # a vendor's mistakes: one weekend of a year
# Share of weekends whose first bar must open with the market before timestamps count as closes: a
# last tick at 17:00 sharp is not enough.
MIN_EXACT_SHARE = 0.2
_OTHER_LABEL = {"left": "right", "right": "left"}


class WeekEdges(NamedTuple):
    """Timestamps at which weeks end and begin, of one file or of several.

    Attributes:
        last, first: timestamps of the bars before and after each weekend, local seconds, int64 [k].
        reopened: timestamps of the first bars after Christmas and New Year, int64 [h].
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

    def __len__(self) -> int:
        return len(self.last)


class ZoneFit(NamedTuple):
    """One time zone and timestamp label, with its fit to the forex week.

    Attributes:
        zone, timestamp_label: the zone, and the end of the bar that timestamps label.
        outside: weekends with a bar entirely outside trading hours.
        lacking: weekends at which an hour or more is missing at an edge.
        holidays: holidays with a bar before their evening.
        exact: share of weekends whose first bar opens with the market.
        moments: UTC seconds of all edges in this zone, int64 [2 k + h].
    """

    zone: str
    timestamp_label: str
    outside: int
    lacking: int
    holidays: int
    exact: float
    moments: IntArray


def find_week_edges(table: RawTable, bar_seconds: int) -> WeekEdges:
    """Return the edges of one file; empty if its market or its bars do not show them."""
    # If only some timestamps need a zone, local times mix two clocks.
    mixed = table.local_times.origin == "mixed"
    seconds = table.timestamps.time if mixed else table.local_times.seconds
    seconds = np.unique(seconds[(seconds != MISSING) & ~table.silent])
    nothing = np.zeros(0, dtype=np.int64)
    if not 0 < bar_seconds <= LONGEST_BAR or len(seconds) < 2:
        return WeekEdges(*(nothing,) * 6)
    hole = np.diff(seconds) - bar_seconds
    row = np.flatnonzero((hole >= _SHORTEST) & (hole <= _LONGEST))
    after = seconds[1:][(hole >= _HOLIDAY[0]) & (hole <= _HOLIDAY[1])]
    reopened = after[[_is_holiday(second) for second in after.tolist()]] if len(after) else nothing
    pair = symbols.extract_pair(table.symbol)
    late = HOUR if pair is not None and pair.base in symbols.METALS else 0
    return WeekEdges(
        seconds[row],
        seconds[row + 1],
        reopened,
        np.full(len(row), late),
        np.full(len(row), bar_seconds),
        np.full(len(reopened), bar_seconds),
    )


def _is_holiday(second: int) -> bool:
    """Return True for the evening of a closed day, or the day after in a zone further east."""
    days = (datetime.fromtimestamp(second - back, UTC) for back in (0, DAY // 2))
    return any((day.month, day.day) in _HOLIDAYS for day in days)


def concat_edges(edges: Sequence[WeekEdges]) -> WeekEdges:
    """Concatenate the edges of several files of one source."""
    return WeekEdges(*(np.concatenate(columns) for columns in zip(*edges, strict=True)))


def evaluate_zone(edges: WeekEdges, zone: str, timestamp_label: str) -> ZoneFit:
    """Evaluate the fit of one zone and label."""
    back = timestamp_label == "right"
    last, first = (_utc(local, zone) - back * edges.size for local in (edges.last, edges.first))
    reopened = _utc(edges.reopened, zone) - back * edges.holiday_size
    late = _centred(local_time(first, NEW_YORK) - _SUNDAY - edges.opens, _WEEK)
    early = _centred(_SUNDAY + 5 * DAY - local_time(last, NEW_YORK) - edges.size, _WEEK)
    evening = _centred(local_time(reopened, NEW_YORK) - 17 * HOUR, DAY)
    outside = (late <= -edges.size) | (early <= -edges.size)
    lacking = (late >= HOUR) | (early >= HOUR)
    return ZoneFit(
        zone,
        timestamp_label,
        int(outside.sum()),
        int(lacking.sum()),
        int((evening <= -edges.holiday_size).sum()),
        float(np.mean(late == 0)) if len(late) else 0.0,
        np.concatenate([last, first, reopened]),
    )


def rank_zones(edges: WeekEdges, timestamp_label: str) -> list[ZoneFit]:
    """Return the fits of all known zones, best first; zones with equal UTC times occur once."""
    fits: list[ZoneFit] = []
    for zone in ZONES:
        fit = evaluate_zone(edges, zone, timestamp_label)
        if not any(np.array_equal(fit.moments, other.moments) for other in fits):
            fits.append(fit)
    return sorted(fits, key=fit_sort_key)


def fit_sort_key(fit: ZoneFit) -> tuple[int, int, int]:
    """Sort key of fits, best first."""
    return fit.outside, fit.lacking, fit.holidays


def equivalent_zones(edges: WeekEdges, reference: ZoneFit) -> list[str]:
    """Return all known zones in which the edges have the same UTC times."""
    local_times = (evaluate_zone(edges, zone, reference.timestamp_label) for zone in ZONES)
    return [fit.zone for fit in local_times if np.array_equal(fit.moments, reference.moments)]


def _utc(stamps: IntArray, zone: str) -> IntArray:
    return stamps if zone == "UTC" else clock(zone, stamps).utc(stamps)[0]


def _centred(seconds: IntArray, period: int) -> IntArray:
    return (seconds + period // 2) % period - period // 2


class ZoneInference(NamedTuple):
    """Inferred time zone of some files.

    Attributes:
        explanation: how the zone is proven, or why not.
        zone: the proven zone, else None.
        timestamp_label: the end of the bar that timestamps then label.
        candidates: without a proven zone, the likeliest zones that no file contradicts; None if the
            files contain no information.
    """

    explanation: str
    zone: str | None = None
    timestamp_label: str = "left"
    candidates: tuple[str, ...] | None = None

    @property
    def fix(self) -> SuggestedFix | None:
        """Config keys to set; None if no zone is proven."""
        if self.zone is None:
            return None
        marks = {} if self.timestamp_label == "left" else {"timestamp_label": self.timestamp_label}
        return {"time_zone": self.zone, **marks}


def max_outside(edges: WeekEdges) -> int:
    """Return the number of weekends with bars outside that the right zone may have."""
    return int(MAX_OUTSIDE_SHARE * len(edges))


def infer_zone(tables: Sequence[RawTable], config: DataConfig) -> ZoneInference:
    """Infer the zone of files of one source from all their weekends."""
    forex = [table for table in tables if get_market_kind(table.symbol, config) == "fx"]
    if not forex:
        return ZoneInference("a market that never closes does not show the zone")
    file_edges = [find_week_edges(table, bar_length(table.local_times.seconds)) for table in forex]
    proof = _infer_from_edges(concat_edges(file_edges), forex, config)
    if proof.zone is not None or not len(concat_edges(file_edges)):
        return proof
    likely = (fit.zone for fit in rank_zones(concat_edges(file_edges), config.timestamp_label))
    named = proof.candidates or (forex[0].dialect.zone_hint, *likely)
    allowed = tuple(
        zone
        for zone in named
        if all(
            evaluate_zone(fit, zone, config.timestamp_label).outside <= max_outside(fit)
            for fit in file_edges
        )
    )
    return proof._replace(candidates=allowed if proof.candidates else allowed[:1])


def _infer_from_edges(
    edges: WeekEdges, tables: Sequence[RawTable], config: DataConfig
) -> ZoneInference:
    if len(edges) < MIN_WEEKENDS:
        return ZoneInference(f"{plural(len(edges), 'weekend')} cannot show it")
    fits = rank_zones(edges, config.timestamp_label)
    if fits[0].outside > max_outside(edges) or 10 * fits[0].lacking > len(edges):
        # Timestamps may label the other end; a missing first bar must not look the same.
        fits += rank_zones(edges, _OTHER_LABEL[config.timestamp_label])
        fits.sort(key=fit_sort_key)
        if fits[0].timestamp_label != config.timestamp_label and fits[0].exact < MIN_EXACT_SHARE:
            return ZoneInference(f"{plural(len(edges), 'weekend')} fit no known zone well")
    best = fits[0]
    hints = [table.dialect.zone_hint for table in tables]
    weekends = plural(len(edges), "weekend")
    if len(tables) > 1:
        weekends += f" of {len(tables)} files"
    if best.outside > max_outside(edges):
        return ZoneInference(f"the openings and closings of {weekends} fit no known zone")
    rivals = [fit for fit in fits[1:] if not is_worse(fit, best, edges)]
    names = equivalent_zones(edges, best)
    zone = next((hint for hint in hints if hint in names), names[0])
    if rivals:
        candidates = tuple(dict.fromkeys([zone, *(fit.zone for fit in rivals)]))
        listed = " and ".join(candidates)
        text = f"{weekends} fit {listed} equally well"
        return ZoneInference(text, timestamp_label=best.timestamp_label, candidates=candidates)
    same = " and ".join(name for name in names if name != zone)
    also = f", which over these bars means the same as {same}," if same else ""
    text = f"the openings and closings of {weekends} fit {zone}{also} and no other known zone"
    if best.timestamp_label == "right":
        text += ", if stamps mark the closes of bars"
    return ZoneInference(text, zone, best.timestamp_label)


def is_worse(fit: ZoneFit, best: ZoneFit, edges: WeekEdges) -> bool:
    """Return True if a fit is too much worse than `best` for chance or a vendor's mistakes.

    A week in another zone has a bar outside at one end and lacks one at the other: two violations.
    The tolerated number of bars outside is not counted.
    """
    outside, lacking = fit.outside - best.outside, fit.lacking - best.lacking
    if outside >= 1 and outside + lacking >= MIN_WEEKENDS + max_outside(edges):
        return True
    if outside == lacking == 0:
        return fit.holidays - best.holidays >= MIN_WEEKENDS
    # Equally possible, but an hour would have to be missing at most weekends.
    return outside >= 0 and lacking >= max(MIN_WEEKENDS, len(edges) // 2)


def infer_mixed_zone(table: RawTable, config: DataConfig) -> ZoneInference:
    """Infer the zone of naive timestamps among others, from their weekends or from continuity."""
    naive = table.local_times.naive
    part = replace(
        table,
        local_times=LocalTimestamps(table.local_times.seconds[naive], naive[naive], "naive"),
        columns={name: column[naive] for name, column in table.columns.items()},
    )
    inference = infer_zone([part], config)
    return inference if inference.zone is not None else _infer_from_continuity(table)


def _infer_from_continuity(table: RawTable) -> ZoneInference:
    """Infer the zone in which naive timestamps continue the others without a gap."""
    seconds, naive = table.local_times.seconds, table.local_times.naive
    is_valid = seconds != MISSING
    seconds, naive = seconds[is_valid], naive[is_valid]
    seam = np.flatnonzero(naive[1:] != naive[:-1])
    size = bar_length(seconds)
    counts = {}
    for zone in ZONES:
        moments = seconds.copy()
        moments[naive] = clock(zone, seconds[naive]).utc(seconds[naive])[0]
        counts[zone] = int((np.abs(moments[seam + 1] - moments[seam]) == size).sum())
    best = max(counts, key=counts.__getitem__)
    ties = tuple(zone for zone in ZONES if counts[zone] == counts[best])
    if 2 * counts[best] <= len(seam):
        return ZoneInference("in no known zone do they continue the others")
    results = {clock(zone, seconds[naive]).utc(seconds[naive])[0].tobytes() for zone in ties}
    if len(results) > 1:
        return ZoneInference(f"{' and '.join(ties)} fit equally well", candidates=ties)
    return ZoneInference(f"in {best} they continue the others", best)


def week_issues(
    table: RawTable, bars: Bars, bar_seconds: int, config: DataConfig
) -> list[DataIssue]:
    """Report a wrong zone, a wrong label, and weekend bars of one forex symbol."""
    edges = find_week_edges(table, bar_seconds)
    if len(edges) >= MIN_WEEKENDS:
        zone = "UTC" if table.local_times.origin in ("aware", "mixed") else table.zone or "UTC"
        current = evaluate_zone(edges, zone, config.timestamp_label)
        issue = _other_end(table, edges, current) or _other_zone(table, edges, current)
        if issue is not None:
            return [issue]
    broker = _broker_time(table, edges, config)
    return broker + _weekend_bars(bars, bar_seconds, table.dialect.zone_hint if broker else None)


def _explains(candidate: ZoneFit, current: ZoneFit, edges: WeekEdges) -> bool:
    """Return True if another zone or label removes most weekend bars that the current one has.

    Or, for bars of hours, if all weeks then begin and end on time while most now lack an hour. A
    few bars outside are a vendor's mistakes and no reason to look for another zone.
    """
    if candidate.outside > max_outside(edges) or not is_worse(current, candidate, edges):
        return False
    if current.outside > max_outside(edges):
        return True
    is_late = 2 * (current.lacking - candidate.lacking) >= len(edges)
    return is_late and 10 * candidate.lacking <= len(edges)


def _other_end(table: RawTable, edges: WeekEdges, current: ZoneFit) -> DataIssue | None:
    """Report timestamps that label the closes of bars instead of the opens, or the reverse."""
    timestamp_label = _OTHER_LABEL[current.timestamp_label]
    other_label = evaluate_zone(edges, current.zone, timestamp_label)
    if not _explains(other_label, current, edges) or 2 * current.outside < len(edges):
        return None
    if timestamp_label == "right" and other_label.exact < MIN_EXACT_SHARE:
        return None
    what = (
        "the week's first stamp is one bar after 17:00 New York and its last at 17:00: stamps "
        "mark the close of the bars"
        if timestamp_label == "right"
        else "with `timestamp_label: right` the week would open and close one bar before 17:00 "
        "New York: stamps mark the open of the bars"
    )
    kind = "close_labelled" if timestamp_label == "right" else "open_labelled"
    ways = ({"timestamp_label": timestamp_label},)
    return DataIssue.from_kind(table.symbol, kind, what, current.outside, fixes=ways)


def _other_zone(table: RawTable, edges: WeekEdges, current: ZoneFit) -> DataIssue | None:
    """Report a zone without weekend bars if the current zone has many."""
    fits = [
        fit for fit in rank_zones(edges, current.timestamp_label) if _explains(fit, current, edges)
    ]
    if not fits and current.timestamp_label == "left":
        fits = [fit for fit in rank_zones(edges, "close") if _explains(fit, current, edges)]
        fits = [fit for fit in fits if fit.exact >= MIN_EXACT_SHARE]
    stated = table.local_times.origin in ("aware", "mixed")
    if stated:  # A stated zone is trusted unless the weeks begin and end at other times.
        fits = [fit for fit in fits if 10 * fit.lacking <= len(edges)]
    if not fits:
        return None
    best = fits[0]
    shift_seconds = current.moments - best.moments
    hours = float(np.median(shift_seconds[shift_seconds != 0])) / HOUR
    # One season off by an hour may be a vendor who keeps UTC hours; a file that states its zone is
    # then believed, unless the hour comes and goes with another zone's clocks.
    changes = min(int((shift_seconds == 0).sum()), int((shift_seconds != 0).sum())) >= MIN_WEEKENDS
    believed = table.local_times.origin in ("aware", "mixed", "epoch")
    doubtful = believed and abs(hours) < 2.0 and not changes
    fixes: list[SuggestedFix] = []
    if not stated:
        end = evaluate_zone(edges, current.zone, _OTHER_LABEL[current.timestamp_label])
        if _explains(end, current, edges) and not is_worse(end, best, edges):
            fixes.append({"timestamp_label": end.timestamp_label})
        ways = [best, *(fit for fit in fits[1:] if not is_worse(fit, best, edges))]
        for fit in ways:
            marks = (
                {}
                if fit.timestamp_label == current.timestamp_label
                else {"timestamp_label": fit.timestamp_label}
            )
            fixes.append({"time_zone": fit.zone, **marks})
    count, odd = current.outside, "have bars while the market is closed"
    if not count:
        count, odd = current.lacking, "lack bars while the market is open"
    shift = f"{abs(hours):.3g} hour{'s' if abs(hours) > 1 else ''}"
    message = (
        f"{count} of {plural(len(edges), 'weekend')} {odd}, and none would if the stamps there "
        f"were {shift} {'earlier' if hours > 0 else 'later'}: they are in another zone"
        + (" than they state, so write the file again" if stated else f" than {current.zone}")
    )
    if doubtful:
        action = "loading takes them as they are"
        return DataIssue.from_kind(table.symbol, "local_time", message, count, action, "warning")
    return DataIssue.from_kind(table.symbol, "local_time", message, count, fixes=fixes)


def _broker_time(table: RawTable, edges: WeekEdges, config: DataConfig) -> list[DataIssue]:
    """Report MetaTrader's epochs whose zone is unknown."""
    broker = table.dialect.name == "MetaTrader" and table.local_times.origin == "epoch"
    if not broker or config.time_zone is not None:
        return []
    if len(edges) >= MIN_WEEKENDS:
        utc, *rivals = sorted(
            rank_zones(edges, config.timestamp_label), key=lambda fit: fit.zone != "UTC"
        )
        if utc.zone == "UTC" and all(is_worse(fit, utc, edges) for fit in rivals):
            return []
    message = (
        "MetaTrader counts the seconds of the broker's clock, which is rarely UTC (most brokers "
        "keep America/New_York+7), and these weekends do not show which: set `time_zone`"
    )
    return [DataIssue.from_kind(table.symbol, "broker_time", message, len(table))]


def _weekend_bars(bars: Bars, bar_seconds: int, hint: str | None) -> list[DataIssue]:
    """Report bars while the market is closed; an error if half of the weekends have them.

    Args:
        bars: of one symbol.
        bar_seconds: length of a bar.
        hint: the usual zone of epochs of unknown zone; None if the zone is known.
    """
    if bar_seconds > LONGEST_BAR:
        return []
    inside = is_weekend(bars.time) & is_weekend(bars.time + bar_seconds - 1)
    if not inside.any():
        return []
    week = day_number(bars.time) // 7
    bad, of = len(np.unique(week[inside])), int(week[-1] - week[0]) + 1
    suffix = f" between Friday and Sunday 17:00 New York, at {bad} of {plural(of, 'weekend')}"
    does: dict[str, Any]
    if bad < MIN_WEEKENDS or 2 * bad < of:
        does = {"severity": "warning", "action": "loading keeps them"}
    elif hint and not is_weekend(clock(hint, bars.time).utc(bars.time)[0]).any():
        action = "loading refuses: the broker's clock is in another zone than UTC"
        does = {"action": action, "fixes": ({"time_zone": hint},)}
    else:
        does = {"action": "loading refuses: no known zone explains them"}
    return DataIssue.at_bars(bars.symbol, "weekend_bars", bars.time, inside, "bar", suffix, **does)
