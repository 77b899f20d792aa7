"""Why a run was slow, in words, from the shares of its time."""

from types import SimpleNamespace

import pytest

from slipstream.core.errors import ConfigError
from slipstream.training.diagnosis import Phases, diagnose, phases_of


def run(env, policy, update, wall, name="cartpole", backend="auto"):
    columns = {"wall": [0.0, wall], "seconds_env": [0.0, env], "seconds_policy": [0.0, policy],
               "seconds_update": [0.0, update]}  # fmt: skip
    config = SimpleNamespace(env_name=name, training=SimpleNamespace(backend=backend))
    return SimpleNamespace(path="runs/x", config=config, metrics=lambda: columns)


def test_shares_and_amdahls_ceiling():
    phases = phases_of(run(20.0, 10.0, 60.0, 100.0))
    assert phases == Phases(20.0, 10.0, 60.0, 10.0) and phases.share("update") == 0.6
    assert phases.most("env") == pytest.approx(1.25)
    rows = dict(diagnose(run(20.0, 10.0, 70.0, 100.0)))
    assert "environments 20%" in rows["time"] and "the update 70%" in rows["time"]
    assert "more than 1.2x" in rows["more environments"]
    assert "the update takes 70%" in rows["more environments"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((10, 10, 70, 100), "no vectorization helps"),
        ((10, 70, 10, 100), "more copies share"),
        ((10, 5, 5, 100), "evaluation.every"),
        ((70, 10, 10, 100), "compiled already"),
        ((70, 10, 10, 100, "gym:X-v0"), "training.backend: process"),
        ((70, 10, 10, 100, "gym:X-v0", "process"), "write it as a kernel"),
    ],
)
def test_advice_is_about_what_takes_longest(given, words):
    assert words in dict(diagnose(run(*given)))["what to change"]


def test_a_run_without_an_iteration():
    empty = run(0, 0, 0, 0)
    empty.metrics = lambda: {}
    with pytest.raises(ConfigError, match="nothing to time"):
        phases_of(empty)
