"""A stopwatch for SB3's agents that learn from a replay."""

from __future__ import annotations

import math
import time
from collections import deque

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback


class Watch(BaseCallback):
    """Times the steps behind the warm-up; stops after some seconds, or at a score.

    Args:
        seconds: to measure over; score: where to stop.
        warm_up: steps that are not timed; episodes: training episodes that a score is the mean of.
    """

    def __init__(self, seconds: float, score: float, warm_up: int, episodes: int) -> None:
        super().__init__()
        self.seconds, self.score, self.reached = seconds, score, False
        self.warm_up = warm_up
        self.began, self.steps = math.nan, 0
        self.returns: deque[float] = deque(maxlen=episodes)

    def _on_step(self) -> bool:
        if self.num_timesteps <= self.warm_up:
            self.began = time.perf_counter()
            return True
        self.steps = self.num_timesteps - self.warm_up
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        full = len(self.returns) == self.returns.maxlen
        self.reached = full and float(np.mean(self.returns)) >= self.score
        return not self.reached and time.perf_counter() - self.began < self.seconds
