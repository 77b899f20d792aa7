"""Names of other libraries are answered with ours, and the answer works when pasted."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.core.errors import ConfigError

HINTS = {
    ("cartpole", "agent.name=a2c"): "did you mean `ppo`?",
    ("pendulum", "agent.name=SAC"): "did you mean `sac`?",
    ("pendulum", "agent.name=ddpg"): "did you mean `td3`?",
    ("cartpole", "agent.horizon=12"): "`agent.horizon` is called `agent.n_steps`.",
    ("cartpole", "agent.minibatch=12"): "`agent.minibatch` is called `agent.batch_size`.",
    ("pendulum", "agent.temperature=1"): "`agent.temperature` is called `agent.ent_coef`.",
    ("cartpole", "agent.lr=0.1"): "did you mean `learning_rate`?",
    ("cartpole", "training.n_envs=3"): "did you mean `num_envs`?",
    ("cartpole", "training.total_steps=3"): "is called `training.total_timesteps`.",
    ("cartpole", "learning_rate=0.1"): "did you mean `agent.learning_rate`?",
    ("cartpole", "gamma=0.9"): "did you mean `agent.gamma`?",
}


@pytest.mark.parametrize(("target", "setting"), HINTS)
def test_a_name_of_another_library_is_answered_with_ours(target, setting):
    with pytest.raises(ConfigError) as caught:
        slipstream.train(target, overrides=[setting])
    assert HINTS[target, setting] in str(caught.value)


def test_a_hyper_parameter_given_as_a_keyword_is_answered_with_what_works():
    with pytest.raises(ConfigError) as caught:
        slipstream.train("cartpole", learning_rate=1e-3)
    assert 'In Python: `overrides={"agent.learning_rate": ...}`' in str(caught.value)
    with pytest.raises(ConfigError, match="total_timesteps"):  # the hint is understood
        slipstream.train("cartpole", overrides={"agent.learning_rate": 1e-3}, total_timesteps=0)


@pytest.mark.parametrize(
    "name",
    [
        *("CartPole-v1", "ALE/Pong-v5", "minigrid:MiniGrid-Empty-5x5-v0"),
        "gymnasium:CartPole-v1",
    ],
)
def test_an_id_of_gymnasium_is_answered_with_its_prefix(name):
    identifier = name.removeprefix("gymnasium:")
    with pytest.raises(ConfigError, match=f"did you mean `gym:{identifier}`"):
        slipstream.train(name)
