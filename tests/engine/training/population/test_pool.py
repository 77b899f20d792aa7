"""The pool: any number of workers, batches of any size, processes that die at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.training.population import member_pool as pool_module
from slipstream.training.population import pool_worker as worker_module
from slipstream.training.population.member_pool import Pool
from slipstream.training.population.member_state import LiveStates

COUNT = 14


@pytest.fixture
def members(engine):
    return [engine.member(k) for k in range(COUNT)]


def collect(pool, count, each=lambda pool: None):
    found = {}
    while len(found) < count:
        for one in pool.collect(5.0):
            assert (one.name, one.milestone) not in found
            found[one.name, one.milestone] = one
        each(pool)
    return found


def bits(outcomes):
    return {key: one.backtests.returns.tobytes() for key, one in outcomes.items()}


@pytest.fixture
def expected(engine, members, tmp_path):
    """Scores at two milestones and final states, trained in this process."""
    folder = tmp_path / "expected"
    first, _ = engine.train(members, 2, folder)
    second, states = engine.train(members, 6, folder)
    return {(o.name, o.milestone): o.backtests.returns.tobytes() for o in first + second}, states


@pytest.mark.parametrize(
    ("workers", "size", "kills"),
    [
        pytest.param(1, 6, 0, marks=pytest.mark.slow),
        pytest.param(2, None, 0, marks=pytest.mark.slow),
        (2, 3, 3),
    ],
)
def test_same_bits(engine, members, expected, tmp_path, workers, size, kills):
    left = [kills]

    def kill(pool):
        alive = [slot.worker for slot in pool._slots if slot.worker is not None]
        if left[0] and alive:
            left[0] -= 1
            os.kill(random.choice(alive).pid, signal.SIGKILL)

    with Pool(tmp_path, engine.source(), workers, size) as pool:
        pool.submit(members, [2] * COUNT)
        kill(pool)
        found = collect(pool, COUNT, kill)
        pool.submit(members, [6] * COUNT)
        found |= collect(pool, COUNT, kill)
        assert pool.collect(0.0) == [] == pool.collect(None)
    scores, states = expected
    assert bits(found) == scores
    live = LiveStates(tmp_path / "live")
    assert {m.name: engine.digest(live, m) for m in members} == states


HELPERS = Path(__file__).parents[2] / "helpers"
DRIVER = """
import sys
sys.path.insert(0, {helpers!r})
from pathlib import Path
from population_members import Engine
from slipstream.training.population.member_pool import Pool
engine = Engine()
members = [engine.member(k, budget=60) for k in range({count})]
with Pool(Path(sys.argv[1]), engine.source(), 2, 4) as pool:
    pool.submit(members, [60] * len(members))
    print("begun", flush=True)
    done = 0
    while done < len(members):
        done += len(pool.collect(1.0))
print("done", flush=True)
"""


@pytest.mark.slow
def test_whole_process_killed_at_random_moments(engine, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(helpers=str(HELPERS), count=6))
    folder = tmp_path / "study"
    for k in range(3):
        with subprocess.Popen(
            [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "begun\n"
            children = _children(process.pid)
            if k < 2:
                time.sleep(random.Random(k).uniform(0.0, 1.0))
                process.kill()
                process.wait()
                _gone(children)
            else:
                assert process.stdout.readline() == "done\n"
    members = [engine.member(k, budget=60) for k in range(6)]
    live = LiveStates(folder / "live")
    _, states = engine.train(members, 60, tmp_path / "alone")
    assert {m.name: engine.digest(live, m) for m in members} == states


def _children(pid):
    return [int(line) for line in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _gone(pids):
    """Workers follow their parent at once."""
    deadline = time.monotonic() + 60.0
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_pool_follows_the_cores_that_it_may_use(
    engine, members, expected, tmp_path, monkeypatch
):
    """A queue's supervisor gives cores and takes them: workers come and go, no bit changes."""
    given = [2, 1, 1, 1, *[3] * 1000]  # after so many looks
    seen = []
    monkeypatch.setattr(pool_module, "usable_cores", lambda: given[len(seen)])

    def look(pool):
        seen.append((given[len(seen)], sum(one.batch is not None for one in pool._slots)))

    with Pool(tmp_path, engine.source(), None, 2) as pool:
        pool.submit(members, [2] * COUNT)
        found = collect(pool, COUNT, look)
        pool.submit(members, [6] * COUNT)
        found |= collect(pool, COUNT, look)
    assert {(1, 1), (3, 3)} <= set(seen), seen
    assert bits(found) == expected[0]


