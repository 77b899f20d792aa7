"""The data check: says what is odd in the files and what loading will do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import numpy as np

from slipstream.core.printable import printable
from slipstream.market.bars import timeframe_name
from slipstream.market.checks.clean import kind_of
from slipstream.market.checks.inspect import Inspected, inspect
from slipstream.market.config import DataConfig
from slipstream.market.finding import Finding, Remedy, advice, joined, plural, stamp
from slipstream.market.reading.source import resolve_folder

__all__ = ["CheckReport", "Finding", "check", "render"]


def check(config: DataConfig) -> CheckReport:
    """Checks the prices that `config` names; never stops at the first problem.

    Raises:
        DataError: only when there is nothing to check: no folder, no files.
    """
    found = inspect(config)
    kinds = [kind_of(symbol, config) for symbol in found.files]
    return CheckReport(
        str(resolve_folder(config.folder)),
        found.findings,
        tuple(found.files),
        tuple(facts(one) for one in found.inspected),
        found.ways,
        # A single coin cannot be balanced against others.
        "portfolio" if len(kinds) > 1 and set(kinds) == {"24/7"} else "forex",
    )


@dataclass(frozen=True)
class CheckReport:
    """Everything `check` found, the facts about each symbol that it rests on, and remedies.

    `ways` are alternatives for the `data` section; each mends all errors that it can.
    `environment` is the one that trades such a market.
    """

    folder: str
    findings: tuple[Finding, ...]
    symbols: tuple[str, ...]
    summary: tuple[str, ...] = ()
    ways: tuple[Remedy, ...] = ()
    environment: str = "portfolio"

    @property
    def loadable(self) -> bool:
        """Whether loading would accept this data."""
        return not any(finding.severity == "error" for finding in self.findings)

    def of(self, kind: str, symbol: str | None = None) -> tuple[Finding, ...]:
        """The findings of one kind, of one symbol if given."""
        return tuple(
            finding
            for finding in self.findings
            if finding.kind == kind and symbol in (None, finding.symbol)
        )


def render(report: CheckReport) -> str:
    """The report as plain text; a finding shared by several symbols takes one line."""
    lines = [f"Data check of {printable(report.folder)}"]
    lines += [f"  {printable(line)}" for line in report.summary]
    for severity, title in (
        ("error", "Errors: loading refuses this data"),
        ("warning", "Warnings"),
        ("info", "For your information"),
    ):
        chosen = [finding for finding in report.findings if finding.severity == severity]
        if chosen:
            lines += ["", f"{title}:"]
            lines += [f"  {line}" for line in joined(chosen, report.symbols)]
        if severity == "error" and report.ways:
            lines.append(f"  {advice(report.ways)}")
    lines += ["", _verdict(report)]
    if not report.summary:
        return "\n".join(lines)
    command = f"slipstream init {report.environment} {shlex.quote(report.folder)} > my.yaml"
    lines.append(f"`{printable(command)}` writes a config of all that these files prove.")
    return "\n".join(lines)


def _verdict(report: CheckReport) -> str:
    counts = {
        severity: sum(finding.severity == severity for finding in report.findings)
        for severity in ("error", "warning")
    }
    if counts["error"]:
        return f"Not loadable: {plural(counts['error'], 'error')}, {counts['warning']} warnings."
    return f"Loadable, with {plural(counts['warning'], 'warning')}."


def facts(one: Inspected) -> str:
    """A file in a line: format, bars, range, market, spread."""
    table, bars = one.table, one.cleaned.bars
    if bars is None:
        return f"{table.symbol}: {table.dialect.name}, no usable bars"
    spread = f"spread: {table.spread_source}"
    if table.spread is not None:
        spread += f" (median {float(np.median(bars.spread)):.3g})"
    note = f", if stamps are {one.assumed}" if one.assumed else ""
    return (
        f"{bars.symbol}: {table.dialect.name}, {plural(len(bars), 'bar')} of "
        f"{timeframe_name(one.cleaned.bar_seconds)}, {stamp(int(bars.time[0]))} to "
        f"{stamp(int(bars.time[-1]))} UTC{note}, market {one.cleaned.kind}, {spread}"
    )
