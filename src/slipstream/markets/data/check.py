"""Data check: read the files of a market and report every issue. Loading uses the same check.

The check does not stop at the first issue; loading refuses the data if any of them is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.config import validate
from slipstream.core.errors import DataError, SlipstreamError
from slipstream.core.safe_io import resolve_folder
from slipstream.core.text import did_you_mean, plural, printable, stamp
from slipstream.markets.data.bars import Bars, timeframe_name, timeframe_seconds
from slipstream.markets.data.cleaning import FileInspection, clean, get_market_kind
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import (
    ALL,
    CATALOGUE,
    DataIssue,
    FixableDataError,
    SuggestedFix,
    describe_fixes,
    join_issues,
)
from slipstream.markets.data.file_discovery import find_files, price_files
from slipstream.markets.data.quality import hole_issues, quality_issues
from slipstream.markets.data.raw_table import RawTable, read_table
from slipstream.markets.data.timezone_inference import (
    ZoneInference,
    infer_mixed_zone,
    infer_zone,
    week_issues,
)

_BY_SYMBOL = ("price_scale", "point")  # keys that hold one value or a mapping by symbol


@dataclass(frozen=True, eq=False)
class DataCheck:
    """Files of a market and their issues.

    Attributes:
        config: the section that was checked.
        files: path by symbol, readable or not.
        inspections: of the readable files.
        issues: in the order of the files, then those of the whole market.
    """

    config: DataConfig
    files: dict[str, Path]
    inspections: tuple[FileInspection, ...]
    issues: tuple[DataIssue, ...]

    @property
    def errors(self) -> tuple[DataIssue, ...]:
        """Issues that loading refuses."""
        return tuple(issue for issue in self.issues if issue.severity == "error")

    @property
    def loadable(self) -> bool:
        """True if loading accepts the data."""
        return not self.errors

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols of all files."""
        return tuple(self.files)

    @property
    def summary(self) -> tuple[str, ...]:
        """One line per readable file."""
        return tuple(_describe_inspection(inspection) for inspection in self.inspections)

    def issues_of_kind(self, kind: str, symbol: str | None = None) -> tuple[DataIssue, ...]:
        """Return the issues of one kind, optionally of one symbol."""
        return tuple(
            issue for issue in self.issues if issue.kind == kind and symbol in (None, issue.symbol)
        )

    @cached_property
    def fixes(self) -> tuple[SuggestedFix, ...]:
        """Alternative sets of `data` keys that fix all errors, each verified on the folder."""
        fixes = combine_fixes(self.issues, self.config, self.files)
        return tuple(fix for fix in fixes if self.is_fixed_by(fix))

    def is_fixed_by(self, fix: SuggestedFix) -> bool:
        """Return True if no fixable error remains under a fix and no new error contradicts it.

        A fix may reveal further errors.
        """
        try:
            fixed_config = validate(DataConfig, {**self.config.model_dump(), **fix}, "data")
            left = check(fixed_config).errors
        except SlipstreamError:
            return False
        fixed = {(issue.symbol, issue.kind) for issue in self.errors if issue.fixes}
        return not any(
            (issue.symbol, issue.kind) in fixed
            or any(contradicts(other_fix, fix) for other_fix in issue.fixes)
            for issue in left
        )


def check(config: DataConfig) -> DataCheck:
    """Read, clean and check the prices of a config without stopping at the first issue.

    Raises:
        DataError: there is nothing to check: no folder, no files, none of the symbols.
    """
    issues: list[DataIssue] = []
    files = _files(config, issues)
    tables = _tables(files, config, issues)
    issues += _unknown_names(tables, config)
    naive = [
        naive_table
        for naive_table in tables
        if naive_table.needs_zone and naive_table.local_times.origin != "mixed"
    ]
    proof = infer_zone(naive, config)
    inspected = [_inspect(table, config, proof, issues) for table in tables]
    usable = [inspection.bars for inspection in inspected if inspection.bars is not None]
    if usable:
        leave_out: SuggestedFix = {"symbols": [bars.symbol for bars in usable]}
        issues = [
            replace(issue, fixes=(leave_out,)) if issue.kind == "too_few" else issue
            for issue in issues
        ]
    lengths = {inspection.table.symbol: inspection.bar_seconds for inspection in inspected}
    bars = {inspection.table.symbol: len(inspection.table) for inspection in inspected}
    disagreement = timeframe_issue(lengths, config.timeframe, bars)
    issues += [disagreement] if disagreement is not None else []
    issues += _range_issues(usable)
    accepted = tuple(_apply_allowed(issue, config) for issue in issues)
    return DataCheck(config, files, tuple(inspected), accepted)


