"""Runs of SAC and TD3: stopped and resumed, in shards, fused and not, on foreign copies."""

import os
import signal

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

AGENT = {
    "net_arch": [16, 16],
    "batch_size": 32,
    "iteration": 32,
    "learning_starts": 100,
    "buffer_size": 300,  # wraps
    "utd_ratio": 0.5,
    "observation_normalization": True,
    "reward_scaling": "on",
}


AGENTS = pytest.mark.parametrize("name", ["sac", "td3"])


def config_of(name, members=1, env="pendulum", **overrides):
    settings = {
        "env": {"name": env},
        "agent": {"name": name, **AGENT},
        "training": {"members": members, "num_envs": 2, "total_timesteps": 640},
        "evaluation": {"episodes": 4, "every": 0.5},
    }
    return resolve(settings, {"training.checkpoint_every": 0.2, **overrides})


def trained(config, path, *callbacks):
    run = Run.create(config, path)
    try:
        train(run.config, run, callbacks)
    finally:
        run.close()
    return run


def state_of(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def assert_same(left, right):
    left, right = state_of(left), state_of(right)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


def stop_at_7(event):
    if isinstance(event, Updated) and event.progress.iterations == 7:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        pytest.param("sac", 1, marks=pytest.mark.slow),
        ("sac", 2),
        pytest.param("td3", 2, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, monkeypatch, name, parts):
    if parts == 2:
        monkeypatch.setattr(ActorCriticConfig, "WORK_TO_SHARE", 1)
    config = config_of(name, **{"agent.n_step": 3})
    assert config.agent.parts(1) == parts
    whole = trained(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        trained(config, tmp_path / "stopped", stop_at_7)
    again = Run.open(tmp_path / "stopped")
    resume(again)
    again.close()
    assert_same(whole, again)


@pytest.mark.parametrize("name", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_a_member_is_the_same_alone_and_in_shards(tmp_path, name):
    own = {"agent.learning_rate": [1e-3, 1e-2, 1e-4], "agent.prioritised": True}
    one = trained(config_of(name, 3, **own, **{"training.shards": 1}), tmp_path / "one")
    two = trained(config_of(name, 3, **own, **{"training.shards": 2}), tmp_path / "two")
    assert_same(one, two)
    alone = {**own, "agent.learning_rate": 1e-2, "training.seed": 1}
    mine = trained(config_of(name, **alone), tmp_path / "alone")
    beside = state_of(one)
    for key, value in state_of(mine).items():
        each = len(beside[key]) // 3
        assert value.tobytes() == beside[key][each : 2 * each].tobytes(), key


@pytest.mark.parametrize(
    ("name", "members", "parts"),
    [
        pytest.param("sac", 2, 1, marks=pytest.mark.slow),
        ("sac", 1, 2),
        pytest.param("td3", 2, 1, marks=pytest.mark.slow),
        pytest.param("td3", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_a_pass_in_one_call_changes_no_bit(tmp_path, monkeypatch, name, members, parts):
    """Interpreted copies cannot be linked: there acting, stepping and learning are apart.

    Two threads share the updates of a lone member, in both.
    """
    if parts == 2:
        monkeypatch.setattr(ActorCriticConfig, "WORK_TO_SHARE", 1)
    fused = trained(config_of(name, members), tmp_path / "fused")
    apart = trained(config_of(name, members, **{"training.backend": "serial"}), tmp_path / "apart")
    assert_same(fused, apart)


@pytest.mark.parametrize("name", [pytest.param("sac", marks=pytest.mark.slow), "td3"])
def test_foreign_environments(tmp_path, name):
    run = trained(config_of(name, env="gym:Pendulum-v1"), tmp_path / "run")
    action = slipstream.load_policy(run).act(np.zeros(3, np.float32))
    assert action.shape == (1,) and abs(action[0]) <= 2
    # 640 steps, the first 100 of them without updates, one update for two steps
    assert run.metrics()["updates"][-1] == 270


@AGENTS
def test_choices_are_refused_with_what_fits(tmp_path, name):
    settings = {"env": "cartpole", "agent": {"name": name, **AGENT}}
    with pytest.raises(ConfigError, match=rf"{name} needs continuous .* dqn or ppo"):
        slipstream.train(settings, out=tmp_path / "run", num_envs=2)
