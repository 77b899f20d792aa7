"""SB3's vector environments on gym-anytrading's forex-v0, with random actions drawn beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable

import gym_anytrading  # noqa: F401  (registers forex-v0)
import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from slipstream.bench.worker import serve

KINDS: dict[str, Callable[..., VecEnv]] = {
    "DummyVecEnv": DummyVecEnv,
    "SubprocVecEnv": SubprocVecEnv,
}


def make_forex() -> gymnasium.Env:
    """One copy of forex-v0: hourly EURUSD of 2017, 24 bars of two numbers to see."""
    return gymnasium.make("forex-v0", disable_env_checker=True)


def forex_copies(kind: str, num_envs: int) -> VecEnv:
    """`num_envs` copies in one of SB3's vector environments."""
    return KINDS[kind]([make_forex] * num_envs)


def measure(kind: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Steps per second of all copies together."""
    env = forex_copies(kind, num_envs)
    actions = np.random.default_rng(0).integers(0, 2, (64, num_envs))
    env.reset()
    for t in range(64):
        env.step(actions[t])
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(64):
            env.step(actions[t])
        steps += 64 * num_envs
    rate = steps / (time.perf_counter() - began)
    env.close()
    return {"steps_per_second": rate}


if __name__ == "__main__":
    serve(measure)
