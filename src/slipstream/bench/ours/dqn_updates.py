"""Updates per second of DQN on one core, from a replay that is full."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.agents.dqn.config import DQNConfig
from slipstream.bench.worker import serve
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.shard import Shard

_UPDATES = 500  # in one call


def measure(agent: Mapping[str, Any], transitions: int, seconds: float) -> dict[str, float]:
    """Fills a lone member's replay on CartPole, and then only learns.

    Args:
        agent: settings of DQN.
        transitions: that the replay holds.
        seconds: to measure over.
    """
    settings = {"replay_size": transitions, "learning_starts": transitions, **agent}
    config = DQNConfig(iteration=10_000, **settings)
    shard = Shard(resolve_environment("cartpole", {}), config, [0], range(1), 1)
    shard.reset()
    for _ in range(-(-transitions // 10_000)):
        shard.iterate(0.0)
    replay, updates = shard.collector.replay, np.array([_UPDATES])
    shard.agent.learn(replay, updates)
    began, made = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        shard.agent.learn(replay, updates)
        made += _UPDATES
    return {"updates_per_second": made / (time.perf_counter() - began)}


if __name__ == "__main__":
    serve(measure)
