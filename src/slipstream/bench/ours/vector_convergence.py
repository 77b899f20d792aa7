"""The score of one agent over time, its copies stepped by one vector layer or another."""

from __future__ import annotations

import time
from typing import Any

from slipstream.bench.ours.ppo import Enough, Stopwatch, train_by
from slipstream.bench.worker import serve
from slipstream.training.listeners.events import Event, Started, Updated

_EPISODES = 20  # training episodes before which their mean says little
# What `gym:ID` suggests; given here because other layers suggest nothing.
_AGENT = {"horizon": 128, "minibatch": 64, "epochs": 10, "reward_scaling": "on"}


class _Curve:
    """Seconds, steps and mean training return after each iteration; stops at a score."""

    def __init__(self, score: float) -> None:
        self.score, self.began, self.reached = score, 0.0, False
        self.points: list[tuple[float, int, float]] = []

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Started):
            self.began = now
        if not isinstance(event, Updated) or event.metrics["episodes"][0] < _EPISODES:
            return
        mean = float(event.metrics["score"][0])
        self.points.append((now - self.began, event.progress.steps, mean))
        self.reached = mean >= self.score
        if self.reached or event.progress.finished:  # what follows is evaluation
            raise Enough


def measure(
    layer: str, env: str, num_envs: int, steps: int, seed: int, score: float, rounds: int = 0
) -> dict[str, Any]:
    """Trains until a mean return of the last 100 training episodes, or for so many steps.

    Args:
        layer: serial or process of ours, compiled (of a kernel), or a kind of
            `peers/vector_layers.py`, around which our agent stands.
        env, rounds: see `maker`; compiled takes a kernel's name.
        num_envs: copies; seed: of the training.
    """
    environment: dict[str, Any] = {"name": env if layer == "compiled" else f"gym:{env}"}
    training: dict[str, Any] = {"num_envs": num_envs, "total_steps": steps, "seed": seed}
    if layer in ("serial", "process", "compiled"):
        training["backend"] = layer
    else:
        environment["name"] = "vec:slipstream.bench.peers.vector_layers:layer"
        environment["kwargs"] = {"kind": layer, "env": env, "rounds": rounds}
    config = {
        "env": environment,
        "agent": _AGENT,
        "training": training,
        "evaluation": {"every": 1.0, "episodes": 1},
    }
    train_by(config, Stopwatch(0.0))  # compiles, and is not timed
    curve = _Curve(score)
    train_by(config, curve)
    seconds, counts, scores = (list(column) for column in zip(*curve.points, strict=True))
    return {"seconds": seconds, "steps": counts, "scores": scores, "reached": curve.reached}


if __name__ == "__main__":
    serve(measure)
