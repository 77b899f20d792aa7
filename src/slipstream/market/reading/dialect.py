"""Dialects: how a text file of prices is written, found by looking at its first lines."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.core.errors import DataError

PRICES = ("open", "high", "low", "close")
SEPARATORS = ("\t", ";", ",", "|")

# Lower-case header names without <> and punctuation -> our column.
ALIASES = {
    "time": (
        "time, timestamp, datetime, date time, gmt time, time eet, local time, utc, utc time, "
        "time utc, date utc, datetime utc, open time, opentime, unix, epoch, window start, ts, t"
    ),
    "date": "date, day",
    "open": "open, o, open price, mid o, mid open",
    "high": "high, h, max, mid h, mid high",
    "low": "low, l, min, mid l, mid low",
    "close": "close, c, close price, last, price, mid c, mid close",
    "volume": "volume, tickvol, tick volume, tickvolume, vol, v",
    "spread": "spread",
    "spread_points": "spread points, spreadpoints",
    "spread_pips": "spread pips, spreadpips",
}
# Columns whose cells name a symbol.
SYMBOL_NAMES = ("symbol", "ticker", "tic", "pair", "instrument", "asset", "coin")
_QUOTES = ("usd", "usdt", "usdc", "busd", "eur", "quote")
_PREAMBLE = 5  # lines before the header, at most
_OURS = {alias: ours for ours, names in ALIASES.items() for alias in names.split(", ")}
_NUMBER_OR_TIME = re.compile(r"[\d\s.,:/+\-eETZ]*")
_BINANCE = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume"),
    *("trades", "taker_buy_volume", "taker_buy_quote_volume", ""),
)
_HEADERLESS = {
    5: ("time", "open", "high", "low", "close"),
    6: ("time", "open", "high", "low", "close", "volume"),
    7: ("date", "time", "open", "high", "low", "close", "volume"),
}


@dataclass(frozen=True)
class Dialect:
    """The way in which a file is written.

    Attributes:
        name: ``MetaTrader``, ``HistData``, ``Dukascopy``, ``Binance``, ``CSV``, ``Parquet`` or
            ``Feather``.
        separator: field separator of a text file.
        header: whether the first line names the columns.
        columns: the file's column names, in order (ours where there is no header).
        zone: the zone that the format itself states, such as Dukascopy's "Gmt time"; else None.
        zone_hint: the zone that this format's stamps usually are in, for messages.
        bid: whether this source exports bid prices.
        skip: lines before the header, or before the first row where there is none.
    """

    name: str
    columns: tuple[str, ...]
    separator: str = ","
    header: bool = True
    zone: str | None = None
    zone_hint: str = "UTC"
    bid: bool = False
    skip: int = 0


def simple(name: str) -> str:
    """A header name at its plainest: ``<TICKVOL>`` -> ``tickvol``."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def sniff(text: str, separator: str | None, label: str) -> Dialect:
    """Finds the dialect of a text file from its first lines.

    Args:
        text: the beginning of the file.
        separator: the config's separator, None to detect.
        label: name of the file, for messages.
    """
    lines = text.splitlines()
    if not any(line.strip() for line in lines):
        raise DataError(f"{label} is empty: it must hold one line for each bar.")
    # Vendors put their address above the header.
    skip = next((k for k, line in enumerate(lines[:_PREAMBLE]) if _is_row(line, separator)), 0)
    lines = [line for line in lines[skip:] if line.strip()]
    allowed = f"\t{separator or ''}"
    if any(unicodedata.category(c) == "Cc" and c not in allowed for c in lines[0]):
        raise DataError(
            f"{label} is not a text file: its first line holds bytes that are no characters. Give "
            "a CSV, Parquet or Feather file of bars."
        )
    separator = separator or _separator(lines)
    fields = tuple(field.strip().strip('"') for field in lines[0].split(separator))
    if len(fields) < 5:
        raise DataError(
            f"{label} must hold a time and four prices in every line, its first line is "
            f"{lines[0][:80]!r}: name the field separator by `separator`."
        )
    if all(_NUMBER_OR_TIME.fullmatch(field) for field in fields):
        return replace(_without_header(fields, separator, label), skip=skip)
    if fields[0] == "Price" and len(lines) > 2 and lines[1].startswith("Ticker"):
        # yfinance: three lines of header, the name of the first column in the third.
        named = (lines[2].split(separator)[0].strip(), *fields[1:])
        return Dialect("CSV", named, separator, header=False, skip=skip + 3)
    return replace(with_header(fields, "CSV", separator), skip=skip)


def _is_row(line: str, separator: str | None) -> bool:
    marks = (separator,) if separator else SEPARATORS
    return any(line.count(mark) >= 4 and line.strip(f"{mark} ") for mark in marks)


