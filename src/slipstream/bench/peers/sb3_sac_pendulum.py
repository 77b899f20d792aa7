"""SB3's SAC on Pendulum, at its defaults but for what is given: speed, or time to a score."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.worker import serve

_EPISODES = 20  # training episodes that a score is the mean of; an episode has 200 steps
_WARM_UP = 150  # steps, the first 100 of them without updates


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
    widths: Sequence[int],
    threads: int,
    seconds: float = math.inf,
    score: float = math.inf,
    seed: int = 0,
    learning_rate: float = 3e-4,
    budget: int = 10**9,
) -> dict[str, float]:
    """Steps per second with an update for each, batches of 256; and seconds of `learn`.

    Args:
        widths: hidden layers of actor and critics; threads: of torch.
        seconds: to measure over; score: where to stop; budget: steps at most.
    """
    torch.set_num_threads(threads)
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=1, seed=seed),
        learning_rate=learning_rate,
        policy_kwargs={"net_arch": list(widths)},
        seed=seed,
        device="cpu",
    )
    watch = _Watch(seconds, score)
    began = time.perf_counter()
    model.learn(budget, callback=watch)
    ended = time.perf_counter()
    return {
        "steps_per_second": watch.steps / (ended - watch.began),
        "updates_per_step": 1.0,
        "seconds": ended - began,
        "steps": float(model.num_timesteps),
        "reached": float(watch.reached),
    }


if __name__ == "__main__":
    serve(measure)