def render(data_check: DataCheck) -> str:
    """Return the report as plain text; an issue shared by several symbols takes one line."""
    folder = str(resolve_folder(data_check.config.folder))
    lines = [f"Data check of {printable(folder)}"]
    lines += [f"  {printable(line)}" for line in data_check.summary]
    for severity, title in (
        ("error", "Errors: loading refuses this data"),
        ("warning", "Warnings"),
        ("info", "For your information"),
    ):
        issues = [issue for issue in data_check.issues if issue.severity == severity]
        if issues:
            lines += ["", f"{title}:"]
            lines += [f"  {line}" for line in join_issues(issues, data_check.symbols)]
        if severity == "error" and data_check.fixes:
            lines.append(f"  {describe_fixes(data_check.fixes)}")
    lines += ["", _verdict(data_check)]
    if not data_check.inspections:
        return "\n".join(lines)
    kinds = [get_market_kind(symbol, data_check.config) for symbol in data_check.files]
    # A portfolio needs at least two coins.
    environment = "portfolio" if len(kinds) > 1 and set(kinds) == {"24/7"} else "forex"
    command = f"slipstream init {environment} {shlex.quote(folder)} > my.yaml"
    lines.append(f"`{printable(command)}` writes a config from these files.")
    return "\n".join(lines)


def _verdict(data_check: DataCheck) -> str:
    number = sum(issue.severity == "warning" for issue in data_check.issues)
    warnings = plural(number, "warning")
    if data_check.errors:
        return f"Not loadable: {plural(len(data_check.errors), 'error')}, {warnings}."
    return f"Loadable, with {warnings}."


def _describe_inspection(inspection: FileInspection) -> str:
    """Describe a file in one line: format, bars, range, market, spread."""
    table, bars = inspection.table, inspection.bars
    if bars is None:
        return f"{table.symbol}: {table.dialect.name}, no usable bars"
    spread = f"spread: {table.spread_source}"
    if table.spread is not None:
        spread += f" (median {float(np.median(bars.spread)):.3g})"
    note = f", if stamps are {inspection.assumed_zone}" if inspection.assumed_zone else ""
    return (
        f"{bars.symbol}: {table.dialect.name}, {plural(len(bars), 'bar')} of "
        f"{timeframe_name(inspection.bar_seconds)}, {stamp(int(bars.time[0]))} to "
        f"{stamp(int(bars.time[-1]))} UTC{note}, market {inspection.kind}, {spread}"
    )


def _apply_allowed(issue: DataIssue, config: DataConfig) -> DataIssue:
    if issue.severity != "error" or issue.kind not in config.allow_issues:
        return issue
    return replace(
        issue,
        severity="warning",
        action=f"loaded, because `allow_issues` names {issue.kind}",
        accepted=True,
    )


def _files(config: DataConfig, issues: list[DataIssue]) -> dict[str, Path]:
    """Return the files to check; a symbol with two files or none becomes an issue."""
    try:
        return find_files(config)
    except DataError as error:
        root = resolve_folder(config.folder)
        if not root.is_dir():
            raise
        names = config.symbols
        if names is None:
            names = tuple(sorted({symbol for symbol, _ in price_files(root)}))
        files: dict[str, Path] = {}
        for name in names:
            try:
                files |= find_files(config.model_copy(update={"symbols": (name,)}))
            except DataError as problem:
                issues.append(_error_issue(name, "file", problem))
        if not files:
            raise error
        return files


