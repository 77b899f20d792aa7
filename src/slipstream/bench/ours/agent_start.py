"""Seconds that an agent's first iteration on a kernel takes more than the same once more."""

from __future__ import annotations

import importlib
import os
import time

from slipstream.bench.worker import serve
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.shard import Shard


def measure(agent: str, kernel: str, cache: str) -> dict[str, float]:
    """Seconds of compiling, or of loading what was compiled; `first`: of the whole iteration.

    One iteration of 128 steps, the last 28 with updates, by two equal shards.

    Args:
        agent, kernel: names.
        cache: folder of compiled code; an empty one is a cold start.
    """
    os.environ["SLIPSTREAM_CACHE"] = cache
    importlib.import_module("numba")  # imports are not measured, and the first loop asks for it
    config = resolve(
        kernel, {"agent.name": agent, "agent.learning_starts": 100, "agent.iteration": 128}
    )

    def seconds() -> float:
        began = time.perf_counter()
        environment = resolve_environment(kernel, config.env_settings)
        shard = Shard(environment, config.agent, [0], range(1), 1)
        shard.reset()
        assert shard.iterate(0.0)["updates"][0] > 0
        return time.perf_counter() - began

    first = seconds()
    return {"seconds": first - seconds(), "first": first}


if __name__ == "__main__":
    serve(measure)
