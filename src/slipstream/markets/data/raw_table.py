"""RawTable: the rows of one file before any rule about bad data is applied."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from slipstream.core.capacity import free_memory
from slipstream.core.errors import DataError, ResourceError
from slipstream.core.safe_io import UnreadableError, open_regular, regular_file
from slipstream.core.text import invalid_path_message
from slipstream.markets.data import symbols, timestamps
from slipstream.markets.data.bars import BoolArray, FloatArray, IntArray, timeframe_seconds
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import FixableDataError
from slipstream.markets.data.dialect import (
    PRICES,
    SYMBOL_NAMES,
    Dialect,
    check_duplicate_columns,
    dialect_from_header,
    map_columns,
    normalize_header,
    parse_side,
    sniff,
)
from slipstream.markets.data.file_discovery import detect_side, expand_parts

SPREADS = ("spread", "spread_points", "spread_pips")
_CORE = {"time", "date", *PRICES, "volume", *SPREADS}
_SNIFFED_BYTES = 65536
_UNKNOWN = -1.0  # Interactive Brokers' value for an unknown volume
_TIMES_SIZE = 4  # memory of a text file while it is read: its bytes twice, and its columns
# PanicException is no `Exception`: polars raises it for files that it cannot represent.
_BROKEN = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_NUMBERS = 24  # largest number of additional 8-byte values per row while bars are built
_LISTED = 20
_LETTERED = r"^\d[\d.]*[KMB]$"
_END = r"(?:[eE][-+]?\d+)?[KMB%]?$"
_MARKED = rf"^[-+]?[\d.,]*\d[\d.,]*{_END}"
_SPACES = r"[\s'\u{2019}\u{fffd}]"
_SPACED = rf"^[-+]?\d{{1,3}}(?:{_SPACES}\d{{3}})+(?:[.,]\d+)?{_END}"
# Patterns that prove a decimal mark, and patterns that may be a thousands separator.
_MARKS = {
    mark: (
        rf"^[-+]?(?:\d*{point}\d+|\d{{1,3}}(?:{group}\d{{2,3}})+{point}\d+"
        rf"|\d{{1,3}}(?:{group}\d{{2,3}})*{group}\d{{3}}){_END}",
        rf"^[-+]?(?:[1-9]\d{{0,2}}{point}\d{{3}}|\d{{1,3}}{group}\d{{3}}){_END}",
    )
    for mark, point, group in ((".", r"\.", ","), (",", ",", r"\."))
}
_SIZES = {"K": 1e3, "M": 1e6, "B": 1e9}


class Spread(NamedTuple):
    """Spreads of a file and their source.

    Attributes:
        width: full spread in price units, float64 [n], NaN if missing.
        source: description for messages.
        column: the file's own column, float64 [n]; None if the config sets the spread.
        meaning: unit of `column`: ``spread``, ``spread_points`` or ``spread_pips``; empty without
            one.
    """

    width: FloatArray
    source: str
    column: FloatArray | None = None
    meaning: str = ""


@dataclass(frozen=True, eq=False)
class RawTable:
    """Rows of a file in file order.

    Attributes:
        symbol, path: symbol and source of the prices.
        dialect: format of the file.
        local_times: timestamps as the file states them.
        zone: zone of naive timestamps: the config's, else the format's, else None.
        columns: open, high, low, close, volume as float64 [n], NaN if missing or not a number.
        quoted: closes of the file before `price_scale`, float64 [n].
        spread: None if there is no source.
        extra: other numeric columns.
        part: index of the symbol's file that each row comes from, int64 [n].
        unpaired: number of bid or ask rows without a row of the other side.
        unknown: number of rows whose volume is unknown and counts as 0.
        spread_replaced: the config's spread replaces that of the file.
    """

    symbol: str
    path: Path
    dialect: Dialect
    local_times: timestamps.LocalTimestamps
    zone: str | None
    columns: dict[str, FloatArray]
    quoted: FloatArray
    spread: Spread | None
    extra: dict[str, FloatArray]
    part: IntArray
    unpaired: int = 0
    unknown: int = 0
    spread_replaced: bool = False

    def __len__(self) -> int:
        return len(self.local_times.seconds)

    @property
    def needs_zone(self) -> bool:
        """True if some timestamps have no zone and none is configured."""
        return self.zone is None and bool(self.local_times.naive.any())

    @property
    def side(self) -> Literal["mid", "bid", "ask"]:
        """Side of the prices, from the file's name or its format."""
        name = self.path.stem.upper()
        if self.dialect.two_sided:
            return "mid"
        if "ASK" in name:
            return "ask"
        return "bid" if "BID" in name else self.dialect.side

    @property
    def spread_source(self) -> str:
        """Description of the source of the spread."""
        return "none" if self.spread is None else self.spread.source

    @cached_property
    def timestamps(self) -> timestamps.Timestamps:
        """Timestamps of the rows before `timestamp_label` is applied, in UTC if no zone is set."""
        return timestamps.to_utc(self.local_times, self.zone or "UTC")

    @property
    def silent(self) -> BoolArray:
        """Rows without trades: flat, without volume, bool [n]."""
        columns = self.columns
        quiet: BoolArray = (columns["high"] == columns["low"]) & (columns["volume"] == 0.0)
        return quiet


