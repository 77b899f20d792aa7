"""Starter configs for a folder of prices that has not been described yet.

`describe_folder` reads its files, `propose_section` writes the proven settings, `build_config`
creates a config.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.config import find_model, validate
from slipstream.core.errors import ConfigError, DataError, SlipstreamError
from slipstream.core.safe_io import resolve_folder
from slipstream.core.text import stamp
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.markets.data.bars import timeframe_name
from slipstream.markets.data.check import check, complete_fix, merge_fixes
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import (
    DataIssue,
    FixableDataError,
    SuggestedFix,
    describe_fixes,
    format_fix,
    join_issues,
)
from slipstream.markets.data.file_discovery import (
    SUFFIXES,
    expand_parts,
    no_files_error,
    price_files,
)
from slipstream.markets.data.raw_table import RawTable, list_bare_symbols, read_frame, read_table
from slipstream.markets.data.symbols import FIAT, MarketKind, find_pair, market_kind, parse
from slipstream.markets.data.timestamps import MISSING, bar_length
from slipstream.markets.features.feature_registry import expand_feature_sets, warm_up_rows
from slipstream.training.environments.factory import get_kind

_MANY = 20_000  # bars from which any split fits the memory of an observation
_LONGER = {"train": 0.4, "validation": 0.3, "test": 0.3}
_FEE_PER_MILLION = 1_000.0  # of notional: what exchanges of coins usually take from each side


def _reads_prices(environment: str) -> bool:
    """Return True if the environment's config has a `data` section of prices."""
    data = get_kind(environment).model.model_fields.get("data")
    return data is not None and find_model(data.annotation) is DataConfig


def build_config(environment: str, folder: str | None) -> tuple[dict[str, Any], list[str]] | None:
    """Return the sections of a config for a folder of prices, and the comment lines above them.

    Returns:
        None if the environment reads no prices.

    Raises:
        ConfigError: there is no folder.
        DataError: no file in the folder can be traded.
    """
    if not _reads_prices(environment):
        return None
    if folder is None:
        raise ConfigError(
            f"`slipstream init {environment}` needs a folder of prices: "
            f"slipstream init {environment} DIR > my.yaml."
        )
    description = describe_folder(folder, "fx" if environment == "forex" else None)
    _check_readable(description)
    names = [file.symbol for file in description.usable]
    env: dict[str, Any] = {"name": environment}
    values: dict[str, Any] = {"env": env}
    head: list[str] = []
    reasons: dict[str, str] = {}
    if environment == "forex":
        env["account_currency"], reasons = _choose_account_currency(names)
        if env["account_currency"] != "USD":
            head.append(
                f"account_currency is {env['account_currency']}: these symbols cannot convert all "
                "profits into USD."
            )
        values["agent"] = {
            "n_steps": 256,
            "batch_size": 1024,
            "gamma": 0.95,
            "ent_coef": 0.005,
        }
    elif environment == "portfolio":
        env["account_currency"], reasons = _choose_quote_currency(names)
    used = drop_symbols(description, reasons)
    head = [*(f"Left out: {sentence}" for sentence in reasons.values()), *head]
    section = used.data_section
    head += _without_pips(section, env)
    proposal = propose_section(section)
    env["data"] = proposal.section
    head += _fit_bars(env, min(file.rows for file in used.usable))
    return values, [*_files_head(description), *head, *_data_head(proposal, description.folder)]


