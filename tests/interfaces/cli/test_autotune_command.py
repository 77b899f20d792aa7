"""`slipstream autotune`: a table, sentences, a machine file, a config where one is named."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.training import autotuner
from slipstream.training.autotuner import BenchmarkCase, LearnSpeed, Measurements, StepSpeed
from slipstream.training.environments import autotune_cache
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Findings in place of measurements."""
    monkeypatch.setenv("SLIPSTREAM_MACHINE", str(tmp_path))
    config = resolve("gym:CartPole-v1", {"training.num_envs": 8})
    found = Measurements(config, resolve_environment("gym:CartPole-v1", {}))
    for copies, rate in ((8, 1000.0), (16, 1900.0), (32, 2000.0)):
        found.step_speeds[BenchmarkCase("serial", copies, 1)] = StepSpeed(
            rate / 2, 1.0, 0.1, 2e7 + 1e5 * copies
        )
        found.step_speeds[BenchmarkCase("process", copies, 2)] = StepSpeed(
            rate, 1.9, 0.1, 5e7 + 1e5 * copies
        )
        found.learn_speeds[copies, 1] = LearnSpeed(1000 * copies, 0.0, 0.01, 0.02, 0.0)
    monkeypatch.setattr(autotuner, "tune", lambda *_: found)
    return found


def test_what_was_measured_is_told_and_remembered(slipstream, measured):
    outcome = slipstream("autotune", "gym:CartPole-v1", "--write", "fast.yaml")
    assert outcome.code == 0, outcome.err
    assert "process *" in outcome.out and "1,900" in outcome.out
    assert (
        "8 environments (num_envs of the config) step fastest with `process`, 2 workers"
        in outcome.out
    )
    assert "speed: 16 (" in outcome.out and "environments fit into" in outcome.out
    assert resolve("fast.yaml") == resolve("gym:CartPole-v1", {"training.num_envs": 16})
    identity = measured.environment.identity
    assert autotune_cache.load_entry(identity)[0].configs[16] == ("process", 2)
    again = slipstream("autotune", "gym:CartPole-v1", "--write", "fast.yaml")
    assert again.code == 2 and "fast.yaml exists already" in again.err


def test_ctrl_c_shows_what_there_is_and_writes_nothing(slipstream, measured, tmp_path):
    measured.interrupted = True
    outcome = slipstream("autotune", "gym:CartPole-v1", "--write", "fast.yaml")
    assert outcome.code == 130 and "Interrupted: nothing was written" in outcome.out
    assert "process *" in outcome.out
    assert not Path("fast.yaml").exists()
    assert autotune_cache.load_entry(measured.environment.identity) == (None, None)


def test_nothing_measured_is_an_error_that_says_why(slipstream, measured, monkeypatch):
    problems = {
        BenchmarkCase("serial", 1, 1): "The simulator is gone.\nTraceback (most recent call last)"
    }
    empty = Measurements(measured.config, measured.environment, problems=problems)
    monkeypatch.setattr(
        autotuner, "tune", lambda *_: replace(empty, skipped=[BenchmarkCase("serial", 2, 1)])
    )
    outcome = slipstream("autotune", "gym:CartPole-v1", "--seconds", "10")
    assert outcome.code == 2 and outcome.out == ""
    assert "with 1 envs: The simulator is gone. The time budget excluded: 2 serial." in outcome.err
    assert "--seconds 50" in outcome.err
