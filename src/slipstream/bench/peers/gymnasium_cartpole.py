"""One copy of Gymnasium's own CartPole-v1 with random actions drawn beforehand."""

from __future__ import annotations

import time

import gymnasium
import numpy as np

from slipstream.bench.worker import serve


def measure(seconds: float) -> dict[str, float]:
    """Steps per second, resets included."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    actions = np.random.default_rng(0).integers(0, 2, 1024).tolist()
    env.reset(seed=1)
    steps, began = -1024, 0.0  # the first pass over the actions warms up
    while steps < 0 or time.perf_counter() - began < seconds:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += 1024
        if steps == 0:
            began = time.perf_counter()
    return {"steps_per_second": steps / (time.perf_counter() - began)}


if __name__ == "__main__":
    serve(measure)
