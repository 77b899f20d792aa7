"""Time stamps: any column of moments -> seconds of its own clock -> UTC, never guessing a zone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from slipstream.core.errors import DataError
from slipstream.market.bars import BoolArray, IntArray
from slipstream.market.calendar import clock
from slipstream.market.finding import RemedyError

_DATES = ("%Y-%m-%d", "%Y.%m.%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y")
_CLOCKS = (" %H:%M:%S%.f", " %H:%M", "T%H:%M:%S%.f", "T%H:%M", " %H%M%S", " %H%M", "%H%M%S", "")
_FORMATS = tuple(date + hour for date in _DATES for hour in _CLOCKS)
# Day or month first: only a number above 12 can tell.
_EITHER = (("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y"))
_EITHER_CLOCKS = (*_CLOCKS, " %I:%M:%S %p", " %I:%M %p")
_OFFSET = r"[T:].*[+-]\d{2}:?\d{2}$"
_SAMPLE = 100
_OLDEST, _EPOCH_FROM, _LATEST = -2_208_988_800, 31_536_000, 4_102_444_800  # 1900, 1971, 2100
MISSING = np.iinfo(np.int64).min

Origin = Literal["aware", "epoch", "naive", "mixed"]


@dataclass(frozen=True, eq=False)
class Readings:
    """What a file's clock showed, before anything is known about its zone.

    Attributes:
        seconds: int64 [n]; UTC where `naive` is false, else wall-clock time as if it were UTC;
            MISSING where a stamp is absent, unreadable or outside the years 1900 to 2100.
        naive: rows that need a zone, bool [n].
        origin: what the file says about its zone: everywhere, numbers since 1970, nowhere, or in
            some rows.
    """

    seconds: IntArray
    naive: BoolArray
    origin: Origin


@dataclass(frozen=True, eq=False)
class Stamps:
    """Moments, and which of them no clock showed.

    Attributes:
        time: UTC seconds, int64 [n]; MISSING where there is none.
        skipped: rows whose wall-clock time does not exist in the zone (spring), bool [n].
    """

    time: IntArray
    skipped: BoolArray

    @property
    def missing(self) -> BoolArray:
        """Rows without a usable stamp, bool [n]."""
        absent: BoolArray = self.time == MISSING
        return absent


def placed(readings: Readings, zone: str) -> Stamps:
    """The moments of readings; `zone` is that of naive rows, and of epochs of a broker's clock."""
    local = readings.seconds
    chosen = readings.naive | (readings.origin == "epoch")
    chosen = chosen & (local != MISSING)
    time, skipped = local, np.zeros(len(local), dtype=np.bool_)
    if zone != "UTC" and chosen.any():
        time = local.copy()
        time[chosen], skipped[chosen] = clock(zone, local[chosen]).utc(local[chosen])
    return Stamps(time, skipped)


def parse(column: pl.Series, time_format: str | None, label: str) -> Readings:
    """Reads a column of stamps.

    Args:
        column: strings, integers, dates or date-times.
        time_format: the config's strptime format, None to detect.
        label: name of the file, for messages.

    Raises:
        RemedyError: no format fits, or two do.
        DataError: these are no stamps.
    """
    numbers = column.dtype.is_numeric()
    if numbers:
        column = column.cast(pl.Float64)
    elif column.dtype in (pl.String, pl.Categorical):
        column = column.cast(pl.String).str.strip_chars()
        trial = column.drop_nulls().head(_SAMPLE).cast(pl.Float64, strict=False)
        numbers = time_format is None and len(trial) > 0 and trial.null_count() == 0
        column = column.cast(pl.Float64, strict=False) if numbers else column
    if numbers:
        seconds = _epoch(column)
        if seconds is not None:
            return _readings(seconds, None, "epoch")
        column = column.cast(pl.Int64, strict=False).cast(pl.String)  # 20170131, 20170131220000
    if column.dtype == pl.String:
        return _from_text(column, time_format, label)
    if column.dtype not in (pl.Datetime, pl.Date):
        raise DataError(
            f"{label}: the time column must hold stamps, it holds {column.dtype}: rename columns "
            "by `columns`."
        )
    aware = isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is not None
    return _readings(_seconds(column, aware), None, "aware" if aware else "naive")


def _readings(seconds: pl.Series, naive: BoolArray | None, origin: Origin) -> Readings:
    """Makes readings of seconds; `naive` are rows without a zone, where only some have none."""
    local = seconds.fill_null(MISSING).to_numpy().astype(np.int64)
    absent = (local < _OLDEST) | (local >= _LATEST)
    if naive is None:
        naive = np.full(len(local), origin == "naive")
    return Readings(np.where(absent, MISSING, local), naive, origin)


def _seconds(column: pl.Series, aware: bool) -> pl.Series:
    return column.cast(pl.Datetime("us", "UTC" if aware else None)).dt.epoch("s")


def _epoch(column: pl.Series) -> pl.Series | None:
    """Seconds of numbers that are s, ms, us or ns since 1970; None when they are not.

    Each row by its own size: the ranges do not overlap, and exchanges changed units in mid-file.
    """
    typical = column.drop_nulls().median()
    if not isinstance(typical, float):
        return None
    units = (1.0, 1e3, 1e6, 1e9)
    if not any(_EPOCH_FROM < typical / unit < _LATEST for unit in units):
        return None
    values = column.fill_null(np.nan).to_numpy()
    seconds = np.full(len(values), np.nan)
    for unit in units:
        inside = (values > _EPOCH_FROM * unit) & (values < _LATEST * unit)
        # A microsecond's slack: nanoseconds since 1970 are more digits than a float has.
        seconds[inside] = np.floor(values[inside] / unit + 1e-6)
    return pl.Series(seconds).fill_nan(None).cast(pl.Int64)


