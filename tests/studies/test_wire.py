"""What machines send each other: whole, exactly what was meant, and never code."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ConfigError, KernelError, ResourceError
from slipstream.studies.engine.member import DailyReturns, Outcome
from slipstream.studies.engine.state import LiveStates, State, fingerprint
from slipstream.studies.engine.stretch import Task
from slipstream.studies.machines.wire import (
    Copies,
    Lost,
    blamed,
    pack,
    pack_answer,
    pack_tasks,
    unpack,
    unpack_answer,
    unpack_tasks,
)


@pytest.fixture
def tasks(engine):
    return [Task(engine.member(k), 2 + k) for k in range(3)]


def copies(tasks, **changes):
    name = tasks[0].member.config.env_name
    return replace(Copies(name, name, None, None), **changes)


def outcome(task, passes=True):
    found = DailyReturns(
        np.arange(3),
        np.array([0.1, np.nan, -0.0]),
        np.array([1e-300, np.inf, 0.1 + 0.2]),
        np.array([0, 0, 1]),
        [{"fills": 2.0}, {"fills": 3.5}],
    )
    return Outcome(
        task.member.name, task.until, found if passes else None, False, "", 96, {"env": 0.1}
    )


def test_a_parcel_is_what_was_packed():
    facts, blobs = unpack(pack({"a": [1, 0.1 + 0.2, None]}, {"x": b"\0\1", "y": b""}))
    assert facts == {"a": [1, 0.1 + 0.2, None]} and blobs == {"x": b"\0\1", "y": b""}


def test_damage_is_refused():
    content = pack({"a": 1}, {"x": bytes(100)})
    for bad in (content[:-1], content[:30], content[:-1] + b"\1", content + b"\0"):
        with pytest.raises(CheckpointError, match="damaged"):
            unpack(bad)
    for bad in (b"", b"garbage", pickle.dumps({"a": 1}), json.dumps({"a": 1}).encode()):
        with pytest.raises(CheckpointError, match="not slipstream's"):
            unpack(bad)


def test_members_are_resolved_again_to_the_same(tasks):
    found = unpack_tasks(pack_tasks(tasks), copies(tasks))
    assert found == tasks
    assert [fingerprint(a.member) for a in found] == [fingerprint(b.member) for b in tasks]


def changed(tasks, **values):
    facts, _ = unpack(pack_tasks(tasks[:1]))
    return pack([{**facts[0], **values}])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "../../escape"}, "no stretch of work"),
        ({"name": "search-0-0"}, "no member's name"),
        ({"seed": "1"}, "seed, budget"),
        ({"until": -1}, "seed, budget"),
        ({"fold": ["fold0"]}, "splits"),
        ({"fingerprint": "0" * 64}, "otherwise than its sender"),
        ({"config": {"env": {"name": "/tmp/evil.py"}}}, r"evil\.py"),
        ({"config": "evil"}, "no stretch of work"),
    ],
)
def test_what_is_no_work_is_refused(tasks, values, reason):
    with pytest.raises(CheckpointError, match=reason):
        unpack_tasks(changed(tasks, **values), copies(tasks))
    for bad in ({"lost": 1}, ["x"], None, 3):
        with pytest.raises(CheckpointError):
            unpack_tasks(pack(bad), copies(tasks))


def test_another_folder_of_the_same_prices(tmp_path):
    """Members keep the owner's folder, so that states fit everywhere; only loading differs."""
    here = Copies("portfolio", "portfolio", "/owner/prices", str(tmp_path))
    values = here.resolve(
        {
            "env": {"name": "portfolio", "data": {"folder": "/owner/prices"}},
            "training": {"num_envs": 4},
        }
    )
    assert values.env_settings["data"]["folder"] == "/owner/prices"
    assert here.own(values).env_settings["data"]["folder"] == str(tmp_path)
    with pytest.raises(ConfigError, match="elsewhere"):
        here.resolve({"env": {"name": "portfolio", "data": {"folder": "/elsewhere"}}})


def test_outcomes_arrive_to_the_bit(tasks):
    sent = [outcome(task) for task in tasks]
    found = unpack_answer(pack_answer(sent), tasks)
    for one, other in zip(found, sent, strict=True):
        assert replace(one, passes=None) == replace(other, passes=None)
        for name in ("days", "returns", "benchmark", "group"):
            a, b = getattr(one.passes, name), getattr(other.passes, name)
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
        assert one.passes.metrics == other.passes.metrics


def test_other_answers(tasks):
    lost = Lost("was killed by SIGKILL", "died")
    assert unpack_answer(pack_answer(lost), tasks) == lost
    error = unpack_answer(pack_answer(KernelError("bad number")), tasks)
    assert type(error) is KernelError and str(error) == "bad number"
    assert blamed(error) and not blamed(ResourceError("disk")) and not blamed(RuntimeError())


def test_answers_to_something_else_are_refused(tasks):
    good = [outcome(task) for task in tasks]
    for bad in (
        good[:2],
        good[::-1],
        [*good, good[0]],
        [replace(good[0], milestone=9), *good[1:]],
        [replace(good[0], passes=None), *good[1:]],
    ):
        with pytest.raises(CheckpointError, match="expected"):
            unpack_answer(pack_answer(bad), tasks)
    for bad in ({}, {"error": ["SystemExit", ""]}, {"lost": ["x", "y"]}, {"outcomes": [1]}, [1]):
        with pytest.raises(CheckpointError, match="no answer"):
            unpack_answer(pack(bad), tasks)


def test_states_travel_as_files(engine, tmp_path):
    here, there = LiveStates(tmp_path / "here"), LiveStates(tmp_path / "there")
    member, other = engine.member(0), engine.member(1)
    own = fingerprint(member)
    assert here.content(member.name) is None
    for iteration in (3, 2):
        here.save(member, State(iteration, {"w": np.full(4, float(iteration))}))
        content = here.content(member.name)
        assert there.put(member.name, content, own)
        assert there.load(member).iteration == 3  # a later state stays
    for bad in (b"", b"garbage", content[:-1], content[:-1] + b"\7", pickle.dumps(1)):
        assert not there.put(member.name, bad)
    assert not there.put(member.name, content, fingerprint(other))
    assert there.load(member).iteration == 3
