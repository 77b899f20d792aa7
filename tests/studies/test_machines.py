"""Several machines and one study, on a real PostgreSQL server: the same bits, whoever goes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from test_tune_killed import CONFIG, command, contents, whole

from slipstream.core.errors import ConfigError
from slipstream.market.folds import FoldPlan
from slipstream.studies.engine.pool import Pool
from slipstream.studies.engine.state import LiveStates
from slipstream.studies.engine.stretch import Task
from slipstream.studies.machines import desk as desk_module
from slipstream.studies.machines import entry as entry_module
from slipstream.studies.machines import relay as relay_module
from slipstream.studies.machines.desk import GuestDesk, OwnerDesk
from slipstream.studies.machines.entry import entry_of
from slipstream.studies.machines.machine import machine_lines
from slipstream.studies.machines.relay import Relay
from slipstream.studies.machines.wire import Copies, pack, pack_tasks, unpack_tasks
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.storage import storage_url

# A machine whose heart beats and whose states are handed in every 0.3 seconds, and which does not
# mind that somebody edits slipstream while these tests run.
GUEST = """
from slipstream.studies.engine import stretch
from slipstream.studies.machines import entry, lender, postgres
entry._code_hash = lambda: "code"
lender.SAVE_SECONDS = stretch.SAVE_SECONDS = postgres.HEARTBEAT_SECONDS = 0.3
from slipstream.cli import main
main()
"""


@pytest.fixture(autouse=True)
def same_code(monkeypatch):
    monkeypatch.setattr(entry_module, "_code_hash", lambda: "code")


@pytest.fixture
def url(server):
    return storage_url(server, Path())


def lend(server, study, *more):
    words = ["study", "work", study, "--storage", server, "--workers", "1", *more]
    return subprocess.Popen(
        [sys.executable, "-c", GUEST, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def lent(server, study, *more):
    """A machine that is killed at the end, however that comes."""
    child = lend(server, study, *more)
    try:
        yield child
    finally:
        child.kill()
        if not child.stdout.closed:
            print(*child.communicate())  # seen where a test fails


def relay_of(engine, url, name, folder, said):
    base = engine.member(0).config
    return Relay(url, name, folder, entry_of(base, FoldPlan(), 6, {}), said.append)


def until(pool, happened, seconds=60.0):
    """Collects nothing until something has happened."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        assert pool.collect(0.1) == []


def saved(server):
    """States that machines have handed in."""
    with psycopg.connect(server) as other:
        found = other.execute("SELECT count(DISTINCT name) FROM slipstream_states WHERE back")
        return found.fetchone()[0]


@pytest.mark.long
def test_machines_come_and_go(engine, server, url, tmp_path, monkeypatch):
    """Interrupted, killed, cut off: members go on where they were saved, to the same bits."""
    monkeypatch.setattr(relay_module, "MACHINE_SILENT", 3.0)
    members, end = [engine.member(k, budget=2500) for k in range(4)], 2500
    env = members[0].config.env_name
    live, said = LiveStates(tmp_path / "live"), []

    def least():
        return min(live.iteration(member) for member in members)

    with (
        relay_of(engine, url, "come-and-go", tmp_path, said) as relay,
        Pool(tmp_path, engine.source(), 0, None, relay) as pool,
    ):
        pool.submit(members, [end] * 4)
        with lent(server, "come-and-go", "--env", env) as first:
            until(pool, lambda: saved(server) == 4)
            first.send_signal(signal.SIGINT)
            _, told = first.communicate(timeout=60)
            assert first.returncode == 130 and "study work come-and-go" in told
            until(pool, lambda: not pool._seats)
            reached = least()
            assert 0 < reached < end
        with lent(server, "come-and-go", "--env", env) as second:
            until(pool, lambda: saved(server) == 4)
            second.kill()
            until(pool, lambda: not pool._seats)
            assert reached < least() < end
        assert machine_lines(tmp_path) is not None
        with lent(server, "come-and-go", "--env", env):
            until(pool, lambda: any(seat.batch for seat in pool._seats))
            with psycopg.connect(server, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'slipstream'"
                )
            found = []
            while len(found) < len(members):
                found += pool.collect(5.0)
    expected, states = engine.train(members, end, tmp_path / "alone")
    print(*said, sep="\n")
    bits = {one.name: one.passes.returns.tobytes() for one in found}
    assert len(found) == len(members) == len(bits)
    assert bits == {one.name: one.passes.returns.tobytes() for one in expected}
    assert {m.name: engine.digest(live, m) for m in members} == states
    assert any("left" in one for one in said) and any("silent" in one for one in said)


