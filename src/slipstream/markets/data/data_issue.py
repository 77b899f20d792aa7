"""Finding: one thing about the data that its user should know, and the remedies that mend it.

`CATALOGUE` names everything that the data check can find; the table of docs/data.md adds what each
name means. A name never changes its meaning: configs name findings in `accept`, runs record them.
A remedy is keys of the `data` section, printed so that they can be pasted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.text import plural, printable, stamp
from slipstream.markets.data.bars import BoolArray, IntArray

Effect = Literal["stops", "mends", "warns", "tells"]
Severity = Literal["error", "warning", "info"]
Remedy = Mapping[str, Any]
ALL = "all"
_KEPT_TIMES = 10
# Severity, and what loading does about it unless the catalogue says something else.
_USUAL: dict[Effect, tuple[Severity, str]] = {
    "stops": ("error", "loading refuses"),
    "mends": ("warning", "loading mends it"),
    "warns": ("warning", "loading keeps them"),
    "tells": ("info", "loading keeps them"),
}
# What both YAML 1.1 and 1.2 read as text: no digits in front, no colons, no lone keyword.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+=-]*")
_KEYWORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class Entry(NamedTuple):
    """What one name of the catalogue stands for.

    Attributes:
        effect: what loading does: it refuses, changes the bars, or keeps them and says so; what
            ``tells`` stands in the data check only.
        remedy: what a user can do.
        acceptable: `accept` lets such data in.
        action: what loading does about it, one clause; empty where it is the usual of `effect`.
    """

    effect: Effect
    remedy: str = ""
    acceptable: bool = False
    action: str = ""


_SCALE = "`price_scale`, by symbol"
_DROP = "`bad_bars: drop`"
_LEFT = "loading leaves the hole: nothing is filled"
_NEXT = "loading keeps the prices; fill at the next open"

CATALOGUE: dict[str, Entry] = {
    # The numbers mean something else than they seem to.
    "units": Entry("stops", _SCALE, True),
    "integer_prices": Entry("stops", _SCALE, True),
    "scale_jump": Entry("stops", "mend the file", True),
    "overlap": Entry("stops", "take the wrong file away", True),
    "no_common_period": Entry(
        "stops", "`symbols` that do; a portfolio of `universe: union` may do without", True
    ),
    "spacing": Entry(
        "stops",
        "take the stretch out of the file",
        True,
        action="loading refuses: take them out of the file",
    ),
    "spread_unit": Entry(
        "stops",
        "`columns: {spread: spread_points}` or `{spread: spread_pips}`, or `spread_pips`",
        True,
    ),
    "point_size": Entry("stops", "`point`, by symbol", True),
    "local_time": Entry(
        "stops", "`time_zone`; files that state a wrong zone must be written anew", True
    ),
    "weekend_bars": Entry("stops", "`time_zone`, or take the bars out of the file", True),
    "close_labelled": Entry("stops", "`time_is: close`", True),
    "open_labelled": Entry("stops", "`time_is: open`", True),
    "future": Entry("stops", "`time_format`, or write the stamps anew", True),
    # What must be known before anything can be loaded.
    "file": Entry("stops", "`files`, `symbols`"),
    "unreadable": Entry("stops", "`symbols` without it"),
    "columns": Entry("stops", "`columns`"),
    "time_format": Entry("stops", "`time_format`"),
    "decimal": Entry("stops", "`decimal`"),
    "several_symbols": Entry("stops", "`files`"),
    "coarse_time": Entry(
        "stops",
        "`row_spacing` where rows have no holes, or export full stamps",
        action="loading refuses: it would keep the last bar of each stamp",
    ),
    "naive_time": Entry("stops", "`time_zone`"),
    "no_spread": Entry("stops", "`spread_pips`"),
    "timeframe": Entry("stops", "`symbols` of one length"),
    "too_few": Entry("stops", "`symbols` without it"),
    # Single bars that are impossible.
    "bad_time": Entry("stops", _DROP),
    "nonexistent_time": Entry("stops", _DROP),
    "nan": Entry("stops", _DROP),
    "non_positive": Entry("stops", _DROP),
    "high_below_low": Entry("stops", _DROP),
    "outside_range": Entry("stops", _DROP),
    "negative_volume": Entry("stops", _DROP),
    "negative_spread": Entry("stops", _DROP),
    # What loading puts right.
    "unsorted": Entry("mends", action="loading sorts the bars"),
    "duplicate": Entry("mends", action="loading keeps the last of each"),
    "unknown_volume": Entry("mends", action="loading sets it to 0"),
    "unpaired": Entry("mends", action="they are left out"),
    "weekend_flat": Entry("mends", action="loading drops them"),
    # What loading keeps.
    "broker_time": Entry("warns", "`time_zone`", action="loading takes them as UTC"),
    "bid_only": Entry(
        "warns", "`price_side: bid`, `spread_pips`", action="loading takes them as mid"
    ),
    "ask_only": Entry(
        "warns", "`price_side: ask`, `spread_pips`", action="loading takes them as mid"
    ),
    "gap": Entry("warns", action=_LEFT),
    "outage": Entry("warns", action="loading leaves the hole and keeps the flat bars"),
    "zero_volume": Entry("warns"),
    "flat": Entry("warns"),
    "stale": Entry("warns"),
    "large_move": Entry("warns"),
    "coarse_tick": Entry("warns", "fill at next open", action=_NEXT),
    "bounce": Entry("warns", "fill at next open", action=_NEXT),
    "look_ahead": Entry(
        "warns",
        "shift the column by a bar in the file, or leave it out of `features`",
        action="loading keeps the column; a feature must be known at its bar's close",
    ),
    "wide_spread": Entry("warns"),
    "misaligned": Entry("warns"),
    "symbol_name": Entry("warns", "`files`"),
    "calendar": Entry("warns", action="loading takes the bars as they are"),
    "weekend": Entry("tells", action="they count as one step"),
    "holiday": Entry("tells", action=_LEFT),
    "no_volume": Entry("tells", action="loading sets it to 0; leave volume features out"),
    "unequal_ends": Entry("tells", action="loading keeps all bars; splits are by time"),
}
ACCEPTABLE = tuple(name for name, entry in CATALOGUE.items() if entry.acceptable)


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
        """A finding with the severity and the action that the catalogue gives its kind."""
        entry = CATALOGUE[kind]
        usual, does = _USUAL[entry.effect]
        severity, action = severity or usual, action or entry.action or does
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
    """Findings as sentences; what several symbols share takes one."""
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
    """Puts alternatives into a sentence; the last one may be to accept what was found."""
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