def read_table(symbol: str, path: Path, config: DataConfig) -> RawTable:
    """Read one file, or the parts of a symbol as one table.

    Raises:
        FixableDataError: missing columns, unknown time format, several symbols in one table.
        DataError: unreadable or empty file.
    """
    label = f"{symbol} ({path.name})"
    paths = expand_parts(path)
    parts = [_read_part(symbol, path, config) for path in paths]
    sides = [detect_side(path) for path in paths]
    dialect, unpaired = parts[0][0], 0
    part = np.repeat(np.arange(len(parts)), [frame.height for _, frame in parts])
    if set(sides) == {"bid", "ask"}:
        bid, ask = (
            _concat_parts(
                [frame for (_, frame), its in zip(parts, sides, strict=True) if its == side],
                label,
            )
            for side in ("bid", "ask")
        )
        frame, unpaired = _merge_sides(bid, ask, config, label)
        dialect = replace(dialect, two_sided=True, side="mid")
        part = np.zeros(frame.height, dtype=np.int64)
    else:
        frame = _concat_parts([frame for _, frame in parts], label)
    scale = config.price_scale_for(symbol)
    quoted = to_float(frame["close"])
    columns = {
        name: (quoted if name == "close" else to_float(frame[name])) * scale for name in PRICES
    }
    volume = np.zeros(frame.height)
    if "volume" in frame.columns and not is_blank(frame["volume"]):
        volume = to_float(frame["volume"])
    unknown = volume == _UNKNOWN
    volume[unknown] = 0.0
    extra = {
        name: to_float(frame[name])
        for name in frame.columns
        if name not in _CORE and is_numeric(frame[name])
    }
    local_times = timestamps.parse(frame["time"], config.time_format, label)
    seconds = local_times.seconds
    if config.row_spacing and timestamps.has_many_duplicates(
        len(seconds) - len(np.unique(seconds)), len(seconds)
    ):
        rebuilt = timestamps.rebuild_timestamps(local_times, timeframe_seconds(config.row_spacing))
        if rebuilt is None:
            raise DataError(
                f"{label}: `row_spacing: {config.row_spacing}` does not fit: no single start puts "
                "every row at its stamp. Rows are missing or the length is another one. Export the "
                "file again with full time stamps."
            )
        local_times = rebuilt
    return RawTable(
        symbol=symbol,
        path=path,
        dialect=dialect,
        local_times=local_times,
        zone=config.time_zone or dialect.zone,
        columns={**columns, "volume": volume},
        quoted=quoted,
        spread=_spread(frame, symbol, config),
        extra=extra,
        part=part,
        unpaired=unpaired,
        unknown=int(unknown.sum()),
        spread_replaced=config.spread_pips is not None
        and any(name in frame.columns for name in SPREADS),
    )


def _concat_parts(frames: list[pl.DataFrame], label: str) -> pl.DataFrame:
    """Concatenate the parts of a symbol with the columns that all of them have."""
    shared = [name for name in frames[0].columns if all(name in part for part in frames)]
    try:
        return pl.concat([part.select(shared) for part in frames], how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{label} matches {len(frames)} files whose columns differ in type ({error}): "
            "write them alike, or name one of them in `files`."
        ) from None


