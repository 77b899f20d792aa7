"""Rows of a result as a person reads them: in the terminal and in docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.alternate import CONTENDED

HEADINGS = ("case", "ours", "peer", "ratio (min to max)", "goal", "holds")


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row as text, in the order of HEADINGS; unit and peer's name go below the figures."""
    ratio = row["ratio"]
    spread = "-" if ratio is None else f"{_short(ratio['median'])} ({_range(ratio)})"
    name = f"{row['case']}: {row['unit']}"
    if row["others_cpu"] > CONTENDED:
        name += f"; contended: others used {row['others_cpu']:.0%} of the machine"
    if row["forecast"]:
        name += "; forecast"
    peer = "-" if row["peer"] is None else f"{_short(row['peer'])} {row['peer_name']}"
    holds = {True: "yes", False: "no", None: "-"}[row["holds"]]
    return (name, _short(row["ours"]), peer, spread, row["goal"] or "-", holds)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table of a Markdown page."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(cells(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _range(ratio: Mapping[str, float]) -> str:
    return f"{_short(ratio['min'])} to {_short(ratio['max'])}"


def _short(value: float | None) -> str:
    """Three figures: 11.2 M, 76.3 k, 147, 2.31."""
    if value is None:
        return "-"
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"
