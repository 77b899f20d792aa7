"""Hockey oracle of the tests against its weak bot, as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_WEAK = 1  # index of the tests' weak bot


class OracleGame(gymnasium.Env[Any, Any]):
    """Oracle's game as player 1 against the weak bot as player 2.

    Args:
        levels: intensities of discrete actions; 0 means continuous actions.
    """

    def __init__(self, levels: int) -> None:
        import hockey_oracle
        import hockey_world

        self.observation_space = spaces.Box(-np.inf, np.inf, (18,), np.float32)
        box = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2 + 6 * levels) if levels else box
        self._game, self._world = hockey_oracle.Hockey(), hockey_world
        self._levels, self._number = levels, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next game, from the other side."""
        super().reset(seed=seed)
        self._number += 1
        self._game.reset(bool(self._number % 2), self._number)
        self._bot = self._world.Play("bots", self._number, True)
        return self._seen(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with the agent's action and the bot's."""
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
