"""Memory of a replay that is full, by how it keeps observations."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from slipstream.agents.dqn.config import DQNConfig
from slipstream.bench.ours.memory import write_walk
from slipstream.bench.worker import serve
from slipstream.experience.replay.replay import Replay
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.replay_collector import ReplayCollector
from slipstream.training.shard import Shard

Storage: TypeAlias = Literal["fields", "dense"]

_WINDOW = {"bars": 6_000, "features": 16, "lookback": 60}


def measure(
    environment: str, settings: Mapping[str, Any], transitions: int, storage: Storage
) -> dict[str, float]:
    """Fills a lone member's replay, without an update, and says what that took.

    Args:
        environment: name; `forex_window` is forex with 60 bars of 16 features.
        settings: its own.
        transitions: that the replay holds; storage: how, see `ReplayPlan`.

    Returns:
        bytes: of its arrays; resident: bytes by which the process grew meanwhile, tables of prices
        and compiled code apart.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        if environment == "forex_window":
            environment, settings = "forex", _forex_window(Path(folder))
        loaded = resolve_environment(environment, settings)
        _filled(loaded, storage, 2_000)  # what any training holds is there before
        gc.collect()
        process = psutil.Process()
        before = process.memory_info().rss
        replay = _filled(loaded, storage, transitions)
        gc.collect()
        grown = process.memory_info().rss - before
        return {"bytes": float(replay.nbytes), "resident": float(grown)}


def _filled(environment: Environment, storage: Storage, transitions: int) -> Replay:
    config = DQNConfig(learning_starts=10 * transitions, iteration=1_000, widths=(8,))
    shard = Shard(environment, config, [0], range(1), 1)
    collector = shard.collector
    assert isinstance(collector, ReplayCollector)
    plan = collector.replay.plan._replace(capacity=transitions, storage=storage)
    collector.replay = Replay(plan, environment.spec, 1, 1, envs=collector.envs)
    shard.reset()
    for _ in range(-(-transitions // 1_000) + 1):
        shard.iterate(0.0)
    return collector.replay


def _forex_window(folder: Path) -> dict[str, Any]:
    write_walk(folder, _WINDOW["bars"], _WINDOW["features"])
    return {
        "data": {"folder": str(folder), "market": "24/7", "spread_pips": 0.8},
        "features": [f"noise_{i}" for i in range(_WINDOW["features"])],
        "lookback": _WINDOW["lookback"],
    }


if __name__ == "__main__":
    serve(measure)