def _merge_sides(
    bid: pl.DataFrame, ask: pl.DataFrame, config: DataConfig, label: str
) -> tuple[pl.DataFrame, int]:
    """Return mid prices and spread of a bid and an ask file, and the number of unmatched rows."""
    first, second = (
        timestamps.parse(side["time"], config.time_format, label) for side in (bid, ask)
    )
    shared, bid_rows, ask_rows = np.intersect1d(first.seconds, second.seconds, return_indices=True)
    is_valid = shared != timestamps.MISSING
    if not is_valid.any():
        raise DataError(
            f"{label} matches a bid file and an ask file that have no timestamp in common: "
            "export both for the same time, or name one of them in `files`."
        )
    bid_rows, ask_rows = bid_rows[is_valid], ask_rows[is_valid]
    columns = {
        name: 0.5 * (to_float(bid[name])[bid_rows] + to_float(ask[name])[ask_rows])
        for name in PRICES
    }
    columns["spread"] = to_float(ask["open"])[ask_rows] - to_float(bid["open"])[bid_rows]
    frame = bid[bid_rows].with_columns(pl.Series(name, column) for name, column in columns.items())
    return frame, len(bid) + len(ask) - 2 * len(bid_rows)


def _read_part(symbol: str, path: Path, config: DataConfig) -> tuple[Dialect, pl.DataFrame]:
    """Return one file's dialect and its rows with standard column names."""
    label = f"{symbol} ({path.name})"
    dialect, frame = read_frame(path, config, label)
    frame = filter_symbol(frame, symbol, path, label)
    dialect, frame = _mid_from_sides(_join_date_columns(frame), dialect, config)
    frame = rename_columns(frame, dialect, config, label)
    if frame.height == 0:
        raise DataError(
            f"{label} holds no bars: it has a header and nothing else. Put bars into it, or take "
            "the file away and leave its symbol out of `symbols`."
        )
    if "date" in frame.columns and is_time_of_day(frame["time"]):
        date = frame["date"]
        date = timestamps.integer_text(date) if date.dtype.is_numeric() else date.cast(pl.String)
        frame = frame.with_columns(time=date.str.strip_chars() + " " + _clock(frame["time"]))
    return dialect, frame


def _clock(column: pl.Series) -> pl.Series:
    """Return times of day as text: 0, 100 and 2300 are hours and minutes, 30000 is 03:00:00."""
    text = column.cast(pl.String).str.strip_chars().str.replace(r"\.0$", "")
    digits = text.cast(pl.Int64, strict=False).drop_nulls().to_numpy()
    if len(digits) < len(text.drop_nulls()) or len(digits) == 0:
        return text
    if digits.max() <= 23:
        return text.str.zfill(2) + "0000"
    if (
        digits.max() < 2400
        and bool((digits % 100 < 60).all())
        and bool((text.str.len_chars() <= 4).all())
    ):
        return text.str.zfill(4) + "00"
    return text.str.zfill(6)


