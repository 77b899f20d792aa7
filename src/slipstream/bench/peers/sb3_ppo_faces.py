"""SB3's PPO on its own DummyVecEnv, or on slipstream's face for it; CartPole both times."""

from __future__ import annotations

import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import slipstream
from slipstream.bench.worker import serve


def measure(kind: str, num_envs: int, steps: int, threads: int) -> dict[str, float]:
    """Seconds of `learn` in all, and those spent in the environments' `step`.

    Args:
        kind: "dummy" or "ours".
        num_envs: copies.
        steps: of experience, in all.
        threads: of PyTorch.
    """
    torch.set_num_threads(threads)
    env: Any
    if kind == "ours":
        env = slipstream.make_face("sb3", "cartpole", num_envs)
    else:
        env = make_vec_env("CartPole-v1", n_envs=num_envs, seed=1)
    stepping, step = [0.0], env.step

    def timed(actions: Any) -> Any:
        began = time.perf_counter()
        came = step(actions)
        stepping[0] += time.perf_counter() - began
        return came

    env.step = timed
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=1024, n_epochs=4, seed=1, device="cpu")
    model.learn(64 * num_envs)  # a first rollout and update, for warming up
    stepping[0] = 0.0
    began = time.perf_counter()
    model.learn(steps)
    return {"seconds": time.perf_counter() - began, "stepping": stepping[0]}


if __name__ == "__main__":
    serve(measure)
