"""`slipstream train gym:ID` as it comes, scored on fresh episodes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium

import slipstream
from slipstream.bench.fresh_episodes import fresh_returns
from slipstream.bench.worker import serve


def measure(env_id: str, steps: int, seed: int, episodes: int) -> dict[str, Any]:
    """Trains with nothing set but budget and seed; scores the policy that `load_policy` gives.

    That is the policy that was best in validation, of every tenth of the budget, as a user gets it.

    Args:
        env_id: of Gymnasium; steps, seed: of the training.
        episodes: fresh ones, played with the likeliest actions.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        began = time.perf_counter()
        run = slipstream.train(
            f"gym:{env_id}",
            total_steps=steps,
            seed=seed,
            out=Path(folder) / "run",
            report=False,
            say=lambda sentence: None,
        )
        seconds = time.perf_counter() - began
        policy, result = slipstream.load_policy(run), run.result
    assert result is not None
    envs = [gymnasium.make(env_id) for _ in range(episodes)]
    return {
        "returns": fresh_returns(envs, lambda seen: list(policy.act(seen)), seed=seed),
        "seconds": seconds,
        "trained": result["progress"]["steps"],
        "chosen_at": result["members"][0]["best_steps"],
    }


if __name__ == "__main__":
    serve(measure)
