"""The run directory: never overwritten, complete, one trainer at a time."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.training.best import present_members
from slipstream.training.config import resolve
from slipstream.training.events import Started
from slipstream.training.progress import Progress
from slipstream.training.run import Run


@pytest.fixture
def config():
    return resolve("cartpole", {"training.num_envs": 4, "training.members": 2})


@pytest.fixture
def run(config, tmp_path):
    said = []
    run = Run.create(config, tmp_path / "run", said.append)
    run.said = said
    yield run
    run.close()


def test_a_new_run_tells_where_it_came_from(run):
    again = Run.open(run.path)
    assert again.config == run.config
    assert run.config.training.out == str(run.path)
    facts = run.provenance
    assert facts["command"]
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["machine"]["cores"] >= 1
    run.record(environment={"data_hash": "abc"})
    assert run.provenance["environment"] == {"data_hash": "abc"}
    assert run.provenance["command"] == facts["command"]


def test_nothing_is_overwritten(run, config, tmp_path):
    with pytest.raises(ConfigError, match=r"holds a run already.*slipstream resume"):
        Run.create(config, run.path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        Run.create(config, tmp_path / "mine")
    (tmp_path / "my.yaml").write_text("env: cartpole")
    with pytest.raises(ConfigError, match="is a file") as error:
        Run.create(config, tmp_path / "my.yaml")
    assert "resume" not in str(error.value)


def test_the_default_name_is_by_environment_and_time(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = Run.create(config), Run.create(config)
    assert first.path.parent == tmp_path / "runs"
    assert first.path.name.startswith("cartpole-20")
    assert first.path != second.path


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run directory"):
        Run.open(tmp_path)


def save(run, steps):
    progress = Progress(1_000, steps)
    return run.save_checkpoint({"x": np.full(3, steps)}, progress.as_dict())


def test_checkpoints_are_kept_and_resumed_from(run):
    assert run.load_checkpoint() is None
    for steps in (100, 200, 300):
        save(run, steps)
    assert len(list((run.path / "checkpoints").iterdir())) == run.config.training.keep_last
    tensors, progress = run.load_checkpoint()
    assert tensors["x"].tolist() == [300] * 3
    assert Progress.from_dict(progress).steps == 300
    assert run.said == []


def test_falling_back_to_an_older_checkpoint_is_said(run):
    save(run, 100)
    (save(run, 200) / "state.safetensors").write_bytes(b"junk")
    tensors, _ = run.load_checkpoint()
    assert tensors["x"][0] == 100
    assert "is corrupt" in run.said[0]
    assert "Going on from" in run.said[1]


def test_the_best_policy_of_each_member(run):
    run.save_best(1, {"w": np.ones(3, np.float32)}, {"score": 2.5, "policy": {}})
    tensors, manifest = run.load_best(1)
    assert tensors["w"].tolist() == [1.0, 1.0, 1.0]
    assert manifest["score"] == 2.5
    with pytest.raises(CheckpointError, match="no best policy of member 0"):
        run.load_best(0)


@pytest.mark.parametrize("harm", ["tensors", "manifest", "gone"])
def test_a_corrupt_best_policy_falls_back_to_the_one_before(run, harm):
    for score in (1.0, 2.0, 3.0):
        tensors = {"w": np.full(3, score, np.float32)}
        folder = run.save_best(0, tensors, {"score": score, "policy": {}})
    assert run.load_best(0)[1]["score"] == 3.0 and run.said == []
    if harm == "gone":
        shutil.rmtree(folder)
    else:
        name = {"tensors": "state.safetensors", "manifest": "manifest.json"}[harm]
        (folder / name).write_bytes(b"junk")
    assert present_members(run) == [0]
    for _ in range(2):
        tensors, manifest = run.load_best(0)
        assert manifest["score"] == 2.0 and tensors["w"].tolist() == [2.0] * 3
    assert len(run.said) == 1 and "the best before it is used" in run.said[0]
    run.save_best(0, {"w": np.ones(3, np.float32)}, {"score": 4.0, "policy": {}})
    assert run.load_best(0)[1]["score"] == 4.0


def test_no_valid_best_policy_is_an_error(run):
    for score in (1.0, 2.0):
        folder = run.save_best(0, {"w": np.ones(3, np.float32)}, {"score": score, "policy": {}})
    for place in (folder, folder.with_name(f"{folder.name}.previous")):
        (place / "state.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="is corrupt"):
        run.load_best(0)


def test_the_result_is_json_without_nan(run):
    assert run.result is None
    run.save_result({"score": float("nan"), "members": [np.int64(3)]})
    assert run.result == {"score": None, "members": [3]}


def test_one_process_trains_a_run(run):
    run.lock()
    with pytest.raises(ConfigError, match="Another process is training"):
        Run.open(run.path).lock()
    run.close()
    other = Run.open(run.path)
    other.lock()
    other.close()


def test_a_run_that_never_began_leaves_nothing(run):
    run.discard_if_unused()
    assert not run.path.exists()


def test_a_run_that_has_a_checkpoint_stays(run):
    save(run, 100)
    run.discard_if_unused()
    assert run.path.exists()


def test_events_are_written_down(run):
    run.listener(Started(Progress(10), 2, 4, 1, "compiled", "cpu"))
    assert run.metrics() == {}