def _join_date_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Replace columns for year, month, day and hour by a date and a time."""
    columns = {normalize_header(name): name for name in frame.columns}
    if not {"year", "month", "day"} <= columns.keys() or "date" in columns:
        return frame

    def part(name: str) -> pl.Series:
        column = frame[columns[name]]
        column = timestamps.integer_text(
            column.cast(pl.Float64) if column.dtype.is_float() else column
        )
        return column.cast(pl.String).str.strip_chars().str.zfill(2)

    date = part("year") + "-" + part("month") + "-" + part("day")
    frame = frame.drop(columns[name] for name in ("year", "month", "day")).with_columns(date=date)
    if "hour" in columns and "time" not in columns:
        clock = part("hour")
        for name in ("minute", "second"):
            clock = clock + ":" + (part(name) if name in columns else "00")
        frame = frame.with_columns(time=clock)
        frame = frame.drop(
            columns[name] for name in ("hour", "minute", "second") if name in columns
        )
    return frame


def _mid_from_sides(
    frame: pl.DataFrame, dialect: Dialect, config: DataConfig
) -> tuple[Dialect, pl.DataFrame]:
    """Return prices and spread of columns of bid and ask.

    Prices without a side stay if there are four of them. Otherwise they are the middle of bid and
    ask. The spread is the file's own spread column if it has one, else that of the open, at which
    orders fill, else that of the close.
    """
    dialect = replace(dialect, columns=tuple(frame.columns))
    sides: dict[str, dict[str, str]] = {"bid": {}, "ask": {}}
    for name in frame.columns:
        side_field = None if name in config.columns else parse_side(name)
        if side_field is not None:
            sides[side_field[0]].setdefault(side_field[1], name)
    bid, ask = sides["bid"], sides["ask"]
    names = map_columns(dialect, config.columns, "")
    fields = set(names.values())
    used = {*bid.values(), *ask.values()}
    complete = [side for side in sides if set(PRICES) <= sides[side].keys()]
    quoted = next((name for name in (*PRICES[::3], "") if name in bid and name in ask), None)
    plain = set(PRICES) <= fields
    if (quoted is None) if plain else not complete:
        return dialect, frame
    if len(min(used, key=len)) <= 2 and len(complete) < 2:  # BO, AC: too short to prove anything
        return dialect, frame
    mids: dict[str, FloatArray] = {}
    width = None if quoted is None else to_float(frame[ask[quoted]]) - to_float(frame[bid[quoted]])
    if not plain:
        for name in PRICES:
            quotes = [to_float(frame[sides[side][name]]) for side in complete]
            mids[name] = np.mean(quotes, axis=0)
            if len(complete) == 1 and width is not None:
                mids[name] += (0.5 if complete == ["bid"] else -0.5) * width
    if width is not None and not fields & set(SPREADS):
        mids["spread"] = width
    side = dialect.side
    if plain:  # whose quotes the prices without a side are
        close = frame[next(theirs for theirs, field in names.items() if field == "close")]
        for name, quote_columns in sides.items():
            quote = quote_columns.get("close", quote_columns.get(""))
            if quote and (np.mean(to_float(close) == to_float(frame[quote])) > 0.99):
                side = "bid" if name == "bid" else "ask"
    elif width is None:
        side = "bid" if complete == ["bid"] else "ask"
    frame = frame.drop(used).with_columns(pl.Series(name, mids[name]) for name in mids)
    two_sided = not plain and width is not None
    return replace(dialect, columns=tuple(frame.columns), side=side, two_sided=two_sided), frame


def read_frame(path: Path, config: DataConfig, label: str) -> tuple[Dialect, pl.DataFrame]:
    """Return a file's dialect and its columns under their own names."""
    if path.is_dir():
        raise DataError(f"{label} is a folder, a file was expected. Rename or remove {path}.")
    try:
        regular_file(path)
    except FileNotFoundError:
        raise DataError(f"{label} does not exist: looked for {path}.") from None
    except UnreadableError as problem:  # a pipe would never end
        raise DataError(f"{label} cannot be read: {problem}. Rename or remove {path}.") from None
    suffix = path.suffix.lower()
    try:
        if suffix in (".parquet", ".feather"):
            str(path).encode()  # polars opens no other path
            scan = pl.scan_parquet(path, glob=False) if suffix == ".parquet" else pl.scan_ipc(path)
            _check_memory(scan, label)
            frame = _decode_columns(scan.collect())
            dialect = dialect_from_header(tuple(frame.columns), suffix[1:].capitalize())
        else:
            dialect, frame = _read_text(path, config, label)
        return dialect, normalize_decimals(frame, config, label)
    except UnicodeEncodeError:
        raise DataError(f"{label} cannot be read. {invalid_path_message(str(path))}") from None
    except (*_BROKEN, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{label} cannot be read ({reason}): it is incomplete, or no "
            f"{path.suffix.lstrip('.') or 'CSV'} file."
        ) from None


