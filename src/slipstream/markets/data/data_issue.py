"""DataIssue: one problem of a data set, and the suggested fixes.

`CATALOGUE` lists every kind that the data check can report; docs/reference/data-issues.md
explains each of them. The meaning of a kind never changes, since configs name kinds and runs record
them. A fix is a set of keys of the `data` section, printed so that it can be pasted.
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

Effect = Literal["error", "fixed", "warning", "info"]
Severity = Literal["error", "warning", "info"]
SuggestedFix = Mapping[str, Any]
ALL = "all"
_KEPT_TIMES = 10
# Default severity and action of each effect.
_USUAL: dict[Effect, tuple[Severity, str]] = {
    "error": ("error", "loading refuses"),
    "fixed": ("warning", "loading fixes it"),
    "warning": ("warning", "loading keeps them"),
    "info": ("info", "loading keeps them"),
}
# Text in both YAML 1.1 and 1.2: no leading digits, no colons, no lone keyword.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+=-]*")
_KEYWORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class CatalogueEntry(NamedTuple):
    """Properties of one kind of issue.

    Attributes:
        effect: ``error``: loading refuses; ``fixed``: loading changes the bars and reports it;
            ``warning``: loading keeps the bars and reports it; ``info``: only the data check
            reports it.
        fix: what a user can do.
        acceptable: the config may allow such data.
        action: what loading does about it, one clause; empty for the default of `effect`.
    """

    effect: Effect
    fix: str = ""
    acceptable: bool = False
    action: str = ""


_SCALE = "`price_scale`, by symbol"
_DROP = "`bad_bars: drop`"
_LEFT = "loading leaves the hole: nothing is filled"
_NEXT = "loading keeps the prices; fill at the next open"

CATALOGUE: dict[str, CatalogueEntry] = {
    # Numbers with another meaning than the config states.
    "units": CatalogueEntry("error", _SCALE, True),
    "integer_prices": CatalogueEntry("error", _SCALE, True),
    "scale_jump": CatalogueEntry("error", "fix the file", True),
    "overlap": CatalogueEntry("error", "remove the wrong file", True),
    "no_common_period": CatalogueEntry(
        "error", "`symbols` with a common period, or a portfolio of `universe: union`", True
    ),
    "spacing": CatalogueEntry(
        "error",
        "remove these bars from the file",
        True,
        action="loading refuses: remove them from the file",
    ),
    "spread_unit": CatalogueEntry(
        "error",
        "`columns: {spread: spread_points}` or `{spread: spread_pips}`, or `spread_pips`",
        True,
    ),
    "point_size": CatalogueEntry("error", "`point`, by symbol", True),
    "local_time": CatalogueEntry(
        "error", "`time_zone`; files that state a wrong zone must be written again", True
    ),
    "weekend_bars": CatalogueEntry("error", "`time_zone`, or remove the bars from the file", True),
    "close_labelled": CatalogueEntry("error", "`timestamp_label: right`", True),
    "open_labelled": CatalogueEntry("error", "`timestamp_label: left`", True),
    "future": CatalogueEntry("error", "`time_format`, or write the timestamps again", True),
    # Information that loading needs.
    "file": CatalogueEntry("error", "`files`, `symbols`"),
    "unreadable": CatalogueEntry("error", "`symbols` without it"),
    "columns": CatalogueEntry("error", "`columns`"),
    "time_format": CatalogueEntry("error", "`time_format`"),
    "decimal": CatalogueEntry("error", "`decimal`"),
    "several_symbols": CatalogueEntry("error", "`files`"),
    "coarse_time": CatalogueEntry(
        "error",
        "`row_spacing` where rows have no holes, or export full stamps",
        action="loading refuses: it would keep the last bar of each stamp",
    ),
    "naive_time": CatalogueEntry("error", "`time_zone`"),
    "no_spread": CatalogueEntry("error", "`spread_pips`"),
    "timeframe": CatalogueEntry("error", "`symbols` of one length"),
    "too_few": CatalogueEntry("error", "`symbols` without it"),
    # Impossible bars.
    "bad_time": CatalogueEntry("error", _DROP),
    "nonexistent_time": CatalogueEntry("error", _DROP),
    "nan": CatalogueEntry("error", _DROP),
    "non_positive": CatalogueEntry("error", _DROP),
    "high_below_low": CatalogueEntry("error", _DROP),
    "outside_range": CatalogueEntry("error", _DROP),
    "negative_volume": CatalogueEntry("error", _DROP),
    "negative_spread": CatalogueEntry("error", _DROP),
    # Issues that loading fixes.
    "unsorted": CatalogueEntry("fixed", action="loading sorts the bars"),
    "duplicate": CatalogueEntry("fixed", action="loading keeps the last of each"),
    "unknown_volume": CatalogueEntry("fixed", action="loading sets it to 0"),
    "unpaired": CatalogueEntry("fixed", action="they are left out"),
    "weekend_flat": CatalogueEntry("fixed", action="loading drops them"),
    # Issues that loading keeps.
    "broker_time": CatalogueEntry("warning", "`time_zone`", action="loading takes them as UTC"),
    "bid_only": CatalogueEntry(
        "warning", "`price_side: bid`, `spread_pips`", action="loading takes them as mid"
    ),
    "ask_only": CatalogueEntry(
        "warning", "`price_side: ask`, `spread_pips`", action="loading takes them as mid"
    ),
    "gap": CatalogueEntry("warning", action=_LEFT),
    "outage": CatalogueEntry("warning", action="loading leaves the hole and keeps the flat bars"),
    "zero_volume": CatalogueEntry("warning"),
    "flat": CatalogueEntry("warning"),
    "stale": CatalogueEntry("warning"),
    "large_move": CatalogueEntry("warning"),
    "coarse_tick": CatalogueEntry("warning", "fill at next open", action=_NEXT),
    "bounce": CatalogueEntry("warning", "fill at next open", action=_NEXT),
    "look_ahead": CatalogueEntry(
        "warning",
        "shift the column by a bar in the file, or leave it out of `features`",
        action="loading keeps the column; a feature must be known at its bar's close",
    ),
    "wide_spread": CatalogueEntry("warning"),
    "misaligned": CatalogueEntry("warning"),
    "symbol_name": CatalogueEntry("warning", "`files`"),
    "calendar": CatalogueEntry("warning", action="loading takes the bars as they are"),
    "weekend": CatalogueEntry("info", action="they count as one step"),
    "holiday": CatalogueEntry("info", action=_LEFT),
    "no_volume": CatalogueEntry("info", action="loading sets it to 0; leave volume features out"),
    "unequal_ends": CatalogueEntry("info", action="loading keeps all bars; splits are by time"),
}
ACCEPTABLE = tuple(name for name, entry in CATALOGUE.items() if entry.acceptable)


@dataclass(frozen=True)
class DataIssue:
    """One issue of one symbol, and what loading does about it.

    Attributes:
        symbol: symbol of the bars; ``"all"`` for the market as a whole.
        kind: name in the catalogue, such as ``gap`` or ``duplicate``.
        severity: ``error`` = loading refuses, ``warning`` = loading fixes it or results may suffer,
            ``info`` = worth knowing.
        count: number of bars or occurrences.
        message: description, one sentence.
        action: what loading does about it, one clause.
        times: UTC seconds of the first occurrences, at most ten.
        size: missing bars of each hole, for holes; else 0.
        fixes: alternative sets of keys of the `data` section, the likeliest first.
        accepted: an error that the config allows.
    """

    symbol: str
    kind: str
    severity: Severity
    count: int
    message: str
    action: str
    times: tuple[int, ...] = ()
    size: int = 0
    fixes: tuple[SuggestedFix, ...] = ()
    accepted: bool = False

    @classmethod
    def from_kind(
        cls,
        symbol: str,
        kind: str,
        message: str,
        count: int = 1,
        action: str | None = None,
        severity: Severity | None = None,
        times: tuple[int, ...] = (),
        size: int = 0,
        fixes: Iterable[SuggestedFix] = (),
    ) -> DataIssue:
        """Create an issue with the severity and the action of its catalogue entry."""
        entry = CATALOGUE[kind]
        usual, does = _USUAL[entry.effect]
        severity, action = severity or usual, action or entry.action or does
        return cls(symbol, kind, severity, count, message, action, times, size, tuple(fixes))

    @classmethod
    def at_bars(
        cls,
        symbol: str,
        kind: str,
        time: IntArray,
        mask: BoolArray,
        noun: str,
        suffix: str = "",
        first: str = ", first {} UTC",
        **fields: Any,
    ) -> list[DataIssue]:
        """Create an issue that counts the bars selected by `mask`; an empty list if there are none.

        Args:
            symbol, kind: symbol of the bars, and the name in the catalogue.
            time: UTC seconds of the bars, int64 [n].
            mask: bool [n].
            noun: what is counted.
            suffix: text after the count.
            first: text after that; ``{}`` is replaced by the time of the first bar.
            fields: passed on to `from_kind`.
        """
        if not mask.any():
            return []
        times, count = first_times(time, mask), int(mask.sum())
        message = plural(count, noun) + suffix + first.replace("{}", stamp(times[0]), 1)
        return [cls.from_kind(symbol, kind, message, count, times=times, **fields)]

    def to_text(self) -> str:
        """Return the issue and its action as one sentence."""
        text = f"{printable(self.message)}; {printable(self.action)}."
        return text if self.message.startswith(self.symbol) else f"{printable(self.symbol)}: {text}"


def join_issues(issues: Iterable[DataIssue], everyone: tuple[str, ...]) -> list[str]:
    """Return issues as sentences; symbols that share an issue share its sentence."""
    shared: dict[tuple[str, str], list[DataIssue]] = {}
    for issue in issues:
        shared.setdefault((issue.message, issue.action), []).append(issue)
    return [
        replace(group[0], symbol=_names([member.symbol for member in group], everyone)).to_text()
        for group in shared.values()
    ]


def first_times(time: IntArray, mask: BoolArray) -> tuple[int, ...]:
    """Return the first few times at which `mask` holds, UTC seconds."""
    return tuple(int(moment) for moment in time[np.flatnonzero(mask)[:_KEPT_TIMES]])


def _names(names: Iterable[str], everyone: tuple[str, ...]) -> str:
    listed = list(dict.fromkeys(names))
    return "all symbols" if len(listed) == len(everyone) > 1 else ", ".join(listed)


class FixableDataError(DataError):
    """Error that keys of the `data` section can fix.

    Attributes:
        kind: name of the issue.
        fixes: alternatives; empty if only the user can decide.
    """

    def __init__(self, kind: str, message: str, *fixes: SuggestedFix) -> None:
        super().__init__(message)
        self.kind, self.fixes = kind, fixes


def format_fix(fix: SuggestedFix) -> str:
    """Return a fix as YAML in backticks, one pair per key."""
    return " and ".join(f"`{key}: {_flow(value)}`" for key, value in fix.items())


def describe_fixes(ways: Sequence[SuggestedFix]) -> str:
    """Return a sentence that lists alternatives; the last one may be to allow the issue."""
    accepting = [fix for fix in ways if "allow_issues" in fix]
    suggestions = " or ".join(format_fix(fix) for fix in ways if "allow_issues" not in fix)
    if not accepting:
        return f"Set {suggestions} in the `data` section."
    last = f"{format_fix(accepting[0])} if the files are right"
    return f"Set {suggestions}{suggestions and ', or '}{last}, in the `data` section."


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
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