@pytest.mark.long
def test_a_machine_that_was_asleep(engine, server, url, tmp_path, monkeypatch):
    """Others have done its work; it joins again and does what there is then."""
    monkeypatch.setattr(relay_module, "MACHINE_SILENT", 3.0)
    members, env = (
        [engine.member(k, budget=1500) for k in range(4)],
        engine.member(0).config.env_name,
    )
    with (
        relay_of(engine, url, "asleep", tmp_path, said := []) as relay,
        Pool(tmp_path, engine.source(), 0, None, relay) as pool,
        lent(server, "asleep", "--env", env) as child,
    ):
        pool.submit(members, [1500] * 4)
        until(pool, lambda: saved(server) == 4)
        child.send_signal(signal.SIGSTOP)
        until(pool, lambda: not pool._seats)
        child.send_signal(signal.SIGCONT)
        found = []
        while len(found) < 4:
            found += pool.collect(5.0)
    expected, _ = engine.train(members, 1500, tmp_path / "alone")
    bits = {one.name: one.passes.returns.tobytes() for one in found}
    assert bits == {one.name: one.passes.returns.tobytes() for one in expected}
    assert sum("lends 1 worker" in one for one in said) == 2


def test_closed_in_the_middle(engine, server, url, tmp_path):
    """What another machine has under way is called back as from local workers."""
    members = [engine.member(k, budget=20_000) for k in range(4)]
    env = members[0].config.env_name
    with lent(server, "closed", "--env", env) as child:
        with (
            relay_of(engine, url, "closed", tmp_path, []) as relay,
            Pool(tmp_path, engine.source(), 0, None, relay) as pool,
        ):
            pool.submit(members, [20_000] * 4)
            until(pool, lambda: any(seat.batch for seat in pool._seats))
            assert pool.collect(2.0) == []
        out, told = child.communicate(timeout=60)
        assert child.returncode == 0 and "has ended" in out, told
    live = LiveStates(tmp_path / "live")
    reached = [live.iteration(member) for member in members]
    assert all(0 < iteration < 20_000 for iteration in reached)
    _, states = engine.train(members, reached, tmp_path / "alone")
    assert {m.name: engine.digest(live, m) for m in members} == states


def test_an_answer_that_is_none(engine, url, tmp_path):
    """The owner believes nothing that it cannot check, and goes on without that machine."""
    members, said = [engine.member(k) for k in range(3)], []
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    with (
        relay_of(engine, url, "garbage", tmp_path, said) as relay,
        Pool(tmp_path, engine.source(), 1, None, relay) as pool,
        contextlib.closing(GuestDesk(url, "garbage")) as guest,
    ):
        for number, bad in enumerate((b"garbage", pickle.dumps(Evil()), pack({"outcomes": []}))):
            guest.join(f"m{number}", relay._session, pack({"host": f"bad{number}", "workers": 1}))
            until(pool, lambda n=number: pool._seats[-1].machine == f"m{n}")
            remote = pool._seats[-1].worker
            assert remote.send([Task(member, 2) for member in members])
            while not (work := guest.assigned(f"m{number}")):
                time.sleep(0.05)
            guest.hand_in(work[0].work, [], bad)
            assert remote.pipe.poll(10.0) and remote.receive().cause == "silent"
            assert not guest.known(f"m{number}")
        guest.join("m9", relay._session, b"\x80garbage")
        guest.join("m10", relay._session, pack({"host": "x", "workers": 10**9}))
        pool.submit(members, [2] * 3)
        found = []
        while len(found) < 3:
            found += pool.collect(5.0)
        until(pool, lambda: not guest.known("m9") and not guest.known("m10"))
    assert not marker.exists() and not any(one.failed for one in found)
    assert sum("not trusted" in one for one in said) == 3
    assert sum("could not join" in one for one in said) == 2