def _decode_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Convert categories and bytes of other programs to text."""
    coded = [n for n, kind in frame.schema.items() if kind in (pl.Categorical, pl.Enum, pl.Binary)]
    return frame.with_columns(pl.col(name).cast(pl.String, strict=False) for name in coded)


def _check_memory(scan: pl.LazyFrame, label: str) -> None:
    """Refuse a file whose stated number of rows does not fit into memory.

    Raises:
        ResourceError: before any row is read.
    """
    rows = scan.select(pl.len()).collect().item()
    needed = 8 * rows * (len(scan.collect_schema()) + _NUMBERS)
    free = free_memory()
    if needed > free:
        raise ResourceError(
            f"{label} has {rows:,} rows, which need about {needed / 2**30:,.1f} GiB while they are "
            f"read, and {free / 2**30:,.1f} GiB of memory are free: keep fewer rows in the file "
            "(longer bars, or a shorter time), or use a machine with more memory."
        )


def _read_text(path: Path, config: DataConfig, label: str) -> tuple[Dialect, pl.DataFrame]:
    with open_regular(path) as file:
        head = _as_utf8(file.read(_SNIFFED_BYTES), "replace").decode(errors="replace")
        dialect = sniff(head, config.separator, label)  # before reading gigabytes
        size, free = os.fstat(file.fileno()).st_size, free_memory()
        if _TIMES_SIZE * size > free:
            raise ResourceError(
                f"{label} has {size / 2**30:,.1f} GiB of text, which take {_TIMES_SIZE} times as "
                f"much while they are read; {free / 2**30:,.1f} GiB of memory are free. Keep fewer "
                "rows in the file (longer bars, or a shorter time), or read it on a larger machine."
            )
        file.seek(0)
        content = _as_utf8(file.read())
    rows = content.split(b"\n", dialect.skip)[-1]
    names = list(dialect.columns)
    for k, name in enumerate(names):
        if names.count(name) > 1:  # makes names unique; empty names are not read
            names[k] = f"{name}_duplicated_{k}" if name else f"unnamed_{k}"
    # Every column as text: a stray word in row 900,000 becomes a missing number.
    frame = pl.read_csv(
        io.BytesIO(f"{dialect.separator.join(map(str, range(len(names))))}\n".encode() + rows),
        separator=dialect.separator,
        infer_schema=False,
        truncate_ragged_lines=True,
        encoding="utf8-lossy",
    )
    frame.columns = names
    blank = pl.all_horizontal(pl.all().is_null() | (pl.all().str.strip_chars() == ""))
    frame = frame.filter(~blank)
    repeats = [pl.nth(k).str.strip_chars() == cell for k, cell in enumerate(dialect.header) if cell]
    if repeats:  # concatenated files repeat the header
        frame = frame.filter(~pl.all_horizontal(repeats).fill_null(False))
    if len(set(dialect.columns)) < len(names):
        check_duplicate_columns(
            [name for name in dialect.columns if dialect.columns.count(name) > 1], label
        )
    return replace(dialect, columns=tuple(names)), frame


def _as_utf8(content: bytes, errors: str = "strict") -> bytes:
    """Return bytes of a text as UTF-8 without a byte order mark; MetaTrader writes UTF-16."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        content = content.decode("utf-16", errors).encode()
    return content.removeprefix(b"\xef\xbb\xbf")


def _spread(frame: pl.DataFrame, symbol: str, config: DataConfig) -> Spread | None:
    """Return the full spread in price units: the config's pips, else a column, else None."""
    if config.spread_pips is not None:
        width = config.spread_pips * symbols.pip_size(symbol)
        return Spread(np.full(frame.height, width), f"{config.spread_pips:g} pips from the config")
    filled = [name for name in SPREADS if name in frame.columns]
    filled = [name for name in filled if not is_blank(frame[name])]
    meaning = next(iter(filled), None)
    if meaning is None:
        return None
    column = to_float(frame[meaning])
    if meaning == "spread":
        return Spread(column * config.price_scale_for(symbol), "column spread", column, meaning)
    unit = config.point_size_for(symbol) if meaning == "spread_points" else symbols.pip_size(symbol)
    return Spread(column * unit, f"column {meaning} x {unit:g}", column, meaning)


def rename_columns(
    frame: pl.DataFrame, dialect: Dialect, config: DataConfig, label: str
) -> pl.DataFrame:
    """Return the frame with standard names, with at least a time and four prices."""
    names = map_columns(dialect, config.columns, label)
    frame = frame.select(list(names)).rename(names)
    if "time" not in frame.columns:
        moments = [name for name in frame.columns if frame[name].dtype in (pl.Datetime, pl.Date)]
        if len(moments) == 1:
            frame = frame.rename({moments[0]: "time"})
    missing = [name for name in ("time", *PRICES) if name not in frame.columns]
    if missing:
        raise _missing_columns_error(missing, frame, dialect, config, label)
    return frame


