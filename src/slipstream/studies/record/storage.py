"""StorageMirror: writes a study from the ledger to an Optuna storage.

Results depend on the ledger alone. A storage that is locked, lags or fills its disk costs no
result, and a resumed study leaves no trial in the state RUNNING that no process runs.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.distributions import BaseDistribution
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from slipstream.core.errors import ConfigError, ResourceError, SlipstreamError
from slipstream.core.extras import install_command
from slipstream.studies.record.folder import DATABASE, describe_difference

JOURNAL = "study.log"
_IDENTITY = "slipstream"
_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 10.0  # between two writings
_SHARE = 0.01  # of a core while workers wait for their work
_TROUBLE = (OptunaError, sqlalchemy.exc.SQLAlchemyError, OSError)


def running_trial(
    params: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any] | None = None,
) -> FrozenTrial:
    """Return a running Optuna trial with these suggestions.

    Args:
        params: suggestions by searched name.
        distributions: the search space.
        attributes: JSON-able user attributes.
    """
    return optuna.create_trial(
        state=TrialState.RUNNING,
        params={name: params[name] for name in distributions},
        distributions=dict(distributions),
        user_attrs=dict(attributes or {}),
    )


class StorageMirror:
    """Mirrors one study in an Optuna storage.

    Args:
        url: None or ``sqlite`` (a file in `folder`), ``journal``, ``sqlite:///FILE``,
            ``journal:FILE`` or ``postgresql://...``.
        folder: the study's folder.
        name: the study's name.
        identity: JSON-able settings that must not differ between two starts of a study.
        notify: called with a message if the storage has to wait.
        timeout: seconds to wait for a locked file.

    Attributes:
        min_interval: minimum seconds between two writes.
        max_cpu_share: maximum share of a core for writes; the rest waits, at most until the last
            one.

    Raises:
        ConfigError: the storage has another study of this name.
        ResourceError: the storage cannot be opened.
    """

    min_interval, max_cpu_share = _PAUSE_SECONDS, _SHARE

    def __init__(
        self,
        url: str | None,
        folder: Path,
        name: str,
        identity: Mapping[str, Any],
        notify: Callable[[str], None],
        timeout: float = 10.0,
    ) -> None:
        self.url = storage_url(url, folder)
        self._name, self._notify = name, notify
        self._trials: dict[int, FrozenTrial] = {}
        self._pending: set[int] = set()
        self._written: dict[int, FrozenTrial] = {}
        self._retry, self._flushed = 0.0, time.monotonic()
        self._given_up = False
        try:
            self._storage = open_storage(self.url, timeout)
            self._study_id = self._open_study(identity)
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        except SlipstreamError:
            raise
        except _TROUBLE as error:
            raise _unusable(self.url, error) from error
        self._existing = {trial.number: trial for trial in trials}

    def _open_study(self, identity: Mapping[str, Any]) -> int:
        try:
            study_id = self._storage.get_study_id_from_name(self._name)
        except KeyError:
            study_id = self._storage.create_new_study([StudyDirection.MAXIMIZE], self._name)
        theirs = self._storage.get_study_user_attrs(study_id)
        how = "not made by slipstream"
        if _IDENTITY in theirs:
            how = describe_difference(json.loads(theirs[_IDENTITY]), identity)
            if not how:
                return study_id
        if (  # new, or left by a kill before its identity was written
            theirs
            or self._storage.get_study_directions(study_id) != [StudyDirection.MAXIMIZE]
            or self._storage.get_n_trials(study_id)
        ):
            raise ConfigError(
                f"{redact_password(self.url)} has a study {self._name} already, and it is another "
                f"one: {how}. Choose another name with --study-name."
            )
        self._storage.set_study_user_attr(study_id, _IDENTITY, json.dumps(identity))
        return study_id

    def check_trials(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Check that the storage's trials match the ledger.

        Args:
            trials: params by trial number, all that the ledger has.

        Raises:
            ConfigError: the storage has other trials.
        """
        for number, trial in self._existing.items():
            if number not in trials or dict(trial.params) != dict(trials[number]):
                raise ConfigError(
                    f"{redact_password(self.url)} has a trial {number} of study {self._name} that "
                    "is not in "
                    "this study's folder: it belongs to a study whose folder was moved or "
                    "deleted, or was added by someone else. Put the folder back, or name this "
                    "study otherwise with --study-name."
                )
            self._written[number] = trial

    def update(self, trial: int, frozen_trial: FrozenTrial) -> None:
        """Queue the current state of a trial; the next `flush` writes it as it is then."""
        self._trials[trial] = frozen_trial
        self._pending.add(trial)

    def flush(self, last: bool = False) -> None:
        """Write pending trials one by one; errors are logged once and retried later.

        Writes are delayed: a trial that begins and ends between two writes is written once.

        Args:
            last: there is no later retry.
        """
        now = time.monotonic()
        early = now < max(self._retry, self._flushed + self.min_interval)
        if self._given_up or not self._pending or (early and not last):
            return
        began, allowed = time.thread_time(), self.max_cpu_share * (now - self._flushed)
        self._flushed = now
        try:
            for number in sorted(self._pending):
                self._write(number, self._trials[number])
                self._pending.remove(number)
                if not last and time.thread_time() - began > allowed:
                    break
        except _ForeignError as error:
            self._given_up = True
            self._notify(
                f"{redact_password(self.url)} is no longer written: {error} The study continues; "
                "its own folder has all results."
            )
            return
        except _TROUBLE as error:
            if self._retry == 0.0 or last:
                later = "They are" if last else "It is tried again later. All results are"
                self._notify(
                    f"{redact_password(self.url)} could not be written ({_first_line(error)}), "
                    f"{len(self._pending)} trials wait for it. {later} in the study's own folder, "
                    "and a resumed study writes them there."
                )
            self._retry = now + _RETRY_SECONDS
            return
        self._retry = 0.0

    def _write(self, number: int, frozen_trial: FrozenTrial) -> None:
        """Write new values of a trial to the storage."""
        storage, before = self._storage, self._written.get(number)
        if before is None:
            self._create(number, frozen_trial)
        elif not before.state.is_finished():
            trial_id = storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
            for step, value in frozen_trial.intermediate_values.items():
                if step not in before.intermediate_values:
                    storage.set_trial_intermediate_value(trial_id, step, value)
            for key, fact in frozen_trial.user_attrs.items():
                if before.user_attrs.get(key) != fact:
                    storage.set_trial_user_attr(trial_id, key, fact)
            if frozen_trial.state.is_finished():
                storage.set_trial_state_values(trial_id, frozen_trial.state, frozen_trial.values)
        written = self._written[number] = copy.copy(frozen_trial)
        written.user_attrs, written.intermediate_values = (
            dict(frozen_trial.user_attrs),
            dict(frozen_trial.intermediate_values),
        )

    def _create(self, number: int, frozen_trial: FrozenTrial) -> None:
        storage, study = self._storage, self._study_id
        trial_id = storage.create_new_trial(study, frozen_trial)
        try:  # to ask the new trial for its number would read all of it
            known = storage.get_trial_id_from_study_id_trial_number(study, number)
        except KeyError:
            known = -1
        if known != trial_id:
            if not frozen_trial.state.is_finished():
                storage.set_trial_state_values(trial_id, TrialState.FAIL)
            given = storage.get_trial_number_from_id(trial_id)
            raise _ForeignError(
                f"someone else added trials to it (ours is {number}, it has {given})."
            )

    def close(self) -> None:
        """Close the storage."""
        self._storage.remove_session()


