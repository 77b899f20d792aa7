"""Suggested settings and values for a run that is too large."""

import pytest

from slipstream.core.errors import ResourceError
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import (
    check_memory,
    format_suggestions,
    limited,
    size_of,
    size_suggestions,
)


def test_values_are_round_and_the_largest_that_are_enough():
    asked = {"study.n_trials": 500, "agent.net_arch": 1024, "training.total_timesteps": 100_000}
    bounds = {"study.n_trials": 61, "agent.net_arch": 300, "training.total_timesteps": 30_999}
    found = size_suggestions(asked, asked.__getitem__, lambda path, most: most <= bounds[path])
    assert found == {
        "study.n_trials": 61, "agent.net_arch": 256, "training.total_timesteps": 30_000
    }  # fmt: skip
    assert size_suggestions(asked, asked.__getitem__, lambda path, most: False) == {}
    assert (
        "on its own: reduce study.n_trials to 61, or agent.net_arch to 256"
        in format_suggestions(found)
    )
    assert "No single setting is enough" in format_suggestions({})


def test_a_config_is_limited_in_one_setting():
    config = resolve("cartpole", {"agent.net_arch": [512, 64], "training.num_envs": 8})
    assert size_of(config, "agent.net_arch") == 512 and size_of(config, "agent.buffer_size") == 0
    assert limited(config, "agent.net_arch", 128).agent.net_arch == (128, 64)
    assert limited(config, "training.num_envs", 4).num_envs == 4
    replay = resolve("cartpole", {"agent.name": "dqn", "training.num_envs": 8})
    assert limited(replay, "agent.buffer_size", 10) is None  # less than a batch


@pytest.mark.parametrize("setting", ["agent.net_arch", "training.members"])
def test_what_is_said_to_mend_a_run_does(setting):
    config = resolve("cartpole", {"agent.net_arch": [256, 256], "training.num_envs": 8})
    config = config.with_training(members=64)
    environment = resolve_environment(config.env_name, config.env_settings)
    needed = check_memory(config, environment)
    room = needed // 3
    with pytest.raises(ResourceError, match=f"{setting} to ") as refused:
        check_memory(config, environment, room)
    text = str(refused.value)
    assert "networks and updates" in text
    most = int(text.partition(f"{setting} to ")[2].split()[0].strip(",.").replace(",", ""))
    check_memory(limited(config, setting, most), environment, room)
