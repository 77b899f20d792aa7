"""Copies of the hockey game whose seats two strong bots have, stepped on one core."""

from __future__ import annotations

import time

import numpy as np

from slipstream.bench.worker import serve
from slipstream.core.discover import load_kernel
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.vector_env import blank, member_indices

_SETTINGS = {"one": {"strong": 1.0}, "two": {"strong": 1.0}}
_WARM = 100  # steps before copies are anywhere in their games
_BLOCK = 50


def measure(num_envs: int, seconds: float) -> dict[str, float]:
    """Steps per second of engine and bots; compiling is not counted."""
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure(_SETTINGS))
    env = KernelVectorEnv(kernel, loaded, *member_indices([1], num_envs))
    out = blank(env)
    env.reset(out.obs)
    idle = np.zeros((num_envs, env.spec.players, env.spec.action_width), np.float32)
    for t in range(_WARM):
        env.step(idle, out, t)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(_BLOCK):
            env.step(idle, out, t)
        env.drain_finals()
        env.drain_episodes()
        steps += _BLOCK * num_envs
    return {"steps_per_second": steps / (time.perf_counter() - began)}


if __name__ == "__main__":
    serve(measure)
