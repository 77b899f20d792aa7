"""Says when a rung begins or ceases to stop trials.

See docs/rules.md, section 12: log and report say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.studies.config import PruningConfig
from slipstream.studies.record.rows import Verdict
from slipstream.studies.search.plan import Stages
from slipstream.studies.search.rungs import DISARMED


class RungLog:
    """Looks at verdicts as they fall.

    Args:
        pruning: of the study.
        say: told in a sentence whenever a rung's state changes, and the first time.
    """

    def __init__(self, pruning: PruningConfig, say: Callable[[str], None]) -> None:
        self._pruning, self._say = pruning, say
        self._armed: dict[int, bool] = {}

    def look(self, verdict: Verdict, stages: Stages) -> None:
        """A new verdict on a trial that is scored at these stages."""
        rung = verdict.stage < len(stages.shares) and verdict.kind in ("continued", "pruned")
        if not (rung and self._pruning.enabled) or verdict.trial < self._pruning.startup:
            return
        armed = not verdict.reason.startswith(DISARMED)
        if self._armed.get(verdict.stage) == armed:
            return
        self._armed[verdict.stage] = armed
        known = "not known" if verdict.rho is None else f"{verdict.rho:.2f}"
        number = verdict.stage
        rollouts = (stages.milestones[number], stages.milestones[-1])
        place = rung_at(stages.shares[number], rollouts)
        does = "stops trials from here on" if armed else "is disarmed and stops no trial"
        sign = ">=" if armed else "not >="
        self._say(
            f"Trial {verdict.trial}: the rung at {place} of the budget {does} (its rank "
            f"correlation with final scores is {known}, {sign} {self._pruning.min_correlation:g})."
        )


def rung_at(share: float, rollouts: Sequence[int] = ()) -> str:
    """ "33 %" of the budget, and where it lies in whole rollouts, where that is elsewhere."""
    text = f"{100 * share:.0f} %"
    scored = rollouts[0] / rollouts[1] if rollouts else share
    near = round(100 * scored) == round(100 * share)
    return text if near else f"{text} (in whole rollouts {100 * scored:.0f} %)"