def _missing_columns_error(
    missing: list[str], frame: pl.DataFrame, dialect: Dialect, config: DataConfig, label: str
) -> FixableDataError:
    """Create the error for missing columns, with a mapping if the numbers determine one."""
    listed = ", ".join(name or '""' for name in dialect.columns)
    mapped = {theirs: ours for theirs, ours in config.columns.items() if theirs in dialect.columns}
    message = (
        f"{label} must have the columns time, open, high, low and close; {', '.join(missing)} is "
        f"missing among {listed}"
    )
    unknown = [theirs for theirs in config.columns if theirs not in mapped]
    if unknown:
        message += f" (`columns` names {unknown[0]!r}, which is not there)"
    guesses = _guess_columns(frame, missing, dialect)
    if guesses is None:
        return FixableDataError("columns", f"{message}: map them with `columns`, as THEIRS: ours.")
    return FixableDataError("columns", f"{message}.", {"columns": {**mapped, **guesses}})


def _guess_columns(
    frame: pl.DataFrame, missing: list[str], dialect: Dialect
) -> dict[str, str] | None:
    """Return the file's names of missing columns if their contents are unambiguous.

    A missing time is the only column that holds timestamps. Missing prices are found if four
    columns in a row are open, high, low and close by their sizes.
    """
    guesses: dict[str, str] = {}
    head = frame.head(1000)
    if "time" in missing:
        moments = [name for name in head.columns if _holds_stamps(head[name])]
        if "" in dialect.columns and not moments:
            guesses[""] = "time"  # pandas writes an index without a name
        elif len(moments) == 1:
            guesses[moments[0]] = "time"
        else:
            return None
    if set(missing) & set(PRICES):
        numeric = [n for n in head.columns if n not in guesses and is_numeric(head[n])]
        four = next(
            (
                numeric[k : k + 4]
                for k in range(len(numeric) - 3)
                if _is_ohlc([to_float(head[n]) for n in numeric[k : k + 4]])
            ),
            None,
        )
        if four is None:
            return None
        guesses |= dict(zip(four, PRICES, strict=True))
    theirs_of = {normalize_header(name).replace(" ", "_"): name for name in dialect.columns}
    return {theirs_of.get(name, name): ours for name, ours in guesses.items()}


def _holds_stamps(column: pl.Series) -> bool:
    if column.dtype.is_numeric():
        return False
    try:
        local_times = timestamps.parse(column, None, "")
    except DataError:
        return False
    steps = np.sign(np.diff(local_times.seconds))
    ordered = len(steps) > 0 and max(np.mean(steps > 0), np.mean(steps < 0)) > 0.9
    return bool(ordered and (local_times.seconds != timestamps.MISSING).all())


def _is_ohlc(columns: list[FloatArray]) -> bool:
    opens, high, low, close = columns
    inside = (high >= np.maximum(opens, close)) & (low <= np.minimum(opens, close))
    return bool(inside.mean() > 0.99 and (high > low).any() and (low > 0.0).mean() > 0.99)


def filter_symbol(frame: pl.DataFrame, symbol: str, path: Path, label: str) -> pl.DataFrame:
    """Return the rows of one symbol of a table with several."""
    names, column = list_symbols(frame)
    if len(names) < 2:
        return frame
    matches = [name for name in names if _bare_symbol(name) == _bare_symbol(symbol)]
    if matches:
        return frame.filter(pl.col(column).cast(pl.String).str.strip_chars().is_in(matches))
    listed = names[:_LISTED]
    fix = {"files": {_bare_symbol(name): path.name for name in names}}
    raise FixableDataError(
        "several_symbols",
        f"{label} holds {len(names)} symbols in its column {column!r} ({', '.join(listed)}"
        f"{', ...' if len(names) > _LISTED else ''}), none of them {symbol}: name those to load.",
        fix,
    )


def list_symbols(frame: pl.DataFrame) -> tuple[list[str], str]:
    """Return the symbols in a column of a table, in order, and the name of that column."""
    for name in frame.columns:
        if normalize_header(name) in SYMBOL_NAMES and frame[name].dtype in (
            pl.String,
            pl.Categorical,
        ):
            values = frame[name].cast(pl.String).str.strip_chars().drop_nulls()
            return values.unique(maintain_order=True).to_list(), name
    return [], ""


def list_bare_symbols(frame: pl.DataFrame) -> list[str]:
    """Return the symbols in a column of a table, as the config's `symbols` spells them."""
    return [_bare_symbol(name) for name in list_symbols(frame)[0]]


