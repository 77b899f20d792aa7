"""Cleaning: the action of loading on each kind of bad data.

Rules, in the order in which they are applied:

    refused, or dropped with `bad_bars: drop`:
        unreadable timestamps, wall-clock times that do not exist, missing numbers, prices that
        are not positive, high < low, open or close outside [low, high], negative volume, missing
        or negative spread
    refused, unless the config allows it:
        prices that jump by a power of ten, prices in another unit, spreads in another unit
    refused:
        bid or ask prices without a spread
    fixed:
        unsorted rows are sorted; of rows with the same timestamp the last is kept; flat weekend
        candles of a forex market are dropped
    kept (`check` reports them):
        everything else, such as holes, zero volume, stale prices, misaligned timestamps

Nothing is filled, interpolated or resampled. The detection of wrong units follows below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slipstream.core.text import plural, stamp
from slipstream.core.timeline import DAY
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import Bars, BoolArray, FloatArray, IntArray, timeframe_name
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import DataIssue, SuggestedFix, first_times
from slipstream.markets.data.dialect import PRICES, map_columns
from slipstream.markets.data.file_discovery import expand_parts
from slipstream.markets.data.raw_table import RawTable, Spread
from slipstream.markets.data.timestamps import (
    bar_length,
    has_many_duplicates,
    latest_valid_time,
    row_spacing,
)

_LARGEST, _SMALLEST_PRICE = 1e100, 1e-20  # values beyond are sentinels of a database
_ROUNDING = 1e-9  # relative: files written with float32 or scaled prices


@dataclass(frozen=True, eq=False)
class FileInspection:
    """One file before and after cleaning, with its issues.

    Attributes:
        table: the file's rows; timestamps without a zone are read in `assumed_zone`.
        bars: bars left after dropping every bad one, even if loading would refuse them: the data
            check continues with them. None if fewer than two are left.
        bar_seconds: length of a bar; 0 if unknown.
        kind: trading hours.
        issues: in the order in which they were found.
        assumed_zone: an unconfirmed time zone; empty if none had to be assumed.
    """

    table: RawTable
    bars: Bars | None
    bar_seconds: int
    kind: symbols.MarketKind
    issues: tuple[DataIssue, ...]
    assumed_zone: str = ""


def get_market_kind(symbol: str, config: DataConfig) -> symbols.MarketKind:
    """Return the trading hours of a symbol under this config."""
    return symbols.market_kind(symbol) if config.market == "auto" else config.market


def clean(table: RawTable, config: DataConfig, assumed_zone: str = "") -> FileInspection:
    """Apply the rules above to one file."""
    kind = get_market_kind(table.symbol, config)
    issues: list[DataIssue] = []
    if table.unknown:
        message = f"{plural(table.unknown, 'bar')} with volume -1"
        issues.append(DataIssue.from_kind(table.symbol, "unknown_volume", message, table.unknown))
    if table.unpaired:
        message = f"{plural(table.unpaired, 'row')} of bid or ask without the other side"
        issues.append(DataIssue.from_kind(table.symbol, "unpaired", message, table.unpaired))
    rows = _readable_rows(table, config, issues)
    time = table.timestamps.time[rows]
    bar_seconds = bar_length(time)
    time = time - bar_seconds * (config.timestamp_label == "right")
    issues += DataIssue.at_bars(
        table.symbol,
        "future",
        time,
        time > latest_valid_time(),
        "bar",
        " after today",
        ", first at {} UTC: the stamps are read in the wrong unit, or in the wrong order of day, "
        "month and year",
    )
    order = _sort_rows(table, rows, time, issues)
    time, rows = time[order], rows[order]
    good = _sound_rows(table, config, rows, time, issues)
    time, rows = time[good], rows[good]
    columns = {name: column[rows] for name, column in table.columns.items()}
    spread = np.zeros(len(rows)) if table.spread is None else table.spread.width[rows]
    issues += _missing_spread_issues(table, config)
    side = "mid" if table.dialect.two_sided else config.price_side
    shift = {"mid": 0.0, "bid": 0.5, "ask": -0.5}[side] * spread
    for name in PRICES:
        columns[name] = columns[name] + shift
    jumps = jump_issues(table.symbol, columns["close"], time)
    units = unit_issues(table, columns["close"], config)
    if jumps:  # no single factor fits the whole file
        units = [replace(issue, fixes=()) for issue in units]
    # The unit of a spread can be checked once the unit of the prices is known.
    issues += units or spread_issues(table, config)
    issues += jumps
    keep = ~_weekend_candles(kind, time, bar_seconds, table.silent[rows])
    suffix = " without volume while the forex market was closed"
    issues += DataIssue.at_bars(
        table.symbol, "weekend_flat", time, ~keep, "flat candle", suffix, first=""
    )
    if int(keep.sum()) < 2 or bar_seconds == 0:
        usable = int(keep.sum())
        message = (
            f"{plural(usable, 'usable bar')}, at least two are needed: leave the symbol out of "
            "`symbols`"
        )
        issues.append(DataIssue.from_kind(table.symbol, "too_few", message, usable))
        return FileInspection(table, None, bar_seconds, kind, tuple(issues), assumed_zone)
    bars = Bars(
        table.symbol,
        time[keep],
        **{name: column[keep] for name, column in columns.items()},
        spread=spread[keep],
        extra={name: column[rows][keep] for name, column in table.extra.items()},
    )
    return FileInspection(table, bars, bar_seconds, kind, tuple(issues), assumed_zone)


def _readable_rows(table: RawTable, config: DataConfig, issues: list[DataIssue]) -> IntArray:
    """Return the rows with a valid timestamp."""
    missing, skipped = table.timestamps.missing, table.timestamps.skipped
    if missing.any():
        count, first = int(missing.sum()), int(np.flatnonzero(missing)[0]) + 1
        message = f"{plural(count, 'unreadable time stamp')}, the first in data row {first:,}"
        fields = _bad_bars_fields(config, count, len(table))
        issues.append(DataIssue.from_kind(table.symbol, "bad_time", message, count, **fields))
    issues += DataIssue.at_bars(
        table.symbol,
        "nonexistent_time",
        table.timestamps.time,
        skipped,
        "stamp",
        f" in an hour that the clocks of {table.zone} skipped",
        ", the first near {} UTC: that is not the zone of this file",
        **_bad_bars_fields(config, int(skipped.sum()), len(table)),
    )
    return np.flatnonzero(~missing & ~skipped)


def _sort_rows(
    table: RawTable, rows: IntArray, time: IntArray, issues: list[DataIssue]
) -> IntArray:
    """Return the row order that sorts by time; of rows with equal timestamps the last is kept."""
    symbol, part = table.symbol, table.part[rows]
    backwards = (np.diff(time, prepend=time[:1]) < 0) & (np.diff(part, prepend=part[:1]) == 0)
    if backwards.any():
        count, times = int(backwards.sum()), first_times(time, backwards)
        message = f"time runs backwards {plural(count, 'time')}, first at {stamp(times[0])}"
        issues.append(DataIssue.from_kind(symbol, "unsorted", message, count, times=times))
    order = np.argsort(time, kind="stable")
    ordered = time[order]
    superseded = np.zeros(len(ordered), dtype=np.bool_)
    superseded[:-1] = ordered[1:] == ordered[:-1]
    kept: IntArray = order[~superseded]
    across = superseded & (np.diff(part[order], append=part[order][-1:]) != 0)
    superseded &= ~across
    unlike = np.zeros(len(ordered), dtype=np.bool_)
    for column in table.columns.values():
        values = column[rows][order]
        same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
        unlike[:-1] |= ~same
    if has_many_duplicates(int((superseded & unlike).sum()), len(ordered)):
        issues.append(_coarse_time_issue(table, time))
    differ = across & unlike
    if differ.any():
        first = int(np.flatnonzero(differ)[0])
        names = [expand_parts(table.path)[k].name for k in part[order][first : first + 2]]
        suffix = f" of {plural(int(across.sum()), 'bar')} that two of its files hold differ"
        where = f" in {names[0]} and {names[1]}, whose bars stay where this is accepted"
        issues += DataIssue.at_bars(
            symbol, "overlap", ordered, differ, "bar", suffix, ", first at {}" + where
        )
    suffix = " with the stamp of another bar"
    issues += DataIssue.at_bars(
        symbol, "duplicate", ordered, superseded, "bar", suffix, ", first at {}"
    )
    return kept


def _coarse_time_issue(table: RawTable, time: IntArray) -> DataIssue:
    """Report timestamps that many different bars share."""
    distinct = len(np.unique(time))
    message = (
        f"{plural(len(time), 'row')} have {plural(distinct, 'time stamp')} between them, the first "
        f"is {stamp(int(time[0]))}: stamps lack their hours, or a spreadsheet rounded them. Export "
        "the file again with full stamps"
    )
    spacing = row_spacing(table.local_times)
    ways = []
    if spacing:
        name = timeframe_name(spacing)
        message += f"; rows of {name} without a hole would fit these stamps in one way"
        ways = [{"row_spacing": name}]
    return DataIssue.from_kind(table.symbol, "coarse_time", message, len(time), fixes=ways)


def _sound_rows(
    table: RawTable, config: DataConfig, rows: IntArray, time: IntArray, issues: list[DataIssue]
) -> BoolArray:
    """Return a mask of bars with possible numbers and report the others."""
    columns = {name: column[rows] for name, column in table.columns.items()}
    if table.spread is not None:
        columns["spread"] = table.spread.width[rows]
    good = np.ones(len(rows), dtype=np.bool_)

    def report(kind: str, bad: BoolArray, what: str) -> None:
        bad = bad & good  # counts each bar once
        fields = _bad_bars_fields(config, int(bad.sum()), len(bad))
        issues.extend(
            DataIssue.at_bars(
                table.symbol, kind, time, bad, "bar", f" with {what}", ", the first at {}", **fields
            )
        )
        np.logical_and(good, ~bad, out=good)

    for name, column in columns.items():
        report("nan", ~(np.abs(column) <= _LARGEST), f"no number in column {name}")
    for name in PRICES:
        report(
            "non_positive",
            columns[name] < _SMALLEST_PRICE,
            f"a price ({name}) that is not positive",
        )
    low, high = columns["low"], columns["high"]
    slack = _ROUNDING * np.abs(columns["close"])
    report("high_below_low", high < low - slack, "high below low")
    top = np.maximum(columns["open"], columns["close"])
    bottom = np.minimum(columns["open"], columns["close"])
    outside = (top > high + slack) | (bottom < low - slack)
    report("outside_range", outside, "open or close outside low to high")
    report("negative_volume", columns["volume"] < 0.0, "negative volume")
    if "spread" in columns:
        report("negative_spread", columns["spread"] < 0.0, "a negative spread")
    return good


def _missing_spread_issues(table: RawTable, config: DataConfig) -> list[DataIssue]:
    if config.price_side == "mid" or table.spread is not None:
        return []
    message = (
        f"{config.price_side} prices without a spread to shift them to mid: set your broker's in "
        "`spread_pips`, or name the file's spread column in `columns`"
    )
    ways = ({"spread_pips": 1.0}, {"price_side": "mid"})
    return [DataIssue.from_kind(table.symbol, "no_spread", message, len(table), fixes=ways)]


def _weekend_candles(kind: str, time: IntArray, bar_seconds: int, silent: BoolArray) -> BoolArray:
    """Return a mask of candles invented while the forex market was closed, bool [n]."""
    if kind != "fx" or bar_seconds > DAY or len(time) == 0:
        return np.zeros(len(time), dtype=np.bool_)
    closed: BoolArray = silent & is_weekend(time) & is_weekend(time + bar_seconds - 1)
    return closed


def _bad_bars_fields(config: DataConfig, count: int, of: int) -> dict[str, Any]:
    """Return issue fields for `count` of `of` bad bars under the config's `bad_bars`."""
    if config.bad_bars == "drop":
        return {"severity": "warning", "action": "loading drops them"}
    if 2 * count >= of:  # too few bars would be left
        return {}
    return {
        "action": "loading refuses, or drops them with `bad_bars: drop`",
        "fixes": ({"bad_bars": "drop"},),
    }


