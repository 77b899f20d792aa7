"""One fold of one trial with ElegantRL's PPO on one environment, as FinRL_Crypto runs it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from elegantrl.agents.AgentPPO import AgentPPO
from elegantrl.train.config import Config
from numpy.typing import NDArray

from slipstream.bench.peers.portfolio_env import PeerPrices, PortfolioEnv
from slipstream.bench.worker import serve

ROWS, MINIBATCH, EPOCHS = 12 * 256, 256, 4


class _OldProtocol:
    """reset() -> state, step() -> (state, reward, done, info): what ElegantRL 0.3.6 asks for."""

    def __init__(self, env: PortfolioEnv) -> None:
        self.env = env

    def reset(self) -> NDArray[np.float32]:
        return self.env.reset()[0]

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, dict[str, Any]]:
        state, reward, terminated, truncated, info = self.env.step(action)
        return state, reward, terminated or truncated, info


def measure(folder: str, iterations: int, test_steps: int, threads: int) -> dict[str, float]:
    """Seconds to build everything, per training step, and per step of a deterministic pass.

    Args:
        folder: of the arrays that `Prices.write` left.
        iterations: of 3,072 steps each, after one that warms up.
        test_steps: steps of a test pass.
        threads: of PyTorch.
    """
    torch.set_num_threads(threads)
    began = time.perf_counter()
    prices = PeerPrices.read(folder)
    env = PortfolioEnv(prices)
    config = Config(
        AgentPPO,
        None,
        {
            "env_name": "portfolio",
            "state_dim": env.observation_space.shape[0],
            "action_dim": env.action_space.shape[0],
            "if_discrete": False,
        },
    )
    config.batch_size, config.repeat_times, config.net_dims = MINIBATCH, EPOCHS, [64, 64]
    torch.set_grad_enabled(False)  # as its train_agent does
    agent = AgentPPO(config.net_dims, config.state_dim, config.action_dim, gpu_id=-1, args=config)
    trained = _OldProtocol(env)
    agent.last_state = torch.as_tensor(trained.reset()).unsqueeze(0)
    built = time.perf_counter() - began
    _iterate(agent, trained, 1)  # warms up
    began = time.perf_counter()
    _iterate(agent, trained, iterations)
    training = (time.perf_counter() - began) / (iterations * ROWS)

    tested = _OldProtocol(PortfolioEnv(prices, 0))
    state = tested.reset()
    began = time.perf_counter()
    for _ in range(test_steps):
        action = agent.act(torch.as_tensor(state).unsqueeze(0))[0].numpy()
        state, _, done, _ = tested.step(action)
        if done:
            state = tested.reset()
    testing = (time.perf_counter() - began) / test_steps
    return {
        "build_seconds": built,
        "train_seconds_per_step": training,
        "test_seconds_per_step": testing,
    }


def _iterate(agent: AgentPPO, env: _OldProtocol, iterations: int) -> None:
    for _ in range(iterations):
        buffer = agent.explore_env(env, ROWS)
        torch.set_grad_enabled(True)
        agent.update_net(buffer)
        torch.set_grad_enabled(False)


if __name__ == "__main__":
    serve(measure)
