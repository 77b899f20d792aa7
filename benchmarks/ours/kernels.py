"""Stepping of compiled environments: into rollout rows, through adapters, on a long table."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import psutil
from numpy.typing import NDArray

import slipstream
from benchmarks.worker import steps_per_second
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import StepBuffers, VectorEnv, allocate_buffers, member_indices
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.workers import ThreadPool


class _Rows:
    """Rows that a slice of the sub-environments is stepped into repeatedly.

    Args:
        env: vector environment of E sub-environments.
        rows: T, steps of a block.
    """

    def __init__(self, env: VectorEnv, rows: int) -> None:
        e, spec = env.num_envs, env.spec
        self.env, self.rows = env, rows
        self.obs = np.zeros((rows + 1, e, *spec.observation_shape), spec.observation_dtype)
        self.reward = np.zeros((rows, e), np.float32)
        self.terminated, self.truncated = np.zeros((2, rows, e), np.bool_)
        self.valid = np.ones((rows, e), np.bool_)
        self.actions = _random_actions(spec, rows, e)
        env.reset(self.obs[0])

    def run(self, times: int = 1) -> None:
        """Step all sub-environments through the block `times` times."""
        for _ in range(times):
            for t in range(self.rows):
                out = StepBuffers(
                    self.obs[t + 1],
                    self.reward[t],
                    self.terminated[t],
                    self.truncated[t],
                    self.valid[t],
                )
                self.env.step(self.actions[t], out, t)
            self.env.drain_final_obs()
            self.env.drain_episodes()


def _random_actions(spec: EnvSpec, rows: int, num_envs: int) -> NDArray[Any]:
    """Return uniform actions [rows, E, K]."""
    random, shape = np.random.default_rng(0), (rows, num_envs, spec.action_dim)
    space = spec.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return random.integers(0, space.n, shape)
    assert isinstance(space, gymnasium.spaces.Box)
    return random.uniform(space.low, space.high, shape).astype(np.float32)


def step(
    name: str,
    settings: Mapping[str, Any],
    num_envs: int,
    threads: int,
    seconds: float,
    rows: int = 32,
) -> dict[str, float]:
    """Measure steps per second with the envs divided among `threads` threads, after compilation."""
    environment = resolve_environment(name, settings)
    seeds, indices = member_indices([1], num_envs)
    edges = np.linspace(0, num_envs, threads + 1).astype(int)
    blocks = [
        _Rows(environment.make_envs(seeds[lo:hi], indices[lo:hi]), rows)
        for lo, hi in pairwise(edges.tolist())
    ]
    with ThreadPool(threads) as crew:
        crew.run([block.run for block in blocks])
        began = time.perf_counter()
        crew.run([block.run for block in blocks])
        # Blocks between two joins of the threads: about a tenth of the measured time.
        repeats = max(1, int(0.1 * seconds / (time.perf_counter() - began)))
        tasks = [partial(block.run, repeats) for block in blocks]

        def all_blocks() -> int:
            crew.run(tasks)
            return repeats * rows * num_envs

        rate = steps_per_second(all_blocks, seconds)
    state = blocks[0].env.get_state()
    return {
        "steps_per_second": rate,
        "nanoseconds": 1e9 / rate,
        "observation_numbers": float(np.prod(environment.spec.observation_shape)),
        "record_bytes": sum(array.nbytes for array in state.values()) / blocks[0].env.num_envs,
    }


def step_hockey(num_envs: int, seconds: float) -> dict[str, float]:
    """Measure steps per second of a game of two strong bots: engine and bots, on one core."""
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure({"player1": {"strong": 1.0}, "player2": {"strong": 1.0}}))
    env = KernelVectorEnv(kernel, loaded, *member_indices([1], num_envs))
    out = allocate_buffers(env)
    env.reset(out.obs)
    idle = np.zeros((num_envs, env.spec.players, env.spec.action_dim), np.float32)

    def block() -> int:
        for t in range(50):
            env.step(idle, out, t)
        env.drain_final_obs(), env.drain_episodes()
        return 50 * num_envs

    block(), block()  # until envs are spread over all stages of a game
    return {"steps_per_second": steps_per_second(block, seconds)}


def step_face(through: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Measure steps per second of CartPole's kernel with actions drawn beforehand.

    Args:
        through: "arrays", slipstream's `step` into the caller's arrays; "values", its `step` that
            returns new ones; or an adapter: "gymnasium", "sb3".
        num_envs: number of sub-environments.
        seconds: duration of the measurement.
    """
    actions = np.random.default_rng(0).integers(0, 2, (16, num_envs))
    native = through in ("arrays", "values")
    make = slipstream.make_vec if native else partial(slipstream.make_adapter, through)
    env: Any = make("cartpole", num_envs)
    env.reset()
    rows, out = actions[..., None], allocate_buffers(env) if through == "arrays" else None

    def block() -> int:
        if out is None:
            for row in actions:
                env.step(row)
        else:
            for row in rows:
                env.step(row, out)
            env.drain_final_obs(), env.drain_episodes()
        return actions.size

    block()
    rate = steps_per_second(block, seconds)
    env.close()
    return {"steps_per_second": rate}


def write_walks(folder: str, bars: int) -> dict[str, float]:
    """Write the tables of `memory`: walks of 4,000 and of `bars` bars with noise features."""
    for name, rows in (("small", 4000), ("large", bars)):
        place = Path(folder) / name
        place.mkdir()
        random = np.random.default_rng(0)
        close = 1.1 * np.exp(np.cumsum(random.normal(0.0, 1e-4, rows)))
        open_ = np.concatenate([[1.1], close[:-1]])
        start = np.datetime64("2020-01-01T00:00:00", "ms")
        table = {
            "time": start + np.arange(rows) * np.timedelta64(60_000, "ms"),
            "open": open_,
            "high": np.maximum(open_, close) * 1.00005,
            "low": np.minimum(open_, close) * 0.99995,
            "close": close,
            "volume": random.uniform(1.0, 100.0, rows),
            **{f"noise_{i}": random.normal(size=rows) for i in range(16)},
        }
        utc = pl.col("time").dt.replace_time_zone("UTC")
        pl.DataFrame(table).with_columns(utc).write_parquet(place / "EURUSD.parquet")
    return {}


def memory(num_envs: int, steps: int, folder: str) -> dict[str, float]:
    """Measure the megabytes (10^6) that loading and stepping the large table adds to this process.

    The memory that any program with this kernel needs (libraries, compiled code) is allocated
    before. A separate process writes the tables: `write_walks`.
    """
    process = psutil.Process()
    _stepped(Path(folder) / "small", 2, 1)
    gc.collect()
    before = process.memory_info().rss
    kept = _stepped(Path(folder) / "large", num_envs, steps)
    gc.collect()
    after = process.memory_info().rss
    del kept
    return {"megabytes": (after - before) / 1e6}


def _stepped(folder: Path, num_envs: int, steps: int) -> _Rows:
    settings = {
        "data": {"folder": str(folder), "market": "24/7", "spread_pips": 0.8},
        "features": [f"noise_{i}" for i in range(16)],
    }
    environment = resolve_environment("forex", settings)
    block = _Rows(environment.make_envs(*member_indices([1], num_envs)), 1)
    block.run(steps)
    return block