def _tables(files: dict[str, Path], config: DataConfig, issues: list[DataIssue]) -> list[RawTable]:
    tables = []
    problems: dict[str, DataError] = {}
    for symbol, path in files.items():
        try:
            tables.append(read_table(symbol, path, config))
        except DataError as error:
            problems[symbol] = error
    ways: list[SuggestedFix] = [{"symbols": [table.symbol for table in tables]}] if tables else []
    issues += [
        _error_issue(name, "unreadable", problem, ways) for name, problem in problems.items()
    ]
    return tables


def _error_issue(
    symbol: str, kind: str, problem: DataError | str, fixes: Sequence[SuggestedFix] = ()
) -> DataIssue:
    """Create an issue that stops loading; the exception may carry its own kind and fixes."""
    if isinstance(problem, FixableDataError):
        kind, fixes = problem.kind, problem.fixes
    return DataIssue.from_kind(symbol, kind, str(problem).rstrip("."), fixes=fixes)


def _unknown_names(tables: Sequence[RawTable], config: DataConfig) -> list[DataIssue]:
    """Report entries of the config that name columns or symbols of no file."""
    if not tables:
        return []
    have = [name for table in tables for name in table.dialect.columns]
    issues = []
    root = resolve_folder(config.folder)
    known = {name for name, _ in price_files(root)} if root.is_dir() else set()
    known |= {*config.files, *(table.symbol for table in tables)}
    for key in ("price_scale", "point"):
        names = getattr(config, key)
        strange = [name for name in names if name not in known] if isinstance(names, dict) else []
        if strange:
            message = f"`{key}` names {strange[0]!r}, which has no file; "
            message += did_you_mean(strange[0], sorted(known))
            issues.append(_error_issue(ALL, "file", message, ({key: dict.fromkeys(strange)},)))
    missing = [name for name in config.columns if name not in have]
    if missing:
        table = tables[0]
        issues.append(
            _error_issue(
                ALL if len(tables) > 1 else table.symbol,
                "columns",
                f"`columns` names {missing[0]!r}, which {table.path.name} does not have: its "
                f"columns are {', '.join(table.dialect.columns)}",
                ({"columns": dict.fromkeys(missing)},),
            )
        )
    return issues


def _inspect(
    table: RawTable, config: DataConfig, proof: ZoneInference, issues: list[DataIssue]
) -> FileInspection:
    assumed = ""
    if table.needs_zone:
        zone = infer_mixed_zone(table, config) if table.local_times.origin == "mixed" else proof
        issues.append(_naive_time_issue(table, zone))
        assumed = zone.zone or "UTC"
        table = replace(table, zone=assumed)
    inspection = clean(table, config, assumed)
    issues += [*inspection.issues, *_side_issues(table, config), *_bar_issues(inspection, config)]
    return inspection


def _naive_time_issue(table: RawTable, proof: ZoneInference) -> DataIssue:
    """Report timestamps without a time zone, with the inferred zone or the usual ones."""
    naive = table.local_times.naive
    first = np.datetime64(int(table.local_times.seconds[np.flatnonzero(naive)[0]]), "s")
    example = str(first).replace("T", " ")
    count = int(naive.sum())
    if table.local_times.origin == "mixed":
        what = (
            f"{count:,} of {len(table):,} time stamps, such as {example!r}, carry no zone, and the "
            f"others do; `time_zone` applies to those without a zone: {proof.explanation}"
        )
    else:
        what = f"time stamps must state their zone, and {example!r} does not; {proof.explanation}"
    if proof.zone is None:
        usual = (table.dialect.zone_hint,) if proof.candidates is None else proof.candidates
        listed = " or ".join(f"`time_zone: {zone}`" for zone in usual)
        example = f", for example {listed}" if usual else ""
        what += f": set `time_zone` to that of the source{example}"
    fixes = () if proof.fix is None else (proof.fix,)
    return DataIssue.from_kind(table.symbol, "naive_time", what, count, fixes=fixes)


