"""Market: the prices of some symbols, loaded under one policy about bad data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from slipstream.core.config import nearest
from slipstream.core.errors import DataError
from slipstream.market.bars import Bars
from slipstream.market.calendar import calendar, calendar_warning
from slipstream.market.clean import Cleaned, clean
from slipstream.market.config import DataConfig
from slipstream.market.finding import Finding, plural
from slipstream.market.source import find_files
from slipstream.market.symbols import MarketKind
from slipstream.market.table import RawTable, read
from slipstream.market.units import agreed_length


@dataclass(frozen=True, eq=False)
class Market:
    """Bars of several symbols with one bar length.

    Attributes:
        bars: one entry a symbol, in the config's order.
        bar_seconds: length of a bar.
        kind: trading hours of the symbols: ``fx`` when all of them are, else ``24/7``.
        hash: SHA-256 of symbols, times and numbers; equal content has an equal hash.
        notes: sentences the user must see: what loading did about bad data.
    """

    bars: tuple[Bars, ...]
    bar_seconds: int
    kind: MarketKind
    hash: str
    notes: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols, in order."""
        return tuple(bars.symbol for bars in self.bars)

    def symbol(self, name: str) -> Bars:
        """The bars of one symbol."""
        for bars in self.bars:
            if bars.symbol == name:
                return bars
        guess = nearest(name, self.symbols)
        raise DataError(
            f"The market must hold {name}, it holds {', '.join(self.symbols)}"
            + (f": did you mean {guess}?" if guess else ".")
        )


def load_market(config: DataConfig) -> Market:
    """Loads the prices that `config` names.

    `slipstream.market.clean` states what happens to each kind of bad data.

    Raises:
        DataError: what is missing or cannot be used, and what to do about it.
    """
    files = find_files(config)
    tables = [read(symbol, path, config) for symbol, path in files.items()]
    cleaned = [clean(table, config) for table in tables]
    for table, one in zip(tables, cleaned, strict=True):
        _refuse(table, one)
    lengths = {table.symbol: one.bar_seconds for table, one in zip(tables, cleaned, strict=True)}
    disagreement = agreed_length(lengths, config.timeframe)
    if disagreement is not None:
        raise DataError(disagreement.sentence())
    bars = tuple(one.bars for one in cleaned if one.bars is not None)
    notes = [finding.sentence() for one in cleaned for finding in one.findings]
    notes += _spread_notes(tables, config)
    bar_seconds = cleaned[0].bar_seconds
    for one in cleaned:
        if one.bars is not None:
            days = calendar(one.kind, bar_seconds)
            warning = calendar_warning(one.bars.symbol, one.bars.time, bar_seconds, days)
            notes += [warning] if warning else []
    kind: MarketKind = "fx" if all(one.kind == "fx" for one in cleaned) else "24/7"
    return Market(bars, bar_seconds, kind, content_hash(bars), tuple(notes))


def market_of(
    bars: tuple[Bars, ...], bar_seconds: int, kind: MarketKind = "fx", notes: tuple[str, ...] = ()
) -> Market:
    """A market of bars that are already in memory, such as a planted one."""
    return Market(bars, bar_seconds, kind, content_hash(bars), notes)


def content_hash(bars: tuple[Bars, ...]) -> str:
    """SHA-256 of everything that training can see of the bars."""
    digest = hashlib.sha256()
    for one in bars:
        digest.update(one.symbol.encode())
        for name, column in one.columns().items():
            digest.update(f"|{name}|{len(column)}|".encode())
            digest.update(column.data)
    return digest.hexdigest()


def _refuse(table: RawTable, one: Cleaned) -> None:
    errors: list[Finding] = [finding for finding in one.findings if finding.severity == "error"]
    if not errors:
        return
    others = f" (and {plural(len(errors) - 1, 'other kind')} of error)" if len(errors) > 1 else ""
    first = errors[0]
    raise DataError(
        f"{first.symbol} ({table.path.name}): {first.message}; {first.action}{others}. "
        f"`slipstream data check {table.path.parent}` lists everything."
    )


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
    if config.price_side != "mid":
        notes.append(
            f"{config.price_side} prices were shifted to mid by half the spread "
            f"({tables[0].spread_source})."
        )
    ignored = [
        table.symbol
        for table in tables
        if config.time_zone not in (None, "UTC") and table.stamps.origin == "aware"
    ]
    if ignored:
        notes.append(
            f"{', '.join(ignored)}: `time_zone: {config.time_zone}` was ignored, the stamps "
            "carry their own zone."
        )
    return notes
