"""One copy of a kernel behind Gymnasium's Env, and our ids in its registry."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from slipstream.adapters.batch import ActionError, ClosedError, ResetNeededError
from slipstream.adapters.gymnasium_env import EnvAdapter
from slipstream.core.errors import ConfigError
from slipstream.markets.synthetic import SyntheticCrypto, SyntheticForex

# Advice that cannot be followed: observations of rules without bounds, a pendulum's torque in N m.
ADVICE = ("infinity", "symmetric and normalized")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Settings that each environment requires."""
    forex, crypto = tmp_path_factory.mktemp("forex"), tmp_path_factory.mktemp("crypto")
    SyntheticForex().write(forex, 3_000, 1)
    SyntheticCrypto().write(crypto, 9_000, 1)
    return {
        "forex": {
            "data": {"folder": str(forex), "spread_pips": 0.5},
            "features": ["signal", "noise_0"],
        },
        "portfolio": {"data": {"folder": str(crypto)}},
    }


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "probes", "forex", "portfolio"])
def test_check_env_finds_nothing(name, settings):
    env = EnvAdapter(name, backend="serial", **settings.get(name, {}))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    said = [str(one.message) for one in said]
    assert not [one for one in said if not any(advice in one for advice in ADVICE)]


@pytest.mark.peers
@pytest.mark.parametrize("name", ["cartpole", "pendulum", "probes", "forex", "portfolio"])
def test_the_checker_of_stable_baselines_finds_nothing(name, settings):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checker.check_env(EnvAdapter(name, backend="serial", **settings.get(name, {})))
    said = [str(one.message) for one in said]
    assert not [one for one in said if not any(advice in one for advice in ADVICE)]


@pytest.mark.slow
def test_games_pass_with_an_opponent_and_say_which_they_take_without():
    made = gymnasium.make(
        "slipstream.adapters.registration:slipstream/hockey-v0",
        opponents={"weak": 1},
        backend="serial",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bounds that are infinite
        check_env(made.unwrapped, skip_render_check=True)
    with pytest.raises(ConfigError, match=r"built-in opponents, opponents=\{'weak': 1.0"):
        gymnasium.make("slipstream.adapters.registration:slipstream/hockey-v0")
    with pytest.raises(ConfigError, match="Train it by self-play"):
        gymnasium.make("slipstream.adapters.registration:slipstream/tictactoe-v0")


def test_spaces_belong_to_the_client():
    one, two = EnvAdapter("pendulum", backend="serial"), EnvAdapter("pendulum", backend="serial")
    one.observation_space.dtype = np.float64  # as CleanRL's SAC does, before the first reset
    assert one.reset(seed=1)[0].dtype == two.reset(seed=1)[0].dtype == np.float32


def test_an_episode_that_has_ended_waits_and_tells_its_metrics(kernel_file):
    env = EnvAdapter(kernel_file("clock"), backend="serial", records=[[2, 0]])
    with pytest.raises(ResetNeededError, match="call `reset`"):
        env.step(0)
    env.reset(seed=1)
    assert env.step(1)[4] == {}
    obs, reward, terminated, truncated, info = env.step(1)
    assert obs[0] == 2.0 and isinstance(reward, float)
    assert (terminated, truncated) == (True, False)
    assert info["metrics"] == {"sum": pytest.approx(0.2), "late": 0.0}
    with pytest.raises(ResetNeededError, match="have ended"):
        env.step(1)
    assert env.reset()[0][0] == 0.0


def test_without_a_seed_two_environments_differ():
    one, two = EnvAdapter("cartpole", backend="serial"), EnvAdapter("cartpole", backend="serial")
    assert not np.array_equal(one.reset()[0], two.reset()[0])


def test_wrong_use_is_named(kernel_file):
    env = EnvAdapter("cartpole", backend="serial")
    env.reset(seed=1)
    with pytest.raises(ActionError, match="2 at"):
        env.step(2)
    with pytest.raises(AttributeError, match="no action mask"):
        env.action_masks()
    with pytest.raises(ConfigError, match="cannot be rendered"):
        EnvAdapter("cartpole", render_mode="human")
    with pytest.raises(ConfigError, match="2 players"):
        EnvAdapter(kernel_file("duel"), backend="serial")
    masked = EnvAdapter(kernel_file("masked"), backend="serial")
    masked.reset(seed=1)
    assert masked.action_masks().shape == (5,)
    env.close()
    with pytest.raises(ClosedError, match="was closed"):
        env.reset()


def test_gymnasium_imports_what_registers_them():
    code = (
        "import gymnasium; name = 'slipstream.adapters.registration:slipstream/cartpole-v0'\n"
        "print(gymnasium.make(name, backend='serial').reset(seed=1)[0].shape)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "(4,)\n", done.stderr
