"""Storages: locked, unreachable, full, foreign, and a real PostgreSQL server."""

from __future__ import annotations

import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import optuna
import pytest
import sqlalchemy
from fake_pool import FakePool, HalfJudge, plan
from optuna.storages import RDBStorage

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.studies.record import trial_rows
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.storage import Mirror, open_storage, shown, storage_url
from slipstream.studies.record.trial_rows import Told
from slipstream.studies.search.search import Search


def open_mirror(folder: Path, url: str | None, said: list[str], timeout: float = 1.0) -> Mirror:
    distributions = plan().space.distributions
    mirror = Mirror(url, folder, "one", {"a": 1}, distributions, said.append, timeout)
    mirror.pause, mirror.share = 0.0, 1e9
    return mirror


PARAMS = {"agent.learning_rate": 1e-3, "agent.epochs": 2, "agent.activation": "tanh"}


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
    assert shown("postgresql+psycopg://u:secret@h/d") == "postgresql+psycopg://u:***@h/d"
    assert shown("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


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


def test_a_storage_that_is_locked_for_a_while_costs_nothing(tmp_path):
    said: list[str] = []
    mirror = open_mirror(tmp_path, None, said, timeout=0.2)
    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        mirror.tell(0, Told(PARAMS))
        mirror.flush()
        mirror.flush()
        other.execute("ROLLBACK")
    assert len(said) == 1 and "tried again later" in said[0]
    mirror.flush(last=True)
    study = optuna.load_study(study_name="one", storage=open_storage(mirror.url))
    assert [trial.params for trial in study.trials] == [PARAMS]


def test_a_short_trial_is_written_in_one_go(tmp_path):
    """Not at every change; what is written is the same."""
    told = [Told(PARAMS, {8: 0.5}, {"folds": [1.0]}), Told(PARAMS, {8: 0.5, 16: 0.7})]
    told[1].state, told[1].score = optuna.trial.TrialState.COMPLETE, 0.7
    mirror = open_mirror(tmp_path, None, [])
    mirror.pause = 3600.0
    for one in told:
        mirror.tell(0, one)
        mirror.flush()
    storage = open_storage(mirror.url)
    assert not optuna.load_study(study_name="one", storage=storage).trials
    mirror.flush(last=True)
    (trial,) = optuna.load_study(study_name="one", storage=open_storage(mirror.url)).trials
    assert (trial.value, trial.intermediate_values) == (0.7, {8: 0.5, 16: 0.7})
    mirror.tell(0, told[1])
    mirror.flush(last=True)  # it has ended: nothing is written again
    mirror.close()


def test_writing_takes_its_share(tmp_path):
    """What is left waits; at the end everything is there."""
    mirror = open_mirror(tmp_path, None, [])
    mirror.share, mirror.chunk = 0.0, 1
    for k in range(4):
        mirror.tell(k, Told(PARAMS))
    for written, last in ((1, False), (2, False), (4, True)):
        mirror.flush(last)
        found = optuna.load_study(study_name="one", storage=open_storage(mirror.url)).trials
        assert [trial.number for trial in found] == list(range(written))
    mirror.close()


def by_calls(mirror, numbers):
    for number in numbers:
        mirror._write(number, mirror._told[number])


def test_another_optuna_is_written_by_its_calls(tmp_path, monkeypatch):
    """Its private parts are gone, or have other columns."""
    for k, parts in enumerate((None, ModuleType("models"), other_models())):
        monkeypatch.setitem(sys.modules, "optuna.storages._rdb.models", parts)
        monkeypatch.setattr(optuna.storages._rdb, "models", parts, raising=False)
        (tmp_path / str(k)).mkdir()
        mirror = open_mirror(tmp_path / str(k), None, [])
        assert trial_rows.takes_rows(mirror._storage)
        for number in range(3):
            mirror.tell(number, Told(PARAMS))
        mirror.flush(last=True)
        mirror.close()
        study = optuna.load_study(study_name="one", storage=open_storage(mirror.url))
        assert [trial.params for trial in study.trials] == [PARAMS] * 3
    monkeypatch.setattr(trial_rows, "_SCHEMA", "v9")
    assert not trial_rows.takes_rows(open_storage(mirror.url))
    assert not trial_rows.takes_rows(open_storage(f"journal:{tmp_path}/log"))


def other_models():
    """Tables of trials without numbers."""
    found = ModuleType("models")
    found.StudyModel = optuna.storages._rdb.models.StudyModel

    class TrialModel(found.StudyModel.__base__):
        __tablename__ = "trials of another version"
        trial_id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)

    found.TrialModel = TrialModel
    return found


