"""Timestamps: parse a column, convert local time to UTC. A time zone is never guessed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from slipstream.core.errors import DataError
from slipstream.core.timeline import DAY, clock
from slipstream.markets.data.bars import BoolArray, IntArray
from slipstream.markets.data.data_issue import FixableDataError

_DATES = ("%Y-%m-%d", "%Y.%m.%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y")
_CLOCKS = (
    *(" %H:%M:%S%.f", " %H:%M", "T%H:%M:%S%.f", "T%H:%M", " %H%M%S", " %H%M"),
    *("T%H%M%S", "T%H%M", " %I:%M:%S %p", " %I:%M %p", ""),
)
_FORMATS = ("%Y%m%d%H%M%S", *(date + hour for date in _DATES for hour in _CLOCKS))
# The order of day, month and two-digit year: decided by numbers above 12 and by the rows' order.
_EITHER: tuple[tuple[str, ...], ...] = (
    *(("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y")),
    *(
        tuple(form.replace(" ", mark) for form in ("%d %m %y", "%m %d %y", "%y %m %d"))
        for mark in ("/", "-", ".", "")
    ),
)
_OFFSET = r"(?:\dT\d|:).*[+-]\d{2}:?\d{2}$"
_MONTHS = (
    *("jan", "feb", "mar|mrz|mär", "apr", "may|mai", "jun", "jul", "aug", "sep", "oct|okt"),
    *("nov", "dec|dez"),
)
_SAMPLE = 100
_SHARED = 0.1  # of the rows
_LENGTHS = (60, 180, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, DAY)
_AHEAD = 2 * DAY  # of today: clocks and zones differ
_COMPACT = (8, 10, 12, 14, 17)  # digits of yyyymmdd, ...hh, ...hhmm, ...hhmmss, with milliseconds
_DAY_EPOCHS = (25_569.0, 719_529.0)  # 1970-01-01 in days of Excel and of MATLAB
_DAYS_FROM = 631_152_000  # 1990: smaller numbers are ambiguous
_OLDEST, _EPOCH_FROM, _LATEST = -2_208_988_800, 31_536_000, 4_102_444_800  # 1900, 1971, 2100
MISSING = np.iinfo(np.int64).min

Origin = Literal["aware", "epoch", "naive", "mixed"]


@dataclass(frozen=True, eq=False)
class LocalTimestamps:
    """Timestamps as the file states them, before a time zone is applied.

    Attributes:
        seconds: int64 [n]; UTC where `naive` is false, else wall-clock time as if it were UTC;
            MISSING if a timestamp is absent, unreadable or outside the years 1900 to 2100.
        naive: rows that need a zone, bool [n].
        origin: zone information of the file: ``aware`` (every row has a zone), ``epoch`` (numbers
            since 1970), ``naive`` (no row has one) or ``mixed``.
    """

    seconds: IntArray
    naive: BoolArray
    origin: Origin


@dataclass(frozen=True, eq=False)
class Timestamps:
    """UTC timestamps and the rows whose wall-clock time does not exist.

    Attributes:
        time: UTC seconds, int64 [n]; MISSING if there is none.
        skipped: rows whose wall-clock time does not exist in the zone (spring), bool [n].
    """

    time: IntArray
    skipped: BoolArray

    @property
    def missing(self) -> BoolArray:
        """Rows without a usable timestamp, bool [n]."""
        absent: BoolArray = self.time == MISSING
        return absent


def to_utc(local_times: LocalTimestamps, zone: str) -> Timestamps:
    """Convert to UTC; `zone` applies to naive rows, and to epochs of a broker's clock."""
    local = local_times.seconds
    needs_zone = local_times.naive | (local_times.origin == "epoch")
    needs_zone = needs_zone & (local != MISSING)
    time, skipped = local, np.zeros(len(local), dtype=np.bool_)
    if zone != "UTC" and needs_zone.any():
        time = local.copy()
        time[needs_zone], skipped[needs_zone] = clock(zone, local[needs_zone]).utc(
            local[needs_zone]
        )
    return Timestamps(time, skipped)


