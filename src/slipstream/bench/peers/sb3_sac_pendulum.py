"""SB3's SAC on Pendulum, at its defaults but for what is given: speed, or time to a score."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.peers.sb3_watch import Watch, arranged
from slipstream.bench.worker import serve

_WARM_UP = 150  # steps, the first 100 of them without updates


def measure(
    widths: Sequence[int],
    threads: int,
    seconds: float = math.inf,
    score: float | None = None,
    episodes: int = 20,
    seed: int = 0,
    learning_rate: float = 3e-4,
    budget: int = 10**9,
    copies: int = 1,
    **rounds: Any,
) -> dict[str, object]:
    """Steps per second with an update for each, batches of 256; seconds of `learn`.

    Args:
        widths: hidden layers of actor and critics; threads: of torch.
        seconds: to measure over; score: where to stop, of a test of so many `episodes`.
        budget: steps at most.
        copies: of the environment, in this process; rounds: see `arranged`.
    """
    torch.set_num_threads(threads)
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=copies, seed=seed),
        learning_rate=learning_rate,
        policy_kwargs={"net_arch": list(widths)},
        seed=seed,
        device="cpu",
        **arranged(**rounds),
    )
    watch = Watch(seconds, _WARM_UP, budget, score, "Pendulum-v1", episodes, seed)
    began = time.perf_counter()
    model.learn(budget, callback=watch)
    return {**watch.answer(began), "updates_per_step": 1.0}


if __name__ == "__main__":
    serve(measure)
