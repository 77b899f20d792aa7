"""SB3's DQN on CartPole: steps per second at given sizes, or until 100 episodes average a score."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.peers.sb3_watch import Watch
from slipstream.bench.worker import serve

BUDGET = 50_000  # the Zoo's n_timesteps
_EPISODES = 100
_WARM_UP = 1_000  # steps without updates, not timed


def measure(
    recipe: str,
    widths: Sequence[int],
    threads: int,
    seconds: float = math.inf,
    score: float = math.inf,
    seed: int = 0,
) -> dict[str, float]:
    """Steps per second behind the warm-up, and seconds of `learn`.

    Args:
        recipe: `plain`, an update of 64 rows every 4 steps; or `zoo`, the RL Zoo's settings.
        widths: hidden layers; threads: of torch.
        seconds: to measure over; score: where to stop.
    """
    torch.set_num_threads(threads)
    # hyperparams/dqn.yml of rl-baselines3-zoo, CartPole-v1
    zoo = {
        "learning_rate": 2.3e-3,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
    }
    plain = {"train_freq": 4, "gradient_steps": 1, "exploration_fraction": 0.001}
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=1, seed=seed),
        batch_size=64,
        buffer_size=100_000,
        learning_starts=_WARM_UP,
        policy_kwargs={"net_arch": list(widths)},
        seed=seed,
        device="cpu",
        **(zoo if recipe == "zoo" else plain),
    )
    watch = Watch(seconds, score, _WARM_UP, _EPISODES)
    began = time.perf_counter()
    model.learn(BUDGET if recipe == "zoo" else 10**7, callback=watch)
    ended = time.perf_counter()
    return {
        "steps_per_second": watch.steps / (ended - watch.began),
        "seconds": ended - began,
        "steps": float(model.num_timesteps),
        "reached": float(watch.reached),
    }


if __name__ == "__main__":
    serve(measure)
