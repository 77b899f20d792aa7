"""Discovery: what `slipstream init` needs to know about a folder that nobody has described yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slipstream.core.config import validate
from slipstream.core.errors import DataError
from slipstream.core.reader import resolve_folder
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import timeframe_name
from slipstream.markets.data.checks.check import check, complete, merged
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.finding import Finding, Remedy, RemedyError, advice, joined, pasted
from slipstream.markets.data.reading import source
from slipstream.markets.data.reading.stamps import MISSING, bar_length
from slipstream.markets.data.reading.table import RawTable, bare_names, read, read_frame

# Keys that are written where the files prove them; all others are the user's to decide.
_PROVEN = {"time_zone", "time_is", "price_scale", "point", "columns"}
_ROUNDS = 5  # a remedy may bring to light what stops next


@dataclass(frozen=True)
class FileDescription:
    """One file.

    Attributes:
        symbol: the name to use: that of the file, or the currency pair hidden in it.
        file: its name inside the folder.
        rows: number of bars.
        first, last: UTC seconds of the first and last stamp (as if in UTC where they have no zone).
        bar_seconds: most common distance of stamps; 0 when there is none.
        price_side: what the file says or its format implies.
        spread: ``spread``, ``spread_points``, ``spread_pips`` or None: the column that holds it.
        extra: other numeric columns.
        columns: the `columns` without which it cannot be read.
        problem: why the file cannot be read; then nothing above but symbol and file holds.
    """

    symbol: str
    file: str
    rows: int = 0
    first: int = 0
    last: int = 0
    bar_seconds: int = 0
    price_side: str = "mid"
    spread: str | None = None
    extra: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class FolderDescription:
    """A folder of prices, described.

    Attributes:
        folder: as it was given.
        files: every data file, readable or not, in the order of their names.
        prefer: the market whose files are used where there are any.
        left_out: symbols that are not used.
    """

    folder: str
    files: tuple[FileDescription, ...]
    prefer: symbols.MarketKind | None = None
    left_out: frozenset[str] = frozenset()

    @property
    def usable(self) -> tuple[FileDescription, ...]:
        """Readable files of one market and bar length: those of most symbols, then of most bars."""
        groups: dict[tuple[str, int], dict[str, FileDescription]] = {}
        for file in self.files:
            if file.problem is None and file.bar_seconds > 0:
                group = groups.setdefault((symbols.market_kind(file.symbol), file.bar_seconds), {})
                group.setdefault(file.symbol, file)

        def worth(kind: tuple[str, int]) -> tuple[bool, int, int]:
            group = groups[kind]
            return kind[0] == self.prefer, len(group), sum(file.rows for file in group.values())

        chosen = groups[max(groups, key=worth)] if groups else {}
        return tuple(file for name, file in chosen.items() if name not in self.left_out)

    @property
    def data_section(self) -> dict[str, object]:
        """The `data:` section of the usable files, before anything about them is proven."""
        usable = self.usable
        section: dict[str, object] = {"folder": self.folder}
        if not usable:
            return section
        section["symbols"] = [file.symbol for file in usable]
        renamed = {file.symbol: file.file for file in usable if file.symbol != Path(file.file).stem}
        if renamed:
            section["files"] = renamed
        section["timeframe"] = timeframe_name(usable[0].bar_seconds)
        columns = {theirs: ours for file in usable for theirs, ours in file.columns}
        if columns:
            section["columns"] = columns
        sides = {file.price_side for file in usable}
        if len(sides) == 1 and sides != {"mid"}:
            section["price_side"] = sides.pop()
        if any(file.spread is None for file in usable):
            section["spread_pips"] = 1.0
        return section


@dataclass(frozen=True)
class Proposal:
    """A `data` section and what stands behind it.

    Attributes:
        section: plain values for YAML.
        reasons: sentences: what was written, and how the files prove it.
        open: sentences: what still stops loading.
    """

    section: dict[str, object]
    reasons: tuple[str, ...]
    open: tuple[str, ...]


def propose(section: dict[str, object]) -> Proposal:
    """Completes a `data` section with everything that the files themselves prove."""
    section, reasons = dict(section), []
    for _ in range(_ROUNDS):
        config = validate(DataConfig, section, "data")
        found = check(config)
        proven = [one for one in found.stops if _is_proven(one.remedies)]
        remedy = merged(one.remedies[0] for one in proven)
        if not remedy or not replace(found, findings=tuple(proven)).mended_by(
            way := complete(remedy, config, found.files)
        ):
            break
        groups: dict[tuple[str, str], list[Finding]] = {}
        for one in proven:
            groups.setdefault((one.kind, one.message), []).append(one)
        for (_, message), group in groups.items():
            together = merged(one.remedies[0] for one in group) or {}
            names = ", ".join(one.symbol for one in group)
            reasons.append(f"{pasted(together)}: {names}: {message}.")
        section |= way
    left = joined(found.stops, found.symbols)
    if found.ways:
        left.append(advice(found.ways))
    return Proposal(section, tuple(reasons), tuple(left))


def _is_proven(remedies: tuple[Remedy, ...]) -> bool:
    """Whether there is one thing to write, and it is no choice of the user's."""
    return len(remedies) == 1 and set(remedies[0]) <= _PROVEN


