"""Market: the prices of some symbols, loaded under one policy about bad data."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass, replace

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.text import did_you_mean, plural, printable
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.check import DataCheck, check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import CATALOGUE, describe_fixes, join_issues
from slipstream.markets.data.raw_table import RawTable
from slipstream.markets.data.symbols import MarketKind, pip_size

_MAX_ERRORS = 5  # errors named in the exception
_FULL_NOTES = ("calendar", "broker_time", "bid_only", "ask_only")  # warnings noted in full


@dataclass(frozen=True, eq=False)
class Market:
    """Bars of several symbols with one bar length.

    Attributes:
        bars: one entry per symbol, in the config's order.
        bar_seconds: length of a bar.
        kind: trading hours of the symbols: ``fx`` if all of them are, else ``24/7``.
        hash: SHA-256 of symbols, times and numbers; equal content has an equal hash.
        notes: sentences for the user: the actions of loading on bad data.
        accepted: the first notes: errors that the config allows.
        converting: bars of untraded pairs that convert profits, if they are in memory; otherwise
            the folder is searched for them.
    """

    bars: tuple[Bars, ...]
    bar_seconds: int
    kind: MarketKind
    hash: str
    notes: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    converting: tuple[Bars, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Name of the symbols, in order."""
        return tuple(bars.symbol for bars in self.bars)

    def symbol(self, name: str) -> Bars:
        """Return the bars of one symbol."""
        for bars in self.bars:
            if bars.symbol == name:
                return bars
        raise DataError(f"The market does not hold {name}; {did_you_mean(name, self.symbols)}")


def load_market(config: DataConfig) -> Market:
    """Load the prices of a config after the complete data check.

    `check` reads each file with `read_table` (`markets/data/raw_table.py`) and cleans it with
    `clean` (`markets/data/cleaning.py`), whose header lists the action on each kind of bad data.
    `CATALOGUE` (`markets/data/data_issue.py`) lists the kinds that stop loading.

    Raises:
        DataError: the data has errors; the message includes suggested fixes.
    """
    data_check = check(config)
    _refuse(data_check)
    inspected = data_check.inspections
    bars = tuple(inspection.bars for inspection in inspected if inspection.bars is not None)
    accepted = tuple(
        join_issues(
            [issue for issue in data_check.issues if issue.accepted],
            data_check.symbols,
        )
    )
    kind: MarketKind = "fx" if all(inspection.kind == "fx" for inspection in inspected) else "24/7"
    spreads = _spread_notes([inspection.table for inspection in inspected], config)
    notes = (*accepted, *_fix_notes(data_check), *spreads, *_odd_notes(data_check))
    return Market(bars, inspected[0].bar_seconds, kind, content_hash(bars), notes, accepted)


def market_from_bars(bars: tuple[Bars, ...], bar_seconds: int, kind: MarketKind = "fx") -> Market:
    """Create a market from bars in memory, such as synthetic ones."""
    return Market(bars, bar_seconds, kind, content_hash(bars), ())


def content_hash(bars: tuple[Bars, ...]) -> str:
    """Return the SHA-256 of all bar data that training can observe."""
    digest = hashlib.sha256()
    for symbol_bars in bars:
        digest.update(symbol_bars.symbol.encode())
        for name, column in symbol_bars.columns().items():
            digest.update(f"|{name}|{len(column)}|".encode())
            digest.update(column.data)
    return digest.hexdigest()


def _refuse(data_check: DataCheck) -> None:
    """Raise DataError with all errors and their fixes in one paragraph."""
    if not data_check.errors:
        return
    named = [
        replace(issue, symbol=f"{issue.symbol} ({data_check.files[issue.symbol].name})")
        if issue.symbol in data_check.files and not issue.message.startswith(issue.symbol)
        else issue
        for issue in data_check.errors
    ]
    sentences = [text.removesuffix("; loading refuses.") + "." for text in join_issues(named, ())]
    sentences = [text.replace("..", ".") if text.endswith("..") else text for text in sentences]
    parts = [*sentences[:_MAX_ERRORS]]
    if len(sentences) > _MAX_ERRORS:
        parts.append(f"And {plural(len(sentences) - _MAX_ERRORS, 'other error')}.")
    if data_check.fixes:
        parts.append(describe_fixes(data_check.fixes))
    raise DataError(" ".join([*parts, f"{_check_command(data_check.config)} lists everything."]))


def _check_command(config: DataConfig) -> str:
    """Return the data check command with the settings of this section, which affect its result."""
    words = [
        config.folder,
        *(f"--column={theirs}={ours}" for theirs, ours in config.columns.items()),
    ]
    settings = config.model_dump(exclude_defaults=True, exclude={"folder", "files", "columns"})
    for key, value in settings.items():
        if isinstance(value, dict):
            value = [f"{symbol}={number}" for symbol, number in value.items()]
        text = ",".join(value) if isinstance(value, list | tuple) else value
        words.append(f"--{key.replace('_', '-')}={text}")
    return f"`slipstream data check {printable(shlex.join(words))}`"


def _fix_notes(data_check: DataCheck) -> list[str]:
    """Return notes on changes by loading, and on figures that the calendar makes wrong."""
    fixed = [
        issue
        for issue in data_check.issues
        if issue.severity == "warning"
        and not issue.accepted
        and (CATALOGUE[issue.kind].effect in ("fixed", "error") or issue.kind in _FULL_NOTES)
    ]
    return join_issues(fixed, data_check.symbols)


def _odd_notes(data_check: DataCheck) -> list[str]:
    """Return one sentence that counts the issues that loading keeps."""
    kinds = [
        issue.kind
        for issue in data_check.issues
        if issue.severity == "warning" and CATALOGUE[issue.kind].effect == "warning"
    ]
    counts = {kind: kinds.count(kind) for kind in kinds if kind not in _FULL_NOTES}
    if not counts:
        return []
    listed = ", ".join(kind if n == 1 else f"{kind} ({n})" for kind, n in counts.items())
    return [
        f"The data check found warnings: {listed}. List them with "
        f"{_check_command(data_check.config)}."
    ]


def _spread_notes(tables: list[RawTable], config: DataConfig) -> list[str]:
    notes = []
    bare = [table.symbol for table in tables if table.spread is None]
    if bare:
        notes.append(
            f"{', '.join(bare)}: no spread in the file and no `spread_pips`; the market data "
            "itself charges no spread."
        )
    replaced = [table.symbol for table in tables if table.spread_replaced]
    if replaced:
        notes.append(
            f"{', '.join(replaced)}: the file's own spread was replaced by `spread_pips: "
            f"{config.spread_pips:g}`."
        )
    for table in tables:
        spread = table.spread
        if spread is not None and spread.meaning == "spread_points":
            pips = float(np.nanmedian(spread.width)) / pip_size(table.symbol)
            notes.append(
                f"{table.symbol}: the file's spreads are points of "
                f"{config.point_size_for(table.symbol):g}, {pips:.3g} pips in the median."
            )
    if config.price_side != "mid":
        notes.append(
            f"{config.price_side} prices were shifted to mid by half the spread "
            f"({tables[0].spread_source})."
        )
    ignored = [
        table.symbol
        for table in tables
        if config.time_zone not in (None, "UTC") and table.local_times.origin == "aware"
    ]
    if ignored:
        notes.append(
            f"{', '.join(ignored)}: `time_zone: {config.time_zone}` was ignored, the stamps "
            "carry their own zone."
        )
    return notes
