"""The data check: reads a market's files and finds all that is odd; loading goes through it, too.

Nothing stops at the first problem. Whoever loads refuses what is an error in the end.
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
from slipstream.markets.data.cleaning import Inspected, clean, kind_of
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import (
    ALL,
    CATALOGUE,
    Finding,
    Remedy,
    RemedyError,
    advice,
    joined,
)
from slipstream.markets.data.file_discovery import find_files, price_files
from slipstream.markets.data.quality import hole_findings, quality_findings
from slipstream.markets.data.raw_table import RawTable, read
from slipstream.markets.data.timezone_inference import Proof, among_others, prove, week_findings

_BY_SYMBOL = ("price_scale", "point")  # keys of `data` that hold one value, or one by symbol


@dataclass(frozen=True, eq=False)
class Check:
    """A market's files and everything that was found in them.

    Attributes:
        config: what was asked for.
        files: by symbol, readable or not.
        inspected: the readable ones.
        findings: in the order of the files, then of all.
    """

    config: DataConfig
    files: dict[str, Path]
    inspected: tuple[Inspected, ...]
    findings: tuple[Finding, ...]

    @property
    def stops(self) -> tuple[Finding, ...]:
        """What loading refuses."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def loadable(self) -> bool:
        """Whether loading would accept this data."""
        return not self.stops

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of all files."""
        return tuple(self.files)

    @property
    def summary(self) -> tuple[str, ...]:
        """A line for each readable file."""
        return tuple(_facts(one) for one in self.inspected)

    def of(self, kind: str, symbol: str | None = None) -> tuple[Finding, ...]:
        """The findings of one kind, of one symbol if given."""
        return tuple(
            finding
            for finding in self.findings
            if finding.kind == kind and symbol in (None, finding.symbol)
        )

    @cached_property
    def ways(self) -> tuple[Remedy, ...]:
        """Alternatives for the `data` section that mend all of that, each tried on the folder."""
        ways = ways_out(self.findings, self.config, self.files)
        return tuple(way for way in ways if self.mended_by(way))

    def mended_by(self, way: Remedy) -> bool:
        """Whether the folder, read so, has nothing of what stops now, and wants no other value.

        A remedy may bring to light what stops next.
        """
        try:
            tried = validate(DataConfig, {**self.config.model_dump(), **way}, "data")
            left = check(tried).stops
        except SlipstreamError:
            return False
        mended = {(one.symbol, one.kind) for one in self.stops if one.remedies}
        return not any(
            (one.symbol, one.kind) in mended or any(revokes(other, way) for other in one.remedies)
            for one in left
        )


def check(config: DataConfig) -> Check:
    """Reads, cleans and checks the prices that `config` names; never stops at the first problem.

    Raises:
        DataError: only where there is nothing to check: no folder, no files, none of the symbols.
    """
    findings: list[Finding] = []
    files = _files(config, findings)
    tables = _tables(files, config, findings)
    findings += _unknown_names(tables, config)
    naive = [one for one in tables if one.needs_zone and one.readings.origin != "mixed"]
    proof = prove(naive, config)
    inspected = [_inspected(table, config, proof, findings) for table in tables]
    usable = [one.bars for one in inspected if one.bars is not None]
    if usable:
        leave_out: Remedy = {"symbols": [bars.symbol for bars in usable]}
        findings = [
            replace(one, remedies=(leave_out,)) if one.kind == "too_few" else one
            for one in findings
        ]
    lengths = {one.table.symbol: one.bar_seconds for one in inspected}
    bars = {one.table.symbol: len(one.table) for one in inspected}
    disagreement = agreed_length(lengths, config.timeframe, bars)
    findings += [disagreement] if disagreement is not None else []
    findings += _ends(usable)
    accepted = tuple(_accepted(one, config) for one in findings)
    return Check(config, files, tuple(inspected), accepted)


def render(found: Check) -> str:
    """The report as plain text; a finding shared by several symbols takes one line."""
    folder = str(resolve_folder(found.config.folder))
    lines = [f"Data check of {printable(folder)}"]
    lines += [f"  {printable(line)}" for line in found.summary]
    for severity, title in (
        ("error", "Errors: loading refuses this data"),
        ("warning", "Warnings"),
        ("info", "For your information"),
    ):
        chosen = [finding for finding in found.findings if finding.severity == severity]
        if chosen:
            lines += ["", f"{title}:"]
            lines += [f"  {line}" for line in joined(chosen, found.symbols)]
        if severity == "error" and found.ways:
            lines.append(f"  {advice(found.ways)}")
    lines += ["", _verdict(found)]
    if not found.inspected:
        return "\n".join(lines)
    kinds = [kind_of(symbol, found.config) for symbol in found.files]
    # A single coin cannot be balanced against others.
    environment = "portfolio" if len(kinds) > 1 and set(kinds) == {"24/7"} else "forex"
    command = f"slipstream init {environment} {shlex.quote(folder)} > my.yaml"
    lines.append(f"`{printable(command)}` writes a config of all that these files prove.")
    return "\n".join(lines)


def _verdict(found: Check) -> str:
    warnings = sum(one.severity == "warning" for one in found.findings)
    if found.stops:
        return f"Not loadable: {plural(len(found.stops), 'error')}, {warnings} warnings."
    return f"Loadable, with {plural(warnings, 'warning')}."


def _facts(one: Inspected) -> str:
    """A file in a line: format, bars, range, market, spread."""
    table, bars = one.table, one.bars
    if bars is None:
        return f"{table.symbol}: {table.dialect.name}, no usable bars"
    spread = f"spread: {table.spread_source}"
    if table.spread is not None:
        spread += f" (median {float(np.median(bars.spread)):.3g})"
    note = f", if stamps are {one.assumed}" if one.assumed else ""
    return (
        f"{bars.symbol}: {table.dialect.name}, {plural(len(bars), 'bar')} of "
        f"{timeframe_name(one.bar_seconds)}, {stamp(int(bars.time[0]))} to "
        f"{stamp(int(bars.time[-1]))} UTC{note}, market {one.kind}, {spread}"
    )


def _accepted(finding: Finding, config: DataConfig) -> Finding:
    if finding.severity != "error" or finding.kind not in config.accept:
        return finding
    return replace(
        finding,
        severity="warning",
        action=f"loaded all the same, for `accept` names {finding.kind}",
        accepted=True,
    )


def _files(config: DataConfig, findings: list[Finding]) -> dict[str, Path]:
    """The files to look at; a symbol with two files or none becomes a finding."""
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
                findings.append(_refusal(name, "file", problem))
        if not files:
            raise error
        return files


def _tables(files: dict[str, Path], config: DataConfig, findings: list[Finding]) -> list[RawTable]:
    tables = []
    problems: dict[str, DataError] = {}
    for symbol, path in files.items():
        try:
            tables.append(read(symbol, path, config))
        except DataError as error:
            problems[symbol] = error
    ways: list[Remedy] = [{"symbols": [table.symbol for table in tables]}] if tables else []
    findings += [_refusal(name, "unreadable", problem, ways) for name, problem in problems.items()]
    return tables


def _refusal(
    symbol: str, kind: str, problem: DataError | str, remedies: Sequence[Remedy] = ()
) -> Finding:
    """What stops; an error may know its own kind and remedies."""
    if isinstance(problem, RemedyError):
        kind, remedies = problem.kind, problem.remedies
    return Finding.of(symbol, kind, str(problem).rstrip("."), remedies=remedies)


def _unknown_names(tables: Sequence[RawTable], config: DataConfig) -> list[Finding]:
    """Entries of the config that name what no file has."""
    if not tables:
        return []
    have = [name for table in tables for name in table.dialect.columns]
    findings = []
    root = resolve_folder(config.folder)
    known = {name for name, _ in price_files(root)} if root.is_dir() else set()
    known |= {*config.files, *(table.symbol for table in tables)}
    for key in ("price_scale", "point"):
        given = getattr(config, key)
        strange = [name for name in given if name not in known] if isinstance(given, dict) else []
        if strange:
            message = f"`{key}` names {strange[0]!r}, which has no file; "
            message += did_you_mean(strange[0], sorted(known))
            findings.append(_refusal(ALL, "file", message, ({key: dict.fromkeys(strange)},)))
    missing = [name for name in config.columns if name not in have]
    if missing:
        table = tables[0]
        findings.append(
            _refusal(
                ALL if len(tables) > 1 else table.symbol,
                "columns",
                f"`columns` names {missing[0]!r}, which {table.path.name} does not have: its "
                f"columns are {', '.join(table.dialect.columns)}",
                ({"columns": dict.fromkeys(missing)},),
            )
        )
    return findings


def _inspected(
    table: RawTable, config: DataConfig, proof: Proof, findings: list[Finding]
) -> Inspected:
    assumed = ""
    if table.needs_zone:
        own = among_others(table, config) if table.readings.origin == "mixed" else proof
        findings.append(_naive(table, own))
        assumed = own.zone or "UTC"
        table = replace(table, zone=assumed)
    one = clean(table, config, assumed)
    findings += [*one.findings, *_declared(table, config), *_odd(one, config)]
    return one


def _naive(table: RawTable, proof: Proof) -> Finding:
    """Stamps without a zone: which one is proven, or what would be usual."""
    naive = table.readings.naive
    first = np.datetime64(int(table.readings.seconds[np.flatnonzero(naive)[0]]), "s")
    example = str(first).replace("T", " ")
    count = int(naive.sum())
    if table.readings.origin == "mixed":
        what = (
            f"{count:,} of {len(table):,} time stamps, such as {example!r}, carry no zone and "
            f"stand among others that do; `time_zone` reads those that have none: {proof.words}"
        )
    else:
        what = (
            f"time stamps must say which zone they are in, and {example!r} does not; {proof.words}"
        )
    if proof.zone is None:
        usual = (table.dialect.zone_hint,) if proof.contenders is None else proof.contenders
        listed = " or ".join(f"`time_zone: {zone}`" for zone in usual)
        example = f", for example {listed}" if usual else ""
        what += f": set `time_zone` to that of the source{example}"
    remedies = () if proof.remedy is None else (proof.remedy,)
    return Finding.of(table.symbol, "naive_time", what, count, remedies=remedies)


def _odd(one: Inspected, config: DataConfig) -> list[Finding]:
    """What is odd about the bars of one file, none of which loading changes."""
    if one.bars is None:
        return []
    findings = hole_findings(one.bars, one.bar_seconds, one.kind)
    if one.kind == "fx" and not one.assumed:
        findings += week_findings(one.table, one.bars, one.bar_seconds, config)
    return findings + quality_findings(one.bars, one.bar_seconds, one.kind, one.table.path.name)


def _declared(table: RawTable, config: DataConfig) -> list[Finding]:
    """Bid or ask prices that the config calls mid."""
    side = table.side
    if side == "mid" or config.price_side != "mid":
        return []
    source = table.dialect.name if table.dialect.side == side else "a file of this name"
    message = f"{source} holds {side} prices only: set `price_side: {side}` and a spread"
    return [Finding.of(table.symbol, f"{side}_only", message, len(table))]


def _ends(markets: list[Bars]) -> list[Finding]:
    """Symbols that start later or end earlier than others."""
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
        # As many as are listed at one moment, and it is a beginning.
        together = max(
            ([one for one in markets if one.time[0] <= t <= one.time[-1]] for t in sorted(first)),
            key=lambda some: (len(some), sum(map(len, some))),
        )
        names = [one.symbol for one in together]
        message = f"{ends}: there is no moment at which all have bars"
        ways = ({"symbols": names},)
        return [Finding.of(ALL, "no_common_period", message, len(markets), remedies=ways)]
    common = (max(first), min(last))
    message = f"{ends}; all have bars from {stamp(common[0])} to {stamp(common[1])}"
    return [Finding.of(ALL, "unequal_ends", message, len(markets), times=common)]


def agreed_length(
    lengths: dict[str, int], wanted: str | None, bars: Mapping[str, int]
) -> Finding | None:
    """A finding when symbols disagree about the bar length, or with the config's `timeframe`.

    The remedy is the length of most symbols; of as many, of most bars.
    """
    names = {symbol: timeframe_name(length) for symbol, length in lengths.items() if length > 0}
    alike = len(set(names.values())) == 1
    if wanted is not None:
        expected = timeframe_seconds(wanted)
        wrong = [symbol for symbol in names if lengths[symbol] != expected]
        right = [symbol for symbol in names if lengths[symbol] == expected]
        if wrong:
            own = names[wrong[0]]
            asked = f"`timeframe: {wanted}` asks for {timeframe_name(expected)}"
            ways: list[Remedy] = [{"symbols": right}] if right else []
            return Finding.of(
                wrong[0],
                "timeframe",
                f"bars of {own} where {asked}",
                len(wrong),
                "loading refuses: bars are never resampled",
                remedies=[{"timeframe": own}] if alike else ways,
            )
    if alike or not names:
        return None
    listed = ", ".join(f"{symbol} {name}" for symbol, name in names.items())
    lists = [[s for s in names if names[s] == one] for one in dict.fromkeys(names.values())]
    lists.sort(key=lambda some: (len(some), sum(bars[s] for s in some)), reverse=True)
    return Finding.of(
        ALL,
        "timeframe",
        f"bars of different lengths ({listed})",
        len(names),
        "loading refuses: name symbols of one length",
        remedies=[{"symbols": one} for one in lists],
    )


def ways_out(
    findings: Sequence[Finding], config: DataConfig, files: Mapping[str, Path]
) -> tuple[Remedy, ...]:
    """Alternatives for all findings that stop loading, complete: they replace keys of `config`.

    Args:
        findings: of all symbols.
        config: what the remedies are written into.
        files: of the symbols that are loaded.
    """
    stops = [finding for finding in findings if finding.severity == "error"]
    ways: list[Remedy] = []

    def add(found: Remedy | None) -> None:
        way = complete(found or {}, config, files)
        if way and way not in ways:
            ways.append(way)

    for k in range(max((len(one.remedies) for one in stops), default=0)):
        add(merged(one.remedies[min(k, len(one.remedies) - 1)] for one in stops if one.remedies))
    accepted = tuple(dict.fromkeys(one.kind for one in stops if CATALOGUE[one.kind].acceptable))
    if accepted:
        others = [one.remedies[0] for one in stops if one.remedies and one.kind not in accepted]
        if complete(merged(others) or {}, config, files) not in ways:  # which mends them, too
            add(merged([*others, {"accept": [*config.accept, *accepted]}]))
    return tuple(ways)


def complete(found: Remedy, config: DataConfig, files: Mapping[str, Path]) -> dict[str, Any]:
    """A remedy together with what the keys that it replaces say already."""
    way: dict[str, Any] = {}
    for key, value in found.items():
        before = getattr(config, key)
        if key == "files":
            way |= _renamed(value, config, files)
        elif not isinstance(value, Mapping):
            way[key] = value
        elif isinstance(before, dict):  # None takes an entry out
            both = {**before, **value}
            way[key] = {name: one for name, one in both.items() if one is not None}
        elif key in _BY_SYMBOL and before is not None and before != 1.0:
            way[key] = {**dict.fromkeys(files, before), **value}
        else:
            way[key] = value
    return way


def _renamed(
    value: Mapping[str, str], config: DataConfig, files: Mapping[str, Path]
) -> dict[str, Any]:
    """`files` that give some files new names, and keep the others of the folder."""
    kept = {s: path.name for s, path in files.items() if path.name not in value.values()}
    way: dict[str, Any] = {"files": {**kept, **value}}
    if config.symbols is not None:
        way["symbols"] = [s for s in config.symbols if s in way["files"]]
        way["symbols"] += [s for s in value if s not in way["symbols"]]
    return way


def merged(remedies: Iterable[Remedy]) -> dict[str, Any] | None:
    """All of them at once, `symbols` those that all name; None where two contradict each other."""
    result: dict[str, Any] = {}
    for remedy in remedies:
        for key, value in remedy.items():
            before: Any = result.get(key, value)
            if key == "symbols":
                result[key] = [name for name in before if name in value]
            elif _differ(before, value):
                return None
            else:
                result[key] = {**before, **value} if isinstance(value, Mapping) else value
    return None if result.get("symbols") == [] else result


def revokes(remedy: Remedy, way: Remedy) -> bool:
    """Whether a remedy gives a key that `way` sets another value; fewer symbols are none."""
    for key in remedy.keys() & way.keys() - {"symbols", "files"}:
        mappings = isinstance(remedy[key], Mapping) and isinstance(way[key], Mapping)
        if not mappings or _differ(way[key], remedy[key]):
            return True
    return False


def _differ(old: Any, new: Any) -> bool:
    """Whether two values contradict each other; mappings where they share a name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return any(old.get(name, one) != one for name, one in new.items())
    return bool(old != new)
