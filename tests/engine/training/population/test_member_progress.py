"""Members on their way: bounded, whole for readers whatever is killed; nothing depends on it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
import study_world

from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.status_file import Status, progress_parts
from slipstream.studies.record.ledger import Slot
from slipstream.studies.search import session as progress
from slipstream.training.population import member_state
from slipstream.training.population.member_state import (
    PROGRESS_FILE,
    InMemoryStates,
    LiveStates,
    MemberProgress,
    append,
    read_progress,
)

FORK = multiprocessing.get_context("fork")


def at(name, step, score=0.5):
    return MemberProgress(name, step, score, 1.0)


def test_the_newest_of_each_member_counts(tmp_path):
    path = tmp_path / PROGRESS_FILE
    assert read_progress(path) == {}
    assert append(
        path, [MemberProgress.now("search-00001-0", 64, float("nan")), at("search-00001-1", 8)]
    )
    assert append(path, [at("search-00001-0", 128, 2.5)])
    found = read_progress(path)
    assert found["search-00001-0"] == at("search-00001-0", 128, 2.5)
    assert found["search-00001-1"].step == 8
    first = json.loads(path.read_text().splitlines()[1])
    assert first[1:] == ["search-00001-0", 64, None] and abs(first[0] - time.time()) < 60


@pytest.mark.parametrize("torn", [b'[1.0, "search-000', b"\n\x00\xff\n", b'["x"]\n', b"[" * 5_000])
def test_what_a_kill_left_hides_nobody(tmp_path, torn):
    path = tmp_path / PROGRESS_FILE
    append(path, [at("a", 1)])
    with path.open("ab") as file:
        file.write(torn)
    append(path, [at("b", 2)])
    assert {name: one.step for name, one in read_progress(path).items()} == {"a": 1, "b": 2}


def test_it_is_bounded_and_the_oldest_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(member_state, "LIMIT", 4_096)
    path = tmp_path / PROGRESS_FILE
    for step in range(1_000):
        assert append(path, [at(f"search-{step % 7:05d}-0", step)])
        assert path.stat().st_size <= 4_096
    assert sorted(one.step for one in read_progress(path).values()) == list(range(993, 1_000))
    steps = [json.loads(line)[2] for line in path.read_text().splitlines() if line]
    assert steps == list(range(steps[0], 1_000)) and len(steps) > 40


def _append_all(path, name, count):
    for step in range(count):
        while not append(path, [at(name, step), at(f"{name}-b", step)]):
            pass
    os._exit(0)


def test_nothing_is_lost_among_concurrent_workers(tmp_path):
    path = tmp_path / PROGRESS_FILE
    workers = [FORK.Process(target=_append_all, args=(path, f"w{k}", 200)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert len(lines) == 4 * 2 * 200
    assert {name: one.step for name, one in read_progress(path).items()} == {
        f"w{k}{half}": 199 for k in range(4) for half in ("", "-b")
    }


def test_killed_in_the_midst_of_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(member_state, "LIMIT", 20_000)  # it is shortened all the time
    path = tmp_path / PROGRESS_FILE
    for kill in range(10):
        worker = FORK.Process(target=_append_all, args=(path, "search-00001-0", 10**9))
        worker.start()
        while not read_progress(path):
            pass
        time.sleep(0.002 * kill)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(60)
        assert append(path, [at("after", kill)]), "a lock outlived its process"
        found = read_progress(path)
        assert found["after"].step == kill and found["search-00001-0"].step >= 0
        assert path.stat().st_size <= 20_000


def _hold(path, pipe):
    handle = os.open(path, os.O_RDWR)
    member_state.fcntl.flock(handle, member_state.fcntl.LOCK_EX)
    pipe.send(None)
    signal.pause()


def test_a_worker_that_stands_still_stops_no_other(tmp_path):
    path = tmp_path / PROGRESS_FILE
    append(path, [at("a", 1)])
    here, there = FORK.Pipe()
    worker = FORK.Process(target=_hold, args=(path, there))
    worker.start()
    here.recv()
    assert not append(path, [at("a", 2)])
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    assert append(path, [at("a", 2)]) and read_progress(path)["a"].step == 2


def test_what_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / PROGRESS_FILE).mkdir()
    LiveStates(tmp_path).write_progress([at("a", 1)])
    assert read_progress(tmp_path / PROGRESS_FILE) == {}


def test_a_stretch_tells_where_its_members_are(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(member_state, "EVERY_SECONDS", 0.0)
    members = [engine.member(k, env="cartpole", test="test", fold=0) for k in range(2)]
    outcomes, told = engine.train(members, 4, tmp_path / "often")
    text = (tmp_path / "often" / PROGRESS_FILE).read_text()
    lines = [json.loads(line) for line in text.splitlines() if line]
    found = read_progress(tmp_path / "often" / PROGRESS_FILE)
    assert {name: one.step for name, one in found.items()} == {
        member.name: 4 * engine.rows for member in members
    }
    assert lines[0][2] == engine.rows and all(one.score > 0 for one in found.values())
    monkeypatch.setattr(member_state, "EVERY_SECONDS", 1e9)
    again, quiet = engine.train(members, 4, tmp_path / "never")
    assert quiet == told and [one.steps for one in again] == [one.steps for one in outcomes]


def test_on_another_machine_it_waits_for_the_owner(tmp_path):
    held = InMemoryStates()
    assert held.due
    held.write_progress([at("a", 1), at("b", 1)])
    held.write_progress([at("a", 2)])
    assert not held.due
    assert [MemberProgress(*one) for one in held.drain_progress()] == [at("a", 2), at("b", 1)]
    assert held.drain_progress() == []


def test_members_of_running_trials_have_numbers(tmp_path, monkeypatch):
    path = tmp_path / PROGRESS_FILE
    slots = [Slot("search", 9, 0, 0), Slot("search", 9, 0, 1), Slot("confirm", 9, 1, 2)]
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    watcher = progress.ProgressReader(path)
    assert watcher.running_members(slots)[0] == {"trial": 9, "fold": 0}
    append(path, [at(name, 640) for name in ("search-00000-0", "search-00009-1", "odd")])
    append(path, [at("confirm-00009-1-2", 1_280, None)])
    numbers = {"trial": 9, "fold": 1, "step": 640, "score": 0.5, "time": 1.0}
    last = {"trial": 9, "fold": 2, "step": 1_280, "score": None, "time": 1.0}
    assert watcher.running_members(slots) == [{"trial": 9, "fold": 0}, numbers, last]
    append(path, [at("other", step) for step in range(5_000)])  # more than a look reads
    assert watcher.running_members(slots[:2]) == [
        {"trial": 9, "fold": 0},
        numbers,
    ]  # who is parked is known
    status = Status(
        "study", phase="search", total=8, unit="trials", running=watcher.running_members(slots)
    )
    assert ", 1 running" in progress_parts(replace(status, counts={"complete": 1}))[0]


def test_a_study_tells_them(tmp_path, monkeypatch):
    """Whoever reads the study's status, while it runs."""
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    shown, live = [], tmp_path / "one" / "live"
    show = Logbook.show
    submit = study_world.SkilledPool.submit

    def said(self, members, until):
        live.mkdir(exist_ok=True)
        append(live / PROGRESS_FILE, [at(member.name, 64) for member in members])
        submit(self, members, until)

    monkeypatch.setattr(study_world.SkilledPool, "submit", said)

    def told(self, status, at_once=False):
        shown.append(status)
        show(self, status, at_once)

    monkeypatch.setattr(Logbook, "show", told)
    study_world.run_study(tmp_path / "one", trials=8, market=None)
    numbers = [one for status in shown for one in status.running if "step" in one]
    assert numbers and all((one["step"], one["score"]) == (64, 0.5) for one in numbers)
