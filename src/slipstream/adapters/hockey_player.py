"""A trained policy as a player of the original hockey environment, or of a competition's client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.api import load_policy
from slipstream.core.errors import ConfigError
from slipstream.rl.nets.policy import Policy


class HockeyPlayer:
    """Answers each observation of its own side with an action: what a competition's client wants.

    ::

        player = HockeyPlayer("runs/first")
        action = player.get_step(env.obs_agent_two())   # four numbers within -1 and 1

    Args:
        policy: a run, a saved policy's folder, or a policy, of `hockey`.
        member: whose policy of a run; the best one's unless given.

    Raises:
        ConfigError: the policy plays something else.
    """

    def __init__(self, policy: str | Path | Policy, member: int | None = None) -> None:
        self.policy = policy if isinstance(policy, Policy) else load_policy(policy, member)
        if self.policy.observation_shape not in ((18,), (16,)):
            raise ConfigError(
                f"The policy sees {self.policy.observation_shape} numbers, and hockey shows 18, or "
                "16 without keep mode: choose a policy of `hockey`."
            )
        self._keep = self.policy.observation_shape == (18,)

    def get_step(self, observation: Sequence[float]) -> list[float]:
        """The most likely action, [4] or [3] without keep mode.

        Args:
            observation: as the environment shows it to this side, [18] or [16].
        """
        seen = np.asarray(observation, np.float32)
        chosen = self.policy.act(seen)
        if np.ndim(chosen) == 0:
            return self._numbers(int(chosen))
        return [float(number) for number in np.asarray(chosen).ravel()]

    def act(self, observation: Sequence[float]) -> Any:
        """The same as an array, as the original's opponents answer."""
        return np.array(self.get_step(observation))

    def _numbers(self, choice: int) -> list[float]:
        """A discrete action of `action_fineness` f: nothing, 6 (f - 1) directions, shoot."""
        choices = self.policy.actions.sizes[0]
        levels = (choices - 1 - self._keep) // 6
        action = [0.0] * (4 if self._keep else 3)
        number = choice - 1
        if number >= 6 * levels:
            action[3] = 1.0
        elif number >= 0:
            way, strength = number // levels, (number % levels + 1) / levels
            action[way // 2] = -strength if way % 2 == 0 else strength
        return action
