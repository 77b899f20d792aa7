"""Pools: a study's data, loaded once, and pools of workers on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.kernels.spec import Spec
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.folder import StudyFolder
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.cluster.node import work_for
from slipstream.training.cluster.ray_cluster import connect
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.parts import HoldoutRegister, register_of
from slipstream.training.population.pool import Pool
from slipstream.training.population.source import EnvironmentSource
from slipstream.training.population.worker import SERVICE
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import check_learner


@dataclass(frozen=True)
class Survey:
    """What a study must know about its environment.

    Attributes:
        spec: its outside.
        folds: how many folds a trial has.
        facts: JSON-able: `market_sha256`, `folds` (groups, paths, ranges), `round_trip`, ...
        notes: sentences that the user must see.
        observed_bytes: see `Environment`.
        backend: how copies are stepped; ``auto`` where that is measured later.
        register: of the days that are searched on and opened.
    """

    spec: Spec
    folds: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    observed_bytes: int | None = None
    backend: str = "auto"
    register: HoldoutRegister = field(default_factory=HoldoutRegister)


class Pools:
    """Loads a study's data once in this process, and opens pools of workers on them.

    Workers that are forked share the data, a cluster is sent them.

    Args:
        workers: processes; None: one per core, see `Pool`. None of them where there is a cluster.
        group_size: members of a population; None: by measurement.
        cluster: who trains instead.
        say: told in sentences when nodes come and go.
    """

    def __init__(
        self,
        workers: int | None,
        group_size: int | None,
        cluster: ClusterOptions | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._workers = workers
        self._group_size, self._cluster, self._say = group_size, cluster, say
        self._source: EnvironmentSource | None = None
        self._base: RunConfig | None = None

    def survey(self, base: RunConfig, study: StudyConfig) -> Survey:
        """Loads what the environment reads."""
        self._source, self._base = EnvironmentSource(study.folds, study.fold_seeds), base
        environment = self._source.environment(base)
        check_learner(base.training, environment.spec.is_image)
        base.agent.check_spaces(environment.spec)
        environment.check(base.env_settings, self._say)
        facts = dict(environment.provenance)
        if sources := environment.facts.get("sources"):
            facts["sources"] = sources
        if environment.spec.market is not None:
            facts["benchmark"] = environment.spec.market.benchmark
        folds = self._source.folds(base)
        rules = environment.part(KernelEnvironment)
        seen = None if rules is None else rules.observed_bytes
        backend = base.training.chosen_backend
        if "compiled" in environment.kind.backends:  # others are measured
            backend = environment.kind.chosen_backend(backend)
        register = register_of(environment)
        return Survey(environment.spec, folds, facts, environment.notes, seen, backend, register)

    @contextmanager
    def pool(self, folder: StudyFolder) -> Iterator[Pool]:
        """Workers that share what was loaded.

        Raises:
            ConfigError: another process of the cluster runs the study.
            ResourceError: the cluster cannot be used.
        """
        assert self._source is not None and self._base is not None, "survey comes first"
        if self._cluster is None:
            with Pool(folder.path, self._source, self._workers, self._group_size) as pool:
                yield pool
            return
        environment = self._source.environment(self._base)
        with tempfile.TemporaryDirectory(prefix="slipstream-files-") as files:
            owner = f"the study {folder.name}"
            work = work_for(owner, SERVICE, environment, self._base, Path(files))
            with (
                connect(self._cluster, work, self._say) as cluster,
                Pool(folder.path, self._source, 0, self._group_size, cluster) as pool,
            ):
                yield pool
