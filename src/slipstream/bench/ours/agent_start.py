"""Seconds until an agent has learned for the first time on a kernel, compiling included."""

from __future__ import annotations

import importlib
import os
import time

from slipstream.bench.worker import serve
from slipstream.training.config import resolve
from slipstream.training.factory import resolve_environment
from slipstream.training.shard import Shard


def measure(agent: str, kernel: str, cache: str) -> dict[str, float]:
    """One iteration of 128 steps, the last 28 with updates.

    Args:
        agent, kernel: names.
        cache: folder of compiled code; an empty one is a cold start.
    """
    os.environ["SLIPSTREAM_CACHE"] = cache
    importlib.import_module("numba")  # imports are not measured, and the first loop asks for it
    config = resolve(
        kernel, {"agent.name": agent, "agent.learning_starts": 100, "agent.iteration": 128}
    )
    began = time.perf_counter()
    shard = Shard(resolve_environment(kernel, config.env_settings), config.agent, [0], range(1), 1)
    shard.reset()
    metrics = shard.iterate(0.0)
    seconds = time.perf_counter() - began
    assert metrics["updates"][0] > 0
    return {"seconds": seconds}


if __name__ == "__main__":
    serve(measure)
