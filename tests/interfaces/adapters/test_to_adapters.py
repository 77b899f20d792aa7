"""`to_gymnasium` and `to_sb3` give the environments that `make_adapter` gives."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import member_indices

ACTIONS = np.array([0, 1, 1, 0])


@pytest.mark.parametrize("name", ["cartpole", "gym:CartPole-v1"])
def test_to_gymnasium_steps_like_make_adapter(name):
    with slipstream.make_vec(name, 4, backend="serial") as env:
        made = env.to_gymnasium(autoreset_mode="SameStep")
    wanted = slipstream.make_adapter(
        "gymnasium", name, 4, backend="serial", autoreset_mode="SameStep"
    )
    assert isinstance(made, VectorEnv) and type(made) is type(wanted)
    for _ in range(2):
        assert np.array_equal(made.reset(seed=7)[0], wanted.reset(seed=7)[0])
        for one, other in zip(made.step(ACTIONS)[:4], wanted.step(ACTIONS)[:4], strict=True):
            assert np.array_equal(one, other)
    made.close(), wanted.close()


def test_seed_and_settings_are_those_of_the_environment():
    env = slipstream.make_vec("cartpole", 4, seed=5, max_steps=3)
    made = env.to_gymnasium()
    assert np.array_equal(made.reset()[0], env.reset())
    for _ in range(3):
        *_, truncated, _ = made.step(ACTIONS)
    assert truncated.all()  # max_steps
    assert env.reset(seed=1).shape == (4, 4)  # it is still open
    made.close(), env.close()


@pytest.mark.parametrize("name", ["cartpole", "gym:CartPole-v1"])
@pytest.mark.peers
def test_to_sb3_learns(name):
    sb3 = pytest.importorskip("stable_baselines3")
    with slipstream.make_vec(name, 4, seed=5) as env:
        made, wanted = env.to_sb3(), slipstream.make_adapter("sb3", name, 4, seed=5)
    assert np.array_equal(made.reset(), wanted.reset())
    wanted.close()
    model = sb3.PPO("MlpPolicy", made, n_steps=16, batch_size=32, n_epochs=1)
    assert model.learn(64).num_timesteps == 64
    made.close()


def test_environments_made_in_another_way_name_make_adapter():
    seeds, indices = member_indices([0], 3)
    kernel = load_kernel("cartpole")
    env = KernelVectorEnv(kernel, kernel.load(kernel.Config()), seeds, indices)
    with env, pytest.raises(ConfigError, match=r"make_adapter\('sb3', ENV, 3\)"):
        env.to_sb3()


def test_what_an_adapter_does_not_support_is_refused():
    with slipstream.make_vec("hockey", 2) as env, pytest.raises(ConfigError, match="pettingzoo"):
        env.to_gymnasium()
