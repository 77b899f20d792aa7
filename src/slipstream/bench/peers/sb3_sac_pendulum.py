"""SB3's SAC on Pendulum, at its defaults but for what is given: speed, or time to a score."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.peers.sb3_watch import Watch
from slipstream.bench.worker import serve

_EPISODES = 20  # training episodes that a score is the mean of; an episode has 200 steps
_WARM_UP = 150  # steps, the first 100 of them without updates


def measure(
    widths: Sequence[int],
    threads: int,
    seconds: float = math.inf,
    score: float = math.inf,
    seed: int = 0,
    learning_rate: float = 3e-4,
    budget: int = 10**9,
) -> dict[str, float]:
    """Steps per second with an update for each, batches of 256; and seconds of `learn`.

    Args:
        widths: hidden layers of actor and critics; threads: of torch.
        seconds: to measure over; score: where to stop; budget: steps at most.
    """
    torch.set_num_threads(threads)
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=1, seed=seed),
        learning_rate=learning_rate,
        policy_kwargs={"net_arch": list(widths)},
        seed=seed,
        device="cpu",
    )
    watch = Watch(seconds, score, _WARM_UP, _EPISODES)
    began = time.perf_counter()
    model.learn(budget, callback=watch)
    ended = time.perf_counter()
    return {
        "steps_per_second": watch.steps / (ended - watch.began),
        "updates_per_step": 1.0,
        "seconds": ended - began,
        "steps": float(model.num_timesteps),
        "reached": float(watch.reached),
    }


if __name__ == "__main__":
    serve(measure)