def _bare_symbol(name: str) -> str:
    """Return a name without prefix and punctuation: ``C:EUR/USD`` -> ``EURUSD``."""
    return re.sub(r"[^A-Z0-9]", "", re.sub(r"^[CXI]:", "", name.upper()))


def is_time_of_day(column: pl.Series) -> bool:
    """Return True if a column is a time of day, which needs a date column."""
    if column.dtype == pl.Time:
        return True
    if column.dtype.is_numeric():
        return bool((column.drop_nulls() < 240_000).all())
    if column.dtype != pl.String:
        return False
    clock = r"(?i)^\s*(?:\d{1,2}:\d{2}.*|\d{1,6}(?:\.0)?|\d{1,2}[ -]?[ap]m)$"
    return bool(column.drop_nulls().head(100).str.contains(clock).all())


def is_blank(column: pl.Series) -> bool:
    """Return True if all cells are empty."""
    if column.dtype == pl.String:
        column = column.filter(column.str.strip_chars() != "")
    return column.null_count() == len(column)


def is_numeric(column: pl.Series) -> bool:
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return True
    if column.dtype != pl.String or column.null_count() == len(column):
        return False
    return bool(column.drop_nulls().cast(pl.Float64, strict=False).null_count() == 0)


def to_float(column: pl.Series) -> FloatArray:
    """Return a column as float64 [n], NaN if missing or not a number."""
    if column.dtype == pl.String:
        column = column.str.strip_chars()
        cast = column.cast(pl.Float64, strict=False)
        if cast.null_count() > column.null_count() and column.str.contains(_LETTERED).any():
            return _parse_suffixed(column)  # 12.5K, 1.2M
        column = cast
    elif column.dtype.is_nested() or column.dtype.is_temporal():
        return np.full(len(column), np.nan)
    return column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()


def _parse_suffixed(column: pl.Series) -> FloatArray:
    """Return numbers that end in K, M or B, float64 [n]."""
    values = column.str.strip_chars_end("KMB").cast(pl.Float64, strict=False)
    letters = column.str.slice(-1).replace_strict(_SIZES, default=1.0, return_dtype=pl.Float64)
    return (values * letters).fill_null(np.nan).to_numpy().copy()


def normalize_decimals(frame: pl.DataFrame, config: DataConfig, label: str) -> pl.DataFrame:
    """Return text columns of numbers with decimal points and without marks between thousands.

    A column's own numbers decide whether its commas are decimal: 1,10 and 1.234,5 are, 1,234.5
    and 1,234,567 are not. Numbers such as 1,234 alone are decided by the file's other columns.

    Raises:
        FixableDataError: no column decides.
    """
    texts: dict[str, pl.Series] = {}
    marks: dict[str, set[str]] = {}
    for name in frame.columns:
        if frame[name].dtype != pl.String:
            continue
        text = frame[name].str.strip_chars().str.replace(r"^([-+]?)[$€£¥]\s*", "$1")
        if text.str.contains(_SPACED).any():
            text = text.str.replace_all(_SPACES, "")
        if 2 * text.str.contains(_MARKED).sum() > len(text) - text.null_count():
            texts[name] = text
            marks[name] = {
                mark
                for mark, (proof, open_) in _MARKS.items()
                if (text.str.contains(proof) & ~text.str.contains(open_)).any()
            }
    known_marks = {mark for column_marks in marks.values() for mark in column_marks}
    for name, text in texts.items():
        decimals = {config.decimal} if config.decimal else marks[name] or known_marks
        grouped = text.str.contains(",", literal=True)
        if not grouped.any() and "," not in decimals:
            decimal = "."
        elif len(decimals) == 1:
            (decimal,) = decimals
        else:
            raise FixableDataError(
                "decimal",
                f"{label}: the comma in numbers such as {text.filter(grouped)[0]!r} in column "
                f"{name!r} may be decimal or stand between thousands, and no column decides.",
                {"decimal": "."},
                {"decimal": ","},
            )
        thousands = "," if decimal == "." else "."
        texts[name] = text.str.replace_all(thousands, "", literal=True).str.replace(
            decimal, ".", literal=True
        )
    return frame.with_columns(text.alias(name) for name, text in texts.items())
