"""Resident memory that forex copies on a long table of bars add to a process."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import polars as pl
import psutil

from slipstream.bench.ours.vector_steps import StepRows
from slipstream.bench.worker import serve
from slipstream.training.environments.factory import resolve_environment
from slipstream.vector.vector_env import member_indices


def write_walk(folder: Path, bars: int, features: int) -> None:
    """One symbol of one-minute bars that walk at random, with columns of noise to see."""
    random = np.random.default_rng(0)
    close = 1.1 * np.exp(np.cumsum(random.normal(0.0, 1e-4, bars)))
    open_ = np.concatenate([[1.1], close[:-1]])
    start = np.datetime64("2020-01-01T00:00:00", "ms")
    table = {
        "time": start + np.arange(bars) * np.timedelta64(60_000, "ms"),
        "open": open_,
        "high": np.maximum(open_, close) * 1.00005,
        "low": np.minimum(open_, close) * 0.99995,
        "close": close,
        "volume": random.uniform(1.0, 100.0, bars),
        **{f"noise_{i}": random.normal(size=bars) for i in range(features)},
    }
    pl.DataFrame(table).with_columns(pl.col("time").dt.replace_time_zone("UTC")).write_parquet(
        folder / "EURUSD.parquet"
    )


def measure(num_envs: int, steps: int, data: str, bars: int = 0) -> dict[str, float]:
    """Megabytes (10^6) that loading and stepping added; with `bars`, only writes the tables.

    Args:
        num_envs, steps: what is stepped.
        data: folder of the tables; they are written by a process of their own.
        bars: rows of the table to write.
    """
    small, large = Path(data) / "small", Path(data) / "large"
    if bars:
        for folder, rows in ((small, 4000), (large, bars)):
            folder.mkdir()
            write_walk(folder, rows, 16)
        return {}
    process = psutil.Process()
    # What any program that steps this kernel holds (libraries, compiled code) is there before.
    _step(small, 2, 1)
    gc.collect()
    before = process.memory_info().rss
    kept = _step(large, num_envs, steps)
    gc.collect()
    after = process.memory_info().rss
    del kept
    return {"megabytes": (after - before) / 1e6}


def _step(folder: Path, num_envs: int, steps: int) -> StepRows:
    settings = {
        "data": {"folder": str(folder), "market": "24/7", "spread_pips": 0.8},
        "features": [f"noise_{i}" for i in range(16)],
    }
    environment = resolve_environment("forex", settings)
    block = StepRows(environment.copies(*member_indices([1], num_envs)), 1)
    for _ in range(steps):
        block.run()
    return block


if __name__ == "__main__":
    serve(measure)
