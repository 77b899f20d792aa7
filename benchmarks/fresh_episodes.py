"""Fresh episodes of a Gymnasium environment, which score both sides in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

FIRST_SEED = 1_000_000_000  # larger than any training seed of either side


def fresh_returns(
    envs: Sequence[Any], act: Callable[[list[Any]], Sequence[Any]], *, seed: int
) -> list[float]:
    """Return the returns of one episode of each environment, each reset with its own seed.

    Args:
        envs: Gymnasium environments of one id, with their time limit, stepped together.
        act: maps the observations of the unfinished environments to an action for each.
        seed: seed of the training that is scored; other seeds give other episodes.
    """
    first = FIRST_SEED + seed * len(envs)
    observations = [env.reset(seed=first + j)[0] for j, env in enumerate(envs)]
    returns, playing = [0.0] * len(envs), list(range(len(envs)))
    while playing:
        actions = act([observations[j] for j in playing])
        ended = set()
        for j, action in zip(playing, actions, strict=True):
            observations[j], reward, terminated, truncated, _ = envs[j].step(action)
            returns[j] += float(reward)
            if terminated or truncated:
                ended.add(j)
        playing = [j for j in playing if j not in ended]
    return returns
