"""The run directory: never overwritten, complete, one trainer at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ConfigError, SlipstreamError
from slipstream.core.storage import atomic_io
from slipstream.training.callbacks.events import Progress, Started
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve


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
    return run.save_checkpoint({"x": np.full(3, steps)}, vars(progress))


def test_checkpoints_are_kept_and_resumed_from(run):
    assert run.load_checkpoint() is None
    for steps in (100, 200, 300):
        save(run, steps)
    assert len(list((run.path / "checkpoints").iterdir())) == run.config.training.keep_last
    tensors, progress = run.load_checkpoint()
    assert tensors["x"].tolist() == [300] * 3
    assert Progress(**progress).steps == 300
    assert run.said == []


def test_falling_back_to_an_older_checkpoint_is_said(run):
    save(run, 100)
    (save(run, 200) / "state.safetensors").write_bytes(b"junk")
    tensors, _ = run.load_checkpoint()
    assert tensors["x"][0] == 100
    assert "is corrupt" in run.said[0]
    assert "Continuing from" in run.said[1]


@pytest.mark.parametrize(
    ("budget", "words"), [(10**12, "has a budget of"), (10**30, "`budget` is")]
)
def test_a_checkpoint_with_an_endless_budget_is_refused(run, budget, words):
    run.save_checkpoint({"x": np.zeros(3)}, vars(Progress(budget, 100)))
    with pytest.raises(CheckpointError, match="None of the 1 checkpoints"):
        run.load_checkpoint()
    assert words in run.said[0]


def test_the_best_policy_of_each_member(run):
    run.best.save(1, {"w": np.ones(3, np.float32)}, {"score": 2.5, "policy": {}, "steps": 1})
    tensors, manifest = run.best.load(1)
    assert tensors["w"].tolist() == [1.0, 1.0, 1.0]
    assert manifest["score"] == 2.5
    with pytest.raises(CheckpointError, match="no best policy of member 0"):
        run.best.load(0)


@pytest.mark.parametrize("harm", ["tensors", "manifest", "gone"])
def test_a_corrupt_best_policy_falls_back_to_the_one_before(run, harm):
    for score in (1.0, 2.0, 3.0):
        tensors = {"w": np.full(3, score, np.float32)}
        folder = run.best.save(0, tensors, {"score": score, "policy": {}, "steps": 1})
    assert run.best.load(0)[1]["score"] == 3.0 and run.said == []
    if harm == "gone":
        shutil.rmtree(folder)
    else:
        name = {"tensors": "state.safetensors", "manifest": "manifest.json"}[harm]
        (folder / name).write_bytes(b"junk")
    assert run.best.present == [0]
    for _ in range(2):
        tensors, manifest = run.best.load(0)
        assert manifest["score"] == 2.0 and tensors["w"].tolist() == [2.0] * 3
    assert len(run.said) == 1 and "The previous best policy is used instead" in run.said[0]
    run.best.save(0, {"w": np.ones(3, np.float32)}, {"score": 4.0, "policy": {}, "steps": 1})
    assert run.best.load(0)[1]["score"] == 4.0


def test_no_valid_best_policy_is_an_error(run):
    for score in (1.0, 2.0):
        folder = run.best.save(
            0, {"w": np.ones(3, np.float32)}, {"score": score, "policy": {}, "steps": 1}
        )
    for place in (folder, folder.with_name(f"{folder.name}.previous")):
        (place / "state.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="is corrupt"):
        run.best.load(0)


def test_the_result_is_json_without_nan(run):
    assert run.result is None
    facts = {"progress": {}, "score_is": "mean", "chosen_on": "train"}
    run.save_result({**facts, "score": float("nan"), "members": [{"seed": np.int64(3)}]})
    assert run.result == {**facts, "score": None, "members": [{"seed": 3}]}


def test_one_process_trains_a_run(run, monkeypatch):
    monkeypatch.setattr(atomic_io, "_PATIENCE_SECONDS", 0.0)
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
    run.callback(Started(Progress(10), 2, 4, 1, "compiled", "cpu"))
    assert run.metrics() == {}


FIRST_MOMENTS = """
import os, pathlib, signal, sys
from slipstream.core.storage import atomic_io
from slipstream.training.runs import run
from slipstream.training.settings.config import resolve

