"""SB3's DQN on CartPole, at the RL Zoo's settings or at given sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from slipstream.bench.peers.sb3_watch import Watch, arranged
from slipstream.bench.worker import serve

_WARM_UP = 1_000  # steps without updates, or with few; not timed

# hyperparams/dqn.yml of rl-baselines3-zoo
_ZOO = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}
# An update of 64 rows, for speed alone.
_PLAIN = {
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": _WARM_UP,
    "exploration_fraction": 0.001,
}


def measure(
    widths: Sequence[int],
    threads: int,
    game: str | None = None,
    budget: int = 10**7,
    seconds: float = math.inf,
    score: float | None = None,
    episodes: int = 20,
    seed: int = 0,
    copies: int = 1,
    **rounds: Any,
) -> dict[str, object]:
    """Steps per second behind the warm-up, and seconds of `learn`, see `Watch`.

    Args:
        widths: hidden layers; threads: of torch.
        game: Gymnasium's id, with the Zoo's settings; None: CartPole, plain.
        budget: steps at most.
        seconds: to measure over; score: where to stop, of a test of so many `episodes`.
        copies: of the environment, in this process; rounds: see `arranged`.
    """
    torch.set_num_threads(threads)
    model = DQN(
        "MlpPolicy",
        make_vec_env(game or "CartPole-v1", n_envs=copies, seed=seed),
        policy_kwargs={"net_arch": list(widths)},
        seed=seed,
        device="cpu",
        **(_ZOO if game else _PLAIN),
        **arranged(**rounds),
    )
    watch = Watch(seconds, _WARM_UP, budget, score, game or "CartPole-v1", episodes, seed)
    began = time.perf_counter()
    model.learn(budget, callback=watch)
    return watch.answer(began)


if __name__ == "__main__":
    serve(measure)
