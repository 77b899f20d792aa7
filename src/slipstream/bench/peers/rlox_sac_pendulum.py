"""rlox's SAC on Pendulum: its replay in Rust, the update in torch."""

from __future__ import annotations

import time
from typing import Any

import torch
from rlox.algorithms.sac import SAC
from rlox.callbacks import Callback

from slipstream.bench.worker import serve

_STARTS = 256  # steps without updates: a batch
_WARM_UP = 50  # steps behind them


class _Stopwatch(Callback):
    """Times the steps behind the warm-up."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps = seconds, -_STARTS - _WARM_UP
        self.began = self.ended = 0.0

    def on_step(self, **kwargs: Any) -> bool:
        self.ended = time.perf_counter()
        self.steps += 1
        if self.steps <= 0:
            self.began = self.ended
        return self.steps <= 0 or self.ended - self.began < self.seconds


def measure(width: int, seconds: float, threads: int) -> dict[str, float]:
    """Training steps per second, an update of 256 rows for each.

    Args:
        width: of both hidden layers; seconds: to measure over; threads: of torch.
    """
    torch.set_num_threads(threads)
    watch = _Stopwatch(seconds)
    SAC("Pendulum-v1", hidden=width, learning_starts=_STARTS, callbacks=[watch]).train(10**9)
    return {"steps_per_second": watch.steps / (watch.ended - watch.began), "updates_per_step": 1.0}


if __name__ == "__main__":
    serve(measure)