config, base = resolve("cartpole", {"training.num_envs": 4}), pathlib.Path(sys.argv[1])
calls, last = [0], [0]
def count(name, original):
    def wrapped(*arguments, **keywords):
        calls[0] += 1
        if calls[0] == last[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)
    return wrapped

for module, name in (
    (os, "mkdir"), (os, "replace"), (os, "fsync"),
    (atomic_io, "fsync_folder"), (run, "acquire_lock"),
):
    setattr(module, name, count(name, getattr(module, name)))
def begin(number):
    child = os.fork()  # a process of its own, without importing everything again
    if not child:
        last[0] = number
        run.Run.create(config, base / str(number))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert begin(0) == 0  # makes what the user's first run makes
number = 1
while (ended := begin(number)) == -signal.SIGKILL:
    number += 1
assert ended == 0  # it has so many calls, and none was left to die before
print(number - 1)
"""


def test_a_kill_in_the_first_moments_leaves_no_dead_end(config, tmp_path):
    """Killed before each of its system calls that matter, a run can be begun again or resumed."""
    program = [sys.executable, "-c", FIRST_MOMENTS, tmp_path]
    done = subprocess.run(program, capture_output=True, check=True)
    calls = int(done.stdout)
    assert calls >= 8
    begun, resumed = 0, 0
    for number in range(1, calls + 1):
        place = tmp_path / str(number)
        if (place / "config.yaml").exists():
            again = Run.open(place)
            resumed += 1
        else:
            if (place / "checkpoints").exists():
                with pytest.raises(CheckpointError, match="Repeat the `slipstream train` command"):
                    Run.open(place)
            again = Run.create(config, place)
            begun += 1
        again.lock()
        assert again.load_checkpoint() is None
        assert not list(place.glob(".*.partial"))
        again.close()
    assert begun >= 4 and resumed >= 1


def test_a_directory_with_work_in_it_is_not_taken_over(run, config):
    save(run, 100)
    run.close()
    (run.path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="is not empty"):
        Run.create(config, run.path)
    with pytest.raises(CheckpointError, match="is not a run directory"):
        Run.open(run.path)


def test_the_next_trainer_removes_what_a_kill_left(run):
    run.close()
    for folder in (".member-000.abcd", ".member-001-1-abcd.partial"):
        (run.path / "best" / folder).mkdir()
    again = Run.open(run.path)
    again.lock()
    again.close()
    assert list((run.path / "best").iterdir()) == []


@pytest.mark.parametrize("name", ["result.json", "provenance.json"])
@pytest.mark.parametrize("text", ["", "[]", "3", '{"members": 7, "notes": 3}', "[" * 100_000])
def test_json_of_the_wrong_shape_is_one_paragraph(run, name, text):
    (run.path / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        _ = run.result, run.provenance


def test_a_changed_result_is_not_believed(run):
    run.save_result({"members": [], "progress": {}, "score_is": "mean", "chosen_on": "train"})
    text = (run.path / "result.json").read_text()
    (run.path / "result.json").write_text(text.replace("mean", "best"))
    with pytest.raises(CheckpointError, match="hash"):
        _ = run.result


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", ".lock", "provenance.json"])
def test_a_pipe_in_a_run_directory_is_waited_for_by_nobody(run, name):
    run.close()
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    with suppress(SlipstreamError):
        again = Run.open(run.path, lambda text: None)
        _ = again.provenance, again.metrics()
        again.lock()
        again.close()


def test_names_that_cannot_be(config, tmp_path):
    for name in ("x" * 300, "nul\0"):
        with pytest.raises(SlipstreamError):
            Run.create(config, tmp_path / name)
        with pytest.raises(CheckpointError, match="is not a run directory"):
            Run.open(tmp_path / name)


@pytest.mark.parametrize(
    "more", [{"score": "high"}, {"score": None}, {"steps": "1"}, {"steps": True}, {"policy": []}]
)
def test_facts_beside_a_best_policy_are_what_training_writes(run, more):
    known = {"score": 1.0, "steps": 1, "policy": {}}
    run.best.save(0, {"w": np.ones(3, np.float32)}, {**known, **more})
    with pytest.raises(CheckpointError, match=f"`{next(iter(more))}` is"):
        run.best.load(0)
