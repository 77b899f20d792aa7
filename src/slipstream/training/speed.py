"""How fast a config trains with more or fewer copies: measured, for `doctor` and `tune-machine`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment
from slipstream.training.sizing import check_memory, no_copies_fit
from slipstream.training.workers import make_workers

CANDIDATES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
GOOD_ENOUGH = 0.9  # of the best speed: the fewest copies that reach it are taken
_SECONDS = 0.3  # of measurement for each candidate


def measure_speeds(
    config: RunConfig, environment: Environment, candidates: Sequence[int] = CANDIDATES
) -> dict[int, float]:
    """Steps per second of all members together by N, rollouts and updates included.

    Numbers of copies that do not fit the agent's other sizes are left out.

    Raises:
        ConfigError: none of the candidates is left.
    """
    possible = [n for n in candidates if config.agent.fits(n)]
    if not possible:
        tried = ", ".join(map(str, candidates))
        raise no_copies_fit(config, candidates[-1], f"None of {tried} copies fits")
    return {n: _speed(config, environment, n) for n in possible}


def fewest_fast(speeds: dict[int, float]) -> int:
    """The fewest copies that are nearly fastest: fewer leave more updates to a budget."""
    best = max(speeds.values())
    return min(n for n, speed in speeds.items() if speed >= GOOD_ENOUGH * best)


def _speed(config: RunConfig, environment: Environment, num_envs: int) -> float:
    """With the workers that training will have."""
    config = config.with_training(num_envs=num_envs)
    check_memory(config, environment)
    rates: list[float] = []
    with make_workers(config, environment) as workers:
        workers.call("reset")
        spent = 0.0
        while spent < _SECONDS or len(rates) < 2:
            began = time.perf_counter()
            workers.call("iterate", 0.0)
            seconds = time.perf_counter() - began
            spent += seconds
            rates.append(config.training.members * config.iteration_steps / seconds)
    return float(np.median(rates[1:]))
