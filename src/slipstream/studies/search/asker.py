"""Asker: Optuna's samplers suggest, from a study in memory with what the order of events allows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from slipstream.studies.config import StudyConfig, seed_of
from slipstream.studies.record.storage import begun_trial
from slipstream.studies.space.space import SearchSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

_SEEDS = 2**32  # what NumPy's generators take


class Asker:
    """Suggests params for trials in the order of their numbers.

    The study it samples from is rebuilt from the ledger, never read from a storage: what a
    storage rounds, delays or lets others write cannot reach a suggestion. The sampler is made anew
    for each trial, from the study's seed and the trial's number.

    Args:
        space: what is searched.
        config: sampler and seed, and what the first trials start with.
    """

    def __init__(self, space: SearchSpace, config: StudyConfig) -> None:
        self._space, self._config = space, config
        self._starts = space.starts(config.start_with)
        self._study = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner())

    def ask(self, trial: int) -> dict[str, Any]:
        """A suggestion for every searched name, knowing what was told so far."""
        self._study.sampler = sampler(self._config, trial)
        if trial < len(self._starts):
            self._study.enqueue_trial(self._starts[trial])
        asked = self._space.ask(self._study)
        assert asked.number == trial, (asked.number, trial)
        return dict(asked.params)

    def recall(self, trial: int, params: Mapping[str, Any]) -> None:
        """Takes an earlier suggestion as asked, without sampling again."""
        self._study.add_trial(begun_trial(params, self._space.distributions))
        assert len(self._study.get_trials(deepcopy=False)) == trial + 1

    def tell(self, trial: int, score: float | None) -> None:
        """A trial's score, also of a pruned one; None where it failed."""
        if score is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, score)


def sampler(config: StudyConfig, trial: int) -> BaseSampler:
    """The sampler of one trial: a function of the study's seed and the trial's number."""
    seed = seed_of(config.seed, "sampler", trial) % _SEEDS
    if config.sampler == "random":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():  # `group` is marked experimental since 2021
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
