"""What must hold before a study's page may say "profitable" or "outperforms".

See docs/rules.md, section 15.
"""

from __future__ import annotations

from collections.abc import Collection

from slipstream.report.confidence import sharpe_interval
from slipstream.report.market.wording import BETTER_THAN_RANDOM, excludes_zero, number
from slipstream.report.statistics import Floats, sharpe
from slipstream.report.study.view import StudyView
from slipstream.studies.statistics.deflated import smallest_confirmable


def lacking(view: StudyView) -> list[str]:
    """What of it does not hold for the deployable policy, in words; empty: proven."""
    holdout, periods, told = view.holdout, view.days_per_year, view.result["holdout"]
    if holdout is None or periods is None or told is None:
        return ["the hold-out was not opened"]
    found = []
    if (view.result["winner"] or {}).get("forced"):
        found.append("it was deployed by force")
    if told["opening"] > 1:
        found.append(f"this is opening {told['opening']} of these hold-out days")
    if not told.get("promoted"):
        found.append("it was not promoted")
    found += _size(holdout.each[0], periods)
    if view.random is None:
        why = f": {view.random_missing}" if view.random_missing else ""
        found.append(f"it is not known what random traders with its positions would have made{why}")
    elif view.random.percentile < BETTER_THAN_RANDOM:
        found.append(
            f"{number(view.random.percentile, 0)} % of matched random traders did worse, and "
            f"{BETTER_THAN_RANDOM:g} % must"
        )
    return found


def outperformed(view: StudyView) -> Collection[str]:
    """Rivals that the deployable policy has been shown to be better than."""
    if lacking(view):
        return ()
    assert view.holdout is not None and view.days_per_year is not None
    rivals = {"cash"}
    if view.holdout.benchmark is not None:
        difference = view.holdout.each[0] - view.holdout.benchmark
        if not _size(difference, view.days_per_year):
            rivals.add("equal weight")
    return rivals


def _size(returns: Floats, periods: float) -> list[str]:
    """Whether the interval excludes zero, and the ratio is one that so many days can confirm."""
    if not excludes_zero(sharpe_interval(returns, periods)):
        return ["the 95 % interval of its Sharpe ratio includes zero"]
    ratio, smallest = sharpe(returns, periods), smallest_confirmable(len(returns), periods)
    if ratio is None or smallest is None or ratio <= smallest:
        return [
            f"its Sharpe ratio, {number(ratio)}, is not above {number(smallest)}, the smallest "
            "that the hold-out can confirm"
        ]
    return []
