"""What would have to be true for a study without a winner to have had one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slipstream.report.numbers import number
from slipstream.report.page import Section, Table
from slipstream.report.study.view import StudyView
from slipstream.studies.statistics.bootstrap import FEWEST_DAYS
from slipstream.studies.statistics.overfitting import (
    LEAST_DSR,
    MOST_PBO,
    days_to_pass,
    ratio_to_pass,
)

_KINDS = {
    "lcb": "Lower bound of the search's measure",
    "own_lcb": "Lower bound of its own Sharpe ratio",
    "timing_lcb": "Lower bound of its timing",
}
_UNKNOWN = "cannot be computed"
_NOTE = (
    "Each row supposes that everything else stays as it was found. Days for the deflated Sharpe "
    "ratio keep daily ratio, skew, kurtosis and number of trials. Days for a lower bound suppose "
    "that its distance from the ratio shrinks with the root of the days, which is approximate. "
    "More days may show another ratio."
)


def requirements(view: StudyView) -> list[Section]:
    """Return the section of a market's study without a confirmed winner; nothing for others."""
    result = view.result
    if not view.market or (result["winner"] is not None and not result["winner"]["forced"]):
        return []
    told, evidence = result["confirmation"], result["evidence"] or {}
    rows = []
    if told.get("best") is None:
        rows.append(["Candidates", "none", "one that trades on every fold", told["reason"]])
    else:
        best = next(one for one in told["candidates"] if one["trial"] == told["best"])
        days = (evidence.get("deflated_sharpe") or {}).get("days")
        rows += [_bound(best, name, days) for name in _KINDS if name in best]
        if "lcb" not in best:
            few = f"at least {FEWEST_DAYS} days that folds test"
            rows.append([f"Lower bounds of trial {told['best']}", "none", few, told["reason"]])
    for name, p in (told.get("chance") or {}).items():
        if name in ("excess", "own", "timing"):
            limit = f"at most {told['level']:g}"
            why = f"{_UNKNOWN}: other trials on other days decide it too"
            row = [f"Hansen's p, {name}", f"{p:.2g}", limit]
            rows.append([*row, "holds" if p <= told["level"] else why])
    rows.append(_deflated(evidence.get("deflated_sharpe") or {}, result["days_per_year"]))
    pbo = evidence.get("pbo") or {}
    found = number(pbo.get("value"), 2) if "value" in pbo else "not computed"
    why = pbo.get("reason") or f"{_UNKNOWN}: the ranks of all trials on other days decide it"
    passed = pbo.get("value", math.inf) <= MOST_PBO
    limit = f"at most {MOST_PBO:g}"
    rows.append(["Overfitting probability (PBO)", found, limit, "holds" if passed else why])
    holdout = result["holdout"]
    if holdout is None:
        fresh = f"{FEWEST_DAYS} fresh days, bounds above 0"
        rows.append(["Hold-out", "not opened", fresh, "it is opened for a confirmed winner"])
    columns = ("condition", "found", "needed", "what would have to be true")
    return [
        Section("What would have to be true", (), [Table("Conditions", columns, rows, note=_NOTE)])
    ]


def _bound(best: Mapping[str, Any], name: str, days: int | None) -> list[str]:
    """The row of a candidate's lower bound."""
    bound, what = float(best[name]), f"{_KINDS[name]}, trial {best['trial']}"
    row = [what, number(bound, 2), "above 0"]
    if bound > 0.0:
        return [*row, "holds"]
    if name != "lcb":
        edge = number(-bound, 2)
        return [
            *row,
            f"a ratio higher by {edge} on the same days; days: {_UNKNOWN}, as the ratio "
            "is not stored",
        ]
    ratio = float(best["value"])
    edge = f"a ratio of {number(ratio - bound, 2)} instead of {number(ratio, 2)} on the same days"
    if ratio <= 0.0:
        return [*row, f"{edge}; no number of days, as the ratio is not above 0"]
    times = ((ratio - bound) / ratio) ** 2
    many = f"about {number(times, 1)} times the days"
    if days is not None:
        many += f" ({math.ceil(times * days):,} instead of {days:,})"
    return [*row, f"{edge}; or {many} at the same ratio"]


def _deflated(told: Mapping[str, Any], per_year: float) -> list[str]:
    """The row of the deflated Sharpe ratio."""
    limit = f"at least {LEAST_DSR:g}"
    if "value" not in told:
        why = told.get("reason") or "nothing finished"
        return ["Deflated Sharpe ratio", "not computed", limit, f"{_UNKNOWN}: {why}"]
    row = [f"Deflated Sharpe ratio, trial {told['trial']}", number(told["value"], 2), limit]
    if told["value"] >= LEAST_DSR:
        return [*row, "holds"]
    days, ratio, parts = days_to_pass(told), ratio_to_pass(told), list[str]()
    root, now = math.sqrt(per_year), int(told["days"])
    if days is None:
        bar = "no number of days: its ratio is not above what the best of so many trials shows"
        parts.append(bar)
    else:
        parts.append(f"{days - now:,} more days at the same daily ratio ({days:,} in all)")
    if ratio is not None:
        annual = f"{number(ratio * root, 2)} instead of {number(told['sharpe'] * root, 2)}"
        parts.append(f"an annual ratio of {annual} on the same {now:,} days")
    else:
        parts.append("no ratio is enough on so few days with this kurtosis")
    return [*row, "; or ".join(parts)]
