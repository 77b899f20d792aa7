"""Environments for measuring vector layers: cheap, large, or with a set amount of work."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Work(gymnasium.Env):
    """Environment whose step takes a number of rounds of `work`; see `rounds_for`."""

    observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, rounds: int = 0) -> None:
        self.rounds, self.time = rounds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        work(self.rounds)
        self.time += 1
        return np.zeros(8, np.float32), 1.0, False, self.time >= 1000, {}


class Uneven(Work):
    """Environment whose step sleeps for 1 to 20 ms, drawn from its own random stream."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.np_random.uniform(0.001, 0.020))
        self.time += 1
        return np.zeros(8, np.float32), 1.0, False, self.time >= 1000, {}


class Says(Work):
    """Environment with five numbers in every info."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        info = {"x": 0.5 * self.time, "y": 2.0, "n": self.time, "won": False, "z": np.float64(3)}
        return np.zeros(8, np.float32), 1.0, False, self.time >= 1000, info


class Image(Work):
    """Environment with frames of 84x84x4 bytes, drawn beforehand."""

    observation_space: Any = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def __init__(self) -> None:
        super().__init__(0)
        draw = np.random.default_rng(0)
        self.frames = draw.integers(0, 256, (16, 84, 84, 4)).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.frames[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.frames[self.time % 16], 1.0, False, self.time >= 1000, {}


class Crashing(CartPoleEnv):
    """CartPole that raises at one step in 200, as RLlib's `CartPoleCrashing` does by default."""

    def __init__(self) -> None:
        super().__init__()
        self.draw: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        # Seeded once: an env that raises twice in a row waits; the number of waits must not vary.
        self.draw = self.draw or np.random.default_rng(seed)
        first: tuple[Any, dict[str, Any]] = super().reset(seed=seed, options=options)
        return first

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.draw is not None
        if self.draw.random() < 0.005:
            raise RuntimeError("a simulated crash")
        came = super().step(action)  # type: ignore[no-untyped-call]
        seen, reward, terminated, truncated, info = came
        return seen, float(reward), bool(terminated), truncated, info


def work(rounds: int) -> int:
    """Run rounds of integer arithmetic."""
    x = 1
    for _ in range(rounds):
        x = (x * 48271) % 2147483647
    return x


def rounds_for(seconds: float) -> int:
    """Return the rounds of `work` that take the given CPU seconds on an idle core."""
    best = float("inf")
    for _ in range(20):
        began = time.thread_time()
        work(5000)
        best = min(best, time.thread_time() - began)
    return max(1, round(5000 * seconds / best))


def maker(name: str, rounds: int = 0) -> Any:
    """Return the factory of a sub-environment.

    Args:
        name: ``work``, the name of a class in this module, or an environment id.
        rounds: rounds of ``work``.
    """
    if name == "work":
        return partial(Work, rounds)
    known = {"uneven": Uneven, "image": Image, "says": Says, "crashing": Crashing}
    return known.get(name) or partial(gymnasium.make, name)
