"""Training from the shell and from Python, end to end on small budgets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import slipstream as package
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run

SMALL = {"num_envs": 8, "total_timesteps": 2_048, "seed": 3}
FAST = {"agent.n_steps": 32, "evaluation.every": 0.5, "evaluation.episodes": 10}
FLAGS = ["--num-envs", "8", "--total-timesteps", "2048", "--seed", "3"]
FLAGS += [part for name, value in FAST.items() for part in ("--set", f"{name}={value}")]


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"report": False, "log": lambda text: None, "overrides": FAST, **SMALL}


def test_train_evaluate_and_read(slipstream):
    outcome = slipstream("train", "cartpole", *FLAGS, "--members", "2", "--out", "run")
    assert outcome.code == 0, outcome.err
    assert "Training 2 members" in outcome.out
    assert "members, 2,048 steps each" in outcome.out
    # The end: what it took, the report's headline and its warnings, and one path.
    end = outcome.out.partition("steps/s; ")[2].splitlines()[1:]
    assert "for the report" in end[0] and end[-1].startswith("Report: ")
    assert len(end) == 1 + len(set(end[1:])) and outcome.out.count(str(Path("run").absolute())) == 1
    assert "Best evaluation score" not in outcome.out
    run = Run.open("run")
    assert run.config.training.members == 2
    assert len(run.result["members"]) == 2
    assert set(run.metrics()["member"]) == {0, 1}
    assert run.metrics()["steps"][-1] >= 2_048
    assert run.provenance["environment"]["name"] == "cartpole"
    assert Path("run/report.html").stat().st_size > 1_000
    assert list(Path("run/tensorboard/member-001").glob("events*"))

    again = slipstream("train", "cartpole", *FLAGS, "--out", "run")
    assert again.code == 2
    assert "is not overwritten" in again.err
    assert "is complete" in slipstream("resume", "run").out

    Path("run/report.html").unlink()
    outcome = slipstream("evaluate", "run")
    assert outcome.code == 0, outcome.err
    assert Path("run/report.html").exists()
    assert slipstream("evaluate", "run", "--from", "2024-01-01").code == 2
    assert "cannot render" in slipstream("evaluate", "run", "--video", "a.gif").err


def test_runs_are_listed_wherever_they_are(slipstream, quiet, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "Nothing was started yet." in slipstream("jobs", "--all").out
    package.train("cartpole", out="deep/one", **quiet)
    package.train("cartpole", out="two", **quiet)
    told = slipstream("jobs", "--all")
    assert told.code == 0, told.err
    rows = [line.split() for line in told.out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["two", "one"] and "complete" in rows[0]
    assert "2,048 of 2,048 steps" in told.out and str(tmp_path / "deep" / "one") in told.out
    Path("two").rename("elsewhere")
    told = slipstream("jobs", "--all").out
    assert "1 more were moved or deleted." in told and " two " not in told
    assert "Nothing runs or waits" in slipstream("jobs").out


def test_the_resolved_config_trains_the_same_weights(quiet):
    first = package.train("cartpole", out="a", **quiet)
    quiet = {key: quiet[key] for key in ("report", "log")}
    second = package.train("a/config.yaml", out="b", **quiet)
    assert weights(first) == weights(second)


def weights(run):
    manifest = json.loads((run.best.folder_of(0) / "manifest.json").read_text())
    newest = sorted((run.path / "checkpoints").iterdir())[-1]
    state = json.loads((newest / "manifest.json").read_text())
    return manifest["files"], state["files"]


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_a_run_that_broke_off_ends_with_the_same_weights(quiet):
    whole = package.train("cartpole", out="whole", members=3, **quiet)

    def break_off(event):
        if isinstance(event, Updated) and event.progress.steps >= 1_500:
            raise KilledError

    quiet["overrides"] = {**FAST, "training.checkpoint_every": 0.25}
    with pytest.raises(KilledError):
        package.train("cartpole", out="cut", members=3, callbacks=[break_off], **quiet)
    resumed = package.resume("cut", report=False)
    assert resumed.result is not None
    assert weights(resumed) == weights(whole)
    for column in ("steps", "member", "score", "policy_loss"):
        assert resumed.metrics()[column] == whole.metrics()[column]


def test_a_failure_before_the_first_iteration_leaves_no_directory(quiet):
    def fail(event):
        raise KilledError

    with pytest.raises(KilledError):
        package.train("cartpole", out="run", callbacks=[fail], **quiet)
    assert not Path("run").exists()


def test_policies_and_tracks_from_python(quiet):
    run = package.train("cartpole", **quiet)
    policy = package.load_policy(run)
    actions = policy.act(np.zeros((3, 4), np.float32))
    assert actions.shape == (3,)
    result = package.evaluate(run)
    assert len(result.episodes) == 10
    assert result.mean_return == run.scores[0].test_score == run.score


def test_copies_from_python():
    env = package.make_vec("cartpole", 5, seed=1, max_steps=20)
    observations = np.zeros((5, 4), np.float32)
    env.reset(observations)
    assert np.abs(observations).max() > 0
    assert env.spec.max_episode_steps == 20


def test_public_names():
    import slipstream

    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    assert set(slipstream.__all__) <= set(dir(slipstream))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = slipstream.nonsense


def test_importing_the_package_is_cheap():
    code = (
        "import sys, slipstream\n"
        "heavy = {'torch', 'numba', 'polars', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_training_does_not_import_what_only_reports_need():
    code = (
        "import sys\nfrom slipstream import api\n"
        "heavy = {'matplotlib', 'tensorboardX', 'optuna', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


DRAWING = """
import gymnasium
import numpy as np


class Drawing(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= 5, False, {}

    def render(self):
        return np.full((8, 9, 3), self.t * 20, np.uint8)


gymnasium.register("Drawing-v0", Drawing)
"""


def test_a_gymnasium_environment_is_trained_and_filmed(slipstream, monkeypatch):
    Path("drawing_world.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    outcome = slipstream(
        "train", "gym:drawing_world:Drawing-v0", *FLAGS, "--out", "run", "--no-report"
    )
    assert outcome.code == 0, outcome.err
    assert "fresh episodes" in outcome.out
    outcome = slipstream("evaluate", "run", "--video", "film.gif")
    assert outcome.code == 0, outcome.err
    from PIL import Image

    with Image.open("film.gif") as record_video:
        assert record_video.n_frames == 6  # the last one shows how it ended
        assert record_video.size == (9, 8)
    slipstream("evaluate", "run", "--video", "two.gif", "--video-episodes", "2")
    with Image.open("two.gif") as record_video:
        assert record_video.n_frames == 12
    assert "has no suffix .gif or .mp4" in slipstream("evaluate", "run", "--video", "film.png").err