def _fit_bars(env: dict[str, Any], bars: int) -> list[str]:
    """Choose features and splits that `train` accepts for this number of bars; return the choices.

    Args:
        env: the section; gets `features` and `split` if the defaults do not fit.
        bars: of the symbol that has the fewest.
    """
    kernel = load_kernel(env["name"])
    data = {"time_zone": "UTC", **env["data"]}  # any zone has as many bars
    usual = kernel.configure({**{key: env[key] for key in env if key != "name"}, "data": data})
    names = getattr(usual, "features", ())
    if bars > _MANY or not names or not hasattr(usual, "split"):
        return []
    if not check(validate(DataConfig, data, "data")).loadable:
        return []
    refused = ""
    for split in (usual.split.model_dump(), _LONGER):
        most = int(split["test"] * bars) // 2
        quick = [name for name in expand_feature_sets(names) if warm_up_rows([name]) <= most]
        for feature_names in (list(names), quick):
            try:
                settings = {
                    **usual.model_dump(),
                    "split": split,
                    "features": feature_names or names,
                }
                kernel.load(kernel.configure(settings))
            except SlipstreamError as error:
                refused = refused or str(error)
                continue
            lines = []
            if feature_names != list(names):
                env["features"] = feature_names
                lines.append(f"Of {bars:,} bars: features with a memory of at most {most:,} bars.")
            if split is _LONGER:
                env["split"] = split
                lines.append(f"Of {bars:,} bars: longer validation and test, after their embargo.")
            return lines
    return [
        "STILL OPEN; `slipstream train` refuses the config until this is resolved:",
        f"  {bars:,} bars are too few for any choice of features and splits. {refused}",
    ]


def _files_head(description: FolderDescription) -> list[str]:
    """List the files of the folder, and the files that are left out with the reason."""
    used = {(file.symbol, file.file) for file in description.usable}
    head = [f"Prices found in {description.folder}:"]
    head += [f"  {_file_line(file)}" for file in description.files]
    head += [
        f"Left out: {file.file}: of another market or other bars than those used, or a second file "
        "of its symbol."
        for file in description.files
        if file.problem is None and (file.symbol, file.file) not in used
    ]
    unread = [file for file in description.files if file.problem is not None]
    return head + [f"Left out: {file.file}: it cannot be read (see above)." for file in unread]


def _data_head(proposal: DataProposal, folder: str) -> list[str]:
    """List proven settings, guesses and open questions."""
    head = [f"Set because the files prove it: {reason}" for reason in proposal.reasons]
    if "spread_pips" in proposal.section:
        head.append(
            "Files without a spread column: spread_pips is a guess; set your broker's spread."
        )
    if proposal.open:
        head.append("STILL OPEN; `slipstream train` refuses the config until this is resolved:")
        head += [f"  {sentence}" for sentence in proposal.open]
    head.append(f"Check the prices before training: slipstream data check {shlex.quote(folder)}")
    return head


def _check_readable(description: FolderDescription) -> None:
    """Raise DataError if no file can be read."""
    if not description.usable:
        problems = " ".join(
            f"{file.file}: {file.problem}" for file in description.files if file.problem
        )
        advice = "Give a folder of CSV, Parquet or Feather files of bars."
        if "column" in problems:  # there is a table, its columns are not known
            advice = (
                "Name the columns with `slipstream data check --column THEIRS=OURS` until they can."
            )
        raise DataError(
            f"{description.folder} holds no file of prices that can be read. {problems} {advice}"
        )


def _choose_account_currency(names: list[str]) -> tuple[str, dict[str, str]]:
    """Return the account currency, and the reasons why some symbols cannot be traded in it.

    US dollars if they serve any symbol, else the currency that serves most; coins that are only
    bought and sold come last.
    """
    pairs = [pair for name in names if (pair := parse(name)) is not None]
    others = dict.fromkeys([pair.base for pair in pairs] + [pair.quote for pair in pairs])
    reasons = {currency: _conversion_problems(names, currency) for currency in ("USD", *others)}
    if len(reasons["USD"]) < len(names):
        return "USD", reasons["USD"]
    money = FIAT | {pair.quote for pair in pairs}
    account = min(reasons, key=lambda currency: (len(reasons[currency]), currency not in money))
    return account, reasons[account]


def _conversion_problems(names: Sequence[str], account: str) -> dict[str, str]:
    """Return the symbols whose profits cannot be converted into `account`, with the reason.

    See docs/explanation/market-rules.md, section 3.
    """
    have = {name.upper() for name in names}
    reasons = {}
    for symbol in names:
        pair = parse(symbol)
        if pair is None or account in pair or {pair.quote + account, account + pair.quote} & have:
            continue
        needed = _usual_order(pair.quote, account)
        reasons[symbol] = f"{symbol}: its profits need {needed} to become {account}."
    return reasons


