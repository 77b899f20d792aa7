"""SB3's PPO with its own defaults on any Gymnasium environment, scored on fresh episodes."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.fresh_episodes import fresh_returns
from slipstream.bench.worker import serve


def measure(env_id: str, steps: int, seed: int, episodes: int) -> dict[str, Any]:
    """Trains as SB3's users do, one environment under a Monitor, and scores the last policy.

    Args:
        env_id: of Gymnasium. SB3 makes Discrete observations one-hot itself and refuses Tuple;
            Gymnasium's `FlattenObservation` does the same for those.
        steps: of training.
        seed: of the training.
        episodes: fresh ones, played with the likeliest actions.
    """
    torch.set_num_threads(1)
    env = gymnasium.make(env_id)
    flatten = isinstance(env.observation_space, spaces.Tuple | spaces.Dict)
    wrapper = FlattenObservation if flatten else None
    model = PPO(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=1, seed=seed, wrapper_class=wrapper),
        seed=seed,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - began
    made = (gymnasium.make(env_id) for _ in range(episodes))
    returns = fresh_returns(
        [wrapper(one) if wrapper else one for one in made],
        lambda rows: model.predict(np.stack(rows), deterministic=True)[0],
        seed=seed,
    )
    return {"returns": returns, "seconds": seconds, "trained": model.num_timesteps}


if __name__ == "__main__":
    serve(measure)
