"""Pools: the study's way to its data and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from slipstream.core.cores import usable_cores
from slipstream.core.errors import ConfigError
from slipstream.studies.config import StudyConfig
from slipstream.studies.engine.pool import EnvironmentSource, Pool
from slipstream.studies.machines.entry import Entry, entry_of
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.storage import storage_url
from slipstream.studies.session import PolicyPool
from slipstream.studies.study import Survey
from slipstream.training.config import RunConfig
from slipstream.training.interruption import Interrupted, Interruption
from slipstream.training.learner import check_learner

_POLL_SECONDS = 0.5


class Pools:
    """Loads data once in this process; the workers that it forks share it.

    Where a study is mirrored to PostgreSQL, other machines may join it there.

    Args:
        workers: processes; None: one per core; 0: other machines do everything.
        group_size: members of a population; None: by measurement.
        storage: as a user gave it; None: the one of the study's first start.
        say: told in sentences when machines come and go.
    """

    def __init__(
        self,
        workers: int | None,
        group_size: int | None,
        storage: str | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._workers = usable_cores() if workers is None else workers
        self._group_size, self._storage, self._say = group_size, storage, say
        self._source: EnvironmentSource | None = None
        self._entry: Callable[[], Entry] | None = None

    def survey(self, base: RunConfig, study: StudyConfig) -> Survey:
        """Loads what the environment reads."""
        self._source = EnvironmentSource(study.folds, study.fold_seeds)
        environment = self._source.environment(base)
        check_learner(base.training, environment.spec.is_image)
        environment.check(base.env_settings, self._say)
        facts = dict(environment.provenance)
        if environment.sources:
            facts["sources"] = environment.sources
        if environment.spec.market is not None:
            facts["benchmark"] = environment.spec.market.benchmark
        folds = self._source.folds(base)
        self._entry = lambda: entry_of(base, study.folds, study.fold_seeds, facts)
        return Survey(environment.spec, folds, facts, environment.notes)

    @contextmanager
    def pool(self, folder: StudyFolder) -> Iterator[PolicyPool]:
        """Workers that share what was loaded.

        Raises:
            ConfigError: another process owns the study, or nobody would train it.
        """
        assert self._source is not None and self._entry is not None, "survey comes first"
        url = self._meeting_place(folder)
        if url is None:
            if self._workers == 0:
                raise ConfigError(
                    "--workers 0 leaves all training to other machines, which need a place to "
                    "meet: --storage postgresql://USER:PASSWORD@HOST/DATABASE."
                )
            with Pool(folder.path, self._source, self._workers, self._group_size) as pool:
                yield pool
            return
        from slipstream.studies.machines.relay import Relay  # needs PostgreSQL's driver

        with Relay(url, folder.name, folder.path, self._entry(), self._say) as relay:
            if self._workers == 0:
                self._await_machine(folder, relay.bell)
            with Pool(folder.path, self._source, self._workers, self._group_size, relay) as pool:
                yield pool

    def _await_machine(self, folder: StudyFolder, bell: Connection) -> None:
        """Until somebody is there who can train; a signal ends it."""
        self._say(
            "This process trains nothing itself and waits for a machine; there start `slipstream "
            f"study work {folder.name} --storage ...`."
        )
        with Interruption() as asked:
            while not bell.poll(_POLL_SECONDS):
                if asked.requested:
                    raise Interrupted(folder.path, f"slipstream study resume {folder.handle}")

    def _meeting_place(self, folder: StudyFolder) -> str | None:
        """URL of the PostgreSQL database that the study is mirrored to."""
        wanted = self._storage
        if wanted is None:
            with Ledger(folder.ledger, read_only=True) as ledger:
                wanted = ledger.fact("storage")
        url = storage_url(wanted, folder.path)
        return url if url.startswith("postgresql+psycopg:") else None