def _choose_quote_currency(names: list[str]) -> tuple[str, dict[str, str]]:
    """Return the currency of most prices, and why the other symbols are left out."""
    quotes = {symbol: pair.quote for symbol in names if (pair := parse(symbol)) is not None}
    currency = max(["USD", *quotes.values()], key=list(quotes.values()).count)
    return currency, {
        symbol: f"{symbol}: its prices are in {quote}, those of the portfolio in {currency}."
        for symbol, quote in quotes.items()
        if quote != currency
    }


def drop_symbols(description: FolderDescription, reasons: dict[str, str]) -> FolderDescription:
    """Return the description without the symbols for which there is a reason."""
    reduced = replace(description, left_out=frozenset(reasons))
    if not reduced.usable:
        raise DataError(
            f"{description.folder} has no symbol that can be traded. {' '.join(reasons.values())}"
        )
    return reduced


def _without_pips(section: dict[str, Any], env: dict[str, Any]) -> list[str]:
    """Remove the guessed spread in pips if pips are meaningless, and describe the replacement.

    A pip is negligible compared with a coin's price. The portfolio has its own fee.

    Args:
        section: of `data`.
        env: the forex environment gets a commission instead, as exchanges of coins charge it.
    """
    kinds = {market_kind(symbol) for symbol in section["symbols"]}
    if kinds == {"fx"} or "spread_pips" not in section:
        return []
    del section["spread_pips"]
    if env["name"] != "forex":
        return []
    env["commission_per_million"] = _FEE_PER_MILLION
    return [
        "Files without a spread column, in a market without pips: commission_per_million "
        f"{_FEE_PER_MILLION:g} ({_FEE_PER_MILLION / 1e4:g} % a side) is a guess; set your "
        "exchange's fee."
    ]


def _file_line(file: FileDescription) -> str:
    if file.problem is not None:
        return f"{file.file}: cannot be read: {file.problem}"
    bars = f"{file.rows:,} bars of {timeframe_name(file.bar_seconds)}"
    line = f"{file.file}: {file.symbol}, {bars}, {stamp(file.first)} to {stamp(file.last)}"
    if file.extra:
        line += f"; columns usable as features: {', '.join(file.extra)}"
    return line


# Keys that are set if the files prove them; the user decides all others.
_PROVEN = {"time_zone", "timestamp_label", "price_scale", "point", "columns"}
_ROUNDS = 5  # a fix may reveal further errors


