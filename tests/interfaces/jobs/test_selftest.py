"""`slipstream selftest`: what it shows where all is well, and where a step fails."""

import pytest

from slipstream.jobs import smoke_test as module
from slipstream.jobs.smoke_test import SmokeTestError, list_optional, run_smoke_test


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()


@pytest.mark.slow
def test_all_steps_are_shown(tmp_path):
    told = [what for what, _ in run_smoke_test(tmp_path / "work")]
    assert len(told) == 5 and "bit for bit" in told[2]
    assert told[4].startswith("compile the loops of ")


def test_a_step_that_fails_is_named_with_the_commands_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TRAIN", ("train", "no_such_environment"))
    with pytest.raises(SmokeTestError, match="There is no environment `no_such_environment`"):
        list(run_smoke_test(tmp_path / "work"))


def test_other_weights_are_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_run_command", lambda *_: None)
    monkeypatch.setattr(module, "_train_and_kill", lambda _: None)
    states = iter(({"weights": b"1"}, {"weights": b"2"}))
    monkeypatch.setattr(module, "_last_checkpoint", lambda _: next(states))
    with pytest.raises(SmokeTestError, match="other weights"):
        list(run_smoke_test(tmp_path / "work"))


def test_what_is_optional_is_listed_whether_it_is_here_or_not():
    rows = dict(list_optional())
    assert {"torch", "stable-baselines3", "envpool", "elegantrl", "pettingzoo", "ray", "GPU"} <= (
        rows.keys()
    )
