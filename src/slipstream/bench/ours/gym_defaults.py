"""`slipstream train gym:ID` as it comes, scored on fresh episodes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

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
    env = gymnasium.make(env_id)
    space, action_space = env.observation_space, env.action_space

    def act(observation: Any) -> Any:
        row = np.asarray(spaces.flatten(space, observation), np.float32)[None]
        action = policy.act(row)[0]
        if isinstance(action_space, spaces.Discrete):
            return int(action[0]) + int(action_space.start)
        return action

    return {
        "returns": fresh_returns(env, act, seed=seed, episodes=episodes),
        "seconds": seconds,
        "trained": result["progress"]["steps"],
        "chosen_at": result["members"][0]["best_steps"],
    }


if __name__ == "__main__":
    serve(measure)