@pytest.mark.slow
def test_closed_in_the_middle(engine, tmp_path, monkeypatch):
    """Closing saves the members under way after their iteration."""
    monkeypatch.setattr(pool_module, "PATIENCE_SECONDS", 250.0)  # the first one may compile
    members = [engine.member(k, budget=400_000) for k in range(4)]
    source = engine.source()
    with Pool(tmp_path, source, 2) as pool:
        pool.submit(members, [400_000] * 4)
        assert pool.collect(1.0) == []
    live = LiveStates(tmp_path / "live")
    reached = [live.iteration(member) for member in members]
    assert all(0 < iteration < 400_000 for iteration in reached)
    _, states = engine.train(members, reached, tmp_path / "alone", source)
    assert {m.name: engine.digest(live, m) for m in members} == states


def test_final_policies(engine, members, tmp_path):
    with Pool(tmp_path, engine.source(), 2) as pool:
        pool.submit(members, [6] * COUNT)
        collect(pool, COUNT)
        before = {member.name: pool.policy(member.name) for member in members}
        for member in members[:12]:
            pool.finish(member.name)
        pool.drop(members[12].name)
        assert pool.collect(0.0) == []
        files = sorted(path.name for path in (tmp_path / "weights").iterdir())
        assert files == ["search-00000.safetensors", "search-00001.safetensors"]
        live = sorted(path.name for path in (tmp_path / "live").glob("*.state"))
        assert live == ["search-00002-1.state"]
        for member in members[:12]:
            tensors, manifest = pool.policy(member.name)
            old, facts = before[member.name]
            assert manifest == facts and tensors.keys() == old.keys()
            assert all(np.array_equal(tensors[k], old[k], equal_nan=True) for k in old)
            pool.finish(member.name)  # a study that goes on says so again
        with pytest.raises(CheckpointError, match="search-00002-0"):
            pool.policy(members[12].name)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == files


def test_dropped_under_way(engine, members, tmp_path):
    with Pool(tmp_path, engine.source(), 1, 2) as pool:
        pool.submit(members[:4], [6] * 4)
        pool.drop(members[0].name)
        pool.drop(members[3].name)
        assert {name for name, _ in collect(pool, 2)} == {m.name for m in members[1:3]}
    live = sorted(path.name for path in (tmp_path / "live").glob("*.state"))
    assert live == ["search-00000-1.state", "search-00000-2.state"]


def test_what_cannot_be_trained_fails_alone(engine, members, tmp_path):
    """Data that cannot be divided; an environment whose numbers overflow."""
    short = engine.member(1, **{"env.bars": 30})
    broken = engine.member(2, **{"env.fee": 1e308})
    with Pool(tmp_path, engine.source(), 2) as pool:
        pool.submit([members[0], short, broken, members[3]], [2] * 4)
        found = {name: one for (name, _), one in collect(pool, 4).items()}
    assert [one.failed for _, one in sorted(found.items())] == [False, True, True, False]
    assert "bars" in found[short.name].reason
    assert "NaN or infinite" in found[broken.name].reason


def test_other_data_after_workers_were_forked(engine, members, tmp_path):
    source = engine.source()
    other = engine.member(1, **{"env.bars": 700})
    with Pool(tmp_path, source, 1) as pool:
        pool.submit(members[:1], [1])
        collect(pool, 1)
        first = pool._slots[0].worker.pid
        pool.submit([engine.member(2, **{"env.fee": 0.01})], [1])
        collect(pool, 1)
        assert pool._slots[0].worker.pid == first  # other settings of the same data
        pool.submit([other], [1])
        assert not collect(pool, 1)[other.name, 1].failed
        assert pool._slots[0].worker.pid != first


def test_workers_that_die_again_and_again(engine, members, tmp_path, monkeypatch):
    """Others are trained to their milestones first; then the user hears of it."""
    run = worker_module.run_training_segment

    def deadly(tasks, *others):
        if any(task.member.name == members[2].name for task in tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        return run(tasks, *others)

    monkeypatch.setattr(worker_module, "run_training_segment", deadly)
    found = []
    with Pool(tmp_path, engine.source(), 1) as pool:
        pool.submit(members[:4], [2] * 4)
        with pytest.raises(ResourceError, match=r"search-00000-2 was killed by SIGKILL"):
            while True:
                found += pool.collect(30.0)
    assert {one.name for one in found} <= {m.name for m in members[:4]} - {members[2].name}


def test_disk_full(engine, members, tmp_path, monkeypatch):
    """Saved states remain, and the study stops with a message of one paragraph."""

    def full(self, member, state):
        raise ResourceError("The disk is full.")

    monkeypatch.setattr(LiveStates, "save", full)
    with Pool(tmp_path, engine.source(), 1) as pool:
        pool.submit(members[:2], [2, 2])
        with pytest.raises(ResourceError, match="disk is full"):
            pool.collect(None)
