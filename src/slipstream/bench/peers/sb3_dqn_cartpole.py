"""SB3's DQN on CartPole: steps per second at given sizes, or until 100 episodes average a score."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.worker import serve

BUDGET = 50_000  # the Zoo's n_timesteps
_EPISODES = 100
_WARM_UP = 1_000  # steps without updates, not timed


class _Watch(BaseCallback):
    """Times the steps behind the warm-up; stops after some seconds, or at a score."""

    def __init__(self, seconds: float, score: float) -> None:
        super().__init__()
        self.seconds, self.score, self.reached = seconds, score, False
        self.began, self.steps = math.nan, 0
        self.returns: deque[float] = deque(maxlen=_EPISODES)

    def _on_step(self) -> bool:
        if self.num_timesteps <= _WARM_UP:
            self.began = time.perf_counter()
            return True
        self.steps = self.num_timesteps - _WARM_UP
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        full = len(self.returns) == _EPISODES
        self.reached = full and float(np.mean(self.returns)) >= self.score
        return not self.reached and time.perf_counter() - self.began < self.seconds


def measure(
    recipe: str,
    widths: Sequence[int],
    threads: int,
    seconds: float = math.inf,
    score: float = math.inf,
    seed: int = 0,
) -> dict[str, float]:
    """Steps per second behind the warm-up, and seconds of `learn`.

    Args:
        recipe: `plain`, an update of 64 rows every 4 steps; or `zoo`, the RL Zoo's settings.
        widths: hidden layers; threads: of torch.
        seconds: to measure over; score: where to stop.
    """
    torch.set_num_threads(threads)
    # hyperparams/dqn.yml of rl-baselines3-zoo, CartPole-v1
    zoo = {
        "learning_rate": 2.3e-3,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
    }
    plain = {"train_freq": 4, "gradient_steps": 1, "exploration_fraction": 0.001}
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=1, seed=seed),
        batch_size=64,
        buffer_size=100_000,
        learning_starts=_WARM_UP,
        policy_kwargs={"net_arch": list(widths)},
        seed=seed,
        device="cpu",
        **(zoo if recipe == "zoo" else plain),
    )
    watch = _Watch(seconds, score)
    began = time.perf_counter()
    model.learn(BUDGET if recipe == "zoo" else 10**7, callback=watch)
    ended = time.perf_counter()
    return {
        "steps_per_second": watch.steps / (ended - watch.began),
        "seconds": ended - began,
        "steps": float(model.num_timesteps),
        "reached": float(watch.reached),
    }


if __name__ == "__main__":
    serve(measure)
