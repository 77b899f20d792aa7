"""Judge: a trial's score at a stage, and whether it goes on (docs/rules.md, sections 11 and 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slipstream.core.spec import MarketSpec
from slipstream.studies.config import StudyConfig
from slipstream.studies.engine.member import Outcome
from slipstream.studies.record.rows import Verdict
from slipstream.studies.search.rungs import DISARMED, armed, stops
from slipstream.studies.search.scheduler import Event
from slipstream.studies.statistics.objective import FoldResult, fold_score, trial_score


class Judge:
    """Remembers verdicts in the order of events and decides by what it remembers.

    Args:
        study: objective and pruning.
        market: None for games.
    """

    def __init__(self, study: StudyConfig, market: MarketSpec | None) -> None:
        self._study, self._market = study, market
        self._rungs: dict[int, dict[int, Verdict]] = {}  # by stage, then trial
        self._final: dict[int, float] = {}
        self._best: int | None = None

    def remember(self, verdict: Verdict) -> None:
        """Takes a verdict as happened."""
        if verdict.score is None:
            return
        if verdict.kind == "complete":
            self._final[verdict.trial] = verdict.score
            best = self._best
            if not verdict.inactive and (best is None or verdict.score > self._final[best]):
                self._best = verdict.trial
            return
        self._rungs.setdefault(verdict.stage, {})[verdict.trial] = verdict

    def decide(self, event: Event, outcomes: Sequence[Outcome], last: bool) -> Verdict:
        """The verdict on a trial whose folds' outcomes are there."""
        milestone = max(outcome.milestone for outcome in outcomes)
        head = (event.trial, event.stage, milestone, event.time)
        failed = [outcome for outcome in outcomes if outcome.failed]
        if failed:
            more = f" (and {len(failed) - 1} more folds)" if len(failed) > 1 else ""
            reason = f"{failed[0].name}: {failed[0].reason}{more}"
            return Verdict(*head, "failed", None, reason=reason)
        results = [self._result(outcome) for outcome in outcomes]
        score = trial_score([one.score for one in results], self._study.penalty)
        if not math.isfinite(score):
            return Verdict(*head, "failed", None, reason="a test return is not a number")
        kind, rho, reason = "complete" if last else "continued", None, ""
        if not last:
            stop, rho, reason = self.stops(event, score, [one.score for one in results])
            kind = "pruned" if stop else "continued"
        folds = [one.facts() for one in results]
        return Verdict(*head, kind, score, folds, rho, reason)

    def _result(self, outcome: Outcome) -> FoldResult:
        assert outcome.passes is not None
        return fold_score(outcome.passes, self._market, self._study.objective)

    def stops(
        self, event: Event, score: float, folds: Sequence[float]
    ) -> tuple[bool, float | None, str]:
        """Whether the trial is stopped at this rung, the rung's correlation, and why.

        Args:
            event: that it reached the rung.
            score, folds: the trial's and its folds' there.
        """
        pruning = self._study.pruning
        if not pruning.enabled:
            return False, None, "pruning is off"
        if event.trial < pruning.startup:
            return False, None, "one of the first trials"
        earlier = self._rungs.get(event.stage, {})
        both = [trial for trial in self._final if trial in earlier]
        is_armed, rho = armed(
            np.array([earlier[trial].score for trial in both], np.float64),
            np.array([self._final[trial] for trial in both], np.float64),
            pruning.min_correlation,
        )
        if not is_armed:
            told = "not known" if rho is None else f"{rho:.2f}"
            return False, rho, f"{DISARMED}: rank correlation with final scores {told}"
        incumbent = earlier.get(self._best) if self._best is not None else None
        rivals = None
        if incumbent is not None:
            rivals = np.array([fold["score"] for fold in incumbent.folds], np.float64)
        scores = np.array([verdict.score for verdict in earlier.values()], np.float64)
        found = stops(score, scores, np.array(folds, np.float64), rivals)
        return bool(found), rho, found
