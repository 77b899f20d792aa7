"""Cached measurements: stored, ignored if they do not apply, without effect on results."""

import json
from dataclasses import replace

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.safe_io import HASH_KEY, payload_hash
from slipstream.core.storage import atomic_io
from slipstream.rl.nets.policy_file import pack
from slipstream.training import backend
from slipstream.training.environments import autotune_cache
from slipstream.training.environments.autotune_cache import (
    AutotuneEntry,
    Identity,
    StepConfig,
    load_entry,
    save_entry,
)
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve

IDENTITY = Identity("gym:X-v0", {"size": 3}, "abc")
FOUND = AutotuneEntry("2026-11-22", {1: StepConfig("serial", 1), 8: StepConfig("process", 2)})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_MACHINE", str(tmp_path))
    return tmp_path


def test_it_comes_back_for_near_numbers_of_copies():
    assert load_entry(IDENTITY) == (None, None)
    path = save_entry(IDENTITY, FOUND)
    assert load_entry(IDENTITY) == (FOUND, None)
    assert load_entry(replace(IDENTITY, settings={"size": 4})) == (None, None)
    assert FOUND.near(2) == ("serial", 1) and FOUND.near(16) == ("process", 2)
    assert FOUND.near(3) is None and FOUND.near(17) is None
    assert json.loads(path.read_text())["environment"]["name"] == "gym:X-v0"


def test_other_machines_keep_theirs_and_are_passed_over(monkeypatch):
    save_entry(IDENTITY, FOUND)
    here = autotune_cache.this_machine()
    monkeypatch.setattr(autotune_cache, "this_machine", lambda: {**here, "processor": "another"})
    measured, said = load_entry(IDENTITY)
    assert measured is None and "on another machine" in said and here["processor"] in said
    other = AutotuneEntry("2026-11-23", {4: StepConfig("serial", 1)})
    save_entry(IDENTITY, other)
    assert load_entry(IDENTITY)[0] == other
    monkeypatch.setattr(autotune_cache, "this_machine", lambda: here)
    assert load_entry(IDENTITY)[0] == FOUND


def test_fewer_cores_are_named(monkeypatch):
    here = autotune_cache.this_machine() | {"cores": 2}
    monkeypatch.setattr(autotune_cache, "this_machine", lambda: here)
    save_entry(IDENTITY, FOUND)
    monkeypatch.setattr(autotune_cache, "this_machine", lambda: {**here, "cores": 1})
    measured, said = load_entry(IDENTITY)
    assert measured is None and "or with other cores" in said
    assert said.index(", 2 cores, ") < said.index("than this one") < said.index(", 1 core, ")


def test_another_format_is_passed_over_and_written_anew():
    mine = Identity("my envs/shop.py", {}, "abc")
    path = save_entry(mine, FOUND)
    values = json.loads(path.read_text()) | {"format": 3}
    path.write_text(json.dumps(_with_seal(values)))
    measured, said = load_entry(mine)
    assert measured is None and "has format 3" in said and "reads 2" in said
    assert "run `slipstream autotune 'my envs/shop.py'`" in said  # as a shell takes it
    save_entry(mine, FOUND)
    assert load_entry(mine) == (FOUND, None)


def test_two_processes_do_not_write_at_once(folder, monkeypatch):
    monkeypatch.setattr(atomic_io, "_PATIENCE_SECONDS", 0.0)
    with (
        atomic_io.acquire_lock(folder, ""),
        pytest.raises(ConfigError, match="Another process is writing"),
    ):
        save_entry(IDENTITY, FOUND)
    save_entry(IDENTITY, FOUND)


def test_a_folder_that_cannot_be_made_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLIPSTREAM_MACHINE", str(tmp_path / "file/below"))
    measured, said = load_entry(IDENTITY)
    assert measured is None and "file/below may not be written" in said
    with pytest.raises(ResourceError, match="file/below may not be written"):
        save_entry(IDENTITY, FOUND)


