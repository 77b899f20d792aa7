"""The same environments in the vector layers of Gymnasium, Stable-Baselines3 and EnvPool."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

import numpy as np
import psutil

from slipstream.bench.ours.vector_layer import processor_seconds
from slipstream.bench.vector_envs import maker
from slipstream.bench.worker import serve
from slipstream.vector.process.pool import memory_of

_ROWS = 16


def made(kind: str, env: str, rounds: int, num_envs: int) -> Any:
    """One of: gym_sync, gym_async (shared memory), sb3_dummy, sb3_subproc, envpool, our face."""
    if kind == "envpool":
        import envpool

        return envpool.make_gymnasium(env, num_envs=num_envs, seed=1)
    makers = [maker(env, rounds)] * num_envs
    if kind == "face":
        faces = import_module("slipstream.adapters.gymnasium_foreign")
        return faces.ForeignVectorFace(makers)
    if kind.startswith("gym"):
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        return SyncVectorEnv(makers) if kind == "gym_sync" else AsyncVectorEnv(makers)
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if kind == "sb3_dummy":
        return DummyVecEnv(makers)
    # Its default starts every process by importing PyTorch, which takes minutes for many copies.
    return SubprocVecEnv(makers, start_method="fork")


def layer(num_envs: int, kind: str, env: str, rounds: int = 0) -> Any:
    """The same as ``vec:slipstream.bench.peers.vector_layers:layer``, for an agent of ours."""
    return made(kind, env, rounds, num_envs)


def measure(
    kind: str, env: str, num_envs: int, seconds: float, rounds: int = 0
) -> dict[str, float]:
    """Steps per second, processor time of a step, start and stop in seconds, memory."""
    began = time.perf_counter()
    copies = made(kind, env, rounds, num_envs)
    copies.reset()
    started = time.perf_counter() - began
    actions = np.random.default_rng(0).integers(0, 2, (_ROWS, num_envs))
    for t in range(_ROWS):
        copies.step(actions[t])
    steps, began, spent = 0, time.perf_counter(), processor_seconds()
    while time.perf_counter() - began < seconds:
        for t in range(_ROWS):
            copies.step(actions[t])
        steps += _ROWS * num_envs
    rate = steps / (time.perf_counter() - began)
    spent = processor_seconds() - spent
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    memory = sum(map(memory_of, [os.getpid(), *pids]))
    began = time.perf_counter()
    copies.close()
    return {
        "steps_per_second": rate,
        "cpu": spent / steps,
        "start": started,
        "stop": time.perf_counter() - began,
        "memory": memory,
    }


if __name__ == "__main__":
    serve(measure)