@pytest.mark.parametrize("what", ["request", "truncated", "state"])
def test_work_that_is_none(engine, server, url, tmp_path, what):
    """A machine leaves with an error where somebody else writes into the database."""
    member, name = engine.member(0), f"evil-{what}"
    env = member.config.env_name
    owner = OwnerDesk(url, name)
    entry = entry_of(member.config, FoldPlan(), 6, {})
    assert owner.take("session", entry.parcel())
    with lent(server, name, "--env", env) as child:
        while not (guests := owner.guests("session")):
            time.sleep(0.05)
        good = pack_tasks([Task(member, 2)])
        assert unpack_tasks(good, Copies(env, env, None, None))
        request = {"request": pickle.dumps([1]), "truncated": good[:-9], "state": good}[what]
        states = {member.name: b"garbage"} if what == "state" else {}
        owner.assign("w", guests[0].machine, 0, request, states)
        _, told = child.communicate(timeout=60)
    assert child.returncode == 2 and "in the database" in told, told
    assert [one.state for one in owner.guests("session")] == ["left"]
    owner.rest(ended=True)
    assert owner.leftover() == [] and owner.guests("session") == []
    owner.close()


def test_a_study_has_one_owner(engine, url, tmp_path, monkeypatch):
    monkeypatch.setattr(desk_module, "_LOCK_SECONDS", 0.2)
    with relay_of(engine, url, "owned", tmp_path, []):
        other = relay_of(engine, url, "owned", tmp_path / "other", [])
        with pytest.raises(ConfigError, match="Another process, perhaps on another machine"):
            other.__enter__()
    with relay_of(engine, url, "owned", tmp_path, []):
        pass


def test_no_such_study(server):
    with lent(server, "nobody-knows-it", "--wait", "0.02") as child:
        out, told = child.communicate(timeout=60)
    assert child.returncode == 2 and "waiting for it up to 0.02 minutes" in out
    assert "slipstream tune ... --study-name nobody-knows-it" in told and "tester" in told


def test_other_storages_are_no_place_to_meet(server):
    with lent("sqlite:///x.db", "one") as child:
        _, told = child.communicate(timeout=60)
    assert child.returncode == 2 and "PostgreSQL" in told


def test_nobody_would_train(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    done = subprocess.run(command(tmp_path, "--workers", "0"), capture_output=True, text=True)
    assert done.returncode == 2 and "--workers 0" in done.stderr


def test_nobody_has_come_yet(server, tmp_path):
    """An owner without workers of its own can be stopped while it waits for a machine."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    words = command(tmp_path, "--workers", "0", "--storage", server)
    words[words.index(str(tmp_path / "one"))] = str(tmp_path / "nobody")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if "waits for a machine" in line:
                break
        child.send_signal(signal.SIGTERM)
        _, told = child.communicate(timeout=60)
    assert child.returncode == 130 and "study resume" in told


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("workers", "kills"), [("1", False), pytest.param("0", True, marks=pytest.mark.long)]
)
def test_a_whole_study_is_the_same_study(server, tmp_path, workers, kills):
    """With a machine that joins before it begins; with an owner that is killed and resumed."""
    name, budget = f"whole-{workers}", ("--total-steps", "250_000" if kills else "20_000")
    expected = whole(tmp_path / "alone", *budget)
    folder = tmp_path / name
    folder.mkdir()
    (folder / "c.yaml").write_text(CONFIG)
    words = command(folder, *budget, "--workers", workers, "--storage", server)
    words[words.index(str(folder / "one"))] = str(folder / name)
    words[2] = GUEST
    with lent(server, name) as child:
        if kills:
            for _ in range(3):
                owner = subprocess.Popen(
                    words,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                time.sleep(10.0)
                os.killpg(owner.pid, signal.SIGKILL)
                owner.wait()
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        out, told = child.communicate(timeout=60)
        assert child.returncode == 0 and f"The study {name} has ended" in out, told
    assert "lends 1 worker" in done.stdout
    (folder / name).rename(folder / "one")
    assert contents(folder) == expected
    assert not StudyFolder(folder / "one").locked
