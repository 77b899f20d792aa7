"""Opening a folder that somebody else made runs nothing of theirs, unless it is asked for."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import yaml
from strangers import FAST, RAN, SMALL, become, kernel, ran
from strangers import place as place

import slipstream
from slipstream.cli import main
from slipstream.core.errors import CheckpointError, TrustError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import write_hashed
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Suggestion
from slipstream.training.runs.policies import DeployedPolicy
from slipstream.training.runs.run import Run
from slipstream.training.settings.trust import check_trust

AGENT = """
from slipstream.rl.agents.ppo.config import Config as Ppo
from slipstream.rl.agents.ppo.ppo import PPO


class Config(Ppo):
    pass


class Agent(PPO):
    pass
"""


@pytest.fixture
def stranger(place, monkeypatch):
    """A run of somebody else on a kernel of theirs: the run's folder and the kernel's file."""
    become(monkeypatch, place, "they")
    file = kernel(place / "theirs" / "game.py")
    run = slipstream.train(str(file), out=place / "run", overrides=FAST, **SMALL)
    become(monkeypatch, place, "me")
    assert ran(file)
    return run.path, file


def command(capsys, *arguments):
    """Exit code of a command, and what it complained of."""
    with pytest.raises(SystemExit) as left:
        main([str(one) for one in arguments])
    return left.value.code, " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "RUN"),
        ("evaluate", "RUN", "--video", "a.gif"),
        ("evaluate", "RUN", "--games", "2"),
        ("resume", "RUN"),
        ("doctor", "RUN"),
    ],
)
def test_every_command_on_a_strangers_run_says_what_would_run(stranger, capsys, words):
    run, file = stranger
    (run / "result.json").unlink()  # else there is nothing to resume
    code, told = command(capsys, *(run if word == "RUN" else word for word in words))
    assert code == 2 and not ran(file), told
    assert f"runs code named by its config: {file}" in told and "--trust" in told
    assert "Your registry has no command that created it" in told


def test_python_says_the_same_and_trust_lets_it_run(stranger):
    run, file = stranger
    for call in (slipstream.evaluate, slipstream.resume, slipstream.write_report):
        if call is slipstream.resume:
            (run / "result.json").unlink()
        with pytest.raises(TrustError, match="trust=True"):
            call(run)
        assert not ran(file)
    assert slipstream.evaluate(run, trust=True).episodes and ran(file)


def test_commands_take_trust(stranger, capsys):
    run, file = stranger
    code, told = command(capsys, "doctor", run, "--trust")
    assert code == 0 and ran(file), told


def test_a_policy_is_loaded_without_any_code(stranger):
    run, file = stranger
    file.unlink()
    assert slipstream.load_policy(run).act([0.5], mask=[True] * 13) in range(13)
    assert slipstream.load_policy(run, member=0) is not None
    opened = Run.open(run)
    assert opened.members == [0] and opened.result is not None


def test_a_relative_path_of_a_downloaded_config_runs_nothing_of_the_working_folder(
    stranger, capsys, place
):
    run, _ = stranger
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["env"]["name"] = "game.py"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    here = kernel(place / "game.py")
    code, told = command(capsys, "evaluate", run)
    assert code == 2 and str(here) in told and not ran(here)


def test_an_agents_file_is_code_too(place, monkeypatch, capsys):
    become(monkeypatch, place, "they")
    file = place / "agent.py"
    file.write_text(RAN.format("agent") + AGENT)
    more = {**FAST, "agent.name": str(file)}
    run = slipstream.train("cartpole", out=place / "run", overrides=more, **SMALL)
    become(monkeypatch, place, "me")
    assert ran(file)
    code, told = command(capsys, "evaluate", run.path)
    assert code == 2 and str(file) in told and not ran(file)
    assert slipstream.load_policy(run.path).act([0.0] * 4) in (0, 1)
    become(monkeypatch, place, "they")
    assert slipstream.evaluate(run.path).episodes


def test_own_folders_open_without_a_word_also_where_they_were_moved(place, monkeypatch):
    file = kernel(place / "game.py")
    run = slipstream.train(str(file), out=place / "run", overrides=FAST, **SMALL)
    become(monkeypatch, place, "me")
    assert slipstream.evaluate(run.path).episodes
    shutil.move(run.path, place / "elsewhere")
    become(monkeypatch, place, "me")
    assert slipstream.evaluate(place / "elsewhere").episodes


def test_another_folder_in_the_place_of_an_own_one_is_a_strangers(stranger, place):
    theirs, file = stranger
    run = slipstream.train(
        str(kernel(place / "game.py")), out=place / "own", overrides=FAST, **SMALL
    )
    shutil.rmtree(run.path)
    shutil.copytree(theirs, run.path)
    with pytest.raises(TrustError, match="Your registry has no command"):
        slipstream.evaluate(run.path)
    assert not ran(file)


def test_a_folder_with_the_id_of_an_own_one_runs_what_that_one_ran_and_no_more(stranger, place):
    theirs, file = stranger
    own = slipstream.train(
        str(kernel(place / "game.py")), out=place / "own", overrides=FAST, **SMALL
    )
    facts = {**Run.open(theirs).provenance, "id": own.provenance["id"]}
    write_hashed(theirs / "provenance.json", facts)
    with pytest.raises(TrustError, match=f"Changed since your command ran it: {file}"):
        slipstream.evaluate(theirs)
    assert not ran(file)


def test_changed_sources_want_trust_also_those_beside_the_kernel(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    helper = place / "own_half.py"
    helper.write_text("HALF = 0.5\n")
    file = kernel(place / "game.py")
    file.write_text(f"import own_half\n{file.read_text()}")
    run = slipstream.train(str(file), out=place / "run", overrides=FAST, **SMALL)
    for changed in (helper, file):
        before = changed.read_text()
        changed.write_text(f"{before}# another\n")
        become(monkeypatch, place, "me")
        ran(file)
        with pytest.raises(TrustError, match=f"Changed since your command ran it: {changed}"):
            slipstream.evaluate(run.path)
        assert not ran(file)
        if changed == file:
            assert slipstream.evaluate(run.path, trust=True).episodes
        changed.write_text(before)
    become(monkeypatch, place, "me")
    assert slipstream.evaluate(run.path).episodes
    sys.modules.pop("own_half", None)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("gym:own_lights:Lights-v0", r"gym:own_lights:Lights-v0 \(.*own_lights\.py\)"),
        ("vec:own_lights:make", r"vec:own_lights:make \(.*own_lights\.py\)"),
        ("vec:subprocess:run", r"vec:subprocess:run \(.*subprocess\.py\)"),
        ("gym:nowhere_at_all:Lights-v0", "config: gym:nowhere_at_all:Lights-v0"),
        (
            {"name": "gym:CartPole-v1", "wrappers": ["own_lights:Dim", {"name": "own_lights:Red"}]},
            r"wrapper own_lights:Dim \(.*own_lights\.py\); wrapper own_lights:Red",
        ),
        (
            {"name": "gym:CartPole-v1", "training_wrappers": ["own_lights:Dim"]},
            r"wrapper own_lights:Dim \(.*own_lights\.py\)",
        ),
    ],
)
def test_modules_that_a_config_names_are_code(place, monkeypatch, env, told):
    monkeypatch.syspath_prepend(str(place))
    (place / "own_lights.py").write_text(RAN.format("own_lights"))
    with pytest.raises(TrustError, match=told):
        check_trust(place, {"env": env}, False)
    assert not ran(place / "own_lights.py") and "own_lights" not in sys.modules
    check_trust(place, {"env": env}, True)


@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1", {"name": "gym:ALE/Pong-v5"}, None])
def test_built_in_kernels_and_plain_ids_want_no_trust(place, env):
    check_trust(place, {"env": env, "agent": {"name": "ppo"}}, False)
    check_trust(place, {"env": env, "agent": "dqn"}, False)


@pytest.fixture
def study(place):
    """A study's folder as somebody else would send it, on a kernel of theirs."""
    folder = StudyFolder(place / "studies" / "theirs")
    file = kernel(folder.path / "game.py")
    folder.update_provenance(identity={}, id="0" * 32)
    section = {"env": {"name": str(file)}, "study": {"n_trials": 2}}
    folder.config.write_text(yaml.safe_dump(section))
    with Ledger(folder.ledger) as ledger:
        ledger.set_metadata(note=1)
    return folder, file