def _bar_issues(inspection: FileInspection, config: DataConfig) -> list[DataIssue]:
    """Return issues of the bars of one file that loading keeps."""
    if inspection.bars is None:
        return []
    issues = hole_issues(inspection.bars, inspection.bar_seconds, inspection.kind)
    if inspection.kind == "fx" and not inspection.assumed_zone:
        issues += week_issues(inspection.table, inspection.bars, inspection.bar_seconds, config)
    return issues + quality_issues(
        inspection.bars, inspection.bar_seconds, inspection.kind, inspection.table.path.name
    )


def _side_issues(table: RawTable, config: DataConfig) -> list[DataIssue]:
    """Report bid or ask prices that the config reads as mid prices."""
    side = table.side
    if side == "mid" or config.price_side != "mid":
        return []
    source = table.dialect.name if table.dialect.side == side else "a file of this name"
    message = f"{source} holds {side} prices only: set `price_side: {side}` and a spread"
    return [DataIssue.from_kind(table.symbol, f"{side}_only", message, len(table))]


def _range_issues(markets: list[Bars]) -> list[DataIssue]:
    """Report symbols that start later or end earlier than others."""
    if len(markets) < 2:
        return []
    first = [int(bars.time[0]) for bars in markets]
    last = [int(bars.time[-1]) for bars in markets]
    if len(set(first)) == 1 and len(set(last)) == 1:
        return []

    def describe(moments: list[int]) -> str:
        low, high = min(moments), max(moments)
        return f"at {stamp(low)}" if low == high else f"between {stamp(low)} and {stamp(high)}"

    ends = f"symbols start {describe(first)} and end {describe(last)} UTC"
    if max(first) > min(last):
        # The largest set of symbols with bars at the same time; it is reached at a first bar.
        together = max(
            (
                [
                    symbol_bars
                    for symbol_bars in markets
                    if symbol_bars.time[0] <= t <= symbol_bars.time[-1]
                ]
                for t in sorted(first)
            ),
            key=lambda some: (len(some), sum(map(len, some))),
        )
        names = [traded_bars.symbol for traded_bars in together]
        message = f"{ends}: there is no moment at which all have bars"
        ways = ({"symbols": names},)
        return [DataIssue.from_kind(ALL, "no_common_period", message, len(markets), fixes=ways)]
    common = (max(first), min(last))
    message = f"{ends}; all have bars from {stamp(common[0])} to {stamp(common[1])}"
    return [DataIssue.from_kind(ALL, "unequal_ends", message, len(markets), times=common)]


def timeframe_issue(
    lengths: dict[str, int], timeframe: str | None, bars: Mapping[str, int]
) -> DataIssue | None:
    """Report symbols that disagree about the bar length, or with the config's `timeframe`.

    The fix is the length of most symbols; in case of a tie, of most bars.
    """
    names = {symbol: timeframe_name(length) for symbol, length in lengths.items() if length > 0}
    alike = len(set(names.values())) == 1
    if timeframe is not None:
        expected = timeframe_seconds(timeframe)
        wrong = [symbol for symbol in names if lengths[symbol] != expected]
        right = [symbol for symbol in names if lengths[symbol] == expected]
        if wrong:
            symbol_length = names[wrong[0]]
            requested = f"`timeframe: {timeframe}` requires {timeframe_name(expected)}"
            ways: list[SuggestedFix] = [{"symbols": right}] if right else []
            return DataIssue.from_kind(
                wrong[0],
                "timeframe",
                f"bars of {symbol_length} where {requested}",
                len(wrong),
                "loading refuses: bars are never resampled",
                fixes=[{"timeframe": symbol_length}] if alike else ways,
            )
    if alike or not names:
        return None
    listed = ", ".join(f"{symbol} {name}" for symbol, name in names.items())
    lists = [
        [s for s in names if names[s] == name_of_length]
        for name_of_length in dict.fromkeys(names.values())
    ]
    lists.sort(key=lambda some: (len(some), sum(bars[s] for s in some)), reverse=True)
    return DataIssue.from_kind(
        ALL,
        "timeframe",
        f"bars of different lengths ({listed})",
        len(names),
        "loading refuses: name symbols of one length",
        fixes=[{"symbols": listed} for listed in lists],
    )


