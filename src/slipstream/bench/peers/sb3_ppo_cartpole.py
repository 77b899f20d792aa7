"""SB3's PPO on CartPole with the RL Zoo's tuned settings, until 100 episodes average 475."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.worker import serve

BUDGET = 100_000  # the Zoo's n_timesteps
_EPISODES = 100


class _UntilScore(BaseCallback):
    """Stops when the trailing 100 training episodes average the score."""

    def __init__(self, score: float) -> None:
        super().__init__()
        self.score, self.reached = score, False
        self.returns: deque[float] = deque(maxlen=_EPISODES)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        full = len(self.returns) == _EPISODES
        self.reached = full and float(np.mean(self.returns)) >= self.score
        return not self.reached


def measure(seed: int, score: float, threads: int, budget: int = BUDGET) -> dict[str, float]:
    """Seconds of `learn` until the score is reached, or until the budget is spent."""
    torch.set_num_threads(threads)
    # hyperparams/ppo.yml of rl-baselines3-zoo, CartPole-v1; `lin_x` falls linearly to 0.
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: 0.001 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    watch = _UntilScore(score)
    began = time.perf_counter()
    model.learn(budget, callback=watch)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "reached": float(watch.reached),
        "steps_per_second": model.num_timesteps / seconds,
    }


if __name__ == "__main__":
    serve(measure)