_JUMP_TOLERANCE = 0.15  # in log10: ratios within 10**(1 +- 0.15) of a power of ten
# Tolerance beyond the price range of three decades. A wrong unit is off by a factor of ten or
# more; the ranges of the major pairs are less than a factor of 2.5 wide.
_BEYOND = 2.0
_NOISE = 1e-7  # relative: 103428.00000000001 and float32 points are whole numbers
_CHECKED = 5000  # rows sampled for the resolution of prices
_MOST_DIGITS = 9
# Largest plausible median spread as a fraction of the price. Retail spreads of exotic pairs stay
# below 0.5 %.
_NONSENSE = 0.01
# Whole-number spreads beside finer prices are points above this share; 5 rupiah of 16,000 are not.
_WHOLE = 5e-4
# Whole numbers from here on are points, not pips: a median spread of four pips is implausible.
_POINTS = 4.0
_NOTHING = 1e-7  # of the price: a hundredth of a pip of EURUSD
_FRACTION = 0.1  # smallest plausible median of spreads in points
_FEWEST = 100  # bars needed to determine the last digit of quotes


def unit_issues(table: RawTable, close: FloatArray, config: DataConfig) -> list[DataIssue]:
    """Report prices outside the range that the pair has had: they are in another unit.

    Args:
        table: the file.
        close: mid closes of its usable bars, float64 [n].
        config: for the scale that the fix replaces.
    """
    usual = symbols.usual_range(table.symbol)
    if usual is None or len(close) == 0 or config.market == "24/7":
        return []
    low, high = usual
    median = float(np.median(close))
    if low / _BEYOND <= median <= high * _BEYOND:
        return []
    is_integer = bool(is_whole(table.quoted).all())
    message = (
        f"prices near {median:g} where {low:.3g} to {high:.3g} is usual"
        + (", all of them whole numbers: these are points" if is_integer else ": another unit")
        + ", and pips and costs would be off by as much"
    )
    kind, ways = (
        "integer_prices" if is_integer else "units",
        _scale_fixes(table, median, usual, config),
    )
    return [DataIssue.from_kind(table.symbol, kind, message, len(close), fixes=ways)]


