"""Choice of `num_envs: auto`, and defaults of Gymnasium environments."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.rl.nets.policy_file import pack
from slipstream.training.environments import environment as module
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import choose_num_envs


def chosen(target, **training):
    settings = {f"training.{name}": value for name, value in training.items()}
    config = resolve(target, {"training.num_envs": "auto", **settings})
    return choose_num_envs(config, resolve_environment(config.env_name, config.env_settings))


@pytest.fixture
def clock(monkeypatch):
    """A callable that makes every look at the clock `seconds` later than the last one."""

    def fake(seconds):
        ticks = itertools.count()
        for name in ("perf_counter", "monotonic"):
            monkeypatch.setattr(time, name, lambda: seconds * next(ticks))

    yield fake
    monkeypatch.undo()


@pytest.mark.parametrize(
    "target", [pytest.param("gym:CartPole-v1", marks=pytest.mark.slow), "pendulum"]
)
def test_the_clock_has_no_say_in_what_is_trained(clock, tmp_path, target):
    """A machine on which every step takes as long as any other, and one that is quick."""
    runs = []
    settings = {"training.num_envs": "auto", "agent.n_steps": 32, "agent.batch_size": 32}
    for seconds in (0.5, 1e-4):
        clock(seconds)
        out = tmp_path / f"{seconds}"
        runs.append(
            slipstream.train(
                target,
                overrides={**settings, "evaluation.every": 1.0, "evaluation.episodes": 2},
                total_timesteps=13_000,
                seed=3,
                out=out,
                report=False,
                log=lambda sentence: None,
            )
        )
    one, other = runs
    assert one.config.hash == other.config.hash
    assert one.config.training.num_envs > 1
    weights = [pack(slipstream.load_policy(run))[0] for run in runs]
    for name, value in weights[0].items():
        assert np.array_equal(value, weights[1][name], equal_nan=True), name


@pytest.mark.parametrize(
    ("target", "settings", "copies"),
    [
        ("gym:CartPole-v1", {"total_timesteps": 1_000_000}, 8),
        ("gym:CartPole-v1", {"total_timesteps": 20_000}, 2),  # 50 rollouts of 128 steps
        ("gym:CartPole-v1", {"total_timesteps": 100}, 1),
        ("cartpole", {"total_timesteps": 500_000}, 64),
        ("cartpole", {"total_timesteps": 10_000_000}, 256),
        ("pendulum", {"total_timesteps": 100_000}, 4),  # of 256 steps
        ("pendulum", {"total_timesteps": 40_000}, 2),
    ],
)
def test_copies_follow_from_the_budget(target, settings, copies):
    for members in (1, 8):
        choice = chosen(target, members=members, **settings)
        assert choice.num_envs == copies
        assert choice.reason.startswith(f"{copies} env")


def test_a_minibatch_that_is_the_users_is_kept():
    sizes = {"training.num_envs": "auto", "agent.n_steps": 100, "agent.batch_size": 75}
    config = resolve("gym:CartPole-v1", sizes)
    environment = resolve_environment(config.env_name, {})
    assert choose_num_envs(config, environment).num_envs == 6  # the only ones are 3 and 6
    impossible = resolve(config, {"agent.batch_size": 1100})
    with pytest.raises(ConfigError, match="No num_envs up to 8"):
        choose_num_envs(impossible, environment)


def test_a_suggested_minibatch_gives_way():
    config = resolve("gym:CartPole-v1", {"agent.n_steps": 100})
    assert config.agent.batch_size is None
    assert resolve("gym:CartPole-v1", {"agent.n_steps": 64}).agent.batch_size == 64


def test_presets_are_announced_and_give_way_to_the_user(monkeypatch):
    file = {
        "default": {"ppo": {"agent": {"n_epochs": 7, "n_steps": 64}}},
        "ids": {
            "CartPole-v1": {
                "ppo": {"agent": {"n_epochs": 3}, "training": {"total_timesteps": 4000}}
            }
        },
    }
    monkeypatch.setattr(module, "_gymnasium", lambda: file)
    config = resolve("gym:CartPole-v1", {"training.total_timesteps": 5000})
    assert (config.agent.n_epochs, config.agent.n_steps) == (3, 64)
    assert config.training.total_timesteps == 5000
    note = config.preset_note
    assert note is not None
    assert "agent.n_epochs=3" in note and "total_timesteps" not in note
    assert resolve("gym:Acrobot-v1").agent.n_epochs == 7
    assert resolve("gym:Acrobot-v1").preset_note is None
    assert resolve("cartpole").preset_note is None


def test_every_preset_is_a_config():
    for env_id in module._gymnasium()["ids"]:
        config = resolve(f"gym:{env_id}")
        assert config.preset_note is not None
        assert resolve(config.as_mapping()) == config


def test_a_kernel_without_settings_has_the_defaults_of_gymnasium(tmp_path):
    own = Path(__file__).parents[2] / "samples/inventory.py"
    plain, foreign = resolve(str(own)), resolve("gym:CartPole-v1")
    assert plain.agent == foreign.agent and plain.agent.reward_scaling == "on"
    assert plain.training.num_envs == "auto"
    given = resolve(str(own), {"agent.n_epochs": 3, "agent.n_steps": 5, "training.num_envs": 2})
    assert (given.agent.n_epochs, given.agent.n_steps, given.agent.reward_scaling) == (3, 5, "on")
    copy = tmp_path / "inventory.py"
    copy.write_text(own.read_text() + 'DEFAULT_HYPERPARAMS = {"ppo": {"agent": {"n_steps": 64}}}\n')
    settled = resolve(str(copy)).agent
    assert (settled.n_steps, settled.n_epochs, settled.reward_scaling) == (64, 4, "auto")
    assert resolve(str(own), {"agent.name": "dqn"}).training.num_envs == "auto"
