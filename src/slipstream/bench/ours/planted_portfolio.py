"""What portfolio agents reach of a planted market's optimum, on a path they never saw."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.agents.ppo.config import PPOConfig
from slipstream.bench.planted import MARKETS, drift_in, environment_of, share_of_optimum
from slipstream.bench.worker import serve
from slipstream.envs.portfolio import kernel as portfolio
from slipstream.training.environments.evaluation import Evaluator
from slipstream.training.shard import Shard

SEEN_BARS, FRESH_BARS = 80_000, 18_000
_SEEN, _FRESH = (0.9, 0.05, 0.05), (0.1, 0.0, 0.9)


def measure(
    market: str, steps: int, seeds: int, env: Mapping[str, Any], agent: Mapping[str, Any]
) -> dict[str, Any]:
    """Trains `seeds` members on one path; shares of the optimum of their last policies on another.

    Args:
        market: a name of `bench.planted.MARKETS`.
        steps: of each member.
        env, agent: what differs from the portfolio's suggested settings.
    """
    where = MARKETS[market]
    suggested = portfolio.SETTINGS["ppo"]
    num_envs = int(suggested["training"]["num_envs"])
    config = PPOConfig(**{**suggested["agent"], **agent})
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        path = Path(folder)
        seen = environment_of(where, path / "seen", SEEN_BARS, 1, _SEEN, env)
        fresh = environment_of(where, path / "fresh", FRESH_BARS, 2, _FRESH, env)
        drift = drift_in(where, path / "fresh")
        shard = Shard(seen, config, list(range(seeds)), range(seeds), num_envs)
        shard.reset()
        spent = 0
        while spent < steps:
            shard.iterate(spent / steps)
            spent += config.iteration_steps(num_envs) * num_envs
        passes = Evaluator(fresh, "test", members=seeds).run(shard.agent.policy, record=True)
        return {
            "shares": [share_of_optimum(one, fresh, where, drift) for (one,) in passes],
            "steps": spent,
        }


if __name__ == "__main__":
    serve(measure)