def _scale_fixes(
    table: RawTable, median: float, usual: tuple[float, float], config: DataConfig
) -> tuple[SuggestedFix, ...]:
    """Return the power of ten that brings prices into their range, or the inverted pair."""
    low, high = usual
    centre = 0.5 * (np.log10(low) + np.log10(high))
    power = round(centre - np.log10(median))
    pair = symbols.extract_pair(table.symbol)
    if pair is not None and low <= 1.0 / median <= high and not low <= median * 10.0**power <= high:
        turned = pair.quote + pair.base
        return ({"files": {turned: table.path.name}},)
    if not low / _BEYOND <= median * 10.0**power <= high * _BEYOND:
        return ()
    scale = float(f"{config.price_scale_for(table.symbol) * 10.0**power:.12g}")
    return ({"price_scale": {table.symbol: scale}},)


def jump_issues(symbol: str, close: FloatArray, time: IntArray) -> list[DataIssue]:
    """Report closes that jump by a power of ten."""
    if len(close) < 2:
        return []
    step = np.log10(close[1:] / close[:-1])
    jump = np.append(False, (np.abs(step) > 0.7) & (np.abs(step - np.rint(step)) < _JUMP_TOLERANCE))
    count, times = int(jump.sum()), first_times(time, jump)
    if not count:
        return []
    ratio = 10.0 ** float(step[np.flatnonzero(jump)[0] - 1])
    message = (
        f"the close jumps by a power of ten {plural(count, 'time')}, first x{ratio:.4g} at "
        f"{stamp(times[0])}: the unit of the prices changes inside the file"
    )
    return [DataIssue.from_kind(symbol, "scale_jump", message, count, times=times)]


