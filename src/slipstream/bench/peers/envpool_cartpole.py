"""EnvPool's CartPole-v1, its fastest public interface, with random actions drawn beforehand."""

from __future__ import annotations

import time

import envpool
import numpy as np

from slipstream.bench.worker import serve


def measure(num_envs: int, num_threads: int, seconds: float) -> dict[str, float]:
    """Steps per second of `num_envs` copies stepped together."""
    env = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=1
    )
    actions = np.random.default_rng(0).integers(0, 2, (64, num_envs), dtype=np.int32)
    env.reset()
    for t in range(32):
        env.step(actions[t])
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(64):
            env.step(actions[t])
        steps += 64 * num_envs
    return {"steps_per_second": steps / (time.perf_counter() - began)}


if __name__ == "__main__":
    serve(measure)
