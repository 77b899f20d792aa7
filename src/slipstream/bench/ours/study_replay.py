"""What pruning would have stopped in a study that ran without it: its rule over recorded scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from slipstream.core.kernel import load_kernel
from slipstream.core.spec import MarketSpec
from slipstream.studies.config import PruningConfig, StudyConfig
from slipstream.studies.folder import StudyFolder
from slipstream.studies.judge import Judge
from slipstream.studies.ledger import Ledger, Slot, Verdict
from slipstream.studies.reader import StudyReader, Trial
from slipstream.studies.scheduler import Event, Scheduler

TOP = 5


class Replayed(NamedTuple):
    """What became of the trials.

    Attributes:
        top_left: how many of the best five trials without pruning reach their end with it.
        top: how many best trials there are, five or all.
        iterations: share of all members' iterations that pruned trials leave.
        stopped: trials.
        trials: all of them.
    """

    top_left: int
    top: int
    iterations: float
    stopped: int
    trials: int


class _Rules:
    """Answers a scheduler out of a ledger that knows every trial at every stage."""

    def __init__(
        self, trials: Sequence[Trial], ledger: Ledger, study: StudyConfig, market: MarketSpec | None
    ) -> None:
        self._trials, self._ledger, self._folds = trials, ledger, _folds(trials)
        self._judge = Judge(study, market)
        self.verdicts: dict[int, Verdict] = {}

    def ask(self, event: Event) -> Sequence[int]:
        # In iterations: all members of this study make the same steps in one. 0: never begun.
        stages = self._trials[event.trial].stages
        return [stage.milestone for stage in stages if stage.milestone > 0]

    def judge(self, event: Event, last: bool) -> bool:
        milestone = self._trials[event.trial].stages[event.stage].milestone
        names = (Slot("search", event.trial, 0, fold).name for fold in range(self._folds))
        found = (self._ledger.outcome(name, milestone) for name in names)
        outcomes = [outcome for outcome in found if outcome is not None]
        verdict = self._judge.decide(event, outcomes, last)
        self._judge.remember(verdict)
        self.verdicts[event.trial] = verdict
        return verdict.kind == "continued"

    def ready(self, trial: int, stage: int) -> bool:
        return True

    def certain(self, trial: int, stage: int) -> bool:
        return False


def replay(path: Path) -> Replayed:
    """Runs the scheduler and the rule of pruning over a study recorded with `pruning.record`.

    The suggestions stay those of the study: with pruning the sampler would have seen other scores.
    """
    folder = StudyFolder(path)
    with StudyReader(folder) as reader, Ledger(folder.ledger, read_only=True) as ledger:
        trials = reader.trials()
        pruning = reader.study.pruning.model_copy(update={"enabled": True})
        study = reader.study.model_copy(update={"pruning": PruningConfig(**pruning.model_dump())})
        rules = _Rules(trials, ledger, study, _market(reader))
        Scheduler(study.trials_in_flight, len(trials), rules).advance()
    scored = [trial for trial in trials if trial.score is not None and not trial.inactive]
    best = sorted(scored, key=lambda trial: -(trial.score or 0.0))[:TOP]
    ends = rules.verdicts
    whole = sum(trial.stages[-1].milestone for trial in trials)
    return Replayed(
        top_left=sum(ends[trial.number].kind == "complete" for trial in best),
        top=len(best),
        iterations=sum(verdict.milestone for verdict in ends.values()) / whole,
        stopped=sum(verdict.kind == "pruned" for verdict in ends.values()),
        trials=len(trials),
    )


def _market(reader: StudyReader) -> MarketSpec | None:
    """What annualisation needs, from the study's own environment; None for games."""
    kernel = load_kernel(reader.config.env_name)
    if kernel.load_folds is None:
        return None
    loaded = kernel.load_folds(kernel.configure(reader.config.env_settings), reader.study.folds)
    return kernel.spec(loaded.params["train"][0], loaded.data).market


def _folds(trials: Sequence[Trial]) -> int:
    return max((len(trial.folds) for trial in trials), default=0)
