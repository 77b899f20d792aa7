"""Finding: one thing about the data that its user should know."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from slipstream.core.printable import printable
from slipstream.market.bars import BoolArray, IntArray
from slipstream.market.catalogue import CATALOGUE
from slipstream.market.remedy import Remedy, advice

Severity = Literal["error", "warning", "info"]
ALL = "all"
_KEPT_TIMES = 10


@dataclass(frozen=True)
class Finding:
    """What was found in one symbol, and what loading does about it.

    Attributes:
        symbol: whose bars; ``"all"`` for the market as a whole.
        kind: its name in the catalogue, such as ``gap`` or ``duplicate``.
        severity: ``error`` = loading refuses, ``warning`` = loading mends it or results may suffer,
            ``info`` = worth knowing.
        count: how many bars or occurrences.
        message: what was found, one sentence.
        action: what loading does about it, one clause.
        times: UTC seconds of the first occurrences, at most ten.
        size: missing bars of each hole, for holes; else 0.
        remedies: keys of the `data` section that mend it; alternatives, the likeliest first.
        accepted: it would stop loading, and the config's `accept` names it.
    """

    symbol: str
    kind: str
    severity: Severity
    count: int
    message: str
    action: str
    times: tuple[int, ...] = ()
    size: int = 0
    remedies: tuple[Remedy, ...] = ()
    accepted: bool = False

    def __post_init__(self) -> None:
        effect = CATALOGUE[self.kind].effect
        assert self.severity != "error" or effect == "stops", f"{self.kind} {effect}"

    def sentence(self) -> str:
        """The finding as one sentence with its action."""
        text = f"{printable(self.message)}; {printable(self.action)}."
        return text if self.message.startswith(self.symbol) else f"{printable(self.symbol)}: {text}"


def joined(findings: Iterable[Finding], everyone: tuple[str, ...]) -> list[str]:
    """Sentences; what several symbols share takes one."""
    shared: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        shared.setdefault((finding.message, finding.action), []).append(finding)
    return [
        replace(group[0], symbol=_names([one.symbol for one in group], everyone)).sentence()
        for group in shared.values()
    ]


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


def first_times(time: IntArray, mask: BoolArray) -> tuple[int, ...]:
    """The first few moments at which `mask` holds."""
    return tuple(int(moment) for moment in time[np.flatnonzero(mask)[:_KEPT_TIMES]])


def stamp(second: int) -> str:
    """A moment for people: ``2023-03-24 12:35``, UTC."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M")


def plural(count: int, noun: str) -> str:
    """``1 bar``, ``1,204 bars``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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


def _names(names: Iterable[str], everyone: tuple[str, ...]) -> str:
    listed = list(dict.fromkeys(names))
    return "all symbols" if len(listed) == len(everyone) > 1 else ", ".join(listed)


def _verdict(report: CheckReport) -> str:
    counts = {
        severity: sum(finding.severity == severity for finding in report.findings)
        for severity in ("error", "warning")
    }
    if counts["error"]:
        return f"Not loadable: {plural(counts['error'], 'error')}, {counts['warning']} warnings."
    return f"Loadable, with {plural(counts['warning'], 'warning')}."
