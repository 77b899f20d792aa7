"""RawTable: one file as it is, before any rule about bad data is applied."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from slipstream.core.errors import DataError
from slipstream.market import stamps, symbols
from slipstream.market.bars import FloatArray
from slipstream.market.config import DataConfig
from slipstream.market.dialect import Dialect, rename, sniff

PRICES = ("open", "high", "low", "close")
_CORE = {"time", "date", *PRICES, "volume", "spread", "spread_points"}
_SNIFFED_BYTES = 65536


@dataclass(frozen=True, eq=False)
class RawTable:
    """A file's rows in file order.

    Attributes:
        symbol, path: whose prices, from where.
        dialect: how the file is written.
        stamps: its moments, before `time_is` is applied.
        columns: open, high, low, close, volume as float64 [n], NaN where missing or not a number.
        spread: full spread in price units, NaN where missing; None when there is no source of it.
        spread_source: where the spread came from, in words.
        spread_replaced: whether the config's spread took the place of the file's own.
        extra: other numeric columns.
    """

    symbol: str
    path: Path
    dialect: Dialect
    stamps: stamps.Stamps
    columns: dict[str, FloatArray]
    spread: FloatArray | None
    spread_source: str
    extra: dict[str, FloatArray]
    spread_replaced: bool = False

    def __len__(self) -> int:
        return len(self.stamps.time)


def read(symbol: str, path: Path, config: DataConfig) -> RawTable:
    """Reads one file; refuses only what cannot be understood at all.

    Raises:
        DataError: unreadable or empty file, missing column, unknown time format or zone.
    """
    label = f"{symbol} ({path.name})"
    dialect, frame = read_frame(path, config, label)
    frame = _named(frame, dialect, config, label)
    if frame.height == 0:
        raise DataError(
            f"{label} holds no bars: it has a header and nothing else. Put bars into it, or take "
            "the file away and leave its symbol out of `symbols`."
        )
    if "date" in frame.columns and _is_clock(frame["time"]):
        text = [pl.col(name).cast(pl.String) for name in ("date", "time")]
        frame = frame.with_columns(time=pl.concat_str(text, separator=" "))
    zone = config.time_zone or dialect.zone
    parsed = stamps.parse(frame["time"], config.time_format, zone, dialect.zone_hint, label)
    columns = {name: _numbers(frame[name]) * config.price_scale for name in PRICES}
    volume = _numbers(frame["volume"]) if "volume" in frame.columns else np.zeros(frame.height)
    spread, source = _spread(frame, symbol, config)
    extra = {
        name: _numbers(frame[name])
        for name in frame.columns
        if name not in _CORE and _is_numeric(frame[name])
    }
    has_spread = "spread" in frame.columns or "spread_points" in frame.columns
    return RawTable(
        symbol=symbol,
        path=path,
        dialect=dialect,
        stamps=parsed,
        columns={**columns, "volume": volume},
        spread=spread,
        spread_source=source,
        extra=extra,
        spread_replaced=has_spread and config.spread_pips is not None,
    )


def read_frame(path: Path, config: DataConfig, label: str) -> tuple[Dialect, pl.DataFrame]:
    """A file's dialect and its columns under their own names."""
    if path.is_dir():
        raise DataError(f"{label} is a folder, a file was expected: rename or remove {path}.")
    if not path.exists():
        raise DataError(f"{label} does not exist: looked for {path}.")
    try:
        if path.suffix.lower() == ".parquet":
            frame = pl.read_parquet(path, glob=False)
            return Dialect("Parquet", tuple(frame.columns)), frame
        if path.suffix.lower() == ".feather":
            frame = pl.read_ipc(path)
            return Dialect("Feather", tuple(frame.columns)), frame
        return _read_text(path, config, label)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{label} cannot be read ({reason}): is it complete, and really a "
            f"{path.suffix.lstrip('.') or 'CSV'} file?"
        ) from None


def _read_text(path: Path, config: DataConfig, label: str) -> tuple[Dialect, pl.DataFrame]:
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # MetaTrader writes UTF-16
        content = content.decode("utf-16").encode()
    content = content.removeprefix(b"\xef\xbb\xbf")
    head = content[:_SNIFFED_BYTES].decode(errors="replace")
    dialect = sniff(head, config.separator, label)
    # Every column as text: a stray word in row 900,000 is then a missing number, with its time.
    frame = pl.read_csv(
        io.BytesIO(content),
        separator=dialect.separator,
        has_header=dialect.header,
        infer_schema=False,
        truncate_ragged_lines=True,
        encoding="utf8-lossy",
    )
    names = dialect.columns[: frame.width]
    if len(set(names)) < len(names):  # two columns of one name: the reader numbered them
        return replace(dialect, columns=tuple(frame.columns)), frame
    frame.columns = [*names, *frame.columns[len(names) :]]
    return dialect, frame


def _named(frame: pl.DataFrame, dialect: Dialect, config: DataConfig, label: str) -> pl.DataFrame:
    """The frame under our names, with at least a time and four prices."""
    names = rename(dialect, config.columns, label)
    frame = frame.select(list(names)).rename(names)
    if "time" not in frame.columns:
        moments = [name for name in frame.columns if frame[name].dtype in (pl.Datetime, pl.Date)]
        if len(moments) == 1:
            frame = frame.rename({moments[0]: "time"})
    missing = [name for name in ("time", *PRICES) if name not in frame.columns]
    if missing:
        raise DataError(
            f"{label} must have the columns time, open, high, low and close; "
            f"{', '.join(missing)} is missing among {', '.join(dialect.columns)}: say which "
            f"column is which, for example `columns: {{{dialect.columns[0]}: {missing[0]}}}`."
        )
    return frame


def _spread(frame: pl.DataFrame, symbol: str, config: DataConfig) -> tuple[FloatArray | None, str]:
    """Full spread in price units: the config's pips, else a column, else none."""
    if config.spread_pips is not None:
        width = config.spread_pips * symbols.pip(symbol)
        return np.full(frame.height, width), f"{config.spread_pips:g} pips from the config"
    if "spread" in frame.columns:
        return _numbers(frame["spread"]) * config.price_scale, "column spread"
    if "spread_points" in frame.columns:
        point = config.point or symbols.point(symbol)
        return _numbers(frame["spread_points"]) * point, f"column spread_points x {point:g}"
    return None, "none"


def _is_clock(column: pl.Series) -> bool:
    """Whether a column is a time of day, which needs its date beside it."""
    if column.dtype == pl.Time:
        return True
    if column.dtype != pl.String:
        return False
    return bool(column.drop_nulls().head(100).str.contains(r"^\s*\d{1,2}:\d{2}").all())


def _is_numeric(column: pl.Series) -> bool:
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return True
    if column.dtype != pl.String or column.null_count() == len(column):
        return False
    return bool(column.drop_nulls().cast(pl.Float64, strict=False).null_count() == 0)


def _numbers(column: pl.Series) -> FloatArray:
    """A column as float64 [n], NaN where it is missing or not a number."""
    if column.dtype == pl.String:
        column = column.str.strip_chars()
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() == len(column) > column.null_count():  # decimal commas
            numbers = column.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)
        column = numbers
    elif column.dtype.is_nested() or column.dtype.is_temporal():
        return np.full(len(column), np.nan)
    return column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()
