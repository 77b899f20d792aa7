"""Pruner: scores a trial at a stage and decides whether it continues.

See docs/explanation/statistics.md, sections 11 and 12. A rung prunes trials only while its scores
predict final scores. The rule was selected by replaying several rules over recorded scores;
docs/explanation/pruning.md has the comparison. No p-value over folds is computed, because two folds
share a tested group in 12 of 15 pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import MarketSpec
from slipstream.studies.config import PruningConfig, StudyConfig
from slipstream.studies.record.ledger import CONSTRAINED, TrialDecision
from slipstream.studies.search.scheduler import Event
from slipstream.studies.search.study_plan import Stages
from slipstream.studies.statistics.returns import (
    constraint_values,
    describe_violations,
    fold_score,
    trial_score,
)
from slipstream.training.population.member import Outcome

Floats = NDArray[np.float64]

MIN_CORRELATION = 0.5
RECENT_TRIALS = 48  # trials, three times those in flight
MIN_FINISHED_TRIALS = 3  # finished trials; two always correlate perfectly

DISARMED = "rung disarmed"
LOWER_HALF = f"in the lower half of the last {RECENT_TRIALS} trials that reached this rung"
BEHIND_BEST = "behind the best trial in every fold at equal steps"


def rank_correlation(first: Floats, second: Floats) -> float | None:
    """Return Spearman's rank correlation with mid ranks for ties.

    None with fewer than 3 pairs or if one of the arrays is constant.
    """
    fine = np.isfinite(first) & np.isfinite(second)
    if fine.sum() < MIN_FINISHED_TRIALS:
        return None
    a, b = _mid_ranks(first[fine]), _mid_ranks(second[fine])
    if np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _mid_ranks(values: Floats) -> Floats:
    """Return each value's rank from 1; equal values share the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[inverse])


def is_rung_armed(
    rung_scores: Floats, final_scores: Floats, min_correlation: float = MIN_CORRELATION
) -> tuple[bool, float | None]:
    """Return whether a rung may prune trials, and its rank correlation with final scores.

    Args:
        rung_scores: rung scores of the trials that have finished.
        final_scores: final scores of the same trials, in the same order.
        min_correlation: rank correlation at which the rung is armed.

    Returns:
        Whether the rung is armed, and the correlation. None: unknown, the rung is disarmed.
    """
    rho = rank_correlation(rung_scores, final_scores)
    return rho is not None and rho >= min_correlation, rho


def share_ahead(score: float, others: Floats) -> float:
    """Return the share of other scores above `score`; equal scores count half. 0 without others."""
    known = others[np.isfinite(others)]
    if not len(known):
        return 0.0
    return float(np.mean(known > score) + 0.5 * np.mean(known == score))


def prune_reason(score: float, earlier: Floats, folds: Floats, best: Floats | None) -> str:
    """Return why a trial is pruned at an armed rung; empty if it continues.

    Args:
        score: score of the trial at this rung.
        earlier: scores of trials that reached this rung earlier in virtual time, in that order.
        folds: fold scores of the trial at this rung.
        best: fold scores of the best finished trial at this rung; None without one.
    """
    if (
        share_ahead(score, earlier[-RECENT_TRIALS:]) > 0.5
    ):  # those that came last are what the sampler is by now
        return LOWER_HALF
    if best is not None and len(best) and bool(np.all(folds < best)):
        return BEHIND_BEST
    return ""