def _from_text(column: pl.Series, time_format: str | None, label: str) -> Readings:
    text = (
        column.str.replace(r"\s*(?:GMT|UTC)\s*([+-]\d{2}:?\d{2})$", "$1")
        .str.replace(r"\s*(?:GMT|UTC|Z)$", "+0000")
        .str.replace(r"\s+([+-]\d{2}:?\d{2})$", "$1")
        .str.replace(r"(:\d{2}(?:\.\d+)?)([+-]\d{2})$", "${1}${2}00")
    )
    if text.null_count() == len(text):
        raise DataError(f"{label}: every time stamp is empty.")
    aware = text.str.contains(_OFFSET).fill_null(False)
    if time_format is not None and ("%z" in time_format or "%#z" in time_format):
        parsed = _fitted(_strptime(column, time_format, True), time_format, column, label)
        return _readings(_seconds(parsed, True), None, "aware")
    naive = (~aware & text.is_not_null()).to_numpy()
    if not naive.any() or not aware.any():
        zoned = not naive.any()
        parsed = _parse_text(text, time_format, zoned, column, label)
        return _readings(_seconds(parsed, zoned), None, "aware" if zoned else "naive")
    seconds = np.full(len(text), MISSING)
    for rows, zoned in ((np.flatnonzero(aware.to_numpy()), True), (np.flatnonzero(naive), False)):
        try:
            part = _parse_text(text[rows], time_format, zoned, column[rows], label)
        except DataError:  # a few words among stamps: unreadable rows, not an unknown format
            if 2 * len(rows) > len(text):
                raise
            continue
        seconds[rows] = _seconds(part, zoned).fill_null(MISSING).to_numpy()
    naive &= seconds != MISSING
    return _readings(pl.Series(seconds), naive, "mixed" if naive.any() else "aware")


def _fitted(parsed: pl.Series, form: str, column: pl.Series, label: str) -> pl.Series:
    if parsed.null_count() == len(parsed):
        raise DataError(
            f"{label}: `time_format: {form}` fits no stamp; the first is "
            f"{column.drop_nulls()[0]!r}."
        )
    return parsed


def _parse_text(
    text: pl.Series, time_format: str | None, aware: bool, column: pl.Series, label: str
) -> pl.Series:
    """Moments of text that all has a zone, or none; `column` is the text as the file has it."""
    suffix = "%#z" if aware else ""
    if time_format is not None:
        source = text if aware else column
        return _fitted(_strptime(source, time_format + suffix, aware), time_format, column, label)
    sample = text.drop_nulls().head(_SAMPLE)
    # A format may fit the first rows by accident only if all its rivals fit fewer of them.
    best, best_count = "", 0
    for candidate in _FORMATS:
        fits = _fits(sample, candidate + suffix, aware)
        if fits > best_count:
            best, best_count = candidate, fits
    for day_first, month_first in _EITHER:
        for hour in _EITHER_CLOCKS:
            forms = (day_first + hour, month_first + hour)
            if max(_fits(sample, form + suffix, aware) for form in forms) > best_count:
                return _strptime(text, _decided(text, forms, suffix, aware, label) + suffix, aware)
    if best_count == 0:
        raise RemedyError(
            "time_format",
            f"{label}: time stamps such as {sample[0]!r} are in no known format: say which in "
            "`time_format`, in the letters of strptime, such as %Y-%m-%d %H:%M:%S.",
        )
    return _strptime(text, best + suffix, aware)


def _decided(text: pl.Series, forms: tuple[str, str], suffix: str, aware: bool, label: str) -> str:
    """The one of two formats that fits more rows."""
    fits = [_fits(text, form + suffix, aware) for form in forms]
    if fits[0] != fits[1]:
        return forms[0] if fits[0] > fits[1] else forms[1]
    first = text.drop_nulls()[0]
    raise RemedyError(
        "time_format",
        f"{label}: time stamps such as {first!r} may begin with the day or with the month, and no "
        "row decides.",
        *({"time_format": form} for form in forms),
    )


def _fits(text: pl.Series, form: str, aware: bool) -> int:
    return len(text) - _strptime(text, form, aware).null_count()


def _strptime(text: pl.Series, form: str, aware: bool) -> pl.Series:
    if not any(code in form for code in ("%H", "%I", "%T", "%R", "%s")):
        if aware:
            return pl.Series([None] * len(text), dtype=pl.Datetime("us", "UTC"))
        return text.str.strptime(pl.Date, form, strict=False).cast(pl.Datetime("us"))
    dtype = pl.Datetime("us", "UTC" if aware else None)
    try:
        return text.str.strptime(dtype, form, strict=False, ambiguous="raise")
    except pl.exceptions.PolarsError:
        return pl.Series([None] * len(text), dtype=dtype)


def bar_length(time: IntArray) -> int:
    """The most common distance between neighbouring stamps, seconds; 0 when there is none."""
    steps = np.diff(np.sort(time[time != MISSING]))
    steps = steps[steps > 0]
    if len(steps) == 0:
        return 0
    lengths, counts = np.unique(steps, return_counts=True)
    return int(lengths[np.argmax(counts)])
