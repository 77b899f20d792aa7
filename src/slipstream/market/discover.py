"""Discovery: what `slipstream init` needs to know about a folder that nobody has described yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.core.errors import DataError
from slipstream.market import symbols, timeframe
from slipstream.market.clean import bar_length
from slipstream.market.config import DataConfig
from slipstream.market.source import SUFFIXES, resolve_folder
from slipstream.market.stamps import NaiveTimeError
from slipstream.market.table import RawTable, read


@dataclass(frozen=True)
class FileDescription:
    """One file.

    Attributes:
        symbol: the name to use: that of the file, or the currency pair hidden in it.
        file: its name inside the folder.
        format: MetaTrader, HistData, Dukascopy, CSV, Parquet or Feather.
        rows: number of bars.
        first, last: UTC seconds of the first and last stamp (as if in UTC where `naive`).
        bar_seconds: most common distance of stamps; 0 when there is none.
        naive: whether stamps carry no zone, so that `time_zone` must be set.
        zone_hint: the zone that this format usually is in.
        price_side: what the file says or its format implies.
        spread: ``spread``, ``spread_points`` or None: the column that holds it.
        extra: other numeric columns.
        problem: why the file cannot be read; then nothing above but symbol and file holds.
    """

    symbol: str
    file: str
    format: str = ""
    rows: int = 0
    first: int = 0
    last: int = 0
    bar_seconds: int = 0
    naive: bool = False
    zone_hint: str = "UTC"
    price_side: str = "mid"
    spread: str | None = None
    extra: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class FolderDescription:
    """A folder of prices, described.

    Attributes:
        folder: as it was given.
        files: every data file, readable or not, in the order of their names.
        missing_pairs: pairs that the account needs to convert profits, and that are not there.
    """

    folder: str
    files: tuple[FileDescription, ...]
    missing_pairs: tuple[str, ...]

    @property
    def usable(self) -> tuple[FileDescription, ...]:
        """Readable files of the bar length that most files have."""
        readable = [file for file in self.files if file.problem is None and file.bar_seconds > 0]
        lengths = [file.bar_seconds for file in readable]
        if not lengths:
            return ()
        common = max(sorted(set(lengths)), key=lengths.count)
        chosen: dict[str, FileDescription] = {}
        for file in readable:
            if file.bar_seconds == common:
                chosen.setdefault(file.symbol, file)
        return tuple(chosen.values())

    @property
    def data_section(self) -> dict[str, object]:
        """The `data:` section that loads the usable files, as plain values for YAML."""
        usable = self.usable
        section: dict[str, object] = {"folder": self.folder}
        if not usable:
            return section
        section["symbols"] = [file.symbol for file in usable]
        renamed = {file.symbol: file.file for file in usable if file.symbol != Path(file.file).stem}
        if renamed:
            section["files"] = renamed
        section["timeframe"] = timeframe.name(usable[0].bar_seconds)
        if any(file.naive for file in usable):
            section["time_zone"] = next(file.zone_hint for file in usable if file.naive)
        sides = {file.price_side for file in usable}
        if len(sides) == 1 and sides != {"mid"}:
            section["price_side"] = sides.pop()
        if any(file.spread is None for file in usable):
            section["spread_pips"] = 1.0
        return section


def describe_folder(path: str | Path, account_currency: str = "USD") -> FolderDescription:
    """Looks at every data file of a folder (or at one file) and says what it is.

    Raises:
        DataError: the folder is missing or holds no data files.
    """
    root = resolve_folder(str(path))
    if not root.exists():
        raise DataError(
            f"Data folder {str(root)!r} does not exist: name a folder with price files."
        )
    paths = [root] if root.is_file() else sorted(root.iterdir())
    paths = [
        one for one in paths if one.suffix.lower() in SUFFIXES and not one.name.startswith(".")
    ]
    if not paths:
        raise DataError(
            f"Data folder {str(root)!r} holds no .parquet, .csv or .feather file: put one file for "
            f"each symbol there."
        )
    files = tuple(_describe(one) for one in paths)
    return FolderDescription(str(path), files, _missing_pairs(files, account_currency))


def _describe(path: Path) -> FileDescription:
    parsed = symbols.parse(path.stem)
    symbol = path.stem if parsed is not None else symbols.find_pair(path.stem) or path.stem
    config = DataConfig(folder=str(path))
    naive = False
    try:
        try:
            table = read(symbol, path, config)
        except NaiveTimeError:
            naive = True
            table = read(symbol, path, config.model_copy(update={"time_zone": "UTC"}))
    except DataError as error:
        return FileDescription(symbol, path.name, problem=str(error))
    return _described(table, naive)


def _described(table: RawTable, naive: bool) -> FileDescription:
    time = table.stamps.time[~table.stamps.missing]
    name = table.path.stem.upper()
    side = "ask" if "ASK" in name else "bid" if "BID" in name or table.dialect.bid else "mid"
    source = table.spread_source
    spread = source.split()[1] if source.startswith("column") else None
    return FileDescription(
        symbol=table.symbol,
        file=table.path.name,
        format=table.dialect.name,
        rows=len(table),
        first=int(time.min(initial=np.iinfo(np.int64).max)) if len(time) else 0,
        last=int(time.max(initial=0)),
        bar_seconds=bar_length(time),
        naive=naive,
        zone_hint=table.dialect.zone_hint,
        price_side=side,
        spread=spread,
        extra=tuple(table.extra),
    )


def _missing_pairs(files: tuple[FileDescription, ...], account: str) -> tuple[str, ...]:
    """Pairs needed to turn each symbol's quote currency into the account's (trading-rules 3)."""
    have = {file.symbol.upper() for file in files}
    missing = []
    for file in files:
        pair = symbols.parse(file.symbol)
        if pair is None or account in pair or symbols.market_kind(file.symbol) != "fx":
            continue
        if not {pair.quote + account, account + pair.quote} & have:
            missing.append(_usual_order(pair.quote, account))
    return tuple(dict.fromkeys(missing))


def _usual_order(currency: str, account: str) -> str:
    """The pair of two currencies as markets quote it: EURUSD, but USDJPY."""
    rank = ["EUR", "GBP", "AUD", "NZD", "USD", "CAD", "CHF", "JPY"]

    def place(code: str) -> int:
        return rank.index(code) if code in rank else len(rank)

    first, second = sorted((currency, account), key=place)
    return first + second