class Pruner:
    """Decides on trials from the decisions recorded so far.

    Args:
        study: objective and pruning settings.
        market: None for games.
    """

    def __init__(self, study: StudyConfig, market: MarketSpec | None) -> None:
        self._study, self._market = study, market
        self._rungs: dict[int, dict[int, TrialDecision]] = {}  # by stage, then trial
        self._final: dict[int, float] = {}
        self._best: int | None = None

    def record(self, decision: TrialDecision) -> None:
        """Record a decision."""
        if decision.score is None:
            return
        if decision.kind == "complete":
            self._final[decision.trial] = decision.score
            best = self._best
            if decision.is_eligible and (best is None or decision.score > self._final[best]):
                self._best = decision.trial
            return
        self._rungs.setdefault(decision.stage, {})[decision.trial] = decision

    def decide(self, event: Event, outcomes: Sequence[Outcome], last: bool) -> TrialDecision:
        """Return the decision on a trial whose fold outcomes are available."""
        milestone = max(outcome.milestone for outcome in outcomes)
        decision = TrialDecision(event.trial, event.stage, milestone, event.time, "failed", None)
        failed = [outcome for outcome in outcomes if outcome.failed]
        if failed:
            more = f" (and {len(failed) - 1} more folds)" if len(failed) > 1 else ""
            reason = f"{failed[0].name}: {failed[0].reason}{more}"
            return replace(decision, reason=reason)
        backtests = [outcome.backtests for outcome in outcomes if outcome.backtests is not None]
        assert len(backtests) == len(outcomes)
        results = [
            fold_score(backtest, self._market, self._study.objective) for backtest in backtests
        ]
        score = trial_score(
            [result.score for result in results], self._study.fold_dispersion_penalty
        )
        if not math.isfinite(score):
            return replace(decision, reason="a test return is not a number")
        figures = [constraint_values(backtest, self._study.constraints) for backtest in backtests]
        odd = [name for fold in figures for name in fold if not math.isfinite(fold[name][0])]
        if odd:
            return replace(decision, reason=f"the metric {odd[0]} is not a number")
        kind, rho, reason = "complete" if last else "continued", None, ""
        if not last:
            stop, rho, reason = self.should_prune(
                event, score, [result.score for result in results]
            )
            kind = "pruned" if stop else "continued"
        folds = [result.to_dict() for result in results]
        if self._study.constraints:
            folds = [
                {**fold, CONSTRAINED: values} for fold, values in zip(folds, figures, strict=True)
            ]
        final = replace(decision, kind=kind, score=score, folds=folds, rho=rho, reason=reason)
        return (
            replace(final, reason=describe_violations(final.constraint_values)) if last else final
        )

    def should_prune(
        self, event: Event, score: float, folds: Sequence[float]
    ) -> tuple[bool, float | None, str]:
        """Return whether the trial is pruned at this rung, the rung's correlation, and the reason.

        Args:
            event: the event of the trial at the rung.
            score: score of the trial at the rung.
            folds: scores of its folds at the rung.
        """
        pruning = self._study.pruning
        if not pruning.enabled:
            return False, None, "pruning is off"
        if event.trial < pruning.startup:
            return False, None, "one of the first trials"
        earlier = self._rungs.get(event.stage, {})
        both = [trial for trial in self._final if trial in earlier]
        is_armed, rho = is_rung_armed(
            np.array([earlier[trial].score for trial in both], np.float64),
            np.array([self._final[trial] for trial in both], np.float64),
            pruning.min_correlation,
        )
        if not is_armed:
            known = "unknown" if rho is None else f"{rho:.2f}"
            return False, rho, f"{DISARMED}: rank correlation with final scores {known}"
        incumbent = earlier.get(self._best) if self._best is not None else None
        rivals = None
        if incumbent is not None:
            rivals = np.array([fold["score"] for fold in incumbent.folds], np.float64)
        scores = np.array([decision.score for decision in earlier.values()], np.float64)
        reason = prune_reason(score, scores, np.array(folds, np.float64), rivals)
        return bool(reason), rho, reason


class RungLog:
    """Logs when a rung is armed or disarmed.

    Args:
        pruning: pruning settings of the study.
        notify: called with a sentence when the state of a rung changes, and the first time.
    """

    def __init__(self, pruning: PruningConfig, notify: Callable[[str], None]) -> None:
        self._pruning, self._notify = pruning, notify
        self._armed: dict[int, bool] = {}

    def update(self, decision: TrialDecision, stages: Stages) -> None:
        """Update the state of a rung from a new decision on a trial with these stages."""
        rung = decision.stage < len(stages.shares) and decision.kind in ("continued", "pruned")
        if not (rung and self._pruning.enabled) or decision.trial < self._pruning.startup:
            return
        armed = not decision.reason.startswith(DISARMED)
        if self._armed.get(decision.stage) == armed:
            return
        self._armed[decision.stage] = armed
        least, number = self._pruning.min_correlation, decision.stage
        known = "not known yet"
        if decision.rho is not None:
            known = f"{decision.rho:.2f}, required: {least:g}"
        rollouts = (stages.milestones[number], stages.milestones[-1])
        rung_text = describe_rung(stages.shares[number], rollouts)
        does = "prunes from now on" if armed else "is disarmed and prunes no trial"
        self._notify(
            f"Trial {decision.trial}: the rung at {rung_text} of the budget {does} (rank "
            f"correlation with final scores: {known})."
        )


def describe_rung(share: float, rollouts: Sequence[int] = ()) -> str:
    """Return "33 %" for a rung's share of the budget.

    The share in whole rollouts is added if it differs.
    """
    text = f"{100 * share:.0f} %"
    scored = rollouts[0] / rollouts[1] if rollouts else share
    near = round(100 * scored) == round(100 * share)
    return text if near else f"{text} (in whole rollouts {100 * scored:.0f} %)"
