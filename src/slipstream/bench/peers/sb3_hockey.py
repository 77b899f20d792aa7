"""SB3's DQN or SAC on the oracle's game against a bot: one environment, one process."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from slipstream.bench.peers.hockey_oracle import tests_module
from slipstream.bench.peers.sb3_watch import Watch, arranged
from slipstream.bench.worker import serve

_AGENTS = {"dqn": DQN, "sac": SAC}
_WARM_UP = 150  # steps, the first 100 of them without updates
_WEAK = 1  # which of the tests' two bots


class OracleGame(gymnasium.Env[Any, Any]):
    """Player 1 of the oracle's game, player 2 the weak bot.

    Args:
        levels: intensities of discrete actions; 0: continuous ones.
    """

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, levels: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (18,), np.float32)
        box = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2 + 6 * levels) if levels else box
        self._game = tests_module("hockey_oracle").Hockey()
        self._world = tests_module("hockey_world")
        self._levels, self._number = levels, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._number += 1
        self._game.reset(bool(self._number % 2), self._number)
        self._bot = self._world.Play("bots", self._number, True)
        return self._seen(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        theirs = self._bot.bot(_WEAK, self._game.observation(1))
        reward, done = self._game.step(np.hstack([self._numbers(action), theirs]))
        return self._seen(0), float(reward), done, False, {}

    def _seen(self, player: int) -> Any:
        return self._game.observation(player).astype(np.float32)

    def _numbers(self, action: Any) -> Any:
        if not self._levels:
            return action
        numbers, choice = np.zeros(4), int(action) - 1
        if choice >= 6 * self._levels:
            numbers[3] = 1.0
        elif choice >= 0:
            way, strength = choice // self._levels, (choice % self._levels + 1) / self._levels
            numbers[way // 2] = -strength if way % 2 == 0 else strength
        return numbers


def measure(
    agent: str, levels: int, batch: int, widths: list[int], threads: int, seconds: float,
    copies: int = 1, processes: bool = False, **rounds: Any,
) -> dict[str, object]:  # fmt: skip
    """Steps per second, updates included.

    Args:
        agent: dqn or sac; levels: see `OracleGame`.
        batch: rows of an update; widths: hidden layers; threads: of torch.
        seconds: to measure over.
        copies: of the game, in this process or each in one of its own; rounds: see `arranged`.
    """
    torch.set_num_threads(threads)
    model = _AGENTS[agent](
        "MlpPolicy",
        (SubprocVecEnv if processes else DummyVecEnv)([lambda: OracleGame(levels)] * copies),
        learning_starts=100,
        policy_kwargs={"net_arch": widths},
        seed=0,
        device="cpu",
        batch_size=batch,
        **arranged(**rounds),
    )
    watch = Watch(seconds, _WARM_UP, 10**9)
    began = time.perf_counter()
    model.learn(10**9, callback=watch)
    return watch.answer(began)


if __name__ == "__main__":
    serve(measure)
