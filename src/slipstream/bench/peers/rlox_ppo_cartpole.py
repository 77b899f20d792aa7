"""rlox's PPO on CartPole: environments in Rust, its better learner of two, the update in torch."""

from __future__ import annotations

import time
from typing import Any

import torch
from rlox.algorithms.hybrid_ppo import HybridPPO
from rlox.algorithms.ppo import PPO
from rlox.callbacks import Callback

from slipstream.bench.worker import serve

_ALGORITHMS = {"PPO": PPO, "HybridPPO": HybridPPO}  # the latter collects in Rust, too


class _Stopwatch(Callback):
    """Times whole iterations, from the end of the first one, which warms up."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.iterations = seconds, -1
        self.began = self.ended = 0.0

    def on_step(self, **kwargs: Any) -> bool:
        self.ended = time.perf_counter()
        self.iterations += 1
        if self.iterations == 0:
            self.began = self.ended
        return self.iterations < 1 or self.ended - self.began < self.seconds


def measure(
    algorithm: str, num_envs: int, horizon: int, minibatch: int, epochs: int, **how: float
) -> dict[str, float]:
    """Training steps per second over whole iterations.

    Args:
        algorithm: `PPO` or `HybridPPO`; both networks have two layers of 64, as ours.
        num_envs, horizon, minibatch, epochs: as in our config.
        **how: `seconds` to measure over, `threads` of torch.
    """
    torch.set_num_threads(int(how["threads"]))
    watch = _Stopwatch(how["seconds"])
    learner = _ALGORITHMS[algorithm](
        "CartPole-v1",
        n_envs=num_envs,
        n_steps=horizon,
        batch_size=minibatch,
        n_epochs=epochs,
        callbacks=[watch],
    )
    learner.train(10**9)
    steps = num_envs * horizon
    return {
        "steps_per_second": steps * watch.iterations / (watch.ended - watch.began),
        "updates_per_step": epochs * (steps // minibatch) / steps,
    }


if __name__ == "__main__":
    serve(measure)
