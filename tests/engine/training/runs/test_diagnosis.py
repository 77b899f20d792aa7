"""Why a run was slow, in words, from the times in its tables."""

from types import SimpleNamespace

import numpy as np
import pytest

from slipstream.cli.doctor import Phases, diagnose, measure_phases
from slipstream.core.errors import ConfigError
from slipstream.training.settings.config import resolve


def run(env, policy, update, wall, name="gym:CartPole-v1", backend="auto", evaluated=(), start=0.0):
    """Ten iterations of 1,024 steps that take equal times; `evaluated` after some of them."""
    share, extra = np.arange(1, 11) / 10, wall - start - env - policy - update
    scoring = np.zeros(10)
    for after in evaluated:
        scoring[after:] += extra / len(evaluated)
    columns = {
        "steps": (1024 * np.arange(1, 11)).tolist(),
        "seconds_env": (env * share).tolist(),
        "seconds_policy": (policy * share).tolist(),
        "seconds_update": (update * share).tolist(),
        "seconds_validate": scoring.tolist(),
    }
    columns["wall"] = ((env + policy + update) * share + start + scoring).tolist()
    config = resolve(name, {"training.backend": backend, "training.num_envs": 8})
    return SimpleNamespace(path="runs/x", config=config, metrics=lambda: columns)


def test_shares_and_amdahls_ceiling():
    phases = measure_phases(run(20.0, 10.0, 60.0, 100.0, evaluated=(4, 8), start=2.0))
    assert phases == pytest.approx(Phases(20.0, 10.0, 60.0, 2.0, 8.0, 0.0, 10_240))
    assert phases.share("update") == pytest.approx(0.6)
    assert phases.max_speedup("env") == pytest.approx(1.25)
    rows = dict(diagnose(run(20.0, 10.0, 70.0, 100.0)))
    assert "environments 20%" in rows["time"] and "the update 70%" in rows["time"]
    assert "102 steps/s" in rows["time"]
    assert rows["microseconds per step"].startswith("environments 1.95e+03, acting 977")
    assert "more than 1.2x" in rows["more environments"]
    assert "the update took 70%" in rows["more environments"]


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        # 8 copies x 128 steps, 10 epochs of minibatches of 64 rows: 160 updates for 1,024 steps.
        ((10, 10, 70, 100), {}, "0.156 updates of 64 rows"),
        ((10, 70, 10, 100), {}, "More sub-environments share"),
        ((10, 5, 5, 100), {"evaluated": (3, 6)}, "--set evaluation.share=0.05"),
        ((10, 5, 5, 100), {"start": 80.0}, "Start-up took longest"),
        ((70, 10, 10, 100), {"name": "cartpole"}, "compiled already"),
        ((70, 10, 10, 100), {}, "slipstream autotune gym:CartPole-v1"),
        ((70, 10, 10, 100), {"backend": "process"}, "training.workers"),
    ],
)
def test_advice_is_about_what_takes_longest(given, more, words):
    assert words in dict(diagnose(run(*given, **more)))["what to change"]


def test_the_setting_that_lets_validation_take_so_long_is_named():
    given = run(10, 5, 5, 100, evaluated=(3, 6))
    assert "--set evaluation.share=0.05" in dict(diagnose(given))["what to change"]
    numbers = {"evaluation.episodes": 100, "evaluation.max_steps": 10_000}
    given.config = resolve(given.config, numbers)
    said = dict(diagnose(given))["what to change"]
    assert "evaluation.episodes is 100 of up to 10,000 steps" in said
    assert "--set evaluation.episodes=auto" in said and "--set evaluation.every=0.25" in said


def test_a_row_a_member_counts_once():
    one = run(20.0, 10.0, 60.0, 100.0, start=10.0)
    twice = {name: [v for v in column for _ in range(2)] for name, column in one.metrics().items()}
    two = SimpleNamespace(**{**vars(one), "metrics": lambda: twice})
    assert measure_phases(two)[:6] == measure_phases(one)[:6]


def test_a_run_without_an_iteration():
    empty = run(0, 0, 0, 0)
    empty.metrics = lambda: {}
    with pytest.raises(ConfigError, match="has not completed an iteration"):
        measure_phases(empty)
