"""An opponent from somebody else's run plays without their code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import slipstream
from slipstream.cli import main
from slipstream.kernels.discover import USER_MODULE
from slipstream.training.environments import kernel_environment
from slipstream.training.runs.games import opponent_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"


RAN = "import pathlib\npathlib.Path(__file__).with_name('{}.ran').touch()\n"


SMALL = {"num_envs": 4, "total_steps": 256, "report": False, "say": lambda sentence: None}


FAST = {
    **{"agent.horizon": 32, "agent.minibatch": 32, "evaluation.episodes": 2},
    "training.backend": "serial",  # no version of a kernel is compiled for these tests
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty working folder, and a register of the test's own; kernels are taken to be right."""
    monkeypatch.setattr(kernel_environment, "check_environment", lambda *_, **__: None)
    become(monkeypatch, tmp_path, "me")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def become(monkeypatch, tmp_path, user):
    """Whose register it is; what was imported before is forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state" / user))
    for name in [name for name in sys.modules if name.startswith(USER_MODULE)]:
        del sys.modules[name]


def kernel(path, example="shop"):
    """A kernel's file that leaves a trace where it is imported."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RAN.format(path.stem) + (EXAMPLES / f"{example}.py").read_text())
    return path


def test_an_opponent_of_a_stranger_plays_without_their_code(place, monkeypatch):
    become(monkeypatch, place, "they")
    file = kernel(place / "theirs" / "game.py", "pennies")
    seat = {**FAST, "env.self_play": {"opponents": {"random": 1}}}
    run = slipstream.train(str(file), out=place / "run", overrides=seat, **SMALL)
    become(monkeypatch, place, "me")
    file.unlink()
    assert opponent_of(str(kernel(place / "mine.py", "pennies")), str(run.path)).policy is not None


def test_a_strangers_run_is_not_ranked_without_trust(place, monkeypatch, capsys):
    become(monkeypatch, place, "they")
    file = kernel(place / "theirs" / "game.py", "pennies")
    run = slipstream.train(str(file), out=place / "run", overrides=FAST, **SMALL)
    become(monkeypatch, place, "me")
    file.with_name("game.ran").unlink()
    with pytest.raises(SystemExit) as left:
        main(["rank", str(run.path), "random"])
    assert left.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert not file.with_name("game.ran").exists()
    assert f"runs code that its config names: {file}" in told and "--trust" in told
