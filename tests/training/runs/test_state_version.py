"""Runs and studies of another version are read, and not gone on with."""

from __future__ import annotations

import json

import pytest

import slipstream
from slipstream.core.errors import ConfigError, VersionError
from slipstream.training.record import yaml_file
from slipstream.training.record.checkpoint import MANIFEST, checkpoints
from slipstream.training.record.files import write_sealed
from slipstream.training.runs.run import Run
from slipstream.training.runs.state_version import check_state_version, state_version
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.stored_config import read_known

SETTINGS = {"agent.horizon": 16, "agent.minibatch": 32, "evaluation.episodes": 4}
OLD = {"slipstream": "0.0.9", "training": 0, "agent": 1}


@pytest.fixture
def run(tmp_path):
    """A finished run."""
    return slipstream.train(
        "cartpole",
        overrides={**SETTINGS, "training.checkpoint_every": 0.5},
        total_steps=256,
        num_envs=4,
        out=tmp_path / "run",
        report=False,
        say=lambda _: None,
    )


def written_by(run, state):
    """As if another version had written its checkpoints, before it was killed."""
    (run.path / "result.json").unlink()
    for folder in checkpoints(run.path / "checkpoints"):
        manifest = json.loads((folder / MANIFEST).read_text())
        assert manifest.pop("state") == state_version(run.config)
        manifest.pop("sha256")
        write_sealed(folder / MANIFEST, {**manifest, **({"state": state} if state else {})})


def test_an_older_run_is_read_and_not_resumed(run):
    written_by(run, OLD)
    said = []
    with pytest.raises(VersionError) as caught:
        slipstream.resume(Run.open(run.path, said.append), report=False)
    text = str(caught.value)
    assert "slipstream 0.0.9" in text and "training 0 and agent 1" in text and "\n" not in text
    assert f"slipstream train {run.path}/config.yaml --out" in text
    assert f"slipstream evaluate {run.path}" in text
    assert not said  # no checkpoint is passed over for one before it: all are of that version
    assert slipstream.evaluate(Run.open(run.path))
    assert slipstream.write_report(Run.open(run.path)).exists()


def test_an_agent_has_a_number_of_its_own(run, monkeypatch):
    from slipstream.agents.ppo.ppo import PPO

    (run.path / "result.json").unlink()
    monkeypatch.setattr(PPO, "state_version", 2)
    with pytest.raises(VersionError, match="training 1 and agent 1"):
        slipstream.resume(Run.open(run.path), report=False)


def test_states_that_were_not_numbered_are_of_the_first_version(run):
    written_by(run, None)
    assert slipstream.resume(Run.open(run.path), report=False).result is not None


def test_a_newer_version_is_refused_too(run):
    newer = {"slipstream": "9.0", "training": 7, "agent": 3}
    with pytest.raises(VersionError, match=r"slipstream 9\.0"):
        check_state_version({"state": newer}, run.config, "It", "read", "again")


def test_settings_of_another_version_are_passed_over_and_not_gone_on_with(run):
    """Its config.yaml has a setting that is gone, and lacks two that are new."""
    (run.path / "result.json").unlink()
    values = yaml_file.parse((run.path / "config.yaml").read_text(), "it")
    values["agent"]["gone"] = 3
    del values["training"]["on_fault"], values["training"]["hang_seconds"]
    (run.path / "config.yaml").write_text(yaml_file.dump(values))
    for folder in checkpoints(run.path / "checkpoints"):
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest.pop("sha256")
        write_sealed(folder / MANIFEST, {**manifest, "config": "of that config"})
    said = []
    again = Run.open(run.path, said.append)
    assert again.config == run.config and "`agent.gone`: passed over" in said[0]
    assert slipstream.evaluate(again)
    with pytest.raises(VersionError) as caught:
        slipstream.resume(Run.open(run.path, lambda _: None), report=False)
    text = str(caught.value)
    assert (
        "(`agent.gone` is gone, and `training.on_fault`, `training.hang_seconds` are new)" in text
    )
    assert f"slipstream evaluate {run.path}" in text and "taking `agent.gone` out" in text


def test_an_idle_setting_of_another_version_is_passed_over():
    """What was a default then changes nothing now, which is refused where a user writes it."""
    values = {"env": {"name": "portfolio", "data": {"folder": "x"}, "action_map": "change"}}
    values["env"]["sharpness"] = 5.0
    with pytest.raises(ConfigError, match="changes nothing with `action_map: change`"):
        RunConfig.from_mapping(values)
    config, gone = read_known(values, RunConfig.from_mapping)
    assert gone == ["env.sharpness"] and config.env_settings["sharpness"] == 30.0
    values["env"]["seed"] = {}
    values["env"]["max_steps"] = -1
    with pytest.raises(ConfigError, match="max_steps"):  # that is wrong in any version
        read_known(values, RunConfig.from_mapping)


def test_an_older_study_is_read_and_not_resumed(tmp_path):
    def tune(name):
        return slipstream.tune(
            {"env": "cartpole", "agent": {"horizon": 16, "minibatch": 32}},
            study_name=str(tmp_path / name),
            overrides={"training.total_steps": 256, "training.num_envs": 4},
            study={
                "n_trials": 2,
                "trials_in_flight": 2,
                "final_seeds": 1,
                "confirmation": {"top": 1, "seeds": 1},
            },
            workers=1,
            force_deploy=True,
            report=False,
            say=lambda _: None,
        )

    folder = tune("study")
    folder.record(state=OLD)
    (folder.path / "result.json").unlink()
    with pytest.raises(VersionError, match=r"The study .* was written by slipstream 0\.0\.9"):
        tune("study")
    with pytest.raises(VersionError, match=r"slipstream study report "):
        slipstream.resume_study(folder.path, report=False, say=lambda _: None)

    other = tune("other")  # of a version that called a setting otherwise, and had fewer
    values = yaml_file.parse(other.config.read_text(), "it")
    values["study"]["confirmation"]["error"] = values["study"]["confirmation"].pop("level")
    other.config.write_text(yaml_file.dump(values))
    result = dict(other.result)
    result["confirmation"] = dict(result["confirmation"])
    result["confirmation"]["error"] = result["confirmation"].pop("level")
    write_sealed(other.path / "result.json", {k: v for k, v in result.items() if k != "sha256"})
    assert slipstream.report_study(other.path).exists()
    known = other.provenance["identity"]
    del known["training"]["on_fault"]
    other.record(identity=known)
    (other.path / "result.json").unlink()
    with pytest.raises(VersionError, match=r"`study\.confirmation\.error` is gone"):
        slipstream.resume_study(other.path, report=False, say=lambda _: None)
    with pytest.raises(VersionError, match=r"`training\.on_fault` is new"):
        tune("other")