@dataclass(frozen=True)
class FileDescription:
    """Description of one file.

    Attributes:
        symbol: the name to use: that of the file, or the currency pair in it.
        file: its name inside the folder.
        rows: number of bars.
        first, last: UTC seconds of the first and last timestamp (as if in UTC if they have no
            zone).
        bar_seconds: most common distance of timestamps; 0 if unknown.
        price_side: side in the file's name or of its format.
        spread: ``spread``, ``spread_points``, ``spread_pips`` or None: the column that holds it.
        extra: other numeric columns.
        columns: the `columns` that are required to read it.
        problem: why the file cannot be read; then only symbol and file are valid.
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
    """Description of a folder of prices.

    Attributes:
        folder: path as given.
        files: every data file, readable or not, sorted by name.
        prefer: preferred market, if there are files of it.
        left_out: symbols that are not used.
    """

    folder: str
    files: tuple[FileDescription, ...]
    prefer: MarketKind | None = None
    left_out: frozenset[str] = frozenset()

    @property
    def usable(self) -> tuple[FileDescription, ...]:
        """Readable files of one market and bar length: those of most symbols, then of most bars."""
        groups: dict[tuple[str, int], dict[str, FileDescription]] = {}
        for file in self.files:
            if file.problem is None and file.bar_seconds > 0:
                group = groups.setdefault((market_kind(file.symbol), file.bar_seconds), {})
                group.setdefault(file.symbol, file)

        def worth(kind: tuple[str, int]) -> tuple[bool, int, int]:
            group = groups[kind]
            return kind[0] == self.prefer, len(group), sum(file.rows for file in group.values())

        largest = groups[max(groups, key=worth)] if groups else {}
        return tuple(file for name, file in largest.items() if name not in self.left_out)

    @property
    def data_section(self) -> dict[str, object]:
        """The `data:` section of the usable files, before the data check."""
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
class DataProposal:
    """Proposed `data` section with its evidence.

    Attributes:
        section: plain values for YAML.
        reasons: sentences: each setting, and its proof.
        open: sentences: remaining errors.
    """

    section: dict[str, object]
    reasons: tuple[str, ...]
    open: tuple[str, ...]


def propose_section(section: dict[str, object]) -> DataProposal:
    """Complete a `data` section with all settings that the files prove."""
    section, reasons = dict(section), []
    for _ in range(_ROUNDS):
        config = validate(DataConfig, section, "data")
        data_check = check(config)
        proven = [issue for issue in data_check.errors if _is_proven(issue.fixes)]
        fix = merge_fixes(issue.fixes[0] for issue in proven)
        if not fix or not replace(data_check, issues=tuple(proven)).is_fixed_by(
            complete := complete_fix(fix, config, data_check.files)
        ):
            break
        groups: dict[tuple[str, str], list[DataIssue]] = {}
        for issue in proven:
            groups.setdefault((issue.kind, issue.message), []).append(issue)
        for (_, message), group in groups.items():
            together = merge_fixes(issue.fixes[0] for issue in group) or {}
            names = ", ".join(issue.symbol for issue in group)
            reasons.append(f"{format_fix(together)}: {names}: {message}.")
        section |= complete
    left = join_issues(data_check.errors, data_check.symbols)
    if data_check.fixes:
        left.append(describe_fixes(data_check.fixes))
    return DataProposal(section, tuple(reasons), tuple(left))


def _is_proven(fixes: tuple[SuggestedFix, ...]) -> bool:
    """Return True if there is a single fix that needs no decision of the user."""
    return len(fixes) == 1 and set(fixes[0]) <= _PROVEN


def describe_folder(path: str | Path, prefer: MarketKind | None = None) -> FolderDescription:
    """Describe every data file of a folder, or one file.

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
    files = [(root.stem, root)] if root.is_file() else price_files(root)
    if not files:
        raise no_files_error(root)
    if root.is_file() and root.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{str(root)!r} is no .parquet, .csv or .feather file: name one, or a folder."
        )
    described = tuple(file for paths in files for file in _describe(*paths))
    return FolderDescription(str(path), described, prefer)


def _describe(name: str, path: Path) -> list[FileDescription]:
    """Describe one file; a table of several symbols once per symbol."""
    pair_name = name if parse(name) is not None else find_pair(name) or name
    config = DataConfig(folder=str(path.parent), files={pair_name: path.name}, symbols=(pair_name,))
    try:
        named = list_bare_symbols(read_frame(expand_parts(path)[0], config, path.name)[1])
    except DataError as error:
        return [FileDescription(pair_name, path.name, problem=str(error))]
    # CryptoDataDownload: Binance_BTCUSDT_1h.csv, and a column with BTCUSDT.
    if len(named) == 1 and parse(pair_name) is not None:
        named = [pair_name]
    return [_describe_symbol(symbol, path, config) for symbol in named or [pair_name]]


def _describe_symbol(symbol: str, path: Path, config: DataConfig) -> FileDescription:
    try:
        try:
            return _describe_table(read_table(symbol, path, config), config)
        except FixableDataError as error:
            if error.kind != "columns" or not error.fixes:
                raise
            renamed = config.model_copy(update=dict(error.fixes[0]))
            return _describe_table(read_table(symbol, path, renamed), renamed)
    except DataError as error:
        alone = {"symbols": (symbol,), "files": {symbol: path.name}}
        ways = check(config.model_copy(update=alone)).fixes
        advised = f" {describe_fixes(ways)}" if ways else ""
        return FileDescription(symbol, path.name, problem=f"{error}{advised}")


def _describe_table(table: RawTable, config: DataConfig) -> FileDescription:
    time = table.timestamps.time[table.timestamps.time != MISSING]
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


def _usual_order(currency: str, account: str) -> str:
    """Return the pair of two currencies as markets quote it: EURUSD, USDJPY; coins come first."""
    rank = ["EUR", "GBP", "AUD", "NZD", "USD", "CAD", "CHF", "JPY"]

    def place(code: str) -> int:
        if code not in FIAT:
            return -1
        return rank.index(code) if code in rank else len(rank)

    first, second = sorted((currency, account), key=place)
    return first + second
