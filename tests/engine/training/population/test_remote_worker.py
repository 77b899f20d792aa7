"""Stretches on other machines, by a fake of the cluster: the same bits, whoever is lost."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from fake_cluster import FakeCluster

from slipstream.core.errors import DataError, ResourceError
from slipstream.training.cluster.node_service import work_for
from slipstream.training.population import pool_worker
from slipstream.training.population.member import Outcome
from slipstream.training.population.member_pool import Pool
from slipstream.training.population.member_state import (
    PROGRESS_FILE,
    LiveStates,
    State,
    read_progress,
)
from slipstream.training.population.pool_worker import SERVICE, Reply, SegmentService

LONG = 400_000  # iterations, more than any machine makes before it is stopped


@pytest.fixture
def work(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(
        Path(__file__).parents[2] / "samples"
    )  # where the toy market's file is, as on a node
    config, files = engine.member(0).config, tmp_path / "files"
    files.mkdir()
    return work_for("the study", SERVICE, engine.source().environment(config), config, files)


def pool_of(engine, cluster, folder):
    return Pool(folder, engine.source(), 0, None, cluster)


def collect(pool, count, each=lambda: None):
    found, deadline = {}, time.monotonic() + 120.0
    while len(found) < count:
        assert time.monotonic() < deadline
        each()
        found |= {one.name: one for one in pool.collect(0.05)}
    return found


def bits(outcomes):
    return {one.name: one.backtests.returns.tobytes() for one in outcomes}


def states_of(engine, folder, members):
    live = LiveStates(folder / "live")
    return {member.name: engine.digest(live, member) for member in members}


def policies_of(folder, members):
    """Return the policies of members that reached their budgets."""
    live = LiveStates(folder)
    found = {member.name: live.policy(member.name)[0] for member in members}
    return {name: {k: v.tobytes() for k, v in one.items()} for name, one in found.items()}


def test_same_bits_for_any_number_of_actors(engine, work, tmp_path):
    members = [engine.member(k) for k in range(14)]
    other = engine.member(14, **{"env.bars": 700})  # arrays that nodes do not have yet
    expected, _ = engine.train(members, 6, tmp_path / "alone")
    expected += engine.train([other], 6, tmp_path / "alone")[0]
    policies = policies_of(tmp_path / "alone", [*members, other])
    for count in (1, 2):
        folder = tmp_path / f"by {count}"
        with FakeCluster(work, count) as cluster, pool_of(engine, cluster, folder) as pool:
            pool.submit([*members, other], [6] * 15)
            assert bits(collect(pool, 15).values()) == bits(expected)
            assert policies_of(folder / "live", [*members, other]) == policies
            told = pool.nodes
        assert sum(node["answers"] for node in told) >= 2 and len(told) == count
    alone, far = (LiveStates(tmp_path / one).content(other.name) for one in ("alone", "by 2/live"))
    assert len(far) < 0.7 * len(alone)  # nobody goes on from it
    again, _ = engine.train([other], 6, folder / "live")  # it is scored again nonetheless
    assert bits(again) == bits(expected[-1:])
    assert policies_of(folder / "live", [other]) == policies_of(tmp_path / "alone", [other])


def test_what_was_handed_over_is_not_trained_again(engine, work, tmp_path, monkeypatch):
    """Actors are lost in the middle; others go on from the states of the last minute."""
    monkeypatch.setattr(pool_worker, "SAVE_SECONDS", 0.0)
    members = [engine.member(k, budget=60) for k in range(4)]
    live, reached = LiveStates(tmp_path / "live"), []
    check_stop = SegmentService._check_stop

    def wait(self):
        """Keep the worker that is to be lost from ending earlier."""
        if len(reached) < 3 and self._request.newer(dict(self._request.received)):
            self._leaving.wait(60.0)
        check_stop(self)

    monkeypatch.setattr(SegmentService, "_check_stop", wait)
    with FakeCluster(work) as cluster, pool_of(engine, cluster, tmp_path) as pool:
        pool.submit(members, [60] * 4)

        def lose():
            actor = cluster.actors[-1]
            if len(cluster.actors) < 4 and actor.busy and actor.hand_over():
                assert pool.collect(0.0) == []
                before = min(live.iteration(member) for member in members)
                if before > max(reached, default=0):
                    reached.append(before)
                    actor.lose("died" if len(reached) == 1 else "silent")
                    cluster.add()

        found = collect(pool, 4, lose)
    assert len(reached) == 3 and 0 < reached[0] < reached[1] < reached[2] < 60
    said = read_progress(tmp_path / "live" / PROGRESS_FILE)  # which came with the states
    assert said and {*said} <= {member.name for member in members}
    assert all(0 < one.step <= 60 * engine.rows for one in said.values())
    expected, _ = engine.train(members, 60, tmp_path / "alone")
    assert bits(found.values()) == bits(expected)
    assert policies_of(tmp_path / "live", members) == policies_of(tmp_path / "alone", members)


def test_closed_in_the_middle(engine, work, tmp_path):
    members = [engine.member(k, budget=LONG) for k in range(3)]
    with FakeCluster(work, 2) as cluster, pool_of(engine, cluster, tmp_path) as pool:
        pool.submit(members, [LONG] * 3)
        assert any(actor.busy for actor in cluster.actors)
        while not all(actor.service._request for actor in cluster.actors if actor.busy):
            assert pool.collect(0.01) == []
    live = LiveStates(tmp_path / "live")
    reached = [live.iteration(member) for member in members]
    assert all(0 < iteration < LONG for iteration in reached)
    _, states = engine.train(members, reached, tmp_path / "alone")
    assert states_of(engine, tmp_path, members) == states


@pytest.mark.slow
def test_an_answer_that_is_none(engine, work, tmp_path):
    """Unverifiable answers are rejected, and the actor is not used again."""
    member = engine.member(0)
    live = LiveStates(tmp_path / "other")
    live.save(engine.member(1), State(3, {"w": np.zeros(1)}))
    foreign = live.content(engine.member(1).name)
    done = Outcome(member.name, 9, None)
    lies = (
        Reply({}, end=[]),
        Reply({}, end=[done]),
        Reply({member.name: foreign}, end=[]),
        Reply({"../escape": foreign}, end=[]),
    )
    for k, lie in enumerate(lies):
        folder = tmp_path / str(k)
        with FakeCluster(work) as cluster, pool_of(engine, cluster, folder) as pool:
            cluster.actors[0].lie = pickle.dumps(lie)
            pool.submit([member], [2])
            cluster.add()
            assert not collect(pool, 1)[member.name].failed
            assert cluster.actors[0].released and cluster.actors[1].answers == 1
        assert not (folder / "escape.state").exists()


def test_a_member_that_kills_every_node(engine, work, tmp_path):
    with FakeCluster(work) as cluster, pool_of(engine, cluster, tmp_path) as pool:
        pool.submit([engine.member(0, budget=LONG)], [LONG])

        def lose():
            actor = cluster.actors[-1]
            if actor.busy and not actor.released:
                actor.lose()
                cluster.add()

        with pytest.raises(ResourceError, match=r"search-00000-0 on node3 was lost, 4 times"):
            collect(pool, 1, lose)


def test_what_cannot_be_trained_fails_alone(engine, work, tmp_path):
    broken = engine.member(2, **{"env.fee": 1e308})
    with FakeCluster(work, 2) as cluster, pool_of(engine, cluster, tmp_path) as pool:
        pool.submit([engine.member(0), broken], [2, 2])
        found = collect(pool, 2)
    assert sorted(one.failed for one in found.values()) == [False, True]
    assert "NaN or infinite" in found[broken.name].reason


def test_corrupted_arrays_are_refused(work):
    with pytest.raises(DataError, match="sha256 differ"):
        FakeCluster(work, corrupt=True)


def test_states_travel_as_files(engine, tmp_path):
    here, there = LiveStates(tmp_path / "here"), LiveStates(tmp_path / "there")
    member, other = engine.member(0), engine.member(1)
    own = member.fingerprint
    assert here.content(member.name) is None
    for iteration in (3, 2):
        here.save(member, State(iteration, {"w": np.full(4, float(iteration))}))
        content = here.content(member.name)
        assert there.store(member.name, content, own)
        assert there.load(member).iteration == 3  # a later state stays
    for bad in (b"", b"garbage", content[:-1], content[:-1] + b"\7", pickle.dumps(1)):
        assert not there.store(member.name, bad)
    assert not there.store(member.name, content, other.fingerprint)
    assert there.load(member).iteration == 3
