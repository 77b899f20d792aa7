"""The contract of an agent that learns from a replay holds for a file that nothing else knows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.rl.agents.agent_registry import load_agent, load_config
from slipstream.studies.record.ledger import Ledger
from slipstream.training.callbacks.events import Updated
from slipstream.training.collector import make_collector
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.shard import Shard
from slipstream.training.trainer import resume, train

Q_LEARNING = Path(__file__).parents[1] / "samples/q_learning.py"


def config_of(env, members=1, steps=2_560, num_envs=4, **overrides):
    settings = {
        "env": env,
        "agent": {"name": str(Q_LEARNING), "steps": 64},
        "training": {"members": members, "num_envs": num_envs, "total_timesteps": steps},
        "evaluation": {"episodes": 10, "every": 0.5},
    }
    return resolve(settings, {"training.checkpoint_every": 0.2, **overrides})


def trained(config, path):
    run = Run.create(config, path)
    try:
        train(run.config, run)
    finally:
        run.close()
    return run


def state_of(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


def values(probe, iterations=30, **agent):
    """Q of [1, 0, 0], [0, 0, 0] and [-1, 0, 0] of two members; the best choice's."""
    config = config_of({"name": "probes", "probe": probe}, **agent)
    environment = resolve_environment("probes", config.env_settings)
    shard = Shard(environment, config.agent, [3, 4], range(2), 4)
    shard.reset()
    for _ in range(iterations):
        shard.iterate(0.0)
    seen = np.zeros((2, 3, 3), np.float32)
    seen[:, 0, 0], seen[:, 2, 0] = 1.0, -1.0
    return shard.agent._values(np.arange(2), seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "storage",
    [
        {"agent.storage": "fields"},
        {"agent.storage": "dense", "agent.alpha": 0.6},
    ],
)
def test_probes_have_their_known_values(storage):
    assert values("one", **storage).max(-1)[:, 1] == pytest.approx(1.0, abs=0.02)
    best = values("delayed", **storage).max(-1)
    assert best[:, 0] == pytest.approx(1.0, abs=0.05) and best[:, 1] == pytest.approx(0.9, abs=0.05)
    three = values("delayed", **storage, **{"agent.n_step": 3}).max(-1)
    assert three[:, 1] == pytest.approx(0.9, abs=0.05)
    matched = values("matched", **storage)
    assert (matched.argmax(-1)[:, [0, 2]] == [1, 0]).all()
    # A time limit is no end, whether one reward is summed or several.
    for n in (1, 3):
        endless = values("endless", 60, **storage, **{"agent.n_step": n}).max(-1)
        assert endless[:, 1] == pytest.approx(10.0, abs=0.3), n


def test_a_policy_comes_out_of_it(tmp_path):
    config = config_of({"name": "probes", "probe": "matched"}, 2)
    run = trained(config, tmp_path / "run")
    policy = slipstream.load_policy(run)
    assert policy.act(np.array([1, 1, 1], np.float32)) == 1
    assert policy.act(np.array([-1, 1, 1], np.float32)) == 0
    # 2,560 steps, the first 100 of them without updates, one update for two steps.
    assert run.metrics()["updates"][-1] == (2_560 - 100) / 2


class StopAt:
    """Asks the run to stop at iteration n, as a signal would."""

    def __init__(self, n):
        self.n = n

    def __call__(self, event):
        if isinstance(event, Updated) and event.progress.iterations == self.n:
            os.kill(os.getpid(), signal.SIGTERM)


CASES = {
    "not wrapped": {"agent.buffer_size": 4_000},
    "wrapped": {"agent.buffer_size": 500},
    "prioritised": {"agent.buffer_size": 500, "agent.alpha": 0.6},
    "fields": {"agent.buffer_size": 500, "agent.storage": "fields"},
    "dense": {"agent.buffer_size": 500, "agent.storage": "dense"},
}


LONG = ("not wrapped", "wrapped", "prioritised", "dense")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in LONG else c for c in CASES]
)
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, case):
    config = config_of({"name": "cartpole", "max_steps": 50}, 2, 1_280, **CASES[case])
    whole = trained(config, tmp_path / "whole")
    run = Run.create(config, tmp_path / "stopped")
    with pytest.raises(Interrupted):
        train(run.config, run, [StopAt(3)])
    run.close()
    again = Run.open(run.path)
    resume(again)
    again.close()
    assert_same(state_of(whole), state_of(again))


@pytest.mark.slow
def test_a_member_is_the_same_alone_and_in_shards(tmp_path):
    env = {"name": "cartpole", "max_steps": 50}
    own = {"agent.learning_rate": [0.01, 0.1, 0.2], "agent.alpha": 0.5, "agent.buffer_size": 700}
    one = trained(config_of(env, 3, **own, **{"training.shards": 1}), tmp_path / "one")
    two = trained(config_of(env, 3, **own, **{"training.shards": 2}), tmp_path / "two")
    assert_same(state_of(one), state_of(two))
    alone = config_of(env, 1, **own | {"agent.learning_rate": 0.1, "training.seed": 1})
    mine, beside = state_of(trained(alone, tmp_path / "alone")), state_of(one)
    for name, value in mine.items():
        each = len(beside[name]) // 3
        assert value.tobytes() == beside[name][each : 2 * each].tobytes(), name


@pytest.mark.slow
def test_the_ratio_of_updates_to_data_does_not_depend_on_the_copies(tmp_path):
    for num_envs, steps in ((1, 256), (16, 4_096)):
        own = {"agent.utd_ratio": 0.3, "agent.starts": 50, "agent.every": 8}
        config = config_of("cartpole", 1, steps, num_envs, **own)
        run = trained(config, tmp_path / f"{num_envs}")
        assert run.metrics()["updates"][-1] == (steps - 50) * 3 // 10, num_envs


@pytest.mark.slow
def test_a_study_searches_its_settings(tmp_path):
    config = config_of({"name": "cartpole"}, steps=1_280)
    study = {"n_trials": 4, "max_concurrent_trials": 2, "final_seeds": 2}
    study["confirmation"] = {"top": 1, "seeds": 2}
    folder = slipstream.tune(
        {**config.as_mapping(), "study": study},
        study_name=str(tmp_path / "study"),
        workers=1,
        force_deploy=True,
        report=False,
        log=lambda _: None,
    )
    with Ledger(folder.ledger, read_only=True) as ledger:
        asked = [set(ask.params) for ask in ledger.suggestions().values()]
    assert asked == [{"agent.learning_rate"}] * 4
    assert slipstream.load_policy(folder.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="smaller than a batch of 32"):
        config_of("cartpole", **{"agent.buffer_size": 20})
    with pytest.raises(ConfigError, match="longer than the replay"):
        config_of("cartpole", **{"agent.buffer_size": 40, "agent.n_step": 20})
    _, model = load_config(str(Q_LEARNING))
    environment = resolve_environment("cartpole", {})
    agent = load_agent(model())(model(), environment.spec, [0], 4)
    envs = [environment.make_envs(np.zeros(4, np.uint64), np.arange(4, dtype=np.uint64))]
    with pytest.raises(ConfigError, match="but `replay` of"):
        make_collector(agent, envs, environment.spec, 32, 4)
