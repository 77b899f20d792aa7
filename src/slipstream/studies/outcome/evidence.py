"""How much of the best score chance alone would explain (docs/rules.md, section 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.studies.record.reader import StudyReader, Trial
from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.statistics.deflated import Floats, deflated_sharpe
from slipstream.studies.statistics.overfitting import NotComputed, pbo
from slipstream.studies.statistics.paths import daily_benchmark, daily_matrix


def evidence_of(plan: StudyPlan, reader: StudyReader, trials: Sequence[Trial]) -> dict[str, Any]:
    """PBO and deflated Sharpe over the trials that finished all folds at full budget.

    PBO ranks trials among each other by their net returns. The deflated Sharpe ratio is the smaller
    of two: of returns in excess of equal weight's, for a market that rises makes every long
    position look skilled, and of own ones, for in one that falls cash does.

    Returns:
        `pbo` and `deflated_sharpe`: their figures, or `reason` where they are not computed.
    """
    passes = reader.passes("search")
    complete = [trial.number for trial in trials if trial.state == "complete"]
    columns = [[passes[number, 0, fold] for fold in range(plan.folds)] for number in complete]
    days, matrix = daily_matrix(columns)
    returns = {"own": matrix}
    if plan.market is not None and plan.market.benchmark:
        returns["excess"] = matrix - daily_benchmark(columns, days)[:, None]
    overfitting = pbo(matrix) if len(matrix) else NotComputed("no trial finished")
    if isinstance(overfitting, NotComputed):
        told: dict[str, Any] = {"reason": overfitting.reason}
    else:
        told = {
            "value": overfitting.value,
            "loses": overfitting.loses,
            "columns": overfitting.columns,
            "days": overfitting.days,
            "blocks": overfitting.blocks,
        }
    return {"pbo": told, "deflated_sharpe": _deflated(returns, complete, trials)}


def _deflated(
    returns: Mapping[str, Floats], complete: Sequence[int], trials: Sequence[Trial]
) -> dict[str, Any]:
    """The smaller ratio, and `of` which returns it is; none where one cannot be computed."""
    scores = {trial.number: trial.score for trial in trials if not trial.inactive}
    known = [number for number in complete if scores.get(number) is not None]
    if not known:
        return {"reason": "no active trial finished"}
    best = max(known, key=lambda number: (scores[number] or 0.0, -number))
    told: list[dict[str, Any]] = []
    for name, matrix in returns.items():
        found = deflated_sharpe(matrix, list(complete).index(best), len(trials))
        if isinstance(found, NotComputed):
            return {"trial": best, "reason": found.reason}
        told.append({"trial": best, "of": name, **asdict(found)})
    return min(told, key=lambda one: float(one["value"]))