@pytest.mark.parametrize("url", [None, "server"])
def test_trials_written_together_are_what_optuna_writes(url, tmp_path, request, monkeypatch):
    """A relational storage gets rows, other ones Optuna's calls: all columns are equal."""
    if url == "server":
        url = request.getfixturevalue("server")
    fail, complete = optuna.trial.TrialState.FAIL, optuna.trial.TrialState.COMPLETE
    rounds = (
        {
            0: Told(PARAMS, {8: 0.5}, {"folds": [1.0, None]}),
            1: Told(PARAMS, {}, {"failed": "it diverged"}, fail),
            2: Told(PARAMS, {8: 0.1}),
        },
        {2: Told(PARAMS, {8: 0.1, 16: float("inf")}, {"folds": [0.1]}, complete, 0.7)},
        {0: Told(PARAMS, {8: 0.5}, {"folds": [2.0]}, complete, 0.2), 3: Told(PARAMS)},
    )
    found, called, write = [], [], Mirror._write

    def note(mirror, number, told):
        called.append(number)
        write(mirror, number, told)

    monkeypatch.setattr(Mirror, "_write", note)
    for name in ("rows", "calls"):
        if name == "calls":
            assert called == [0, 3]  # a fact that changes is no new row
            monkeypatch.setattr(Mirror, "_write_all", by_calls)
        (tmp_path / name).mkdir()
        distributions = plan().space.distributions
        mirror = Mirror(url, tmp_path / name, f"{name} {tmp_path}", {}, distributions, pytest.fail)
        for told in rounds:
            for k, one in told.items():
                mirror.tell(k, one)
            mirror.flush(last=True)
        trials = optuna.load_study(
            study_name=f"{name} {tmp_path}", storage=open_storage(mirror.url)
        )
        mirror.close()
        keys = ("number", "state", "values", "params", "user_attrs", "intermediate_values")
        keys += ("distributions",)
        found.append([[getattr(one, key) for key in keys] for one in trials.trials])
        for one in trials.trials:
            ended = one.state.is_finished()
            assert ended == (one.datetime_complete is not None)
            assert not ended or one.datetime_start <= one.datetime_complete
    assert found[0] == found[1] and len(found[0]) == 4


def test_trials_added_by_others_end_the_mirror_not_the_study(tmp_path):
    said: list[str] = []
    mirror = open_mirror(tmp_path, None, said)
    optuna.load_study(study_name="one", storage=open_storage(mirror.url)).enqueue_trial({})
    mirror.tell(0, Told(PARAMS))
    mirror.flush()
    mirror.flush(last=True)
    assert len(said) == 1 and "someone else added trials" in said[0]


def test_a_full_disk_leaves_the_ledger_whole(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.record(first=1)
        ledger._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(ResourceError, match="disk is full"):
            ledger.record(second="x" * 10_000_000)
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.fact("first") == 1 and ledger.fact("second") is None


def test_a_study_on_postgresql(server, tmp_path):
    setup = plan(pruning={"startup": 3})
    said: list[str] = []
    with Ledger(tmp_path / "ledger.db") as ledger:
        mirror = Mirror(server, tmp_path, "pg", {}, setup.space.distributions, said.append)
        search = Search(setup, ledger, FakePool(), HalfJudge(setup.study), mirror, 8)
        search.run()
        mirror.flush(last=True)
        mirror.close()
    storage = open_storage(storage_url(server, tmp_path))
    study = optuna.load_study(study_name="pg", storage=storage)
    assert [t.state.is_finished() for t in study.trials] == [True] * 8 and not said
    assert [t.value for t in study.trials] == [search.verdicts[n].score for n in range(8)]
    backend = storage._backend
    assert isinstance(backend, RDBStorage)
    assert type(backend.engine.pool).__name__ == "NullPool"
    with pytest.raises(ConfigError, match="another one"):
        Mirror(server, tmp_path, "pg", {"b": 2}, setup.space.distributions, said.append)
