"""Pools: the study's way to its data and its workers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from slipstream.studies.config import StudyConfig
from slipstream.studies.folder import StudyFolder
from slipstream.studies.pool import EnvironmentSource, Pool
from slipstream.studies.study import PolicyTrainer, Survey
from slipstream.training.config import RunConfig
from slipstream.vector.threaded import usable_cores


class Pools:
    """Loads data once in this process; the workers that it forks share it.

    Args:
        workers: processes; None: one per core.
        group_size: members of a population; None: by measurement.
    """

    def __init__(self, workers: int | None, group_size: int | None) -> None:
        self._workers, self._group_size = workers or usable_cores(), group_size
        self._source: EnvironmentSource | None = None

    def survey(self, base: RunConfig, study: StudyConfig) -> Survey:
        """Loads what the environment reads."""
        self._source = EnvironmentSource(study.folds, study.fold_seeds)
        environment = self._source.environment(base)
        facts = dict(environment.loaded.provenance) if environment.loaded is not None else {}
        folds = self._source.folds(base)
        return Survey(environment.spec, folds, facts, environment.notes)

    def pool(self, folder: StudyFolder) -> AbstractContextManager[PolicyTrainer]:
        """Workers that share what was loaded."""
        assert self._source is not None, "survey comes first"
        return Pool(folder.path, self._source, self._workers, self._group_size)