def parse(column: pl.Series, time_format: str | None, label: str) -> LocalTimestamps:
    """Parse a column of timestamps.

    Args:
        column: strings, integers, dates or date-times.
        time_format: the config's strptime format, None to detect.
        label: name of the file, for messages.

    Raises:
        FixableDataError: no format fits, or two do.
        DataError: the column holds no timestamps.
    """
    numbers = column.dtype.is_numeric()
    if numbers:
        column = column.cast(pl.Float64)
    elif column.dtype in (pl.String, pl.Categorical):
        column = column.cast(pl.String).str.strip_chars()
        sample = column.drop_nulls().head(_SAMPLE)
        trial = sample.cast(pl.Float64, strict=False)  # a word among numbers is one bad row
        numbers = time_format is None and len(trial) > 2 * trial.null_count()
    if numbers:
        integers = integer_text(column)
        compact = _calendar(integers)
        if compact is not None:
            return _readings(_seconds(compact, False), None, "naive")
        values = column.cast(pl.Float64, strict=False)
        seconds = _epoch(values)
        if seconds is not None and not (time_format and _fits(integers, time_format, False)):
            return _readings(seconds, None, "epoch")
        days = _day_numbers(values)
        if days is not None and not time_format:
            return _readings(days, None, "naive")
        column = integers
    if column.dtype == pl.String:
        return _from_text(column, time_format, label)
    if column.dtype not in (pl.Datetime, pl.Date):
        raise DataError(
            f"{label}: the time column must hold time stamps, it holds {column.dtype}: map columns "
            "by `columns`."
        )
    aware = isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is not None
    return _readings(_seconds(column, aware), None, "aware" if aware else "naive")


def _readings(seconds: pl.Series, naive: BoolArray | None, origin: Origin) -> LocalTimestamps:
    """Make readings of seconds; `naive` are rows without a zone, where only some have none."""
    local = seconds.fill_null(MISSING).to_numpy().astype(np.int64)
    absent = (local < _OLDEST) | (local >= _LATEST)
    if naive is None:
        naive = np.full(len(local), origin == "naive")
    return LocalTimestamps(np.where(absent, MISSING, local), naive, origin)


def _seconds(column: pl.Series, aware: bool) -> pl.Series:
    return column.cast(pl.Datetime("us", "UTC" if aware else None)).dt.epoch("s")


def integer_text(column: pl.Series) -> pl.Series:
    """Return whole numbers as text, without the point that a float adds."""
    if column.dtype == pl.String:
        return column.str.replace(r"\.0*$", "")
    return column.cast(pl.Int64, strict=False).cast(pl.String)


def _calendar(text: pl.Series) -> pl.Series | None:
    """Return the times of numbers such as 20220103 and 202201030000; None for other numbers.

    Such numbers are also in the range of epochs. Epochs are not valid calendar dates up to today in
    every row.
    """
    digital = text.str.contains(r"^\d+$").fill_null(False)
    integers = text.filter(digital)
    if len(integers) == 0 or not integers.head(_SAMPLE).str.len_chars().is_in(_COMPACT).all():
        return None
    padded = integers.str.head(14).str.pad_end(14, "0")
    if _count_valid(_strptime(padded, "%Y%m%d%H%M%S", False)) < 0.99 * len(integers):
        return None
    return _strptime(text.str.head(14).str.pad_end(14, "0"), "%Y%m%d%H%M%S", False)


def _count_valid(parsed: pl.Series, last: int | None = None) -> int:
    """Count the times between 1900 and today, or `last`."""
    seconds = _seconds(
        parsed, isinstance(parsed.dtype, pl.Datetime) and bool(parsed.dtype.time_zone)
    )
    return int(seconds.is_between(_OLDEST, last or latest_valid_time()).sum())


def latest_valid_time() -> int:
    """Return the latest plausible open time of a bar, UTC seconds."""
    return int(time.time()) + _AHEAD


