"""Probe environments isolate one part of the algorithm each; their values are known."""

from __future__ import annotations

import numpy as np
import pytest

AGENT = {
    "n_steps": 16,
    "batch_size": 64,
    "n_epochs": 8,
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "observation_normalization": False,
    "net_arch": (32, 32),
}
SEEDS = [0, 1, 2]


def _train(train, probe, *, steps=30_000, max_steps=8, learner="auto", **agent):
    environment, settings = ("probes", {"probe": probe, "max_steps": max_steps}), {**AGENT, **agent}
    return train(environment, settings, seeds=SEEDS, num_envs=16, steps=steps, learner=learner)


def _values(shard, *observations):
    """[len(observations), members] of observations whose first number is given."""
    rows = []
    for first in observations:
        obs = np.zeros((len(SEEDS), 3), np.float32)
        obs[:, 0] = first
        rows.append(_value(shard, obs))
    return np.array(rows)


def _value(shard, obs):
    """What each member's critic expects of one observation."""
    return shard.agent.policy.actor(1).value(obs)[:, 0, 0]


def test_a_certain_reward_is_worth_itself(train, learner):
    np.testing.assert_allclose(_values(_train(train, "one", learner=learner), 0.0), 1.0, atol=0.02)


def test_the_value_depends_on_the_observation(train, learner):
    shard = _train(train, "observed", learner=learner)
    seen = np.ones((len(SEEDS), 3), np.float32)
    np.testing.assert_allclose(_value(shard, seen), 1.0, atol=0.1)
    np.testing.assert_allclose(_value(shard, -seen), -1.0, atol=0.1)


def test_a_later_reward_is_discounted(train, learner):
    values = _values(_train(train, "delayed", learner=learner), 0.0, 1.0)
    np.testing.assert_allclose(values[0], 0.9, atol=0.03)
    np.testing.assert_allclose(values[1], 1.0, atol=0.03)


@pytest.mark.parametrize("max_steps", [1, 8])
def test_a_time_limit_is_no_end(train, max_steps, learner):
    # Reward 1 a step for ever: worth 1 / (1 - 0.9) = 10. Bootstrapping with 0 at the limit would
    # give 1 for a limit of one step and at most 5.7 on average for eight.
    values = _values(
        _train(train, "endless", max_steps=max_steps, steps=60_000, learner=learner), 0.0
    )
    np.testing.assert_allclose(values, 10.0, rtol=0.03)


@pytest.mark.parametrize(
    ("probe", "best"),
    [
        pytest.param("action", 1.0, marks=pytest.mark.slow),
        ("matched", 1.0),
        pytest.param("switches", 3.0, marks=pytest.mark.slow),
        ("target", 0.0),
    ],
)
def test_the_best_policy_is_found(train, probe, best, learner):
    schedule = {"learning_rate_schedule": "linear"}
    shard = _train(train, probe, steps=60_000, learner=learner, **schedule)
    scores = shard.evaluate("train", 64, 1)
    np.testing.assert_allclose(scores, best, atol=0.03)


def test_reward_scaling_changes_no_policy_and_no_report(train, learner):
    shard = _train(train, "matched", reward_scaling="on", learner=learner)
    np.testing.assert_allclose(shard.evaluate("train", 64, 1), 1.0)
    assert np.nanmax(shard.recent.returns) == 1.0
