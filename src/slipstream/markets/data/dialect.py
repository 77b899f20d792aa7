"""Dialect: the format of a text file of prices, detected from its first lines."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from slipstream.core.errors import DataError

PRICES = ("open", "high", "low", "close")
SEPARATORS = ("\t", ";", ",", "|")

# Lower-case header names without <> and punctuation -> our column.
ALIASES = {
    "time": (
        "time, timestamp, datetime, date time, gmt time, time eet, local time, utc, utc time, "
        "time utc, date utc, datetime utc, open time, opentime, unix, epoch, window start, ts, t"
    ),
    "date": "date, day, dtyyyymmdd, yyyymmdd",
    "open": "open, o, open price, mid o, mid open",
    "high": "high, h, max, mid h, mid high",
    "low": "low, l, min, mid l, mid low",
    "close": "close, c, close price, last, price, mid c, mid close",
    "volume": (
        "volume, tickvol, tick volume, tickvolume, vol, v, volumefrom, volume from, base volume, "
        "basevolume, volume base, base asset volume, tickqty, tick qty"
    ),
    "spread": "spread",
    "spread_points": "spread points, spreadpoints",
    "spread_pips": "spread pips, spreadpips",
}
# Columns whose cells name a symbol.
SYMBOL_NAMES = ("symbol", "ticker", "tic", "pair", "instrument", "asset", "coin")
_QUOTES = ("usd", "usdt", "usdc", "busd", "eur", "gbp", "jpy", "quote", "currency", "to")
_PREAMBLE = 5  # lines before the header, at most
_OURS = {alias: ours for ours, names in ALIASES.items() for alias in names.split(", ")}
_NUMBER_OR_TIME = re.compile(r"[\d\s.,:/+\-eETZ]*")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")
_CLOCK = re.compile(r"\d{1,2}:\d{2}.*|\d{4}|\d{6}")
_SIDED = re.compile(
    "(bid|ask|offer)?(open|high|low|close|last|o|h|l|c)?(bid|ask|offer)?|([ab])([ohlc])"
)
_BINANCE = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume"),
    *("trades", "taker_buy_volume", "taker_buy_quote_volume", ""),
)
# The order of prices without names: most vendors', Coinbase's, Bitfinex's and KuCoin's, Huobi's.
_ORDERS = (
    PRICES,
    ("low", "high", "open", "close"),
    ("open", "close", "high", "low"),
    ("open", "close", "low", "high"),
)


@dataclass(frozen=True)
class Dialect:
    """Format of a file.

    Attributes:
        name: ``MetaTrader``, ``HistData``, ``Dukascopy``, ``Binance``, ``CSV``, ``Parquet`` or
            ``Feather``.
        separator: field separator of a text file.
        header: the cells of the line that names the columns; empty if there is none.
        columns: the file's column names, in order (standard names if there is no header).
        zone: the zone that the format itself states, such as Dukascopy's "Gmt time"; else None.
        zone_hint: the usual zone of this format, for messages.
        side: the quoted side of this source.
        two_sided: the prices are the mean of a bid and an ask of the file.
        skip: lines before the first row.
    """

    name: str
    columns: tuple[str, ...]
    separator: str = ","
    header: tuple[str, ...] = ()
    zone: str | None = None
    zone_hint: str = "UTC"
    side: Literal["mid", "bid", "ask"] = "mid"
    two_sided: bool = False
    skip: int = 0


def normalize_header(name: str) -> str:
    """Return a header name in lower case without punctuation: ``<TICKVOL>`` -> ``tickvol``."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def sniff(text: str, separator: str | None, label: str) -> Dialect:
    """Detect the dialect of a text file from its first lines.

    Args:
        text: the beginning of the file.
        separator: the config's separator, None to detect.
        label: name of the file, for messages.
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if not any(line.strip() for line in lines):
        raise DataError(f"{label} is empty: it must hold one line for each bar.")
    # Vendors put their address above the header.
    skip = next((k for k, line in enumerate(lines[:_PREAMBLE]) if _is_row(line, separator)), 0)
    numbers = [k for k, line in enumerate(lines) if k >= skip and line.strip()]
    lines = [lines[k] for k in numbers]
    allowed = f"\t{separator or ''}"
    if any(unicodedata.category(c) == "Cc" and c not in allowed for c in lines[0]):
        raise DataError(
            f"{label} is not a text file: its first line contains bytes that are not text. Give "
            "a CSV, Parquet or Feather file of bars."
        )
    separator = separator or _separator(lines)
    rows = [_cells(line, separator) for line in lines]
    # A header may follow lines of tickers: yfinance writes up to three lines of header.
    head = next((k for k, row in enumerate(rows[:_PREAMBLE]) if _names_prices(row)), 0)
    fields = tuple(rows[head])
    if len(fields) < 5:
        raise DataError(
            f"{label} must hold a time and four prices in every line, its first line is "
            f"{lines[0][:80]!r}: name the field separator by `separator`."
        )
    if all(_NUMBER_OR_TIME.fullmatch(field) for field in fields) or _numbers_in(fields) >= 4:
        return replace(_without_header(rows[head:], separator, label), skip=numbers[head])
    body = rows[head + 1 :]
    # Tickers and units below the names; yfinance names the column of time there.
    data_rows = (k for k, row in enumerate(body) if _numbers_in(row) or re.search(r"\d", row[0]))
    below = min(next(data_rows, 0), _PREAMBLE)
    for row in body[:below]:
        if _OURS.get(normalize_header(row[0])) in ("time", "date"):
            fields = (row[0], *fields[1:])
    names = _as_wide(fields, body[below:])
    first = numbers[head + below] + 1  # of the rows
    return replace(dialect_from_header(names, "CSV", separator), header=fields, skip=first)


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]


def _names_prices(row: Sequence[str]) -> bool:
    """Return True if at least three cells are names of prices."""
    names = [_OURS.get(normalize_header(cell)) or (parse_side(cell) or ("", ""))[1] for cell in row]
    return len(set(names) & set(PRICES)) >= 3


def _numbers_in(row: Sequence[str]) -> int:
    return sum(_NUMBER.fullmatch(cell) is not None for cell in row)


def _as_wide(names: tuple[str, ...], rows: list[list[str]]) -> tuple[str, ...]:
    """Return names for rows that are one cell longer than their header.

    The unnamed cell is a leading index (a row number, a symbol, the time) or a time of day next to
    its date. Otherwise it is the last cell, which is not read.
    """
    widths = Counter(map(len, rows))
    if not widths or widths.most_common(1)[0][0] != len(names) + 1:
        return names
    rows = [row for row in rows if len(row) == len(names) + 1]
    at = next(
        (
            k
            for k, name in enumerate(names)
            if _OURS.get(normalize_header(name)) in ("time", "date")
        ),
        -1,
    )
    first, next_to = [row[0] for row in rows], [row[at + 1] for row in rows]
    if at < 0:
        return ("time", *names)
    if all(re.fullmatch(r"\d{1,7}", name) for name in first):
        return ("", *names)
    if all(name.isalpha() for name in first):
        return ("symbol", *names)
    if all(_CLOCK.fullmatch(name) for name in next_to):
        return (*names[:at], "date", "time", *names[at + 1 :])
    return names


def _is_row(line: str, separator: str | None) -> bool:
    marks = (separator,) if separator else SEPARATORS
    return any(line.count(mark) >= 4 and line.strip(f"{mark} ") for mark in marks)


def map_columns(dialect: Dialect, columns: dict[str, str], label: str) -> dict[str, str]:
    """Map the file's column names to standard names, extra columns in snake case.

    The config's `columns` come first. They may name columns that this file lacks: another file of
    the folder has them.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for theirs, ours in columns.items():
        if theirs not in dialect.columns:
            continue
        if ours in used:
            raise DataError(f"`columns` gives the name {ours!r} to two columns of {label}.")
        names[theirs] = ours
        used.add(ours)
    rest = [name for name in dialect.columns if name not in names]
    plain = [normalize_header(name) for name in rest]
    check_duplicate_columns(
        [n for n, plain_name in zip(rest, plain, strict=True) if plain.count(plain_name) > 1], label
    )
    for name in sorted(rest, key=_rank):
        ours = _OURS.get(normalize_header(name), "")
        if dialect.name == "MetaTrader" and normalize_header(name) == "spread":
            ours = "spread_points"
        if not ours or ours in used:
            ours = normalize_header(name).replace(" ", "_")
        if not ours or ours.startswith(("unnamed", "index_level")):
            continue
        while ours in used:
            ours += "_2"
        names[name] = ours
        used.add(ours)
    if "volume" not in used:
        # CryptoDataDownload: "Volume BTC" and, in the other currency, "Volume USDT".
        sized = [name for name in names if names[name].startswith("volume_")]
        if sized:
            base = [name for name in sized if normalize_header(name).split()[-1] not in _QUOTES]
            names[(base or sized)[0]] = "volume"
    if "time" not in used and "date" in used:
        return {theirs: "time" if ours == "date" else ours for theirs, ours in names.items()}
    return {name: names[name] for name in dialect.columns if name in names}


