"""rlox's side of the benchmarks: environments and replay in Rust, the update in torch."""

from __future__ import annotations

import time
from typing import Any

import torch
from rlox.algorithms.hybrid_ppo import HybridPPO
from rlox.algorithms.ppo import PPO
from rlox.algorithms.sac import SAC
from rlox.callbacks import Callback

_ALGORITHMS = {"PPO": PPO, "HybridPPO": HybridPPO}  # HybridPPO also collects in Rust
_STARTS = 256  # steps of SAC without updates: a batch
_WARM_UP = 50  # warm-up steps after them


class _Stopwatch(Callback):
    """Timer of calls (iterations of PPO, steps of SAC) after the warm-up calls."""

    def __init__(self, seconds: float, warm_up: int) -> None:
        self.seconds, self.calls = seconds, -warm_up
        self.began = self.ended = 0.0

    def on_step(self, **kwargs: Any) -> bool:
        self.ended = time.perf_counter()
        self.calls += 1
        if self.calls <= 0:
            self.began = self.ended
        return self.calls <= 0 or self.ended - self.began < self.seconds

    @property
    def rate(self) -> float:
        """Return the calls per second."""
        return self.calls / (self.ended - self.began)


def ppo_cartpole(
    algorithm: str, n_envs: int, n_steps: int, seconds: float, threads: int, **settings: int
) -> dict[str, float]:
    """Measure training steps per second over whole iterations.

    Args:
        algorithm: `PPO` or `HybridPPO`; both networks have two layers of 64, as slipstream's.
        n_envs, n_steps, settings: of the algorithm.
        seconds: duration of the measurement.
        threads: threads of torch.
    """
    torch.set_num_threads(threads)
    watch = _Stopwatch(seconds, 1)
    sizes = {"n_envs": n_envs, "n_steps": n_steps, **settings}
    _ALGORITHMS[algorithm]("CartPole-v1", callbacks=[watch], **sizes).train(10**9)
    return {"steps_per_second": n_envs * n_steps * watch.rate}


def sac_pendulum(width: int, seconds: float, threads: int) -> dict[str, float]:
    """Measure training steps per second, with an update of 256 rows a step.

    Args:
        width: units of both hidden layers.
        seconds: duration of the measurement.
        threads: threads of torch.
    """
    torch.set_num_threads(threads)
    watch = _Stopwatch(seconds, _STARTS + _WARM_UP)
    SAC("Pendulum-v1", hidden=width, learning_starts=_STARTS, callbacks=[watch]).train(10**9)
    return {"steps_per_second": watch.rate}