def _epoch(column: pl.Series) -> pl.Series | None:
    """Return seconds of numbers in s, ms, us or ns since 1970; None if they are not.

    Each row is converted by its own magnitude: the ranges do not overlap, and some exchanges
    changed units within a file.
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


def _day_numbers(column: pl.Series) -> pl.Series | None:
    """Return the seconds of fractional day numbers of spreadsheets; None if not all rows are.

    Excel counts from 30 December 1899, MATLAB from the year 0. Their decimals are too few for exact
    seconds, so times within 2 s of a minute are rounded to it.
    """
    values = column.drop_nulls()
    for epoch in _DAY_EPOCHS:
        seconds = ((values - epoch) * DAY).round()
        if len(values) and seconds.is_between(_DAYS_FROM, latest_valid_time()).all():
            rounded = ((column - epoch) * DAY).round()
            minute = (rounded / 60.0).round() * 60.0
            return (
                pl.select(pl.when((rounded - minute).abs() <= 2.0).then(minute).otherwise(rounded))
                .to_series()
                .cast(pl.Int64)
            )
    return None


def _from_text(column: pl.Series, time_format: str | None, label: str) -> LocalTimestamps:
    text = (
        column.str.replace(r"\s*(?:GMT|UTC)\s*([+-]\d{2}:?\d{2})$", "$1")
        .str.replace(r"\s*(?:GMT|UTC|Z)$", "+0000")
        .str.replace(r"\s+([+-]\d{2}:?\d{2})$", "$1")
        .str.replace(r"(:\d{2}(?:\.\d+)?)([+-]\d{2})$", "${1}${2}00")
    )
    if time_format is None:
        text = _normalize_text(text)
    if text.null_count() == len(text):
        raise DataError(f"{label}: every time stamp is empty.")
    aware = text.str.contains(_OFFSET).fill_null(False)
    if time_format is not None and ("%z" in time_format or "%#z" in time_format):
        parsed = _check_format(_strptime(column, time_format, True), time_format, column, label)
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
        except DataError:  # a few words among timestamps: unreadable rows, not an unknown format
            if 2 * len(rows) > len(text):
                raise
            continue
        seconds[rows] = _seconds(part, zoned).fill_null(MISSING).to_numpy()
    naive &= seconds != MISSING
    return _readings(pl.Series(seconds), naive, "mixed" if naive.any() else "aware")


def _normalize_text(text: pl.Series) -> pl.Series:
    """Replace names of months by numbers, and add minutes to hours without them.

    Names are English or German, in any case, independent of the locale.
    """
    if text.str.contains(r"(?i)[a-zä]{3}").any():
        text = text.str.replace(r"(?i)^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]?\s+", "")
        year, day = r"'?(\d{4}|\d{2})", r"(\d{1,2})(?:st|nd|rd|th)?"
        for number, names in enumerate(_MONTHS, 1):
            name = rf"(?i:(?:{names})[a-zä]*)"
            orders = (
                (rf"^{day}[ ./-]*{name}[ ,./-]*{year}", f"'${{2}}-{number:02d}-${{1}}"),
                (rf"^{name} +{day} (\d+:[\d:]+) (\d{{4}})$", f"'${{3}}-{number:02d}-${{1}} ${{2}}"),
                (rf"^{name}[ ./-]*{day}[ ,./-]+{year}", f"'${{2}}-{number:02d}-${{1}}"),
                (rf"^(\d{{4}})[ ./-]*{name}[ ./-]*{day}", f"'${{1}}-{number:02d}-${{2}}"),
            )
            for pattern, numeric in orders:
                text = text.str.replace(pattern, numeric)
        for pattern, numeric in ((r"^'(\d{4})", "$1"), (r"^'([0-6]\d)", "20$1"), ("^'", "19")):
            text = text.str.replace(pattern, numeric)
    date = r"^(\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d{2,4}|\d{8})"
    return (
        text.str.replace(rf"{date}[:,]\s*(\d)", "$1 $2")
        .str.replace(r"(:\d{2}),(\d+)", "$1.$2")
        .str.replace(r"(?i)(\d)[ T_-]+(\d{1,2})[ .-]?([ap])\.?m\.?$", "$1 $2:00 ${3}m")
        .str.replace(rf"{date}[ T_-]+(\d{{1,2}})h?([+-]\d{{2}}:?\d{{2}})?$", "$1 $2:00$3")
    )


def _check_format(parsed: pl.Series, form: str, column: pl.Series, label: str) -> pl.Series:
    if parsed.null_count() == len(parsed):
        raise DataError(
            f"{label}: `time_format: {form}` fits no stamp; the first is "
            f"{column.drop_nulls()[0]!r}."
        )
    return parsed


def _parse_text(
    text: pl.Series, time_format: str | None, aware: bool, column: pl.Series, label: str
) -> pl.Series:
    """Parse text that has a zone in all rows or in none; `column` is the file's own text."""
    suffix = "%#z" if aware else ""
    if time_format is not None:
        source = text if aware else column
        return _check_format(
            _strptime(source, time_format + suffix, aware), time_format, column, label
        )
    sample = text.drop_nulls().head(_SAMPLE)
    # A format may fit the first rows by accident only if all its rivals fit fewer of them.
    best, best_count = "", 0
    for candidate in _FORMATS:
        fits = _fits(sample, candidate + suffix, aware)
        if fits > best_count:
            best, best_count = candidate, fits
        if best_count == 3 * len(sample):  # the most that `_fits` returns: no rival fits better
            return _strptime(text, best + suffix, aware)
    for dates in _EITHER:
        for hour in _CLOCKS:
            forms = tuple(date + hour for date in dates)
            if max(_fits(sample, form + suffix, aware) for form in forms) > best_count:
                return _strptime(
                    text, _choose_format(text, forms, suffix, aware, label) + suffix, aware
                )
    if best_count == 0:
        raise FixableDataError(
            "time_format",
            f"{label}: time stamps such as {column.drop_nulls()[0]!r} are in no known format: set "
            "`time_format` to their strptime format, such as %Y-%m-%d %H:%M:%S.",
        )
    return _strptime(text, best + suffix, aware)