def parse_side(name: str) -> tuple[str, str] | None:
    """Return the side and the price in a name: ``BidOpen`` -> ``("bid", "open")``.

    The price is empty if the name is that of a side alone, a quote at the close.
    """
    match = _SIDED.fullmatch(re.sub(r"price|[^a-z]", "", name.lower()))
    if match is None:
        return None
    before, price, after, initial, letter = match.groups()
    side = {"a": "ask", "b": "bid"}.get(initial) or before or after
    if side is None or (before and after):
        return None
    return side.replace("offer", "ask"), _OURS.get(price or letter, "")


def check_duplicate_columns(names: Sequence[str], label: str) -> None:
    """Raise DataError if two columns of one name hold times or prices."""
    twins = [name for name in names if _OURS.get(normalize_header(name)) in ("time", *PRICES)]
    if twins:
        named = ", or map it to a distinct name with `columns`, as THEIRS: ours"
        raise DataError(
            f"{label} has two columns of one name, {twins[0]!r} and {twins[1]!r}: remove the wrong "
            f"one from the file{named if twins[0] != twins[1] else ''}."
        )


def _rank(name: str) -> int:
    """Sort key of aliases in order of preference: <TICKVOL> precedes <VOL>."""
    plain = normalize_header(name)
    ours = _OURS.get(plain)
    return ALIASES[ours].split(", ").index(plain) if ours else 99


