"""Copies of a kernel stepped into the rows of a rollout, with random actions drawn beforehand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.bench.worker import serve
from slipstream.core.spec import Spec
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.processes.crew import Crew
from slipstream.vector.vector_env import StepOut, VectorEnv, member_indices


class StepRows:
    """Rows that a slice of the copies is stepped into, over and over.

    Args:
        env: E copies.
        rows: T, steps of a block.
    """

    def __init__(self, env: VectorEnv, rows: int) -> None:
        e, spec = env.num_envs, env.spec
        self.env, self.rows = env, rows
        self.obs = np.zeros((rows + 1, e, *spec.observation_shape), spec.observation_dtype)
        self.reward = np.zeros((rows, e), np.float32)
        self.terminated, self.truncated = np.zeros((2, rows, e), np.bool_)
        self.valid = np.ones((rows, e), np.bool_)
        self.actions = random_actions(spec, rows, e)
        env.reset(self.obs[0])

    def run(self) -> None:
        """Steps all copies through the block."""
        for t in range(self.rows):
            out = StepOut(
                self.obs[t + 1],
                self.reward[t],
                self.terminated[t],
                self.truncated[t],
                self.valid[t],
            )
            self.env.step(self.actions[t], out, t)
        self.env.drain_finals()
        self.env.drain_episodes()


def random_actions(spec: Spec, rows: int, num_envs: int) -> NDArray[Any]:
    """Uniform actions [rows, E, K]."""
    random, shape = np.random.default_rng(0), (rows, num_envs, spec.action_width)
    space = spec.action
    if isinstance(space, gymnasium.spaces.Discrete):
        return random.integers(0, space.n, shape)
    assert isinstance(space, gymnasium.spaces.Box)
    return random.uniform(space.low, space.high, shape).astype(np.float32)


def measure(
    name: str,
    settings: Mapping[str, Any],
    num_envs: int,
    threads: int,
    seconds: float,
    rows: int = 32,
) -> dict[str, float]:
    """Steps per second with the copies dealt to `threads` threads; compiling is not counted."""
    environment = resolve_environment(name, settings)
    seeds, indices = member_indices([1], num_envs)
    edges = np.linspace(0, num_envs, threads + 1).astype(int)
    blocks = [
        StepRows(environment.copies(seeds[lo:hi], indices[lo:hi]), rows)
        for lo, hi in pairwise(edges.tolist())
    ]
    tasks = [partial(_repeat, block, 1) for block in blocks]
    with Crew(threads) as crew:
        crew.run(tasks)
        began = time.perf_counter()
        crew.run(tasks)
        # Blocks between two joints of the threads: about a tenth of the time to measure.
        repeats = max(1, int(0.1 * seconds / (time.perf_counter() - began)))
        tasks = [partial(_repeat, block, repeats) for block in blocks]
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            crew.run(tasks)
            steps += repeats * rows * num_envs
        rate = steps / (time.perf_counter() - began)
    state = blocks[0].env.get_state()
    return {
        "steps_per_second": rate,
        "observation_numbers": float(np.prod(environment.spec.observation_shape)),
        "record_bytes": sum(array.nbytes for array in state.values()) / blocks[0].env.num_envs,
    }


def _repeat(block: StepRows, times: int) -> None:
    for _ in range(times):
        block.run()


if __name__ == "__main__":
    serve(measure)