def test_a_strangers_study_says_what_would_run(study, capsys):
    folder, file = study
    code, told = command(capsys, "resume", folder.path)
    assert code == 2 and f"config: {file}" in told and not ran(file), told
    found = StudyFolder.open(str(folder.path))
    assert found.study.n_trials == 2
    with pytest.raises(TrustError):  # pages, and the best trial's config, need it
        assert found.base
    assert not ran(file)
    found = StudyFolder.open(str(folder.path), trust=True)
    assert found.base.env_name == str(file) and ran(file)


@pytest.mark.parametrize(
    "words", [("study", "status"), ("status",), ("watch",), ("study", "export")]
)
def test_looking_at_a_study_runs_nothing(study, capsys, words):
    folder, file = study
    code, told = command(capsys, *words, folder.path)
    assert code == 0 and not ran(file), told


@pytest.mark.parametrize(
    "setting", ["env", "env.name", "agent.name", "env.wrappers", "env.training_wrappers"]
)
def test_a_forged_trial_names_no_code(study, setting):
    folder, file = study
    with Ledger(folder.ledger) as ledger:
        ledger.add_suggestion(Suggestion(0, 0, {}, {setting: str(file)}))
        with pytest.raises(CheckpointError, match=f"sets `{setting}`"):
            ledger.suggestions()


def test_a_deployed_policy_is_loaded_and_says_what_its_evaluation_would_run(stranger, place):
    run, file = stranger
    tensors, manifest = checkpoint.load(run / "best" / "member-000")
    config = yaml.safe_load((run / "config.yaml").read_text())
    known = {"policy": manifest["policy"], "run": config, "study": "one"}
    folder = checkpoint.save(place / "policy", tensors, known)
    with pytest.raises(TrustError, match=str(file)):
        DeployedPolicy.open(folder)
    assert slipstream.load_policy(folder) is not None and not ran(file)
    assert DeployedPolicy.open(folder, trust=True).config.env_name == str(file)
    number = Run.open(run).provenance["id"]
    folder = checkpoint.save(place / "policy", tensors, {**known, "id": number})
    with pytest.raises(TrustError, match="Your registry has no command"):
        DeployedPolicy.open(folder)


def test_a_register_that_cannot_be_written_trusts_nobody(place, monkeypatch):
    state = place / "state" / "full"
    state.mkdir(parents=True)
    (state / "slipstream").write_text("a file where the folder should be")
    become(monkeypatch, place, "full")
    file = kernel(place / "game.py")
    run = slipstream.train(str(file), out=place / "run", overrides=FAST, **SMALL)
    become(monkeypatch, place, "full")
    with pytest.raises(TrustError):
        slipstream.evaluate(run.path)
    assert json.loads((run.path / "provenance.json").read_text())["id"]
