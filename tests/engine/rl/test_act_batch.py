"""`Policy.act_batch` explores unless it is asked for the best actions, for every head."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.td3.config import TD3Config
from slipstream.rl.nets.policy import Policy

OBS = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
CHOICES, BOX = gymnasium.spaces.Discrete(4, start=2), gymnasium.spaces.Box(-3.0, 5.0, (2,))
HEADS = {"logits": CHOICES, "q": CHOICES, "gaussian": BOX, "squashed_gaussian": BOX, "tanh": BOX}
ROWS = np.random.default_rng(1).normal(size=(2, 4_000, 3)).astype(np.float32)


def policy_of(head, members=2):
    spec = EnvSpec(observation_space=OBS, action_space=HEADS[head])
    return Policy([spec] * members, list(range(5, 5 + members)), net_arch=(8,), head=head)


@pytest.mark.parametrize("head", HEADS)
def test_it_explores_by_default_and_takes_the_best_actions_on_request(head):
    policy = policy_of(head)
    best = policy.act(ROWS)
    assert np.array_equal(policy.act_batch(ROWS, deterministic=True), best)
    first, second = policy.act_batch(ROWS), policy.act_batch(ROWS)
    assert not np.array_equal(first, best) and not np.array_equal(first, second)
    space = HEADS[head]
    assert first.shape == best.shape and first.dtype == best.dtype
    assert all(space.contains(action) for action in first.reshape(-1, *space.shape)[:50])
    again = policy_of(head)
    assert np.array_equal(again.act_batch(ROWS), first)  # the stream follows from the seeds
    again.reseed(99)
    assert not np.array_equal(again.act_batch(ROWS), first)


def test_a_share_of_the_actions_of_dqn_is_uniformly_random():
    policy = policy_of("q")
    best = policy.act(ROWS)
    other = policy.act_batch(ROWS) != best
    assert other.mean() == pytest.approx(0.05 * 3 / 4, abs=0.008)  # one in four is the best
    drawn = policy.act_batch(ROWS, exploration=1.0)
    assert np.bincount(drawn.ravel(), minlength=6)[2:] == pytest.approx(2_000, abs=200)
    assert not np.array_equal(drawn[0], drawn[1])  # members draw by themselves
    assert np.array_equal(policy.act_batch(ROWS, exploration=0.0), best)


def test_noise_of_td3_is_in_halves_of_the_range():
    policy = policy_of("tanh")
    best = policy.act(ROWS)
    noise = policy.act_batch(ROWS, exploration=0.02) - best
    assert noise.std() == pytest.approx(0.02 * 4.0, rel=0.05)


def test_defaults_are_those_of_the_agents():
    assert DQNConfig().exploration_final_eps == 0.05
    assert TD3Config().exploration_noise == 0.1


@pytest.mark.parametrize(
    "head, amount", [("q", -0.1), ("tanh", 1.5), ("q", np.nan), ("logits", 0.1)]
)
def test_what_cannot_be_explored_by_is_refused(head, amount):
    with pytest.raises(ConfigError, match="exploration must be from 0 to 1"):
        policy_of(head).act_batch(ROWS, exploration=amount)
