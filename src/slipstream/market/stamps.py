"""Time stamps: any column of moments -> UTC seconds, never guessing a zone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from slipstream.core.errors import DataError
from slipstream.market.bars import BoolArray, IntArray
from slipstream.market.zone import clock

_DATES = ("%Y-%m-%d", "%Y.%m.%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d-%m-%Y")
_CLOCKS = (" %H:%M:%S%.f", " %H:%M", "T%H:%M:%S%.f", "T%H:%M", " %H%M%S", "%H%M%S", "")
_FORMATS = tuple(date + hour for date in _DATES for hour in _CLOCKS)
_AMBIGUOUS = ("%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M")
_OFFSET = r"[+-]\d{2}:?\d{2}$"
_OLDEST, _EPOCH_FROM, _LATEST = -2_208_988_800, 31_536_000, 4_102_444_800  # 1900, 1971, 2100
MISSING = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Stamps:
    """Parsed stamps.

    Attributes:
        time: UTC seconds, int64 [n]; MISSING where a stamp is absent, unreadable or
            outside the years 1900 to 2100.
        skipped: rows whose wall-clock time does not exist in the zone (spring), bool [n].
        origin: ``"aware"``, ``"epoch"`` or ``"naive"``: what the file itself says about the zone.
    """

    time: IntArray
    skipped: BoolArray
    origin: str

    @property
    def missing(self) -> BoolArray:
        """Rows without a usable stamp, bool [n]."""
        absent: BoolArray = self.time == MISSING
        return absent


class NaiveTimeError(DataError):
    """Stamps without a zone, and none in the config."""


def parse(
    column: pl.Series, time_format: str | None, time_zone: str | None, hint: str, label: str
) -> Stamps:
    """Turns a column of stamps into UTC seconds.

    Args:
        column: strings, integers, dates or date-times.
        time_format: the config's strptime format, None to detect.
        time_zone: zone of naive stamps; also overrides UTC for epoch stamps.
        hint: the zone to suggest when there is none.
        label: name of the file, for messages.

    Raises:
        NaiveTimeError: stamps carry no zone and `time_zone` is None.
        DataError: no format fits.
    """
    if column.dtype.is_numeric():
        column, numbers = column.cast(pl.Float64), True
    else:
        numbers = False
        if column.dtype in (pl.String, pl.Categorical):
            column = column.cast(pl.String).str.strip_chars()
            trial = column.drop_nulls().head(100).cast(pl.Float64, strict=False)
            numbers = time_format is None and len(trial) > 0 and trial.null_count() == 0
            column = column.cast(pl.Float64, strict=False) if numbers else column
    if numbers:
        seconds = _epoch(column)
        if seconds is not None:
            return _placed(seconds, "epoch", time_zone or "UTC")
        column = column.cast(pl.Int64, strict=False).cast(pl.String)  # 20170131, 20170131220000
    if column.dtype == pl.String:
        column = _from_text(column, time_format, label)
    if column.dtype not in (pl.Datetime, pl.Date):
        raise DataError(
            f"{label}: the time column must hold stamps, it holds {column.dtype}: rename columns "
            "by `columns`."
        )
    aware = isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is not None
    seconds = column.cast(pl.Datetime("us", "UTC" if aware else None)).dt.epoch("s")
    if aware:
        return _placed(seconds, "aware", "UTC")
    if time_zone is None:
        first = column.drop_nulls().head(1).to_list()
        raise NaiveTimeError(
            f"{label}: time stamps must say which zone they are in, and "
            f"{str(first[0]) if first else 'these'!r} does not: set `time_zone:` in the data "
            f"section, for example `time_zone: {hint}`."
        )
    return _placed(seconds, "naive", time_zone)


def _placed(seconds: pl.Series, origin: str, zone: str) -> Stamps:
    """Local seconds of `zone` (nulls allowed) as UTC."""
    missing = (~seconds.is_between(_OLDEST, _LATEST)).fill_null(True).to_numpy()
    local = seconds.fill_null(0).to_numpy().astype(np.int64)
    skipped = np.zeros(len(local), dtype=np.bool_)
    time = local
    if zone != "UTC" and not missing.all():
        known = local[~missing]
        time = local.copy()
        time[~missing], skipped[~missing] = clock(zone, known).utc(known)
    return Stamps(np.where(missing, MISSING, time), skipped, origin)


def _epoch(column: pl.Series) -> pl.Series | None:
    """Seconds of numbers that are s, ms, us or ns since 1970; None when they are not."""
    typical = column.drop_nulls().median()
    if not isinstance(typical, float):
        return None
    for unit in (1.0, 1e3, 1e6, 1e9):
        if _EPOCH_FROM < typical / unit < _LATEST:
            return (column / unit).floor().cast(pl.Int64, strict=False)
    return None


def _from_text(column: pl.Series, time_format: str | None, label: str) -> pl.Series:
    text = (
        column.str.replace(r"\s*(?:GMT|UTC)\s*([+-]\d{2}:?\d{2})$", "$1")
        .str.replace(r"\s*(?:GMT|UTC|Z)$", "+0000")
        .str.replace(r"\s+([+-]\d{2}:?\d{2})$", "$1")
    )
    sample = text.drop_nulls().head(100)
    if len(sample) == 0:
        raise DataError(f"{label}: every time stamp is empty.")
    aware = bool(sample.str.contains(_OFFSET).all())
    if time_format is not None:
        wants_zone = "%z" in time_format or "%#z" in time_format
        source = column if wants_zone or not aware else text
        suffix = "%#z" if aware and not wants_zone else ""
        parsed = _strptime(source, time_format + suffix, aware or wants_zone)
        if parsed.null_count() == len(parsed):
            raise DataError(
                f"{label}: `time_format: {time_format}` fits no stamp; the first is "
                f"{column.drop_nulls()[0]!r}."
            )
        return parsed
    # A format may fit the first rows by accident only if all its rivals fit fewer of them.
    best, best_count = "", 0
    for candidate in _FORMATS:
        suffix = "%#z" if aware else ""
        fits = len(sample) - _strptime(sample, candidate + suffix, aware).null_count()
        if fits > best_count:
            best, best_count = candidate + suffix, fits
    if best_count == 0:
        slashes = "/" in str(sample[0])
        advice = " or ".join(f"`time_format: '{form}'`" for form in _AMBIGUOUS)
        example = advice if slashes else "`time_format: '%Y-%m-%d %H:%M:%S'`"
        raise DataError(
            f"{label}: time stamps such as {sample[0]!r} are in no known format: say which by "
            f"{example}."
        )
    return _strptime(text, best, aware)


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
