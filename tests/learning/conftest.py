"""Trains a few members in this process, without a run directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.agents.ppo.config import PPOConfig
from slipstream.training.environment import Environment
from slipstream.training.factory import resolve_environment
from slipstream.training.shard import Shard

sys.path.insert(0, str(Path(__file__).parent))  # for planted_world

Train = Callable[..., Shard]


@pytest.fixture
def train() -> Iterator[Train]:
    """train(environment, agent settings, seeds, num_envs, steps, stop, learner) -> the last shard.

    `environment` is an Environment or (name, settings); `stop(shard)` may end training early.
    """

    def run(
        environment: Environment | tuple[str, Mapping[str, Any]],
        agent: Mapping[str, Any],
        *,
        seeds: list[int],
        num_envs: int,
        steps: int,
        stop: Callable[[Shard], bool] = lambda shard: False,
        learner: str = "auto",
    ) -> Shard:
        if not isinstance(environment, Environment):
            environment = resolve_environment(*environment)
        config = PPOConfig(**agent)
        shard = Shard(environment, config, seeds, range(len(seeds)), num_envs, learner=learner)
        shard.reset()
        spent = 0
        while spent < steps and not stop(shard):
            metrics = shard.iterate(spent / steps)
            spent += config.horizon * num_envs
            assert not metrics["failed"].any()
            assert np.isfinite(metrics["value_loss"]).all()
        return shard

    yield run