def _choose_format(
    text: pl.Series, forms: tuple[str, ...], suffix: str, aware: bool, label: str
) -> str:
    """Return the format that fits most rows; of several, the only one that sorts the rows."""
    fits = [_fits(text, form + suffix, aware) for form in forms]
    best = [form for form, count in zip(forms, fits, strict=True) if count == max(fits)]
    steps = [
        np.diff(_seconds(_strptime(text, form + suffix, aware), aware).drop_nulls())
        for form in best
    ]
    sorting = [
        form
        for form, step in zip(best, steps, strict=True)
        if (step >= 0).all() or (step <= 0).all()
    ]
    for left in (best, sorting):
        if len(left) == 1:
            return left[0]
    first = text.drop_nulls()[0]
    raise FixableDataError(
        "time_format",
        f"{label}: time stamps such as {first!r} may begin with the day or with the month, and no "
        "row decides.",
        *({"time_format": form} for form in best),
    )


def _fits(text: pl.Series, form: str, aware: bool) -> int:
    parsed = _strptime(text, form, aware)
    return 2 * _count_valid(parsed) + _count_valid(
        parsed, _LATEST
    )  # later than today: only if nothing else fits


def _strptime(text: pl.Series, form: str, aware: bool) -> pl.Series:
    if not any(code in form for code in ("%H", "%I", "%T", "%R", "%s")):
        if aware:
            return pl.Series([None] * len(text), dtype=pl.Datetime("us", "UTC"))
        return text.str.strptime(pl.Date, form, strict=False).cast(pl.Datetime("us"))
    dtype = pl.Datetime("us", "UTC" if aware else None)
    if not any(code in form for code in ("%M", "%T", "%R", "%s", "%c", "%X")):
        text, form = text + " 00", form + " %M"  # polars refuses hours alone
    try:
        return text.str.strptime(dtype, form, strict=False, ambiguous="raise")
    except pl.exceptions.PolarsError:
        return pl.Series([None] * len(text), dtype=dtype)


def has_many_duplicates(repeated: int, rows: int) -> bool:
    """Return True if rows with repeated timestamps are too many for mere duplicates."""
    return repeated > max(_SHARED * rows, 2)


def rebuild_timestamps(local_times: LocalTimestamps, spacing: int) -> LocalTimestamps | None:
    """Return the times of equally spaced rows whose timestamps were shortened.

    Numbers were rounded, dates and hours were cut off. None if no start fits all timestamps, or
    several do; a start is a multiple of `spacing`.
    """
    stated = local_times.seconds
    descending = bool(stated[0] > stated[-1])
    steps = np.diff(np.unique(stated))
    if len(steps) == 0 or (stated == MISSING).any():
        return None
    grain = int(np.gcd.reduce(steps))
    order = slice(None, None, -1 if descending else 1)
    passed = spacing * np.arange(len(stated), dtype=np.int64)
    offset = stated[order] - passed
    early = grain // 2 if local_times.origin == "epoch" else 0
    late = grain // 2 if early else grain - 1
    first = -(-(int(offset.max()) - early) // spacing)
    if first != (int(offset.min()) + late) // spacing:
        return None
    return replace(local_times, seconds=(first * spacing + passed)[order])


def row_spacing(local_times: LocalTimestamps) -> int:
    """Return the only usual bar length that rebuilds coarse timestamps, seconds; 0 if none."""
    spacings = [
        length for length in _LENGTHS if rebuild_timestamps(local_times, length) is not None
    ]
    return spacings[0] if len(spacings) == 1 else 0


def bar_length(time: IntArray) -> int:
    """Return the most common distance between neighbouring timestamps, seconds; 0 if none."""
    steps = np.diff(np.sort(time[time != MISSING]))
    steps = steps[steps > 0]
    if len(steps) == 0:
        return 0
    lengths, counts = np.unique(steps, return_counts=True)
    return int(lengths[np.argmax(counts)])
