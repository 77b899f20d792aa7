"""The row of figures on a study's first screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.core.percent import NOTHING, percent
from slipstream.market.calendar import span
from slipstream.report.confidence import sharpe_interval
from slipstream.report.market.first_screen import annual_sharpe
from slipstream.report.market.wording import number, share
from slipstream.report.page import KeyFigure
from slipstream.report.statistics import sharpe
from slipstream.report.study.view import Lines, StudyView
from slipstream.report.study.wording import ranked_losers
from slipstream.studies.statistics.deflated import smallest_confirmable


def figures(view: StudyView) -> list[KeyFigure]:
    """Of the deployed policy on the hold-out; of the search, where nothing was deployed."""
    told = view.result["holdout"]
    if view.holdout is not None and view.days_per_year is not None and told is not None:
        return _holdout(view, view.holdout, view.days_per_year, told)
    if told is not None and not view.market:
        return [*_episodes(told), _trials(view)]
    return _search(view)


def _holdout(
    view: StudyView, lines: Lines, periods: float, told: Mapping[str, Any]
) -> list[KeyFigure]:
    mine, days = lines.each[0], span(len(lines.time), periods)
    beside = days
    if told["opening"] > 1:  # said first: choices made between the looks made it too good
        beside = f"opening {told['opening']} of these days; {beside}"
    if lines.benchmark is not None:
        beside += f"; equal weight {percent(float(np.prod(1.0 + lines.benchmark)) - 1.0)}"
    ratio = annual_sharpe(sharpe(mine, periods), sharpe_interval(mine, periods))
    smallest = smallest_confirmable(len(mine), periods)
    shown = [
        KeyFigure("Return on the hold-out", percent(float(np.prod(1.0 + mine)) - 1.0), beside),
        KeyFigure("Annual Sharpe ratio", *ratio),
        KeyFigure("Smallest Sharpe that could be confirmed", number(smallest), f"by {days}"),
    ]
    if view.random is not None:
        shown.append(
            KeyFigure(
                "Random traders that did worse",
                share(view.random.percentile / 100.0),
                f"of {view.random.draws} with its own decisions at other times",
            )
        )
    first: Mapping[str, Any] = next((seed for seed in told["seeds"] if not seed["failed"]), {})
    fills = number(first.get("fills"), 0)
    shown.append(KeyFigure("Mean exposure", number(first.get("exposure"), 2), f"{fills} fills"))
    return shown


def _episodes(told: Mapping[str, Any]) -> list[KeyFigure]:
    """Of a game: the final seeds on fresh episodes."""
    known = [float(one["score"]) for one in told["seeds"] if not one["failed"]]
    spread = f"{number(min(known), 2)} to {number(max(known), 2)}" if known else NOTHING
    return [
        KeyFigure("Mean return", number(told.get("mean"), 2), "of the final seeds"),
        KeyFigure("Single seeds", spread, f"{len(known)} of {len(told['seeds'])} finished"),
    ]


def _search(view: StudyView) -> list[KeyFigure]:
    """Nothing was deployed: how much was tried, and what it could have shown."""
    evidence = view.result["evidence"] or {}
    bounds = [
        float(one["lcb"]) for one in view.result["confirmation"]["candidates"] if "lcb" in one
    ]
    shown = [_trials(view)]
    if bounds:
        rival = "above 0 would win" if view.market else "of the mean return"
        shown.append(KeyFigure("Best lower bound, fresh seeds", number(max(bounds), 2), rival))
    pbo = evidence.get("pbo") or {}
    if "value" in pbo:
        note = "of the search (PBO)"
        if ranked_losers(pbo):
            note = f"(PBO); the best loses in {share(pbo['loses'])} of halves"
        shown.append(KeyFigure("Overfitting probability", number(pbo["value"], 2), note))
    deflated = (evidence.get("deflated_sharpe") or {}).get("value")
    if deflated is not None:
        shown.append(KeyFigure("Deflated Sharpe ratio", number(deflated, 2), "a probability"))
    findable = view.result.get("findable")
    if findable is not None:
        shown.append(
            KeyFigure(
                "Smallest Sharpe that could be confirmed",
                number(findable["folds"]["sharpe"]),
                f"by {findable['folds']['span']} of folds",
            )
        )
    return shown


def _trials(view: StudyView) -> KeyFigure:
    told = view.result["trials"]
    return KeyFigure(
        "Trials", number(told["asked"], 0), f"{told['complete']} to the end, {told['pruned']} cut"
    )
