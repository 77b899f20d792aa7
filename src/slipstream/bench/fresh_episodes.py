"""Fresh episodes of a Gymnasium environment: the one way in which both sides are scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FIRST_SEED = 1_000_000_000  # no training seed of either side is as large


def fresh_returns(env: Any, act: Callable[[Any], Any], *, seed: int, episodes: int) -> list[float]:
    """Returns of `episodes` episodes, each reset with a seed of its own.

    Args:
        env: one Gymnasium environment, with its time limit.
        act: an observation of `env` to an action of it.
        seed: of the training that is scored; other seeds meet other episodes.
        episodes: how many.
    """
    returns = []
    for j in range(episodes):
        observation, _ = env.reset(seed=FIRST_SEED + seed * episodes + j)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total += float(reward)
            ended = bool(terminated or truncated)
        returns.append(total)
    return returns