def test_what_has_changed_since_is_passed_over():
    save_entry(IDENTITY, FOUND)
    measured, said = load_entry(replace(IDENTITY, source="other"))
    assert measured is None and "has changed since" in said
    assert "slipstream autotune gym:X-v0" in said


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: "{",
        lambda values: "[]",
        lambda values: json.dumps({**values, "format": "one"}),
        lambda values: json.dumps({**values, "format": 3}),  # the seal is of other facts
        lambda values: _sealed(values, {"8": {"backend": "process"}}),
        lambda values: _sealed(values, {"8": {"backend": "process", "workers": 0}}),
        lambda values: _sealed(values, {"8": {"backend": "process", "workers": float("inf")}}),
        lambda values: _sealed(values, {"many": {"backend": "process", "workers": 2}}),
    ],
)
def test_a_damaged_file_is_a_warning_and_written_anew(damage):
    path = save_entry(IDENTITY, FOUND)
    path.write_text(damage(json.loads(path.read_text())))
    measured, said = load_entry(IDENTITY)
    assert measured is None and str(path) in said and "Delete it, or run" in said
    save_entry(IDENTITY, FOUND)
    assert load_entry(IDENTITY) == (FOUND, None)


def _sealed(values, copies):
    values["machines"][0]["num_envs"] = copies
    return json.dumps(_with_seal(values))


def _with_seal(values):
    del values[HASH_KEY]
    return {**values, HASH_KEY: payload_hash(values)}


CONFIG = {
    "env": "gym:CartPole-v1",
    "agent": {"n_steps": 16, "net_arch": [8], "n_epochs": 1, "batch_size": 32},
    "training": {"num_envs": 4, "total_timesteps": 256},
    "evaluation": {"episodes": 2},
}


@pytest.mark.slow
def test_no_result_depends_on_it(tmp_path):
    weights, hashes, backends = [], [], []
    environment = resolve_environment("gym:CartPole-v1", {})
    for name, way in (
        ("none", None),
        ("serial", StepConfig("serial", 1)),
        ("process", StepConfig("process", 2)),
    ):
        if way is not None:
            save_entry(environment.identity, AutotuneEntry("2026-11-22", {4: way}))
        said, started = [], []
        run = slipstream.train(
            CONFIG,
            out=tmp_path / name,
            report=False,
            log=said.append,
            callbacks=[lambda event, kept=started: kept.append(event)],
        )
        weights.append(pack(slipstream.load_policy(run))[0])
        hashes.append(run.config.hash)
        backends.append(started[0].backend)
        announced = [one for one in said if "as `slipstream autotune` measured" in one]
        assert len(announced) == (way is not None)
    assert backends == ["serial", "serial", "process"] and len(set(hashes)) == 1
    assert announced == [
        "backend: process, 2 workers, as `slipstream autotune` measured on 2026-11-22."
    ]
    for other in weights[1:]:
        assert all(np.array_equal(value, other[name]) for name, value in weights[0].items())


def test_a_users_own_choice_wins():
    environment = resolve_environment("gym:CartPole-v1", {})
    save_entry(environment.identity, AutotuneEntry("2026-11-22", {4: StepConfig("process", 2)}))

    def told(**training):
        config = resolve(CONFIG, {f"training.{name}": value for name, value in training.items()})
        return backend.apply_autotune(config, environment)

    assert told(backend="serial") == (environment, None)
    assert told(members=2) == (environment, None)
    assert "process, 3 workers" in told(workers=3)[1]
    assert "not with about num_envs 64" in told(num_envs=64)[1]


def test_threads_of_a_kernel():
    sizes = {"training.num_envs": 64, "agent.n_steps": 64}
    config = resolve("cartpole", {**sizes, "agent.batch_size": 1024})
    environment = resolve_environment("cartpole", config.env_settings)
    save_entry(environment.identity, AutotuneEntry("2026-11-22", {64: StepConfig("compiled", 1)}))
    measured, said = backend.apply_autotune(config, environment)
    assert measured.step_config(64) == ("compiled", 1) and "compiled, 1 thread, as" in said
    alone = resolve(config, {"agent.batch_size": 512})
    assert backend.apply_autotune(alone, environment) == (environment, None)
