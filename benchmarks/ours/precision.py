"""Scores of eight members in torch, trained with a given precision of matrix products."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from slipstream.markets.synthetic import NOISE_COLUMNS, SyntheticForex
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.workers import make_shard

_MEMBERS, _EPISODES, _FRESH = 8, 100, 7_000_003
_BARS = 60_000


def scores(config: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Return the test scores of the last policies of members with the seeds 0 to 7.

    The members are calculated in one batch, as on a GPU, but on the CPU.

    Args:
        config: sections of a run's config; forex gets a synthetic market.
        precision: `training.precision`.
    """
    from slipstream.rl.agents import torch_agent  # many benchmarks do not need torch

    vars(torch_agent)["together"] = lambda members, _: [slice(0, members)]
    everyone = range(_MEMBERS)
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        env = dict(config["env"])
        if env["name"] == "forex":
            SyntheticForex().write(folder, _BARS, 1)
            noise = [f"noise_{i}" for i in range(NOISE_COLUMNS)]
            env |= {"data": {"folder": folder, "spread_pips": 0.0}, "features": ["signal", *noise]}
        overrides = {"members": _MEMBERS, "seed": 0, "learner": "torch", "precision": precision}
        training = {**config.get("training", {}), **overrides}
        run, _ = resolve({**config, "env": env, "training": training}).with_opponent()
        steps, num_envs = int(run.training.total_timesteps), int(run.training.num_envs)
        environment = resolve_environment(run.env_name, run.env_settings)
        shard = make_shard(run, environment, everyone, lambda: None)
        shard.reset()
        for spent in range(0, steps, run.agent.iteration_steps(num_envs) * num_envs):
            shard.iterate(spent / steps)
        results = shard.evaluate("test", _EPISODES, _FRESH)
    assert results is not None
    return {"scores": results.mean(axis=1).tolist(), "steps": steps}
