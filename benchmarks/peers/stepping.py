"""Environments of other libraries, stepped with actions drawn beforehand."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.worker import steps_per_second


def pace(env: Any, actions: NDArray[Any], seconds: float) -> float:
    """Measure steps per second of a vector environment; actions [T, E] repeat."""

    def block() -> int:
        for t in range(len(actions)):
            env.step(actions[t])
        return actions.size

    block()  # warms up
    return steps_per_second(block, seconds)


def envpool_cartpole(num_envs: int, num_threads: int, seconds: float) -> dict[str, float]:
    """Measure steps per second of EnvPool's CartPole-v1 by its fastest public interface."""
    import envpool

    env = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=1
    )
    env.reset()
    actions = np.random.default_rng(0).integers(0, 2, (64, num_envs), dtype=np.int32)
    return {"steps_per_second": pace(env, actions, seconds)}


def gymnasium_cartpole(seconds: float) -> dict[str, float]:
    """Measure steps per second of one Gymnasium CartPole-v1, resets included."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    actions = np.random.default_rng(0).integers(0, 2, 1024).tolist()
    env.reset(seed=1)

    def block() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    block()  # warms up
    return {"steps_per_second": steps_per_second(block, seconds)}


def numpy_portfolio(folder: str, seconds: float) -> dict[str, float]:
    """Measure steps per second of FinRL_Crypto's unit-order rules in NumPy, one env at a time.

    Args:
        folder: arrays written by `PeerPrices.write`.
        seconds: duration of the measurement.
    """
    # The tests compare the kernel with this oracle.
    from portfolio_peer import PeerPrices
    from unit_orders_oracle import NumpyUnitOrders

    prices = PeerPrices.read(folder)
    close, features = np.array(prices.close), np.array(prices.features, np.float64)
    assets = close.shape[1]
    env = NumpyUnitOrders(close, features, np.full(assets, 0.01))
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (4_096, assets))

    def block() -> int:
        for action in actions:
            done = env.step(action)[2]
            if done:
                env.reset()
        return len(actions)

    return {"steps_per_second": steps_per_second(block, seconds)}


def hockey_oracle(seconds: float) -> dict[str, float]:
    """Measure steps per second of two bots on the package box2d, driven by the tests' oracle.

    One game runs in one process, resets included; the bots are the tests' NumPy bots.
    """
    import hockey_oracle as oracle
    import hockey_world as world

    game, seed = oracle.Hockey(), 0
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        game.reset(bool(seed % 2), seed)
        player = world.Play("bots", seed, True)
        while not game.done:
            game.step(player.act(game))
            steps += 1
        seed += 1
    return {"steps_per_second": steps / (time.perf_counter() - began)}
