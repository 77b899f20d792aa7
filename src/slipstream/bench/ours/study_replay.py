"""What pruning would have stopped in a study that ran without it: a rule over recorded scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slipstream.studies.config import StudyConfig
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader, Trial
from slipstream.studies.record.rows import Verdict
from slipstream.studies.search.judge import Judge
from slipstream.studies.search.rungs import CHOSEN, DISARMED, Rule
from slipstream.studies.search.scheduler import Event, Scheduler

TOP, CANDIDATES = 5, 10


class Replayed(NamedTuple):
    """What became of the trials.

    Attributes:
        top_left: how many of the best five trials without pruning reach their end with it.
        top: how many best trials there are, five or all.
        candidates_left: the same of the best ten, whom a study confirms.
        regret: by how much the best trial that is left scores less than the best of all.
        iterations: share of all members' iterations that pruned trials leave.
        stopped: trials.
        trials: all of them.
        armed: share of the decisions at which a rung was armed, of those after the first trials.
    """

    top_left: int
    top: int
    candidates_left: int
    regret: float
    iterations: float
    stopped: int
    trials: int
    armed: float


class _Rules:
    """Answers a scheduler out of the verdicts of trials that were scored at every stage.

    Args:
        trials: all of them, by number.
        study: its pruning is on.
        rule: who stops.
        shares: of the budget at which rungs are used, of those recorded; None: all.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        study: StudyConfig,
        rule: Rule,
        shares: Sequence[float] | None,
    ) -> None:
        self._judge, self._startup = Judge(study, None, rule), study.pruning.startup
        recorded = [share for share in study.pruning.rungs if share < 1.0]
        self._stages = [
            [
                stage
                for k, stage in enumerate(trial.stages)
                if shares is None
                or stage is trial.stages[-1]
                or any(abs(recorded[k] - share) < 1e-9 for share in shares)
            ]
            for trial in trials
        ]
        self.verdicts: dict[int, Verdict] = {}
        self.decided: list[bool] = []  # whether the rung was armed

    def ask(self, event: Event) -> Sequence[int]:
        # In iterations: all members of this study make the same steps in one. 0: never begun.
        stages = self._stages[event.trial]
        return [stage.milestone for stage in stages if stage.milestone > 0]

    def judge(self, event: Event, last: bool) -> bool:
        seen = self._stages[event.trial][event.stage]
        kind, rho, reason = seen.kind, None, ""
        if seen.kind != "failed" and not last:
            assert seen.score is not None
            stop, rho, reason = self._judge.stops(
                event, seen.score, [fold["score"] for fold in seen.folds]
            )
            kind = "pruned" if stop else "continued"
            if event.trial >= self._startup:
                self.decided.append(not reason.startswith(DISARMED))
        verdict = replace(
            seen, stage=event.stage, time=event.time, kind=kind, rho=rho, reason=reason
        )
        self._judge.remember(verdict)
        self.verdicts[event.trial] = verdict
        return kind == "continued"

    def ready(self, trial: int, stage: int) -> bool:
        return True

    def certain(self, trial: int, stage: int) -> bool:
        return False


def replay(path: Path, rule: Rule = CHOSEN, shares: Sequence[float] | None = None) -> Replayed:
    """Runs the scheduler and a rule of pruning over a study recorded with `pruning.record`.

    The suggestions stay those of the study: with pruning the sampler would have seen other scores.

    Args:
        path: the study's folder.
        rule: who stops at an armed rung.
        shares: of the budget at which there are rungs, of those recorded; None: all of them.
    """
    with StudyReader(StudyFolder(path)) as reader:
        trials = reader.trials()
        pruning = reader.study.pruning.model_copy(update={"enabled": True})
        study = reader.study.model_copy(update={"pruning": pruning})
    rules = _Rules(trials, study, rule, shares)
    Scheduler(study.trials_in_flight, len(trials), rules).advance()
    able = [trial for trial in trials if trial.score is not None and not trial.inactive]
    best = sorted(able, key=lambda trial: -(trial.score or 0.0))
    ends = rules.verdicts
    left = [trial for trial in best if ends[trial.number].kind == "complete"]
    whole = sum(trial.stages[-1].milestone for trial in trials)
    return Replayed(
        top_left=sum(trial in left for trial in best[:TOP]),
        top=len(best[:TOP]),
        candidates_left=sum(trial in left for trial in best[:CANDIDATES]),
        regret=float((best[0].score or 0.0) - (left[0].score or 0.0)) if left else math.inf,
        iterations=sum(verdict.milestone for verdict in ends.values()) / whole,
        stopped=sum(verdict.kind == "pruned" for verdict in ends.values()),
        trials=len(trials),
        armed=float(np.mean(rules.decided)) if rules.decided else 0.0,
    )
