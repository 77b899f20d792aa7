"""Row of a result: slipstream's figure, a peer's, and the goal; and rows as a table."""

from __future__ import annotations

import math
import operator
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

CONTENDED = 0.10  # share of the machine used by others that causes a second measurement
HEADINGS = ("case", "ours", "peer", "ratio (min to max)", "goal", "holds")
_COMPARISONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Goal:
    """Target of a row: ``Goal(">=", 100)``."""

    comparison: str
    figure: float

    def holds(self, value: float) -> bool:
        """Return whether the value reaches the goal."""
        return bool(_COMPARISONS[self.comparison](value, self.figure))

    def __str__(self) -> str:
        return f"{self.comparison} {self.figure:g}"


@dataclass(frozen=True)
class Ratio:
    """Ratio of slipstream to the peer over alternating runs; above 1, slipstream is better."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        """Return the median and range of the runs' ratios."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One measured case.

    Attributes:
        case: name, as in the issue tracker and docs/reference/performance.md.
        unit: unit of `ours` and `peer`, with the context needed to compare them.
        ours: median of slipstream's runs.
        peer: median of the peer's runs, None without a peer.
        peer_name: the peer and its set-up.
        ratio: ratio of the runs in pairs, None without a peer.
        runs: measured runs of each side, without warm-up.
        others_cpu: share of the machine that other processes used during the runs, 0 to 1.
        goal: target of `ratio`, or of `ours` without a peer.
        holds: whether the goal is reached; None without a goal or a figure.
        forecast: whether `ours` was extrapolated from a shorter measurement.
        cells: parts of the figures that were measured separately.
    """

    case: str = ""
    unit: str = ""
    ours: float | None = None
    peer: float | None = None
    peer_name: str | None = None
    ratio: Ratio | None = None
    runs: int = 1
    others_cpu: float = 0.0
    goal: str | None = None
    holds: bool | None = None
    forecast: bool = False
    cells: tuple[dict[str, Any], ...] = ()

    def judged(self, goal: Goal) -> Row:
        """Return the row with a goal. With a peer, the goal applies to the ratio."""
        decides = self.ours if self.ratio is None else self.ratio.median
        return replace(self, goal=str(goal), holds=None if decides is None else goal.holds(decides))

    def as_json(self) -> dict[str, Any]:
        """Return the row as stored in the JSON file."""
        values = asdict(self)
        if self.ratio is not None:  # JSON has no infinity: the peer never reached its score
            bounds = values["ratio"].items()
            values["ratio"] = {name: x if math.isfinite(x) else None for name, x in bounds}
        if not self.cells:
            del values["cells"]
        return values


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one row as text, in the order of HEADINGS; unit and peer's name follow the figures."""
    ratio = row["ratio"]
    spread = "-"
    if ratio is not None:
        low, high = _short(ratio["min"]), _short(ratio["max"])
        spread = f"{_short(ratio['median'])} ({low} to {high})"
    name = f"{row['case']}: {row['unit']}"
    if row["others_cpu"] > CONTENDED:
        name += f"; contended: others used {row['others_cpu']:.0%} of the machine"
    if row["forecast"]:
        name += "; forecast"
    peer = "-" if row["peer"] is None else f"{_short(row['peer'])} {row['peer_name']}"
    holds = {True: "yes", False: "no", None: "-"}[row["holds"]]
    return (name, _short(row["ours"]), peer, spread, row["goal"] or "-", holds)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown list; a table would be too wide to read as text."""
    return "\n".join(map(_item, rows))


def _item(row: Mapping[str, Any]) -> str:
    name, ours, *_, goal, holds = cells(row)
    case, _, unit = name.partition(": ")
    parts = [ours, *peer_figures(row)]
    if goal != "-":
        parts.append(f"goal {goal}" + {"yes": ": met", "no": ": **missed**", "-": ""}[holds])
    return wrap_item(f"**{case}** ({unit}): {'; '.join(parts)}.")


def peer_figures(row: Mapping[str, Any]) -> list[str]:
    """Return the peer's figure and the ratio as text, as far as they were measured."""
    _, _, peer, ratio, _, _ = cells(row)
    figures = (("peer", peer), ("ratio", ratio))
    return [f"{name} {figure}" for name, figure in figures if figure != "-"]


def wrap_item(text: str) -> str:
    """Return an item of a Markdown list, wrapped at 100 columns."""
    return textwrap.fill(
        f"- {text}", 100, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )


def _short(value: float | None) -> str:
    """Format three significant figures: 11.2 M, 76.3 k, 147, 2.31."""
    if value is None:
        return "-"
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"
