"""Storages: locked, unreachable, full, foreign, a real PostgreSQL server; all that ended is in."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import optuna
import pytest
from fake_pool import FakePool, HalvingPruner, plan
from optuna.storages import RDBStorage
from study_world import SkilledPool, run_study

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.studies import study
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.storage import (
    StorageMirror,
    open_storage,
    redact_password,
    running_trial,
    storage_url,
)
from slipstream.studies.search.search import Search


def open_mirror(
    folder: Path, url: str | None, said: list[str], timeout: float = 1.0
) -> StorageMirror:
    mirror = StorageMirror(url, folder, "one", {"a": 1}, said.append, timeout)
    mirror.min_interval, mirror.max_cpu_share = 0.0, 1e9
    return mirror


PARAMS = {"agent.learning_rate": 1e-3, "agent.n_epochs": 2, "agent.activation": "tanh"}


def told(values=(), attributes=(), state=optuna.trial.TrialState.RUNNING, score=None):
    """A trial as the search tells it."""
    trial = running_trial(PARAMS, plan().space.distributions, dict(attributes))
    trial.intermediate_values, trial.state, trial.value = dict(values), state, score
    trial.datetime_complete = datetime.now() if state.is_finished() else None
    return trial


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        ("journal:/tmp/x.log", "journal:/tmp/x.log"),
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgres://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
    ],
)
def test_urls_are_completed(given, completed, tmp_path):
    assert storage_url(given, tmp_path) == completed


def test_the_default_is_a_file_in_the_folder(tmp_path):
    assert storage_url(None, tmp_path) == f"sqlite:///{tmp_path}/study.db"
    assert storage_url("journal", tmp_path) == f"journal:{tmp_path}/study.log"


def test_other_kinds_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="journal:FILE"):
        storage_url("redis://localhost", tmp_path)


def test_passwords_are_not_shown():
    assert redact_password("postgresql+psycopg://u:secret@h/d") == "postgresql+psycopg://u:***@h/d"
    assert redact_password("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


def test_braces_in_a_folder_are_a_name_and_nothing_to_be_filled_in(tmp_path: Path) -> None:
    folder = tmp_path / "{} {0} {x}"
    folder.mkdir()
    storage = open_storage(storage_url(None, folder))
    optuna.create_study(study_name="{}", storage=storage)
    assert (folder / "study.db").is_file()


def test_a_locked_file_is_named(tmp_path):
    open_mirror(tmp_path, None, []).close()
    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ResourceError, match=r"study\.db is locked"):
            open_mirror(tmp_path, None, [], timeout=0.2)


def test_a_server_that_is_not_there_is_named(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"postgresql://me:secret@127.0.0.1:{port}/study"
    with pytest.raises(ResourceError, match="cannot be opened") as error:
        open_mirror(tmp_path, url, [])
    assert "secret" not in str(error.value) and "nothing is lost" in str(error.value)


@pytest.mark.slow
def test_a_storage_that_is_locked_for_a_while_costs_nothing(tmp_path):
    said: list[str] = []
    mirror = open_mirror(tmp_path, None, said, timeout=0.2)
    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        mirror.update(0, told())
        mirror.flush()
        mirror.flush()
        other.execute("ROLLBACK")
    assert len(said) == 1 and "tried again later" in said[0]
    mirror.flush(last=True)
    study = optuna.load_study(study_name="one", storage=open_storage(mirror.url))
    assert [trial.params for trial in study.trials] == [PARAMS]


def test_a_short_trial_is_written_in_one_go(tmp_path):
    """Not at every change; what is written is the same."""
    complete = optuna.trial.TrialState.COMPLETE
    every = [
        told({8: 0.5}, {"folds": [1.0]}),
        told({8: 0.5, 16: 0.7}, state=complete, score=0.7),
    ]
    mirror = open_mirror(tmp_path, None, [])
    mirror.min_interval = 3600.0
    for one in every:
        mirror.update(0, one)
        mirror.flush()
    storage = open_storage(mirror.url)
    assert not optuna.load_study(study_name="one", storage=storage).trials
    mirror.flush(last=True)
    (trial,) = optuna.load_study(study_name="one", storage=open_storage(mirror.url)).trials
    assert (trial.value, trial.intermediate_values) == (0.7, {8: 0.5, 16: 0.7})
    mirror.update(0, every[1])
    mirror.flush(last=True)  # it has ended: nothing is written again
    mirror.close()


def test_writing_takes_its_share(tmp_path):
    """Pending writes wait; everything is written at the end."""
    mirror = open_mirror(tmp_path, None, [])
    mirror.max_cpu_share = 0.0
    for k in range(4):
        mirror.update(k, told())
    for written, last in ((1, False), (2, False), (4, True)):
        mirror.flush(last)
        found = optuna.load_study(study_name="one", storage=open_storage(mirror.url)).trials
        assert [trial.number for trial in found] == list(range(written))
    mirror.close()


@pytest.mark.parametrize(
    "url", [None, *(pytest.param(one, marks=pytest.mark.slow) for one in ("server", "journal"))]
)
def test_what_was_told_piece_by_piece_stands_in_every_column(url, tmp_path, request):
    """Trials that begin, reach rungs and end in several writings, or in one."""
    if url == "server":
        url = request.getfixturevalue("server")
    fail, complete = optuna.trial.TrialState.FAIL, optuna.trial.TrialState.COMPLETE
    running = optuna.trial.TrialState.RUNNING
    rounds = (
        {
            0: told({8: 0.5}, {"folds": [1.0, None]}),
            1: told({}, {"failed": "it diverged"}, fail),
            2: told({8: 0.1}),
        },
        {2: told({8: 0.1, 16: float("inf")}, {"folds": [0.1]}, complete, 0.7)},
        {0: told({8: 0.5}, {"folds": [2.0]}, complete, 0.2), 3: told()},
    )
    distributions = plan().space.distributions
    name = f"pieces {tmp_path}"
    for each in rounds:  # each by another process, which finds what the one before left
        mirror = StorageMirror(url, tmp_path, name, {}, pytest.fail)
        mirror.check_trials(dict.fromkeys(range(4), PARAMS))
        for k, one in each.items():
            mirror.update(k, one)
        mirror.flush(last=True)
        mirror.close()
    study = optuna.load_study(study_name=name, storage=open_storage(mirror.url))
    keys = ("state", "values", "user_attrs", "intermediate_values")
    assert [[getattr(one, key) for key in keys] for one in study.trials] == [
        [complete, [0.2], {"folds": [2.0]}, {8: 0.5}],
        [fail, None, {"failed": "it diverged"}, {}],
        [complete, [0.7], {"folds": [0.1]}, {8: 0.1, 16: float("inf")}],
        [running, None, {}, {}],
    ]
    for number, one in enumerate(study.trials):
        assert (one.number, one.params, one.distributions) == (number, PARAMS, distributions)
        ended = one.state.is_finished()
        assert ended == (one.datetime_complete is not None)
        assert not ended or one.datetime_start <= one.datetime_complete


def test_trials_added_by_others_end_the_mirror_not_the_study(tmp_path):
    said: list[str] = []
    mirror = open_mirror(tmp_path, None, said)
    optuna.load_study(study_name="one", storage=open_storage(mirror.url)).enqueue_trial({})
    mirror.update(0, told())
    mirror.flush()
    mirror.flush(last=True)
    assert len(said) == 1 and "someone else added trials" in said[0]


def test_a_full_disk_leaves_the_ledger_whole(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.set_metadata(first=1)
        ledger._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(ResourceError, match="disk is full"):
            ledger.set_metadata(second="x" * 10_000_000)
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.get_metadata("first") == 1 and ledger.get_metadata("second") is None


def test_a_study_on_postgresql(server, tmp_path):
    setup = plan(pruning={"startup": 3})
    said: list[str] = []
    with Ledger(tmp_path / "ledger.db") as ledger:
        mirror = StorageMirror(server, tmp_path, "pg", {}, said.append)
        search = Search(setup, ledger, FakePool(), HalvingPruner(setup.study), mirror, 8)
        search.run()
        mirror.flush(last=True)
        mirror.close()
    storage = open_storage(storage_url(server, tmp_path))
    study = optuna.load_study(study_name="pg", storage=storage)
    assert [t.state.is_finished() for t in study.trials] == [True] * 8 and not said
    assert [t.value for t in study.trials] == [search.decisions[n].score for n in range(8)]
    assert isinstance(storage, RDBStorage)
    assert type(storage.engine.pool).__name__ == "NullPool"
    with pytest.raises(ConfigError, match="another one"):
        StorageMirror(server, tmp_path, "pg", {"b": 2}, said.append)


class _CrashError(Exception):
    """An exception that a study does not expect."""


def _states(folder):
    storage = open_storage(storage_url(None, folder))
    found = optuna.load_study(study_name=folder.name, storage=storage).trials
    return {trial.number: trial.state.name for trial in found}


def test_before_the_confirmation(tmp_path, monkeypatch):
    folder, seen = tmp_path / "one", []

    def look(*_):
        seen.append(_states(folder))
        raise _CrashError

    monkeypatch.setattr(study, "confirm_best", look)
    with pytest.raises(_CrashError):
        run_study(folder, trials=4, steps=128)
    assert len(seen[0]) == 4 and "RUNNING" not in seen[0].values()


def test_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(StorageMirror, "min_interval", 3600.0)
    collect = SkilledPool.collect

    def until_the_budget_is_half_spent(self, timeout):
        if len(self.trained) > 120:
            raise _CrashError
        return collect(self, timeout)

    monkeypatch.setattr(SkilledPool, "collect", until_the_budget_is_half_spent)
    folder = tmp_path / "two"
    with pytest.raises(_CrashError):
        run_study(folder, trials=40, steps=128, study={"max_concurrent_trials": 4})
    with Ledger(folder / "ledger.db", read_only=True) as ledger:
        ended = {one.trial for one in ledger.decisions() if one.kind != "continued"}
    finished = {trial for trial, state in _states(folder).items() if state != "RUNNING"}
    assert ended == finished and 0 < len(ended) < 40