def describe_folder(
    path: str | Path, prefer: symbols.MarketKind | None = None
) -> FolderDescription:
    """Looks at every data file of a folder (or at one file) and says what it is.

    Args:
        path: the folder, or the file.
        prefer: see `FolderDescription`.

    Raises:
        DataError: the folder is missing or holds no data files.
    """
    root = resolve_folder(str(path))
    if not root.exists():
        raise DataError(
            f"Data folder {str(root)!r} does not exist: name a folder with price files."
        )
    files = [(root.stem, root)] if root.is_file() else source.price_files(root)
    if not files:
        raise source.no_files(root)
    if root.is_file() and root.suffix.lower() not in source.SUFFIXES:
        raise DataError(
            f"{str(root)!r} is no .parquet, .csv or .feather file: name one, or a folder."
        )
    described = tuple(file for one in files for file in _describe(*one))
    return FolderDescription(str(path), described, prefer)


def _describe(name: str, path: Path) -> list[FileDescription]:
    """One file; a table of several symbols once for each."""
    own = name if symbols.parse(name) is not None else symbols.find_pair(name) or name
    config = DataConfig(folder=str(path.parent), files={own: path.name}, symbols=(own,))
    try:
        named = bare_names(read_frame(source.parts_of(path)[0], config, path.name)[1])
    except DataError as error:
        return [FileDescription(own, path.name, problem=str(error))]
    # CryptoDataDownload: Binance_BTCUSDT_1h.csv, and a column that says BTCUSDT.
    if len(named) == 1 and symbols.parse(own) is not None:
        named = [own]
    return [_one(symbol, path, config) for symbol in named or [own]]


def _one(symbol: str, path: Path, config: DataConfig) -> FileDescription:
    try:
        try:
            return _described(read(symbol, path, config), config)
        except RemedyError as error:
            if error.kind != "columns" or not error.remedies:
                raise
            renamed = config.model_copy(update=dict(error.remedies[0]))
            return _described(read(symbol, path, renamed), renamed)
    except DataError as error:
        alone = {"symbols": (symbol,), "files": {symbol: path.name}}
        ways = check(config.model_copy(update=alone)).ways
        advised = f" {advice(ways)}" if ways else ""
        return FileDescription(symbol, path.name, problem=f"{error}{advised}")


def _described(table: RawTable, config: DataConfig) -> FileDescription:
    time = table.stamps.time[table.stamps.time != MISSING]
    return FileDescription(
        symbol=table.symbol,
        file=table.path.name,
        rows=len(table),
        first=int(time.min(initial=np.iinfo(np.int64).max)) if len(time) else 0,
        last=int(time.max(initial=0)),
        bar_seconds=bar_length(time),
        price_side=table.side,
        spread=None if table.spread is None else table.spread.meaning,
        extra=tuple(table.extra),
        columns=tuple(config.columns.items()),
    )


def missing_pairs(files: tuple[FileDescription, ...], account: str) -> tuple[str, ...]:
    """Pairs needed to turn each symbol's quote currency into the account's.

    See docs/rules.md, section 3.
    """
    have = {file.symbol.upper() for file in files}
    missing = []
    for file in files:
        pair = symbols.parse(file.symbol)
        if pair is None or account in pair:
            continue
        if not {pair.quote + account, account + pair.quote} & have:
            missing.append(_usual_order(pair.quote, account))
    return tuple(dict.fromkeys(missing))


def _usual_order(currency: str, account: str) -> str:
    """The pair of two currencies as markets quote it: EURUSD, but USDJPY; coins come first."""
    rank = ["EUR", "GBP", "AUD", "NZD", "USD", "CAD", "CHF", "JPY"]

    def place(code: str) -> int:
        if code not in symbols.FIAT:
            return -1
        return rank.index(code) if code in rank else len(rank)

    first, second = sorted((currency, account), key=place)
    return first + second