def is_whole(values: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of values that are whole up to floating-point noise, bool [n]."""
    return np.abs(values - np.rint(values)) <= _NOISE * np.maximum(np.abs(values), 1.0)


def price_resolution(prices: FloatArray) -> float:
    """Return the power of ten that all prices are multiples of, price units: 1.10342 -> 0.00001.

    1e-9 if they are finer than that, as computed prices are.
    """
    some = prices[:: max(len(prices) // _CHECKED, 1)]
    some = some[np.isfinite(some)]
    for digits in range(_MOST_DIGITS):
        scaled = some * 10.0**digits
        if (np.abs(scaled - np.rint(scaled)) <= 1e-9 * np.abs(scaled) + 1e-6).all():
            return float(10.0**-digits)
    return float(10.0**-_MOST_DIGITS)


def spread_issues(table: RawTable, config: DataConfig) -> list[DataIssue]:
    """Report spread columns that cannot be in the unit in which they are read."""
    spread = table.spread
    if spread is None:
        return []
    share = _share(spread.width, table.columns["close"])
    if spread.column is None:
        if share <= _NONSENSE:
            return []
        message = f"`spread_pips: {config.spread_pips:g}` is {100.0 * share:.3g} % of the price"
        action = "loading refuses: a pip is 0.01 where the quote is JPY, else 0.0001"
        return [DataIssue.from_kind(table.symbol, "spread_unit", message, len(table), action)]
    if spread.meaning == "spread_points":
        issue = _coarser_point(table, spread, config)
        if issue is not None:
            return [issue]
    column = spread.column[np.isfinite(spread.column)]
    typical = _median(column[column > 0.0])
    is_integer = bool(len(column) > 0 and is_whole(column).all())
    finer = price_resolution(table.quoted) < 1.0
    if spread.meaning == "spread" and is_integer and finer and share > _WHOLE:
        what = f"whole numbers (median {typical:g}) beside finer prices: these are points"
    elif spread.meaning == "spread_points" and 0.0 < typical < _FRACTION:
        what = f"{typical:g} in the median: no broker quotes a fraction of its last digit"
    elif share > _NONSENSE:
        what = f"{100.0 * share:.3g} % of the price in the median ({typical:g})"
    else:
        return []
    meant = "price units" if spread.meaning == "spread" else spread.meaning.removeprefix("spread_")
    message = f"the column of spreads, read as {meant}, holds {what}"
    ways = _spread_unit_fixes(table, spread, config)
    return [DataIssue.from_kind(table.symbol, "spread_unit", message, len(table), fixes=ways)]


def _share(width: FloatArray, close: FloatArray) -> float:
    is_valid = (width > 0.0) & (close > 0.0)
    return _median(width[is_valid] / close[is_valid])


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _spread_unit_fixes(
    table: RawTable, spread: Spread, config: DataConfig
) -> tuple[SuggestedFix, ...]:
    """Return other units in which the column could be a spread; a single one if unambiguous."""
    assert spread.column is not None
    column = spread.column[np.isfinite(spread.column)]
    header, point = spread_header(table, config), _point(table, config)
    units = {
        "spread": config.price_scale_for(table.symbol),
        "spread_points": point,
        "spread_pips": symbols.pip_size(table.symbol),
    }
    del units[spread.meaning]
    shares = {m: _share(spread.column * u, table.columns["close"]) for m, u in units.items()}
    meanings = [meaning for meaning, share in shares.items() if _NOTHING < share <= _NONSENSE]
    if is_whole(column).all() and _median(column[column > 0.0]) >= _POINTS:
        meanings = [m for m in meanings if m == "spread_points"] or meanings
    elif is_whole(10.0 * column).all() and not is_whole(column).all():
        meanings = [m for m in meanings if m == "spread_pips"] or meanings
    fixes: list[SuggestedFix] = []
    for meaning in meanings or ["unused_spread"]:
        fix: dict[str, object] = {"columns": {header: meaning}}
        if meaning == "spread_points" and point != config.point_size_for(table.symbol):
            fix["point"] = {table.symbol: point}
        fixes.append(fix)
    return tuple(fixes)


def spread_header(table: RawTable, config: DataConfig) -> str:
    """Return the file's own name of its spread column."""
    assert table.spread is not None
    names = map_columns(table.dialect, config.columns, table.symbol)
    return next(theirs for theirs, ours in names.items() if ours == table.spread.meaning)


def _point(table: RawTable, config: DataConfig) -> float:
    """Return the unit of the prices' last digit if it is coarser than the config's point."""
    point_size = config.point_size_for(table.symbol)
    if len(table) < _FEWEST:
        return point_size
    resolution = max(price_resolution(table.columns[name]) for name in ("open", "close"))
    return resolution if resolution > 1.5 * point_size else point_size


def _coarser_point(table: RawTable, spread: Spread, config: DataConfig) -> DataIssue | None:
    """Report a point smaller than the last digit of the quotes: every spread would be too small."""
    point_size, resolution = config.point_size_for(table.symbol), _point(table, config)
    if resolution == point_size:
        return None
    typical = _median(spread.column[spread.column > 0.0]) if spread.column is not None else 0.0
    message = (
        f"spreads are in points of {point_size:g} (median {typical:g} points), and the prices' own "
        f"last digit is {resolution:g}"
    )
    ways = ({"point": {table.symbol: resolution}},)
    return DataIssue.from_kind(table.symbol, "point_size", message, len(table), fixes=ways)
