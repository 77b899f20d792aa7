"""Whether worker processes pay for an environment: what `backend: auto` goes by."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.cores import usable_cores
from slipstream.vector.contract import random_actions
from slipstream.vector.gymnasium_env import GymnasiumVectorEnv
from slipstream.vector.vector_env import blank

_STEPS = 24
_ROUND_SECONDS = 100e-6  # of telling workers to step, and hearing that they have
_WORTH = 0.85  # of the serial time, which processes must stay below to be chosen
_LEAST_SECONDS = 300e-6  # of a step of all copies; below that nothing is gained


class ChosenBackend(NamedTuple):
    """How copies are stepped.

    Attributes:
        backend: serial or process.
        workers: of process.
        why: in a sentence.
    """

    backend: str
    workers: int
    why: str


def step_seconds(env: GymnasiumVectorEnv) -> float:
    """Seconds that a step of one copy takes here; of the quicker ones, as others may interrupt."""
    out, draw = blank(env), np.random.default_rng(0)
    env.reset_rows(out.obs)
    times = []
    for t in range(_STEPS):
        actions = random_actions(env.spec, env.num_envs, draw)
        began = time.perf_counter()
        env.step_rows(actions, out, t)
        times.append((time.perf_counter() - began) / env.num_envs)
    env.drain_finals(), env.drain_episodes()
    return float(np.quantile(times, 0.25))


def choose(seconds: float, num_envs: int, workers: int | None = None) -> ChosenBackend:
    """The backend for so many copies whose step takes so long; results do not depend on it."""
    if workers is None:
        # One of several processes that share the cores has no core to spare.
        workers = 1 if multiprocessing.parent_process() is not None else usable_cores()
    workers = max(1, min(workers, num_envs))
    serial = num_envs * seconds
    process = math.ceil(num_envs / workers) * seconds + _ROUND_SECONDS
    better = serial > _LEAST_SECONDS and process < _WORTH * serial
    why = (
        f"a step of one copy takes {1e6 * seconds:,.0f} us, of {num_envs} copies "
        f"{1e6 * serial:,.0f} us one after another and about {1e6 * process:,.0f} us in {workers} "
        "worker processes"
    )
    return ChosenBackend("process" if better else "serial", workers, why)


def chosen_backend(
    env: Any, kwargs: Mapping[str, Any], num_envs: int, workers: int | None = None
) -> ChosenBackend:
    """The same for an environment, of which one copy is made and stepped a little."""
    one = np.zeros(1, np.uint64)
    with GymnasiumVectorEnv(env, one, one, kwargs=kwargs) as probe:
        return choose(step_seconds(probe), num_envs, workers)
