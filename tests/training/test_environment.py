"""What a config's `env` section may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.training.config import resolve
from slipstream.training.factory import resolve_environment
from slipstream.training.sizing import check_memory

DUEL = Path(__file__).parent.parent / "vector" / "kernels" / "duel.py"


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
    config = resolve("cartpole", {"agent.widths": [10_000_000, 10_000_000]})
    environment = resolve_environment(config.env_name, config.env_settings)
    with pytest.raises(ResourceError, match=r"agent.widths"):
        check_memory(config, environment)