class _ForeignError(Exception):
    """The storage's study was changed by someone else."""


def storage_url(url: str | None, folder: Path) -> str:
    """Complete the value of --storage to a URL.

    Raises:
        ConfigError: the kind of storage is not supported.
    """
    if url in (None, "", "sqlite"):
        return f"sqlite:///{(folder / DATABASE).absolute()}"
    assert url is not None
    if url == "journal":
        return f"journal:{(folder / JOURNAL).absolute()}"
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme == "postgres":
        scheme, url = "postgresql", url.replace("postgres", "postgresql", 1)
    if scheme == "postgresql" and not url.startswith("postgresql+"):
        url = url.replace("postgresql:", "postgresql+psycopg:", 1)
    if scheme not in ("sqlite", "journal", "postgresql"):
        raise ConfigError(
            f"--storage {redact_password(url)} is not supported. Give `sqlite` (the default), "
            "`journal`, sqlite:///FILE, journal:FILE or postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    return url


def open_storage(url: str, timeout: float = 10.0) -> BaseStorage:
    """Open the Optuna storage of a URL; it holds no connection between two writes."""
    if url.startswith("journal:"):
        path = Path(url.removeprefix("journal:"))
        return JournalStorage(JournalFileBackend(str(path)))
    if url.startswith("sqlite:"):
        patience: dict[str, float] = {"timeout": timeout}
    else:
        patience = {"connect_timeout": max(2, round(timeout))}
    options = {"poolclass": NullPool, "connect_args": patience}
    # Optuna formats URLs, but braces in this URL belong to a folder name.
    plain = url.replace("{", "{{").replace("}", "}}")
    return RDBStorage(plain, engine_kwargs=options)


def redact_password(url: str) -> str:
    """Return a storage URL without its password."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if not at:
        return url
    return f"{scheme}{separator}{login.partition(':')[0]}:***@{place}"


def _unusable(url: str, error: BaseException) -> SlipstreamError:
    text = _first_line(error)
    if isinstance(error, ImportError) or "No module named" in text:
        return ResourceError(
            f"{redact_password(url)} needs PostgreSQL's driver: {install_command('postgresql')}"
        )
    if "locked" in text:
        return ResourceError(
            f"{redact_password(url)} is locked by another program ({text}). Close that program and "
            "start again; nothing is lost."
        )
    return ResourceError(
        f"{redact_password(url)} cannot be opened ({text}). Check its address, its permissions "
        "and that its "
        "server runs, then start again; nothing is lost. Without --storage a file in the study's "
        "folder is used."
    )


def _first_line(error: BaseException) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines: Iterable[str] = str(getattr(cause, "orig", None) or cause).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(cause).__name__)
