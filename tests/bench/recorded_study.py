"""A study without pruning whose scores at rungs are written down by hand."""

from __future__ import annotations

import numpy as np

from slipstream.studies.config import StudyConfig
from slipstream.studies.engine.member import DailyReturns, Outcome
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.rows import Ask, Slot, Verdict
from slipstream.studies.record.study_file import write_study
from slipstream.studies.space.space import SearchSpace
from slipstream.training.settings.config import resolve


def record(folder: StudyFolder, quality: list[tuple[float, float]]) -> None:
    """A study without pruning; `quality` is each trial's score at both rungs and at its end."""
    base = resolve("cartpole", {"training.num_envs": 1, "training.total_steps": 30})
    pruning = {"enabled": False, "record": True}
    study = StudyConfig(n_trials=len(quality), fold_seeds=2, pruning=pruning)
    space = SearchSpace.from_mapping({"agent.learning_rate": {"low": 1e-4, "high": 1e-2}}, base)
    folder.path.mkdir()
    folder.config.write_text(write_study(base, study, space))
    with Ledger(folder.ledger) as ledger:
        for trial, scores in enumerate(quality):
            ledger.add_ask(Ask(trial, 0, {}, {}))
            for stage, milestone in enumerate((10, 20, 30)):
                score = scores[stage // 2]
                passes = DailyReturns(np.arange(2), np.full(2, score), np.zeros(2), np.arange(2))
                slots = [Slot("search", trial, 0, fold) for fold in range(2)]
                ledger.add_outcomes([Outcome(s.name, milestone, passes) for s in slots])
                kind = "complete" if stage == 2 else "continued"
                folds = [{"score": score}] * 2
                ledger.add_verdict(Verdict(trial, stage, milestone, 0, kind, score, folds))
