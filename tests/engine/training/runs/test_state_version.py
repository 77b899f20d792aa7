"""Runs and studies of another version are read, and not gone on with."""

from __future__ import annotations

import json
import shlex

import pytest

import slipstream
from slipstream.core.errors import VersionError
from slipstream.core.storage.atomic_io import write_hashed
from slipstream.core.storage.checkpoint import MANIFEST, checkpoints
from slipstream.training.runs.run import Run, check_state_version, state_version

SETTINGS = {"agent.n_steps": 16, "agent.batch_size": 32, "evaluation.episodes": 4}
OLD = {"slipstream": "0.0.9", "training": 0, "agent": 1}


@pytest.fixture
def run(tmp_path):
    """A finished run."""
    return slipstream.train(
        "cartpole",
        overrides={**SETTINGS, "training.checkpoint_every": 0.5},
        total_timesteps=256,
        num_envs=4,
        out=tmp_path / "run",
        report=False,
        log=lambda _: None,
    )


def written_by(run, state):
    """As if another version had written its checkpoints, before it was killed."""
    (run.path / "result.json").unlink()
    for folder in checkpoints(run.path / "checkpoints"):
        manifest = json.loads((folder / MANIFEST).read_text())
        assert manifest.pop("state") == state_version(run.config)
        manifest.pop("sha256")
        write_hashed(folder / MANIFEST, {**manifest, "state": state})


def test_an_older_run_is_read_and_not_resumed(run):
    written_by(run, OLD)
    said = []
    with pytest.raises(VersionError) as caught:
        slipstream.resume(Run.open(run.path, said.append), report=False)
    text = str(caught.value)
    assert "slipstream 0.0.9" in text and "training 0 and agent 1" in text and "\n" not in text
    assert f"slipstream train {shlex.quote(str(run.path / 'config.yaml'))} --out" in text
    assert f"slipstream evaluate {shlex.quote(str(run.path))}" in text
    assert not said  # no checkpoint is passed over for one before it: all are of that version
    assert slipstream.evaluate(Run.open(run.path))
    assert slipstream.write_report(Run.open(run.path)).exists()


def test_an_agent_has_a_number_of_its_own(run, monkeypatch):
    from slipstream.rl.agents.ppo.ppo import PPO

    (run.path / "result.json").unlink()
    monkeypatch.setattr(PPO, "state_version", 99)
    with pytest.raises(VersionError, match="training 1 and agent 2"):
        slipstream.resume(Run.open(run.path), report=False)


def test_a_newer_version_is_refused_too(run):
    newer = {"slipstream": "9.0", "training": 7, "agent": 3}
    with pytest.raises(VersionError, match=r"slipstream 9\.0"):
        check_state_version({"state": newer}, run.config, "It", "read", "again")


@pytest.mark.slow
def test_an_older_study_is_read_and_not_resumed(tmp_path):
    def tune():
        return slipstream.tune(
            {"env": "cartpole", "agent": {"n_steps": 16, "batch_size": 32}},
            study_name=str(tmp_path / "study"),
            overrides={"training.total_timesteps": 256, "training.num_envs": 4},
            study={
                "n_trials": 2,
                "max_concurrent_trials": 2,
                "final_seeds": 1,
                "confirmation": {"top": 1, "seeds": 1},
            },
            workers=1,
            force_deploy=True,
            report=False,
            log=lambda _: None,
        )

    folder = tune()
    folder.update_provenance(state=OLD)
    (folder.path / "result.json").unlink()
    with pytest.raises(VersionError, match=r"The study .* was written by slipstream 0\.0\.9"):
        tune()
    with pytest.raises(VersionError, match=r"slipstream study report "):
        slipstream.resume_study(folder.path, report=False, log=lambda _: None)