def _separator(lines: list[str]) -> str:
    def score(separator: str) -> tuple[bool, bool, int]:
        counts = [line.count(separator) for line in lines[:20]]
        named = any(_names_prices(_cells(line, separator)) for line in lines[:_PREAMBLE])
        return named, len(set(counts)) == 1 and counts[0] >= 4, counts[0]

    return max(SEPARATORS, key=score)


def _without_header(rows: list[list[str]], separator: str, label: str) -> Dialect:
    fields = rows[0]
    lead = ["symbol"] if fields[0].isalpha() else []
    date, clock = fields[len(lead) : len(lead) + 2]
    dated = _CLOCK.fullmatch(clock) and re.fullmatch(r"\d{8}|\d+[-/.]\d+[-/.]\d+", date)
    lead += ["date", "time"] if dated else ["time"]
    if len(fields) == len(_BINANCE) and re.fullmatch(r"\d{13}|\d{16}", fields[0]):
        return Dialect("Binance", _BINANCE, separator)
    if len(fields) - len(lead) not in (4, 5, 6):
        raise DataError(
            f"{label} must begin with a line that names its columns: the first line has "
            f"{len(fields)} numbers of unknown meaning. Add a header line."
        )
    order = _order([row[len(lead) : len(lead) + 4] for row in rows], label)
    names = (*lead, *order, "volume", "")[: len(fields)]
    if re.fullmatch(r"\d{8} \d{6}", fields[0]):
        return Dialect("HistData", names, separator, (), None, "Etc/GMT+5", "bid")
    if dated and re.fullmatch(r"\d{4}\.\d\d\.\d\d", fields[0]) and ":" in fields[1]:
        return Dialect("MetaTrader", names, separator, (), None, "America/New_York+7", "bid")
    return Dialect("CSV", names, separator)


def _order(rows: list[list[str]], label: str) -> tuple[str, ...]:
    """Return the order of four prices in which high and low enclose open and close."""
    quotes = []
    for row in rows:
        if len(row) < len(PRICES):
            continue  # the sample may end within a row
        try:
            quotes.append([float(cell.replace(",", ".")) for cell in row])
        except ValueError:
            continue  # the data check reports bad rows

    def fits(order: tuple[str, ...]) -> int:
        high, low = order.index("high"), order.index("low")
        return sum(row[high] == max(row) and row[low] == min(row) for row in quotes)

    best = max(_ORDERS, key=fits)
    if 2 * fits(best) < len(quotes):
        raise DataError(
            f"{label} has no line that names its columns, and its prices are in no known order: "
            "in too few rows do two of the columns enclose the others. Add a header line."
        )
    return best


def dialect_from_header(names: tuple[str, ...], format_: str, separator: str = ",") -> Dialect:
    """Return the dialect of a table with named columns; `format_` if the names are generic."""
    names = tuple(name.lstrip("\ufeff") for name in names)
    plain = {normalize_header(name) for name in names}
    brackets = any(name.startswith("<") and name.endswith(">") for name in names)
    # MetaTrader 5, by its export or by its Python package (copy_rates).
    if (brackets and "ticker" not in plain) or {"tick volume", "spread"} <= plain:
        return Dialect("MetaTrader", names, separator, zone_hint="America/New_York+7", side="bid")
    if "gmt time" in plain:
        return Dialect("Dukascopy", names, separator, zone="UTC")
    if "local time" in plain:
        return Dialect("Dukascopy", names, separator)
    if "time eet" in plain:  # JForex
        return Dialect("Dukascopy", names, separator, zone_hint="Europe/Athens")
    zone = "UTC" if plain & {"utc", "utc time", "time utc", "date utc", "datetime utc"} else None
    return Dialect(format_, names, separator, zone=zone)
