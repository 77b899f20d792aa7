"""SB3's PPO on gym-anytrading's forex-v0: as its users run it, and tuned for throughput."""

from __future__ import annotations

import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from slipstream.bench.peers.sb3_forex import forex_copies
from slipstream.bench.worker import serve

RECIPES: dict[str, dict[str, Any]] = {
    # An iteration of the defaults takes some 20 s, beside which no warm-up is seen.
    "default": {"kind": "SubprocVecEnv", "num_envs": 8, "warm_up": 0, "settings": {}},
    "tuned": {
        "kind": "DummyVecEnv",
        "num_envs": 64,
        "warm_up": 1,
        "settings": {
            "n_steps": 256,
            "batch_size": 4096,
            "n_epochs": 4,
            "policy_kwargs": {"net_arch": [64, 64]},
        },
    },
}


class _Stopwatch(BaseCallback):
    """Times whole iterations, rollout and update, and ends with the first that began too late."""

    def __init__(self, seconds: float, warm_up: int) -> None:
        super().__init__()
        self.seconds, self.warm_up, self.iteration = seconds, warm_up, 0
        self.began = self.ended = 0.0
        self.first_step = self.last_step = 0

    def _on_rollout_start(self) -> None:
        self.ended, self.last_step = time.perf_counter(), self.num_timesteps
        if self.iteration == self.warm_up:
            self.began, self.first_step = self.ended, self.num_timesteps
        self.iteration += 1

    def _on_step(self) -> bool:
        enough = self.ended - self.began >= self.seconds
        return not (self.iteration > self.warm_up + 1 and enough)


def measure(recipe: str, seconds: float, threads: int, short: bool = False) -> dict[str, float]:
    """Training steps per second over whole iterations, and gradient updates per step.

    Args:
        recipe: ``default`` or ``tuned``.
        seconds: least time to measure over.
        threads: of PyTorch.
        short: rollouts of an eighth of their length, to choose the number of threads.
    """
    torch.set_num_threads(threads)
    chosen = RECIPES[recipe]
    env = VecMonitor(forex_copies(chosen["kind"], chosen["num_envs"]))
    settings = dict(chosen["settings"])
    if short:
        settings["n_steps"] = settings.get("n_steps", 2048) // 8
    model = PPO("MlpPolicy", env, seed=1, device="cpu", **settings)
    watch = _Stopwatch(seconds, chosen["warm_up"])
    model.learn(10**9, callback=watch)
    rate = (watch.last_step - watch.first_step) / (watch.ended - watch.began)
    env.close()
    return {"steps_per_second": rate, "updates_per_step": model.n_epochs / model.batch_size}


if __name__ == "__main__":
    serve(measure)
