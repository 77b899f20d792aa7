"""Masked choices: a shop that may not order more than its store holds, and its best policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.rl.agents.dqn.config import DQNConfig

SHOP = str(Path(__file__).parents[3] / "examples/kernels/shop.py")
CAPACITY, MOST_WANTED, STORAGE, DELIVERY, DAYS = 12, 6, 0.1, 2.0, 60
PPO = {
    "n_steps": 64,
    "batch_size": 256,
    "n_epochs": 6,
    "learning_rate": 2e-3,
    "learning_rate_schedule": "linear",
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "reward_scaling": "on",
}
DQN = DQNConfig(
    batch_size=32,
    learning_starts=500,
    utd_ratio=0.25,
    learning_rate=2e-3,
    learning_rate_schedule="linear",
    target_update_interval=100,
    gamma=0.95,
    exploration_steps=5_000,
    reward_scaling="on",
)


def best_return():
    """What the best policy expects of an episode that begins with any stock: backward induction."""
    wanted = np.arange(MOST_WANTED + 1)
    value = np.zeros(CAPACITY + 1)
    for _ in range(DAYS):
        held = np.arange(CAPACITY + 1)[:, None]  # stock and order together
        left = np.maximum(held - wanted, 0)
        worth = (held - left - STORAGE * left + value[left]).mean(1)
        value = np.array(
            [
                max(worth[stock], worth[stock + 1 :].max(initial=-np.inf) - DELIVERY)
                for stock in range(CAPACITY + 1)
            ]
        )
    return value.mean()


def test_ppo_orders_nearly_as_well_as_can_be(train, learner):
    shard = train((SHOP, {}), PPO, seeds=[0, 1], num_envs=16, steps=100_000, learner=learner)
    assert (shard.evaluate("train", 400, 7).mean(axis=1) >= 0.95 * best_return()).all()


@pytest.mark.slow
def test_dqn_orders_nearly_as_well_as_can_be(train, learner):
    shard = train((SHOP, {}), DQN, seeds=[0], num_envs=1, steps=20_000, learner=learner)
    assert (shard.evaluate("train", 400, 7).mean(axis=1) >= 0.9 * best_return()).all()
