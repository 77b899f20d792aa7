"""A stopwatch for SB3's agents that learn from a replay."""

from __future__ import annotations

import math
import time

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from slipstream.bench.suites.replay_scores import TESTS

_TEST_SEED = 10_000  # of the first test episode, plus the training's


def arranged(train_freq: int | None = None, gradient_steps: int | None = None) -> dict[str, int]:
    """Rounds of updates for SB3's class; nothing where the settings of a game are asked for.

    Args:
        train_freq: steps of all copies between two rounds; gradient_steps: updates of a round.
    """
    rounds = {"train_freq": train_freq, "gradient_steps": gradient_steps}
    return {name: value for name, value in rounds.items() if value is not None}


class Watch(BaseCallback):
    """Times the steps behind the warm-up; stops after some seconds, or at a test's score.

    Args:
        seconds: to measure over; warm_up: steps that are not timed; budget: steps of the training.
        score: of a test, where to stop; None: no tests, else `TESTS` of them, not timed.
        game: Gymnasium's id of the tests; episodes: of a test, the best action in each step.
        seed: of the training.
    """

    def __init__(
        self,
        seconds: float,
        warm_up: int,
        budget: int,
        score: float | None = None,
        game: str = "",
        episodes: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.seconds, self.warm_up, self.budget = seconds, warm_up, budget
        self.score, self.episodes, self.reached = score, episodes, False
        self.tests = None if score is None else make_vec_env(game, seed=_TEST_SEED + seed)
        self.began, self.ended, self.steps, self.untimed = math.nan, math.nan, 0, 0
        self.tested, self.test_seconds = 0, 0.0

    def _on_step(self) -> bool:
        self.ended = time.perf_counter()
        self._test_if_due()
        if self.num_timesteps <= self.warm_up:
            self.began, self.untimed = time.perf_counter(), self.num_timesteps
            return True
        self.steps = self.num_timesteps - self.untimed
        return not self.reached and self.ended - self.began < self.seconds

    def _test_if_due(self) -> None:
        if self.tests is None or self.num_timesteps * TESTS < (self.tested + 1) * self.budget:
            return
        self.tested += 1
        mean, _ = evaluate_policy(self.model, self.tests, self.episodes, deterministic=True)
        self.reached = float(mean) >= self.score
        self.test_seconds += time.perf_counter() - self.ended

    def answer(self, began: float) -> dict[str, object]:
        """Figures of a training that began at `began` and has ended."""
        ended = time.perf_counter() - self.test_seconds
        return {
            "steps_per_second": self.steps / (ended - self.began),
            "seconds": ended - began,
            "steps": float(self.num_timesteps),
            "reached": float(self.reached),
        }
