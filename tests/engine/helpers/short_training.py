"""Trains a few members in this process, without a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.shard import Shard

Train = Callable[..., Shard]
LOSSES = {"value_loss", "loss", "critic_loss"}


_SLOW = (pytest.mark.slow, pytest.mark.timeout(1200))  # minutes where others are at work


@pytest.fixture(params=["compiled", pytest.param("torch", marks=_SLOW)])
def learner(request: pytest.FixtureRequest) -> str:
    """Both forms of an agent; the torch form, the definition, is slower."""
    return str(request.param)


@pytest.fixture
def train() -> Iterator[Train]:
    """train(environment, agent, seeds, num_envs, steps, stop, learner) -> the last shard.

    `environment` is an Environment or (name, settings), `agent` a config or settings of PPO;
    `stop(shard)` may end training early.
    """

    def run(
        environment: Environment | tuple[str, Mapping[str, Any]],
        agent: AgentConfig | Mapping[str, Any],
        *,
        seeds: list[int],
        num_envs: int,
        steps: int,
        stop: Callable[[Shard], bool] = lambda shard: False,
        learner: str = "auto",
    ) -> Shard:
        if not isinstance(environment, Environment):
            environment = resolve_environment(*environment)
        config = agent if isinstance(agent, AgentConfig) else PPOConfig(**agent)
        shard = Shard(environment, config, seeds, range(len(seeds)), num_envs, learner=learner)
        shard.reset()
        spent = 0
        while spent < steps and not stop(shard):
            metrics = shard.iterate(spent / steps)
            spent += config.iteration_steps(num_envs) * num_envs
            assert not metrics["failed"].any()
            assert all(np.isfinite(metrics[name]).all() for name in LOSSES & metrics.keys())
        return shard

    yield run
