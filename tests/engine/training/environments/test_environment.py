"""Environments that the section `env` of a config can name."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream import make_vec
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import check_memory

Q_LEARNING = Path(__file__).parents[2] / "samples/q_learning.py"
DUEL = Path(__file__).parents[2] / "samples/duel.py"


def test_several_players_are_refused_in_words():
    with pytest.raises(ConfigError, match=r"2 players.*make_vec"):
        resolve_environment(str(DUEL), {})


def test_foreign_environments_take_keyword_arguments_only():
    with pytest.raises(ConfigError, match=r"env.speed.*kwargs"):
        resolve_environment("gym:CartPole-v1", {"speed": 2})
    environment = resolve_environment("gym:CartPole-v1", {"kwargs": {"sutton_barto_reward": True}})
    assert environment.spec.observation_shape == (4,)
    assert environment.splits() == ("train",)


def test_networks_that_cannot_fit_are_refused_before_anything_is_allocated():
    config = resolve("cartpole", {"agent.net_arch": [10_000_000, 10_000_000]})
    environment = resolve_environment(config.env_name, config.env_settings)
    with pytest.raises(ResourceError, match=r"agent.net_arch"):
        check_memory(config, environment)


@pytest.mark.parametrize("name", ["cartpole", "gym:CartPole-v1"])
def test_a_billion_members_are_refused_before_anything_is_allocated(name):
    config = resolve(name, {"training.members": 10**9, "training.num_envs": 16})
    environment = resolve_environment(config.env_name, config.env_settings)
    with pytest.raises(
        ResourceError, match=r"1000000000 members x 16 environments.*training.members"
    ):
        check_memory(config, environment)
    with pytest.raises(ConfigError, match=r"training.members` must be at most"):
        resolve(name, {"training.members": 10**30})


@pytest.mark.parametrize("copies", [10**12, 10**30])
@pytest.mark.parametrize("name", ["cartpole", "gym:CartPole-v1"])
def test_copies_that_cannot_fit_are_refused_in_python_too(name, copies):
    with pytest.raises(ResourceError, match=r"environments need .* GiB or more.*lower num_envs"):
        make_vec(name, copies)


def test_a_replay_that_cannot_fit_is_refused_with_its_size():
    def check(**agent):
        own = {f"agent.{name}": value for name, value in agent.items()}
        own |= {"agent.name": str(Q_LEARNING), "training.num_envs": 4}
        config = resolve("pendulum", own)
        check_memory(config, resolve_environment(config.env_name, config.env_settings))

    check(buffer_size=10_000)
    with pytest.raises(
        ResourceError, match=r"replay buffers of 100,000,000,000 .*reduce .*buffer_size"
    ):
        check(buffer_size=100_000_000_000)
