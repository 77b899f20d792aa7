"""Finding: one thing about the data that its user should know, and the remedies that mend it.

A remedy is keys of the `data` section, printed so that they can be pasted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.printable import printable
from slipstream.market.bars import BoolArray, IntArray
from slipstream.market.catalogue import CATALOGUE, Effect

Severity = Literal["error", "warning", "info"]
Remedy = Mapping[str, Any]
ALL = "all"
_KEPT_TIMES = 10
# Severity and action by what loading does.
_USUAL: dict[Effect, tuple[Severity, str]] = {
    "stops": ("error", "loading refuses"),
    "mends": ("warning", "loading mends it"),
    "warns": ("warning", "loading keeps them"),
    "tells": ("info", "loading keeps them"),
}
# What both YAML 1.1 and 1.2 read as text: no digits in front, no colons, no lone keyword.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+=-]*")
_KEYWORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


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

    @classmethod
    def of(
        cls,
        symbol: str,
        kind: str,
        message: str,
        count: int = 1,
        action: str | None = None,
        severity: Severity | None = None,
        times: tuple[int, ...] = (),
        size: int = 0,
        remedies: Iterable[Remedy] = (),
    ) -> Finding:
        """A finding with the severity and the action that are usual for what loading does."""
        usual, does = _USUAL[CATALOGUE[kind].effect]
        severity, action = severity or usual, action or does
        return cls(symbol, kind, severity, count, message, action, times, size, tuple(remedies))

    @classmethod
    def where(
        cls,
        symbol: str,
        kind: str,
        time: IntArray,
        mask: BoolArray,
        noun: str,
        said: str = "",
        first: str = ", first {} UTC",
        **others: Any,
    ) -> list[Finding]:
        """A finding that counts the bars at which `mask` holds; none where it holds nowhere.

        Args:
            symbol, kind: whose bars, and the name in the catalogue.
            time: UTC seconds of the bars, int64 [n].
            mask: bool [n].
            noun: what is counted.
            said: what follows the count.
            first: what follows that, with the moment of the first of them.
            others: as for `of`.
        """
        if not mask.any():
            return []
        times, count = first_times(time, mask), int(mask.sum())
        message = plural(count, noun) + said + first.replace("{}", stamp(times[0]), 1)
        return [cls.of(symbol, kind, message, count, times=times, **others)]

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


def first_times(time: IntArray, mask: BoolArray) -> tuple[int, ...]:
    """The first few moments at which `mask` holds."""
    return tuple(int(moment) for moment in time[np.flatnonzero(mask)[:_KEPT_TIMES]])


def stamp(second: int) -> str:
    """A moment for people: ``2023-03-24 12:35``, UTC."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M")


def plural(count: int, noun: str) -> str:
    """``1 bar``, ``1,204 bars``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _names(names: Iterable[str], everyone: tuple[str, ...]) -> str:
    listed = list(dict.fromkeys(names))
    return "all symbols" if len(listed) == len(everyone) > 1 else ", ".join(listed)


class RemedyError(DataError):
    """An error that the `data` section can mend.

    Attributes:
        kind: name of the finding.
        remedies: alternatives; empty where only the user can know.
    """

    def __init__(self, kind: str, message: str, *remedies: Remedy) -> None:
        super().__init__(message)
        self.kind, self.remedies = kind, remedies


def pasted(remedy: Remedy) -> str:
    """A remedy as YAML in backticks, one pair for each key."""
    return " and ".join(f"`{key}: {_flow(value)}`" for key, value in remedy.items())


def advice(ways: Sequence[Remedy]) -> str:
    """Alternatives in a sentence; the last one may be to accept what was found."""
    accepting = [way for way in ways if "accept" in way]
    mending = " or ".join(pasted(way) for way in ways if "accept" not in way)
    if not accepting:
        return f"Set {mending} in the `data` section."
    last = f"{pasted(accepting[0])} if the files are right"
    return f"Set {mending}{mending and ', or '}{last}, in the `data` section."


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(one) for one in value) + "]"
    if isinstance(value, (bool, int)):
        return str(value).lower()
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _KEYWORDS:
        return text
    if text.isprintable() and "'" not in text and text:
        return f"'{text}'"
    return json.dumps(text)
