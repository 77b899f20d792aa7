"""The register of folders that this user's commands made: many processes, kills, moves, limits."""

import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.storage import folder_registry
from slipstream.core.storage.atomic_io import write_hashed
from slipstream.training.runs.run import Run

AGENT = {"agent.n_steps": 16, "agent.batch_size": 32, "agent.n_epochs": 1}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state folder of the test's own; what was said before is forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder_registry._SAID.clear()
    return tmp_path / "state" / "slipstream"


def folder_of(path, number):
    path.mkdir(parents=True)
    write_hashed(path / "provenance.json", {"id": number})
    return path


def enter(path, log=print):
    folder_registry.register_folder(path, "run", "cartpole", log)


def test_the_state_folder_is_the_users_alone(state):
    assert folder_registry.state_folder() == state
    assert folder_registry.state_folder("holdouts") == state / "holdouts"
    assert stat.S_IMODE((state / "holdouts").stat().st_mode) == 0o700
    state.chmod(0o777)
    with pytest.raises(ResourceError, match="writable by you alone"):
        folder_registry.state_folder()


def test_a_relative_state_home_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_registry.state_folder() == tmp_path / ".local" / "state" / "slipstream"


def test_a_run_is_known_where_it_was_moved_and_a_folder_in_its_place_is_not(tmp_path):
    run = folder_of(tmp_path / "run", "a1")
    enter(run)
    assert folder_registry.find_entry("a1", run).is_present
    shutil.move(run, tmp_path / "moved")
    folder_of(run, "b2")
    assert folder_registry.find_entry("b2", run) is None
    assert not folder_registry.list_entries()[0].is_present
    assert folder_registry.find_entry("a1", tmp_path / "moved").path == str(tmp_path / "moved")
    assert folder_registry.list_entries()[0].is_present
    assert [one.kind for one in folder_registry.list_entries()] == ["run"]


@pytest.mark.parametrize("number", ["../../etc/passwd", "", "a/b", "."])
def test_an_id_is_never_a_path(number, tmp_path):
    assert folder_registry.find_entry(number, tmp_path) is None


def test_what_is_damaged_or_another_entrys_is_passed_over(state, tmp_path):
    enter(folder_of(tmp_path / "run", "a1"))
    entry = state / "folders" / "a1.json"
    shutil.copy(entry, entry.with_name("b2.json"))
    assert folder_registry.find_entry("b2", tmp_path) is None
    entry.write_text(entry.read_text()[:40])
    assert (
        folder_registry.find_entry("a1", tmp_path) is None and folder_registry.list_entries() == []
    )


def test_what_cannot_be_written_is_said_once(state, tmp_path):
    state.parent.write_text("a file where the folder should be")
    said = []
    enter(folder_of(tmp_path / "one", "a1"), said.append)
    enter(folder_of(tmp_path / "two", "b2"), said.append)
    assert len(said) == 1 and str(state) in said[0] and "The work continues" in said[0]


def test_it_is_bounded_and_forgets_what_is_gone_first(state, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_registry, "_MOST", 10)
    for k in range(10):
        enter(folder_of(tmp_path / f"run{k}", f"a{k}"))
    shutil.rmtree(tmp_path / "run9")
    enter(folder_of(tmp_path / "last", "b"))
    left = {one.id for one in folder_registry.list_entries()}
    assert len(left) == 9 and not left & {"a9", "a0"}


def _enter_many(base, worker):
    for k in range(20):
        enter(folder_of(base / f"{worker}-{k}", f"w{worker}n{k}"))


def test_processes_beside_each_other_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_enter_many, args=(tmp_path, w)) for w in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert len(folder_registry.list_entries()) == 80


def test_a_kill_leaves_whole_entries_only(state, tmp_path):
    code = (
        "import itertools, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from test_register import enter, folder_of\n"
        "for k in itertools.count():\n"
        "    enter(folder_of(Path(sys.argv[2]) / str(k), f'a{k}')); print(k, flush=True)"
    )
    arguments = [sys.executable, "-c", code, os.path.dirname(__file__), str(tmp_path / "many")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(50):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    files = list((state / "folders").glob("*.json"))
    assert len(files) > last and len(folder_registry.list_entries()) == len(files)
    enter(folder_of(tmp_path / "next", "b"))
    assert not list((state / "folders").glob(".*partial"))


def test_runs_of_python_are_entered_with_their_own_id(tmp_path):
    run = slipstream.train(
        "cartpole",
        out=tmp_path / "run",
        overrides=AGENT,
        num_envs=4,
        total_timesteps=128,
        report=False,
    )
    (entry,) = folder_registry.list_entries()
    assert entry.path == str(run.path) and entry.name == "cartpole" and entry.is_present
    assert entry.id == run.provenance["id"]


def test_an_entry_with_a_key_of_a_later_version_is_read(state, tmp_path):
    run = folder_of(tmp_path / "run", "a1")
    enter(run)
    path = state / "folders" / "a1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    assert folder_registry.find_entry("a1", run).is_present
    assert [one.id for one in folder_registry.list_entries()] == ["a1"]


def test_a_run_is_opened_by_its_name_from_every_folder(tmp_path, monkeypatch):
    path = slipstream.train(
        "cartpole", out=tmp_path / "a" / "r1", overrides=AGENT, num_envs=4, total_timesteps=128
    ).path
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    assert str(Run.open("r1").path) == str(tmp_path / "a" / "r1")
    assert np.array_equal(
        slipstream.load_policy("r1").parameters.flat, slipstream.load_policy(path).parameters.flat
    )
    with pytest.raises(CheckpointError, match="is not a run directory"):
        Run.open("r2")
    assert folder_registry.find_folder("r1", "study") is None
    assert folder_registry.find_folder("a/r1") is None  # a path is no name