def combine_fixes(
    issues: Sequence[DataIssue], config: DataConfig, files: Mapping[str, Path]
) -> tuple[SuggestedFix, ...]:
    """Return alternative fixes for all errors together; each replaces keys of `config`.

    Args:
        issues: of all symbols.
        config: section that the fixes are written into.
        files: of the symbols that are loaded.
    """
    stops = [issue for issue in issues if issue.severity == "error"]
    ways: list[SuggestedFix] = []

    def add(fix: SuggestedFix | None) -> None:
        complete = complete_fix(fix or {}, config, files)
        if complete and complete not in ways:
            ways.append(complete)

    for k in range(max((len(error.fixes) for error in stops), default=0)):
        add(
            merge_fixes(error.fixes[min(k, len(error.fixes) - 1)] for error in stops if error.fixes)
        )
    accepted = tuple(
        dict.fromkeys(error.kind for error in stops if CATALOGUE[error.kind].acceptable)
    )
    if accepted:
        first_fixes = [
            error.fixes[0] for error in stops if error.fixes and error.kind not in accepted
        ]
        if (
            complete_fix(merge_fixes(first_fixes) or {}, config, files) not in ways
        ):  # would duplicate a fix
            add(merge_fixes([*first_fixes, {"allow_issues": [*config.allow_issues, *accepted]}]))
    return tuple(ways)


def complete_fix(
    fix: SuggestedFix, config: DataConfig, files: Mapping[str, Path]
) -> dict[str, Any]:
    """Merge a fix with the present values of the keys that it replaces."""
    complete: dict[str, Any] = {}
    for key, value in fix.items():
        before = getattr(config, key)
        if key == "files":
            complete |= _complete_files(value, config, files)
        elif not isinstance(value, Mapping):
            complete[key] = value
        elif isinstance(before, dict):  # None takes an entry out
            merged = {**before, **value}
            complete[key] = {name: entry for name, entry in merged.items() if entry is not None}
        elif key in _BY_SYMBOL and before is not None and before != 1.0:
            complete[key] = {**dict.fromkeys(files, before), **value}
        else:
            complete[key] = value
    return complete


def _complete_files(
    value: Mapping[str, str], config: DataConfig, files: Mapping[str, Path]
) -> dict[str, Any]:
    """Return `files` with new names for some files and the present names of the others."""
    present = {s: path.name for s, path in files.items() if path.name not in value.values()}
    complete: dict[str, Any] = {"files": {**present, **value}}
    if config.symbols is not None:
        complete["symbols"] = [s for s in config.symbols if s in complete["files"]]
        complete["symbols"] += [s for s in value if s not in complete["symbols"]]
    return complete


def merge_fixes(fixes: Iterable[SuggestedFix]) -> dict[str, Any] | None:
    """Merge fixes into one, with the symbols that all of them name; None if two contradict."""
    result: dict[str, Any] = {}
    for fix in fixes:
        for key, value in fix.items():
            before: Any = result.get(key, value)
            if key == "symbols":
                result[key] = [name for name in before if name in value]
            elif _is_conflict(before, value):
                return None
            else:
                result[key] = {**before, **value} if isinstance(value, Mapping) else value
    return None if result.get("symbols") == [] else result


def contradicts(fix: SuggestedFix, other: SuggestedFix) -> bool:
    """Return True if a fix sets a key to another value than `other`; fewer symbols are allowed."""
    for key in fix.keys() & other.keys() - {"symbols", "files"}:
        mappings = isinstance(fix[key], Mapping) and isinstance(other[key], Mapping)
        if not mappings or _is_conflict(other[key], fix[key]):
            return True
    return False


def _is_conflict(old: Any, new: Any) -> bool:
    """Return True if two values differ; mappings only if they share a key with different values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return any(old.get(name, value) != value for name, value in new.items())
    return bool(old != new)