def rename(dialect: Dialect, columns: dict[str, str], label: str) -> dict[str, str]:
    """The file's column name -> ours, extra columns in snake case, the config's `columns` first.

    `columns` may name some that this file lacks: another file of the folder has them.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for theirs, ours in columns.items():
        if theirs not in dialect.columns:
            continue
        if ours in taken:
            raise DataError(f"`columns` gives the name {ours!r} to two columns of {label}.")
        names[theirs] = ours
        taken.add(ours)
    rest = [name for name in dialect.columns if name not in names]
    plain = [simple(name) for name in rest]
    refuse_twins([n for n, one in zip(rest, plain, strict=True) if plain.count(one) > 1], label)
    for name in sorted(rest, key=_rank):
        ours = _OURS.get(simple(name), "")
        if dialect.name == "MetaTrader" and simple(name) == "spread":
            ours = "spread_points"
        if not ours or ours in taken:
            ours = simple(name).replace(" ", "_")
        if not ours or ours.startswith(("unnamed", "index_level")):
            continue
        while ours in taken:
            ours += "_2"
        names[name] = ours
        taken.add(ours)
    if "volume" not in taken:
        # CryptoDataDownload: "Volume BTC" and, in the other currency, "Volume USDT".
        sized = [name for name in names if names[name].startswith("volume_")]
        if sized:
            base = [name for name in sized if simple(name).split()[-1] not in _QUOTES]
            names[(base or sized)[0]] = "volume"
    if "time" not in taken and "date" in taken:
        return {theirs: "time" if ours == "date" else ours for theirs, ours in names.items()}
    return {name: names[name] for name in dialect.columns if name in names}


def refuse_twins(names: Sequence[str], label: str) -> None:
    """Raises DataError where columns of one name hold times or prices: which are right?"""
    twins = [name for name in names if _OURS.get(simple(name)) in ("time", *PRICES)]
    if twins:
        named = ", or give it a name of its own by `columns`, as THEIRS: ours"
        raise DataError(
            f"{label} has two columns of one name, {twins[0]!r} and {twins[1]!r}: take the wrong "
            f"one out of the file{named if twins[0] != twins[1] else ''}."
        )


def _rank(name: str) -> int:
    """Sorts aliases in their order of preference, so that <TICKVOL> beats <VOL>."""
    plain = simple(name)
    ours = _OURS.get(plain)
    return ALIASES[ours].split(", ").index(plain) if ours else 99


def _separator(lines: list[str]) -> str:
    def score(separator: str) -> tuple[bool, int]:
        counts = [line.count(separator) for line in lines[:20]]
        return len(set(counts)) == 1 and counts[0] >= 4, counts[0]

    return max(SEPARATORS, key=score)


def _without_header(fields: tuple[str, ...], separator: str, label: str) -> Dialect:
    if re.fullmatch(r"\d{8} \d{6}", fields[0]) and len(fields) in (5, 6):
        return Dialect(
            "HistData", _HEADERLESS[len(fields)], separator, False, None, "Etc/GMT+5", True
        )
    dated = re.fullmatch(r"\d{4}\.\d\d\.\d\d", fields[0]) and ":" in fields[1]
    if dated and len(fields) in (6, 7):
        columns = _HEADERLESS[7][: len(fields)]
        return Dialect("MetaTrader", columns, separator, False, None, "America/New_York+7", True)
    if len(fields) == len(_BINANCE) and re.fullmatch(r"\d{13}|\d{16}", fields[0]):
        return Dialect("Binance", _BINANCE, separator, False)
    if len(fields) in (5, 6):
        return Dialect("CSV", _HEADERLESS[len(fields)], separator, False)
    raise DataError(
        f"{label} must begin with a line that names its columns: the first line has {len(fields)} "
        f"numbers and nothing says what they are. Add a header line."
    )


def with_header(names: tuple[str, ...], format_: str, separator: str = ",") -> Dialect:
    """The dialect of a table whose columns are named; `format_` where the names do not say."""
    names = tuple(name.lstrip("\ufeff") for name in names)
    plain = {simple(name) for name in names}
    brackets = any(name.startswith("<") and name.endswith(">") for name in names)
    # MetaTrader 5, by its export or by its Python package (copy_rates).
    if (brackets and "ticker" not in plain) or {"tick volume", "spread"} <= plain:
        return Dialect("MetaTrader", names, separator, zone_hint="America/New_York+7", bid=True)
    if "gmt time" in plain:
        return Dialect("Dukascopy", names, separator, zone="UTC")
    if "local time" in plain:
        return Dialect("Dukascopy", names, separator)
    if "time eet" in plain:  # JForex
        return Dialect("Dukascopy", names, separator, zone_hint="Europe/Athens")
    zone = "UTC" if plain & {"utc", "utc time", "time utc", "date utc", "datetime utc"} else None
    return Dialect(format_, names, separator, zone=zone)
