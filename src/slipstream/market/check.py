"""The data check: reads every file leniently and says what is odd and what loading will do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.core.errors import DataError
from slipstream.market import timeframe
from slipstream.market.bars import Bars
from slipstream.market.clean import Cleaned, clean
from slipstream.market.config import DataConfig
from slipstream.market.finding import ALL, CheckReport, Finding, plural, render, stamp
from slipstream.market.holes import hole_findings
from slipstream.market.quality import outage_bars, quality_findings
from slipstream.market.source import SUFFIXES, find_files, resolve_folder
from slipstream.market.stamps import NaiveTimeError
from slipstream.market.table import RawTable, read
from slipstream.market.units import agreed_length
from slipstream.market.week import week_findings

__all__ = ["CheckReport", "Finding", "check", "render"]


@dataclass(frozen=True, eq=False)
class _Checked:
    table: RawTable
    cleaned: Cleaned
    note: str  # what had to be assumed to go on


def check(config: DataConfig) -> CheckReport:
    """Checks the prices that `config` names; never stops at the first problem.

    Raises:
        DataError: only when there is nothing to check: no folder, no files.
    """
    findings: list[Finding] = []
    checked: list[_Checked] = []
    files = _files(config, findings)
    for symbol, path in files.items():
        one = _read(symbol, path, config, findings)
        if one is not None:
            checked.append(one)
            findings += one.cleaned.findings
            findings += _declared(one.table, config)
            if one.cleaned.bars is not None:
                findings += _inspect(one.cleaned.bars, one.cleaned, config)
    lengths = {one.table.symbol: one.cleaned.bar_seconds for one in checked}
    disagreement = agreed_length(lengths, config.timeframe)
    findings += [disagreement] if disagreement is not None else []
    findings += _ends([one.cleaned.bars for one in checked if one.cleaned.bars is not None])
    return CheckReport(
        str(resolve_folder(config.folder)), tuple(findings), tuple(files), _summary(checked)
    )


def _files(config: DataConfig, findings: list[Finding]) -> dict[str, Path]:
    """The files to check; a symbol with two files or none becomes a finding."""
    try:
        return find_files(config)
    except DataError as error:
        root = resolve_folder(config.folder)
        if not root.is_dir():
            raise
        names = config.symbols
        if names is None:
            names = tuple(sorted({p.stem for p in root.iterdir() if p.suffix.lower() in SUFFIXES}))
        if not names:
            raise
        files: dict[str, Path] = {}
        for name in names:
            try:
                files |= find_files(config.model_copy(update={"symbols": (name,)}))
            except DataError as problem:
                message = str(problem).rstrip(".")
                findings.append(Finding(name, "file", "error", 1, message, "loading refuses"))
        if not files:
            raise error
        return files


def _read(symbol: str, path: Path, config: DataConfig, findings: list[Finding]) -> _Checked | None:
    """One file as it is; naive stamps are read as UTC to find what else is wrong."""
    try:
        table = read(symbol, path, config)
        return _Checked(table, clean(table, config), "")
    except NaiveTimeError as error:
        findings.append(
            Finding(symbol, "naive_time", "error", 1, str(error).rstrip("."), "loading refuses")
        )
        assumed = config.model_copy(update={"time_zone": "UTC"})
        table = read(symbol, path, assumed)
        return _Checked(table, clean(table, assumed), ", if stamps are UTC")
    except DataError as error:
        findings.append(
            Finding(symbol, "unreadable", "error", 1, str(error).rstrip("."), "loading refuses")
        )
        return None


def _inspect(bars: Bars, cleaned: Cleaned, config: DataConfig) -> list[Finding]:
    seconds, kind = cleaned.bar_seconds, cleaned.kind
    findings = hole_findings(bars, seconds, kind)
    if kind == "fx":
        findings += week_findings(bars, seconds, config)
    ignore = outage_bars(bars, seconds, kind)
    return findings + quality_findings(bars, seconds, kind, ignore)


def _declared(table: RawTable, config: DataConfig) -> list[Finding]:
    """Bid or ask prices that the config calls mid."""
    name = table.path.stem.upper()
    side = "bid" if table.dialect.bid or "BID" in name else "ask" if "ASK" in name else None
    if side is None or config.price_side != "mid":
        return []
    source = table.dialect.name if table.dialect.bid else "a file of this name"
    return [
        Finding(
            table.symbol,
            f"{side}_only",
            "warning",
            len(table),
            f"{source} holds {side} prices only: set `price_side: {side}` and a spread",
            "loading takes them as mid",
        )
    ]


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

    return [
        Finding(
            ALL,
            "unequal_ends",
            "info",
            len(markets),
            f"symbols start {describe(first)} and end {describe(last)} UTC; all have bars from "
            f"{stamp(max(first))} to {stamp(min(last))}",
            "loading keeps all bars; splits are by time",
            (max(first), min(last)),
        )
    ]


def _summary(checked: list[_Checked]) -> tuple[str, ...]:
    lines = []
    for one in checked:
        bars = one.cleaned.bars
        if bars is None:
            lines.append(f"{one.table.symbol}: {one.table.dialect.name}, no usable bars")
            continue
        spread = f"spread: {one.table.spread_source}"
        if one.table.spread is not None:
            spread += f" (median {float(np.median(bars.spread)):.3g})"
        lines.append(
            f"{bars.symbol}: {one.table.dialect.name}, {plural(len(bars), 'bar')} of "
            f"{timeframe.name(one.cleaned.bar_seconds)}, {stamp(int(bars.time[0]))} to "
            f"{stamp(int(bars.time[-1]))} UTC{one.note}, market {one.cleaned.kind}, {spread}"
        )
    return tuple(lines)
