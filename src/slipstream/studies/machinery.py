"""Pools: the study's way to its data and its workers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from slipstream.core.errors import ResourceError
from slipstream.studies.config import StudyConfig
from slipstream.studies.folder import StudyFolder
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
        self._source: Any = None

    def survey(self, base: RunConfig, study: StudyConfig) -> Survey:
        """Loads what the environment reads."""
        from slipstream.studies.pool import EnvironmentSource

        self._source = EnvironmentSource(study.folds, study.fold_seeds)
        environment = self._source.environment(base)
        facts = dict(environment.loaded.provenance) if environment.loaded is not None else {}
        market = environment.spec.market is not None
        folds = len(facts["folds"]["folds"]) if market else study.fold_seeds
        return Survey(environment.spec, folds, facts if market else {}, environment.notes)

    def pool(self, folder: StudyFolder) -> AbstractContextManager[PolicyTrainer]:
        """Workers that share what was loaded."""
        from slipstream.studies.pool import Pool

        if self._source is None:
            raise ResourceError("Nothing is loaded yet.")
        return Pool(folder.path, self._source, self._workers, self._group_size)
