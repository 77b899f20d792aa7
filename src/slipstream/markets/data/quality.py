"""Quality: holes, unusual prices and unusual volumes, all of which loading keeps.

Holes are missing bars, classified as weekends, holidays, outages and gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.core.text import plural, stamp
from slipstream.core.timeline import DAY, NEW_YORK, local_time
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import Bars, BoolArray, FloatArray, IntArray, timeframe_name
from slipstream.markets.data.calendar import calendar_warning, closed_seconds, get_calendar
from slipstream.markets.data.data_issue import DataIssue, Severity, first_times, format_fix
from slipstream.markets.data.symbols import MarketKind

_KEPT_SIZES = 8
_HOLIDAY_SECONDS = 3 * 3600  # shorter holes around Christmas are ordinary gaps
_OUTAGE_BARS = 3  # bars without trading before a hole that make it an outage
_WEEKEND_SECONDS = 40 * 3600
_CLOSED_DAYS = {"Christmas": (12, 25), "New Year": (1, 1)}
_STRETCH = 60  # shortest run of steps of another length that is reported
_STALE_RUN = 5  # shortest run of bars with the same price that is reported
_LARGE_MOVE = 0.10
_COARSE_TICK = 5e-4
_BOUNCE = -0.02
_NOISE = 3.0  # standard errors, 1 / sqrt(n) each, that chance may explain
_AHEAD = 8.0  # t value from which a column may contain the future
_LEAST_PAIRS = 100
_WIDE_PIPS, _WIDE_SHARE = 50.0, 1e-3


def quality_issues(bars: Bars, bar_seconds: int, kind: MarketKind, file: str) -> list[DataIssue]:
    """Return all issues of one symbol's numbers.

    Args:
        bars: the cleaned bars.
        bar_seconds: length of a bar.
        kind: trading hours.
        file: name of its file.
    """
    return [
        *_silence(bars),
        *_stale(bars, _outage_bars(bars, bar_seconds, kind)),
        *_moves(bars, bar_seconds),
        *_bounce(bars),
        *_look_ahead(bars),
        *_wide(bars),
        *_alignment(bars, bar_seconds),
        *_spacing(bars, bar_seconds),
        *_name(bars.symbol, kind, file),
        *_years(bars, bar_seconds, kind),
    ]


def _years(bars: Bars, bar_seconds: int, kind: MarketKind) -> list[DataIssue]:
    warning = calendar_warning(bars.time, bar_seconds, get_calendar(kind, bar_seconds))
    return [] if warning is None else [DataIssue.from_kind(bars.symbol, "calendar", warning)]


def _name(symbol: str, kind: MarketKind, file: str) -> list[DataIssue]:
    if symbols.parse(symbol) is not None:
        return []
    guess = symbols.find_pair(symbol)
    named = format_fix({"files": {guess: file}})
    advice = f", though it contains {guess}: {named} names it" if guess else ""
    message = f"the name does not parse into two currencies{advice}"
    action = f"loading takes it as a {kind} market; a forex account cannot convert its profit"
    severity: Severity = "warning" if guess or kind == "fx" else "info"
    return [DataIssue.from_kind(symbol, "symbol_name", message, 1, action, severity)]


def _silence(bars: Bars) -> list[DataIssue]:
    flat, empty = bars.high == bars.low, bars.volume == 0.0
    if (bars.volume > 0.0).any():
        issues = _share(bars, "zero_volume", empty, "zero-volume bar", 1e-3)
    else:
        issues = [DataIssue.from_kind(bars.symbol, "no_volume", "there is no volume", len(bars))]
    return issues + _share(bars, "flat", flat, "flat bar", 0.01)


def _share(bars: Bars, kind: str, mask: BoolArray, noun: str, many: float) -> list[DataIssue]:
    """Report bars, as a warning if their share is `many` or more."""
    share = float(mask.mean())
    severity = "warning" if share >= many else "info"
    suffix = f" ({100 * share:.2g} %)"
    return DataIssue.at_bars(bars.symbol, kind, bars.time, mask, noun, suffix, severity=severity)


def _stale(bars: Bars, ignore: BoolArray) -> list[DataIssue]:
    """Report runs of bars that repeat one price exactly, except those to `ignore`, bool [n]."""
    same = (bars.high == bars.low) & ~ignore
    same[1:] &= bars.close[1:] == bars.close[:-1]
    run = _runs(same)
    lengths = np.bincount(run)[run]
    stale = same & (lengths >= _STALE_RUN)
    if not stale.any():
        return []
    starts = stale & np.append(True, run[1:] != run[:-1])
    times = first_times(bars.time, starts)
    count, longest = int(stale.sum()), int(lengths[stale].max())
    message = (
        f"{plural(count, 'stale bar')} repeating the price before them, in "
        f"{plural(int(starts.sum()), 'run')} of up to {longest}, first {stamp(times[0])} UTC"
    )
    return [DataIssue.from_kind(bars.symbol, "stale", message, count, times=times)]


def _moves(bars: Bars, bar_seconds: int) -> list[DataIssue]:
    limit = _LARGE_MOVE * max(1.0, (bar_seconds / 3600.0) ** 0.5)
    move = np.append(0.0, bars.close[1:] / bars.close[:-1] - 1.0)
    largest = float(move[np.argmax(np.abs(move))])
    suffix = (
        f" more than {100 * limit:.0f} % away from the close before, the largest "
        f"{100 * largest:+.1f} %"
    )
    large = np.abs(move) > limit
    return DataIssue.at_bars(bars.symbol, "large_move", bars.time, large, "close", suffix)


def _bounce(bars: Bars) -> list[DataIssue]:
    """Report signs that a fill at the last observed close would profit from the bid-ask bounce."""
    signs = []
    tick, median = tick_size(bars.close), float(np.median(bars.close))
    if tick / median > _COARSE_TICK:
        sign = f"the tick of {tick:g} is {1e4 * tick / median:.1f} bp of the price"
        signs.append(("coarse_tick", sign))
    correlation = lag_one_autocorrelation(np.diff(np.log(bars.close)))
    if correlation < min(_BOUNCE, -_NOISE / max(len(bars) - 1, 1) ** 0.5):
        signs.append(("bounce", f"lag-1 autocorrelation of returns is {correlation:.3f}"))
    bounce = "fills at the same close would earn the bounce"
    return [DataIssue.from_kind(bars.symbol, kind, f"{sign}: {bounce}") for kind, sign in signs]


def _look_ahead(bars: Bars) -> list[DataIssue]:
    """Report columns that may contain the future: they correlate with the next bar's return.

    A column is tested as it is, by its change, and by its ratio to the close if it is a price. The
    prediction from the last two returns is removed first: a bouncing price is no look-ahead.
    """
    if not bars.extra or len(bars) < _LEAST_PAIRS + 3:
        return []
    returns = np.diff(np.log(bars.close))  # of bar t + 1 at row t
    ahead, past = returns[2:], np.stack([np.ones(len(returns) - 2), returns[1:-1], returns[:-2]])
    ahead = ahead - past.T @ np.linalg.lstsq(past.T, ahead, rcond=None)[0]
    issues = []
    for name, column in bars.extra.items():
        forms = {"": column, "the change of ": np.diff(column, prepend=np.nan)}
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = column / bars.close
        if 0.5 < float(np.nanmedian(ratio) if np.isfinite(ratio).any() else 0.0) < 2.0:
            forms["the ratio to the close of "] = ratio
        values = {
            suffix: _t_value(values_of_form[2:-1], ahead)
            for suffix, values_of_form in forms.items()
        }
        suffix = max(values, key=lambda form: abs(values[form]))
        if abs(values[suffix]) > _AHEAD:
            message = (
                f"{suffix}column `{name}` correlates with the next bar's return (t = "
                f"{values[suffix]:.1f}): it may contain the future"
            )
            issues.append(DataIssue.from_kind(bars.symbol, "look_ahead", message))
    return issues


def _t_value(column: FloatArray, ahead: FloatArray) -> float:
    """Return the t value of a correlation over the rows in which the column is finite."""
    is_finite = np.isfinite(column)
    count = int(is_finite.sum())
    x, y = column[is_finite], ahead[is_finite]
    if count < _LEAST_PAIRS or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return 0.0
    x = (x - x.mean()) / max(float(np.abs(x).max()), 1e-300)
    y = y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    if not scale > 0.0:
        return 0.0
    rho = min(max(float(x @ y) / scale, -1.0), 1.0)
    return rho * float(np.sqrt((count - 2) / max(1.0 - rho * rho, 1e-12)))


def tick_size(close: FloatArray) -> float:
    """Return the smallest change between closes that is not rounding, price units; 0 if none."""
    steps = np.abs(np.diff(close))
    steps = steps[steps > 1e-8 * float(np.median(close))]
    return float(steps.min()) if len(steps) else 0.0


def lag_one_autocorrelation(returns: FloatArray) -> float:
    """Return the lag-1 autocorrelation; 0 if it is undefined."""
    if len(returns) < 100 or np.ptp(returns[1:]) == 0.0 or np.ptp(returns[:-1]) == 0.0:
        return 0.0
    return float(np.corrcoef(returns[1:], returns[:-1])[0, 1])


def _spacing(bars: Bars, bar_seconds: int) -> list[DataIssue]:
    """Report long runs of bars that are mostly one other length apart."""
    steps = np.diff(bars.time)
    is_irregular = steps != bar_seconds
    seams = np.flatnonzero(
        np.diff(is_irregular, prepend=~is_irregular[:1], append=~is_irregular[-1:])
    )
    issues = []
    for start, stop in zip(seams[:-1].tolist(), seams[1:].tolist(), strict=True):
        if not is_irregular[start] or stop - start < _STRETCH:
            continue
        sizes, counts = np.unique(steps[start:stop], return_counts=True)
        if 2 * counts.max() < stop - start:
            continue
        length = timeframe_name(int(sizes[np.argmax(counts)]))
        first, last = int(bars.time[start]), int(bars.time[stop])
        message = (
            f"{plural(stop - start, 'bar')} of {length} from {stamp(first)} to {stamp(last)} UTC "
            f"among bars of {timeframe_name(bar_seconds)}"
        )
        times = (first,)
        issues.append(
            DataIssue.from_kind(bars.symbol, "spacing", message, stop - start, times=times)
        )
    return issues


def _alignment(bars: Bars, bar_seconds: int) -> list[DataIssue]:
    """Report timestamps off the grid of most timestamps (off whole hours for days and longer)."""
    grid = min(bar_seconds, 3600)
    phase = bars.time % grid
    phases, counts = np.unique(phase, return_counts=True)
    off = phase != phases[np.argmax(counts)]
    suffix = f" off the {grid}-second grid of the others"
    return DataIssue.at_bars(bars.symbol, "misaligned", bars.time, off, "stamp", suffix)


def _wide(bars: Bars) -> list[DataIssue]:
    """Report single bars of a pair with a spread above 50 pips."""
    if symbols.market_kind(bars.symbol) != "fx":
        return []
    # Fifty pips of an ounce of gold are half a cent: require a wide spread in pips and in price.
    pip = symbols.pip_size(bars.symbol)
    wide = bars.spread > np.maximum(_WIDE_PIPS * pip, _WIDE_SHARE * bars.close)
    suffix = f" with a spread above 50 pips, the widest {float(bars.spread.max()) / pip:.0f} pips"
    return DataIssue.at_bars(bars.symbol, "wide_spread", bars.time, wide, "bar", suffix)


@dataclass(frozen=True, eq=False)
class Holes:
    """Places in a series of bars where the next one is late.

    Attributes:
        row: row of the bar before each hole, int64 [k].
        start, stop: UTC seconds of the first missing open and of the bar after the hole, int64 [k].
        missing: missing bars, int64 [k].
        in_session: missing bars within trading hours, int64 [k].
    """

    row: IntArray
    start: IntArray
    stop: IntArray
    missing: IntArray
    in_session: IntArray


def find_holes(time: IntArray, bar_seconds: int, kind: MarketKind) -> Holes:
    """Return all holes of a series of bar opens."""
    row = np.flatnonzero(np.diff(time) > bar_seconds)
    start, stop = time[row] + bar_seconds, time[row + 1]
    missing = -((start - stop) // bar_seconds)
    closed = closed_seconds(start, stop) if kind == "fx" else np.zeros_like(start)
    in_session = -((start - stop + closed) // bar_seconds)
    if kind == "fx" and bar_seconds == DAY:
        # A day counts if its market is open for most of it: Sunday at midnight UTC is not.
        days = [np.arange(a, b, DAY, dtype=np.int64) for a, b in zip(start, stop, strict=True)]
        opened = [int((closed_seconds(day, day + DAY) < DAY // 2).sum()) for day in days]
        in_session = np.array(opened, dtype=np.int64)
    return Holes(row, start, stop, missing, np.maximum(in_session, 0))


def hole_issues(bars: Bars, bar_seconds: int, kind: MarketKind) -> list[DataIssue]:
    """Count weekends and report holidays, outages and gaps, gaps by size."""
    if bar_seconds > DAY:
        return []
    holes = find_holes(bars.time, bar_seconds, kind)
    issues = _weekends(bars.symbol, holes) if kind == "fx" else []
    open_holes = holes.in_session > 0
    quiet_run = _run_length(bars.silent)
    for index in np.flatnonzero(open_holes).tolist():
        holiday = _holiday(holes, index, bar_seconds) if kind == "fx" else None
        row, size = int(holes.row[index]), int(holes.in_session[index])
        quiet = int(quiet_run[row])
        if holiday is None and quiet < _OUTAGE_BARS:
            continue
        open_holes[index] = False
        begin, last = int(holes.start[index]), int(bars.time[row])
        missing, end = plural(size, "missing bar"), stamp(int(holes.stop[index]))
        if holiday is not None:
            label, since = "holiday", begin
            message = f"{holiday} hole of {missing}, {stamp(begin)} to {end} UTC"
        else:
            label, since = "outage", last
            message = (
                f"exchange outage: {missing} between {stamp(last)} and {end} UTC, after {quiet} "
                "flat zero-volume bars"
            )
        issues.append(DataIssue.from_kind(bars.symbol, label, message, times=(since,), size=size))
    return issues + _gaps(bars.symbol, holes, open_holes)


def _weekends(symbol: str, holes: Holes) -> list[DataIssue]:
    weekend = closed_seconds(holes.start, holes.stop) >= _WEEKEND_SECONDS
    if not weekend.any():
        return []
    sizes, counts = np.unique((holes.missing - holes.in_session)[weekend], return_counts=True)
    usual, count = int(sizes[np.argmax(counts)]), int(weekend.sum())
    others = [
        f"{size} once" if times == 1 else f"{size} in {times}"
        for size, times in zip(sizes.tolist(), counts.tolist(), strict=True)
        if size != usual
    ]
    exceptions = f" ({' and '.join(others)}, when clocks change)" if others else ""
    message = f"{plural(count, 'weekend')} of {usual} bars{exceptions}"
    first = first_times(holes.start, weekend)
    return [DataIssue.from_kind(symbol, "weekend", message, count, times=first, size=usual)]


def _gaps(symbol: str, holes: Holes, selected: BoolArray) -> list[DataIssue]:
    sizes, counts = np.unique(holes.in_session[selected], return_counts=True)
    listed = sizes if len(sizes) <= _KEPT_SIZES else sizes[np.argsort(counts)[-_KEPT_SIZES:]]
    issues = []

    def report(rows: BoolArray, suffix: str, size: int) -> None:
        count, times = int(rows.sum()), first_times(holes.start, rows)
        message = f"{plural(count, 'hole')} of {suffix}"
        if size in listed:  # the rows are those of one size
            message += f", {'at' if count == 1 else 'first'} {stamp(times[0])} UTC"
        issues.append(DataIssue.from_kind(symbol, "gap", message, count, times=times, size=size))

    for size in np.sort(listed).tolist():
        report(selected & (holes.in_session == size), plural(size, "missing bar"), size)
    rest = selected & ~np.isin(holes.in_session, listed)
    if rest.any():
        largest = int(holes.in_session[rest].max())
        report(rest, f"other sizes, up to {largest:,} missing bars", largest)
    return issues


def _holiday(holes: Holes, index: int, bar_seconds: int) -> str | None:
    """Return the closed day that a hole overlaps (from 17:00 the day before), if long enough."""
    if holes.in_session[index] * bar_seconds < _HOLIDAY_SECONDS:
        return None
    moments = np.arange(holes.start[index], holes.stop[index], 3600, dtype=np.int64)[: 24 * 14]
    days = np.unique((local_time(moments, NEW_YORK) + 7 * 3600) // DAY)
    dates = [(day.month, day.day) for day in days.astype("datetime64[D]").tolist()]
    for name, date in _CLOSED_DAYS.items():
        if date in dates:
            return name
    return None


def _run_length(mask: BoolArray) -> IntArray:
    """Return the length of the run of true values that ends at each row, int64 [n]."""
    rows = np.arange(1, len(mask) + 1)
    return rows - np.maximum.accumulate(np.where(mask, 0, rows))


def _outage_bars(bars: Bars, bar_seconds: int, kind: MarketKind) -> BoolArray:
    """Return a mask of silent bars that lead into a hole, bool [n]."""
    holes = find_holes(bars.time, bar_seconds, kind)
    quiet = bars.silent
    run_id = _runs(quiet)
    return quiet & np.isin(run_id, run_id[holes.row[quiet[holes.row]]])


def _runs(mask: BoolArray) -> IntArray:
    """Return the index of the run of equal values of each row, int64 [n]."""
    return np.cumsum(np.append(True, mask[1:] != mask[:-1]))
