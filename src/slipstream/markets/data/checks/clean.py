"""Cleaning: what loading does about each kind of bad data, in one place.

The rules, in the order in which they are applied:

    refused, or dropped with `bad_bars: drop`:
        unreadable stamps, wall-clock times that do not exist, missing numbers, prices that are
        not positive, high < low, open or close outside [low, high], negative volume, missing or
        negative spread
    refused, unless the config's `accept` names it:
        prices that jump by a power of ten, prices in another unit, spreads in another unit
    refused:
        bid or ask prices without a spread
    mended:
        unsorted rows are sorted; of rows with the same stamp the last stays; flat weekend
        candles of a forex market are dropped
    kept (`check` reports them):
        everything else, such as holes, zero volume, stale prices, odd stamps

Nothing is ever filled, interpolated or resampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slipstream.core.days import DAY
from slipstream.core.text import plural, stamp
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import Bars, BoolArray, IntArray, timeframe_name
from slipstream.markets.data.calendar import in_weekend
from slipstream.markets.data.checks.units import jump_findings, spread_findings, unit_findings
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.finding import Finding, first_times
from slipstream.markets.data.reading.dialect import PRICES
from slipstream.markets.data.reading.source import parts_of
from slipstream.markets.data.reading.stamps import bar_length, latest, many_share, row_spacing
from slipstream.markets.data.reading.table import RawTable

_LARGEST, _SMALLEST_PRICE = 1e100, 1e-20  # beyond: a sentinel of somebody's database
_ROUNDING = 1e-9  # relative: files written with float32 or scaled prices


@dataclass(frozen=True, eq=False)
class Inspected:
    """One file, as it is and cleaned, and what was found on the way.

    Attributes:
        table: as it is; stamps without a zone are placed as if in `assumed`.
        bars: what is left when every bad bar is dropped, even where loading would refuse: `check`
            goes on with them. None when fewer than two are left.
        bar_seconds: length of a bar, 0 where there is none.
        kind: trading hours.
        findings: in the order in which they were made.
        assumed: a zone that nobody has confirmed; empty where none had to be assumed.
    """

    table: RawTable
    bars: Bars | None
    bar_seconds: int
    kind: symbols.MarketKind
    findings: tuple[Finding, ...]
    assumed: str = ""


def kind_of(symbol: str, config: DataConfig) -> symbols.MarketKind:
    """The market kind of a symbol under this config."""
    return symbols.market_kind(symbol) if config.market == "auto" else config.market


def clean(table: RawTable, config: DataConfig, assumed: str = "") -> Inspected:
    """Applies the rules above to one file."""
    kind = kind_of(table.symbol, config)
    findings: list[Finding] = []
    if table.unknown:
        message = f"{plural(table.unknown, 'bar')} with volume -1"
        findings.append(Finding.of(table.symbol, "unknown_volume", message, table.unknown))
    if table.unpaired:
        message = f"{plural(table.unpaired, 'row')} of bid or ask without the other side"
        findings.append(Finding.of(table.symbol, "unpaired", message, table.unpaired))
    rows = _readable_rows(table, config, findings)
    time = table.stamps.time[rows]
    bar_seconds = bar_length(time)
    time = time - bar_seconds * (config.time_is == "close")
    findings += Finding.where(
        table.symbol,
        "future",
        time,
        time > latest(),
        "bar",
        " after today",
        ", first at {} UTC: the stamps are read in the wrong unit, or in the wrong order of day, "
        "month and year",
    )
    order = _order(table, rows, time, findings)
    time, rows = time[order], rows[order]
    good = _sound_rows(table, config, rows, time, findings)
    time, rows = time[good], rows[good]
    columns = {name: column[rows] for name, column in table.columns.items()}
    spread = np.zeros(len(rows)) if table.spread is None else table.spread.width[rows]
    findings += _one_sided(table, config)
    side = "mid" if table.dialect.two_sided else config.price_side
    shift = {"mid": 0.0, "bid": 0.5, "ask": -0.5}[side] * spread
    for name in PRICES:
        columns[name] = columns[name] + shift
    jumps = jump_findings(table.symbol, columns["close"], time)
    units = unit_findings(table, columns["close"], config)
    if jumps:  # no one factor is right for all of the file
        units = [replace(one, remedies=()) for one in units]
    # The unit of a spread can be judged once that of the prices is known.
    findings += units or spread_findings(table, config)
    findings += jumps
    keep = ~_weekend_candles(kind, time, bar_seconds, table.silent[rows])
    said = " without volume while the forex market was closed"
    findings += Finding.where(
        table.symbol, "weekend_flat", time, ~keep, "flat candle", said, first=""
    )
    if int(keep.sum()) < 2 or bar_seconds == 0:
        usable = int(keep.sum())
        message = (
            f"{plural(usable, 'usable bar')}, at least two are needed: leave the symbol out of "
            "`symbols`"
        )
        findings.append(Finding.of(table.symbol, "too_few", message, usable))
        return Inspected(table, None, bar_seconds, kind, tuple(findings), assumed)
    bars = Bars(
        table.symbol,
        time[keep],
        **{name: column[keep] for name, column in columns.items()},
        spread=spread[keep],
        extra={name: column[rows][keep] for name, column in table.extra.items()},
    )
    return Inspected(table, bars, bar_seconds, kind, tuple(findings), assumed)


def _readable_rows(table: RawTable, config: DataConfig, findings: list[Finding]) -> IntArray:
    """File rows whose stamp says when they happened."""
    missing, skipped = table.stamps.missing, table.stamps.skipped
    if missing.any():
        count, first = int(missing.sum()), int(np.flatnonzero(missing)[0]) + 1
        message = f"{plural(count, 'unreadable time stamp')}, the first in data row {first:,}"
        choice = _choice(config, count, len(table))
        findings.append(Finding.of(table.symbol, "bad_time", message, count, **choice))
    findings += Finding.where(
        table.symbol,
        "nonexistent_time",
        table.stamps.time,
        skipped,
        "stamp",
        f" in an hour that the clocks of {table.zone} skipped",
        ", the first near {} UTC: that is not the zone of this file",
        **_choice(config, int(skipped.sum()), len(table)),
    )
    return np.flatnonzero(~missing & ~skipped)


def _order(table: RawTable, rows: IntArray, time: IntArray, findings: list[Finding]) -> IntArray:
    """Row order that sorts by time; of rows with the same stamp the last in the file."""
    symbol, part = table.symbol, table.part[rows]
    backwards = (np.diff(time, prepend=time[:1]) < 0) & (np.diff(part, prepend=part[:1]) == 0)
    if backwards.any():
        count, times = int(backwards.sum()), first_times(time, backwards)
        message = f"time runs backwards {plural(count, 'time')}, first at {stamp(times[0])}"
        findings.append(Finding.of(symbol, "unsorted", message, count, times=times))
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
    if many_share(int((superseded & unlike).sum()), len(ordered)):
        findings.append(_coarse(table, time))
    differ = across & unlike
    if differ.any():
        first = int(np.flatnonzero(differ)[0])
        names = [parts_of(table.path)[k].name for k in part[order][first : first + 2]]
        said = f" of {plural(int(across.sum()), 'bar')} that two of its files hold differ"
        where = f" in {names[0]} and {names[1]}, whose bars stay where this is accepted"
        findings += Finding.where(
            symbol, "overlap", ordered, differ, "bar", said, ", first at {}" + where
        )
    said = " with the stamp of another bar"
    findings += Finding.where(
        symbol, "duplicate", ordered, superseded, "bar", said, ", first at {}"
    )
    return kept


def _coarse(table: RawTable, time: IntArray) -> Finding:
    """Return the finding of stamps that many different bars share."""
    distinct = len(np.unique(time))
    message = (
        f"{plural(len(time), 'row')} have {plural(distinct, 'time stamp')} between them, the first "
        f"is {stamp(int(time[0]))}: stamps lack their hours, or a spreadsheet rounded them. Export "
        "the file again with full stamps"
    )
    spacing = row_spacing(table.readings)
    ways = []
    if spacing:
        name = timeframe_name(spacing)
        message += f"; rows of {name} without a hole would fit these stamps in one way"
        ways = [{"row_spacing": name}]
    return Finding.of(table.symbol, "coarse_time", message, len(time), remedies=ways)


def _sound_rows(
    table: RawTable, config: DataConfig, rows: IntArray, time: IntArray, findings: list[Finding]
) -> BoolArray:
    """Which bars have possible numbers; reports the others."""
    columns = {name: column[rows] for name, column in table.columns.items()}
    if table.spread is not None:
        columns["spread"] = table.spread.width[rows]
    good = np.ones(len(rows), dtype=np.bool_)

    def report(kind: str, bad: BoolArray, what: str) -> None:
        bad = bad & good  # a bar that is bad twice is counted once
        choice = _choice(config, int(bad.sum()), len(bad))
        findings.extend(
            Finding.where(
                table.symbol, kind, time, bad, "bar", f" with {what}", ", the first at {}", **choice
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


def _one_sided(table: RawTable, config: DataConfig) -> list[Finding]:
    if config.price_side == "mid" or table.spread is not None:
        return []
    message = (
        f"{config.price_side} prices without a spread to shift them to mid: say your broker's in "
        "`spread_pips`, or name the file's spread column in `columns`"
    )
    ways = ({"spread_pips": 1.0}, {"price_side": "mid"})
    return [Finding.of(table.symbol, "no_spread", message, len(table), remedies=ways)]


def _weekend_candles(kind: str, time: IntArray, bar_seconds: int, silent: BoolArray) -> BoolArray:
    """Candles that a vendor invented while the forex market was closed, bool [n]."""
    if kind != "fx" or bar_seconds > DAY or len(time) == 0:
        return np.zeros(len(time), dtype=np.bool_)
    closed: BoolArray = silent & in_weekend(time) & in_weekend(time + bar_seconds - 1)
    return closed


def _choice(config: DataConfig, count: int, of: int) -> dict[str, Any]:
    """What `bad_bars` does about `count` of `of` bars: fields of their finding."""
    if config.bad_bars == "drop":
        return {"severity": "warning", "action": "loading drops them"}
    if 2 * count >= of:  # nothing worth loading would be left
        return {}
    return {
        "action": "loading refuses, or drops them with `bad_bars: drop`",
        "remedies": ({"bad_bars": "drop"},),
    }
