"""A stopwatch for SB3's agents that learn from a replay."""

from __future__ import annotations

import math
import time
from collections import deque

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from slipstream.bench.moments import MOMENTS, next_moment
from slipstream.training.recent_episodes import RECENT


class Watch(BaseCallback):
    """Times the steps behind the warm-up; stops after some seconds, or at a score.

    Args:
        seconds: to measure over; score: where to stop.
        warm_up: steps that are not timed; episodes: training episodes that a score is the mean of.
        budget: steps of the training.

    Attributes:
        curve: mean return of the last `RECENT` training episodes at each of `MOMENTS`.
    """

    def __init__(
        self, seconds: float, score: float, warm_up: int, episodes: int, budget: int
    ) -> None:
        super().__init__()
        self.seconds, self.score, self.reached = seconds, score, False
        self.warm_up, self.episodes, self.budget = warm_up, episodes, budget
        self.began, self.ended, self.steps = math.nan, math.nan, 0
        self.returns: deque[float] = deque(maxlen=max(episodes, RECENT))
        self.curve: list[float] = []

    def _on_step(self) -> bool:
        self.ended = time.perf_counter()
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        if next_moment(self.curve, self.num_timesteps, self.budget):
            self.curve.append(_mean(list(self.returns)[-RECENT:]))
        if self.num_timesteps <= self.warm_up:
            self.began = self.ended
            return True
        self.steps = self.num_timesteps - self.warm_up
        last = list(self.returns)[-self.episodes :]
        self.reached = len(last) == self.episodes and _mean(last) >= self.score
        return not self.reached and self.ended - self.began < self.seconds

    def answer(self, began: float) -> dict[str, object]:
        """Figures of a training that began at `began` and has ended."""
        ended = time.perf_counter()
        return {
            "steps_per_second": self.steps / (ended - self.began),
            "seconds": ended - began,
            "steps": float(self.num_timesteps),
            "reached": float(self.reached),
            "curve": self.curve if len(self.curve) == MOMENTS else [],
        }


def _mean(returns: list[float]) -> float:
    return float(np.mean(returns)) if returns else math.nan
