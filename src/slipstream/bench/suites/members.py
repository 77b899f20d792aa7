"""Our own learner beside itself: populations, lone members, and what the processor could do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from slipstream.bench.forex_settings import ALL_RULES
from slipstream.bench.machine import threads
from slipstream.bench.row import Goal, Row
from slipstream.bench.suite import SuiteOptions, with_runs
from slipstream.bench.worker import run_worker
from slipstream.training.environments.factory import resolve_environment

PPO = "ours.ppo"
_EPOCHS = 4

# One member on all rules; minibatch, epochs and network are those of the peer's recipe `tuned`.
FOREX: dict[str, Any] = {
    "env": {"name": "forex", **ALL_RULES},
    "agent": {"horizon": 128, "minibatch": 4096, "epochs": _EPOCHS, "widths": [64, 64]},
    "training": {"num_envs": 512, "total_steps": 10**9},
    "evaluation": {"every": 1.0},
}
LONE: dict[str, Any] = {
    "env": {"name": "cartpole"},
    "agent": {"horizon": 256, "minibatch": 4096, "epochs": _EPOCHS, "widths": [64, 64]},
    "training": {"num_envs": 64, "total_steps": 10**9},
    "evaluation": {"every": 1.0},
}


def ours_of(config: Mapping[str, Any], seconds: float, seed: int = 0) -> dict[str, Any]:
    """What the trainer does by a config, in a process of its own."""
    training = {**config["training"], "seed": seed}
    return run_worker(PPO, {"config": {**config, "training": training}, "seconds": seconds})


def rate(answer: Mapping[str, Any]) -> float:
    """Training steps per second of all members."""
    return float(answer["steps_per_second"])


def _members(config: Mapping[str, Any], members: int) -> dict[str, Any]:
    return {**config, "training": {**config["training"], "members": members}}


def _population(members: int, num_envs: int, horizon: int, minibatch: int) -> dict[str, Any]:
    agent = {**FOREX["agent"], "horizon": horizon, "minibatch": minibatch}
    training = {**FOREX["training"], "num_envs": num_envs, "members": members}
    return {**FOREX, "agent": agent, "training": training}


def population_16(settings: SuiteOptions) -> Iterable[Row]:
    """16 members with minibatches of 1,024, against the same members one after another."""
    shape, seeds = (16, 256, 1024), count()
    settings = with_runs(settings, 3)
    measured = settings.alternate(
        lambda: rate(ours_of(_population(16, *shape), settings.seconds)),
        lambda: rate(ours_of(_population(1, *shape), settings.seconds, next(seeds))),
    )
    yield measured.row(
        "population_16",
        "training steps/s of all members (minibatch 1024, 16 copies each)",
        Goal(">=", 2),
        "slipstream, the same members one after another",
    )


def population_96(settings: SuiteOptions) -> Iterable[Row]:
    """96 members with minibatches of 128, against two with 4,096 side by side, one a core."""
    settings = with_runs(settings, 3)
    measured = settings.alternate(
        lambda: rate(ours_of(_population(96, 8, 64, 128), settings.seconds)),
        lambda: rate(ours_of(_members(FOREX, 2), settings.seconds)),
    )
    yield measured.row(
        "population_96",
        "training steps/s of all members (minibatch 128, 8 copies each; 4 epochs both)",
        Goal(">=", 0.9),
        "slipstream, two members with minibatches of 4,096, one a core",
    )


def ppo_lone(settings: SuiteOptions) -> Iterable[Row]:
    """A lone member on all cores, against two such members, one a core."""
    measured = settings.alternate(
        lambda: rate(ours_of(LONE, settings.seconds)),
        lambda: rate(ours_of(_members(LONE, 2), settings.seconds)),
    )
    yield measured.row(
        "ppo_lone",
        "training steps/s of all members on CartPole (64 copies, 256 steps, minibatch 4,096)",
        Goal(">=", 0.9),
        "slipstream, two such members, one a core",
    )


def train_peak(settings: SuiteOptions) -> Iterable[Row]:
    """Share of the machine's float32 products that a lone member's update reaches, by width."""
    settings = with_runs(settings, 3)
    spec = resolve_environment("forex", ALL_RULES).spec
    inputs = math.prod(spec.observation_shape) + 1  # and the bias
    for width in (64, 256, 512):
        agent = {**FOREX["agent"], "widths": [width, width]}
        config = {**FOREX, "agent": agent}
        work = _operations(inputs, width)

        def update(config: Mapping[str, Any] = config, work: float = work) -> float:
            spent = ours_of(config, settings.seconds)["update_seconds_per_step"]
            return _EPOCHS * work / float(spent) / 1e9

        measured = settings.alternate(update, _peak)
        yield measured.row(
            f"train_peak {width}x{width}",
            "GFLOP/s of the networks' products in the seconds of an update, all cores",
            None,
            "this machine's float32 products, a BLAS or our own loops, the better",
        )


def _peak() -> float:
    answer = run_worker("ours.products", {"threads": threads()}, threads=threads())
    return max(float(answer["blas"]), float(answer["own"])) / 1e9


def _operations(inputs: int, width: int) -> float:
    """Of one row's pass through both networks and back, heads and element-wise work left out.

    Forward and weight gradients take 2 operations a weight each, input gradients as many in all
    layers but the first.
    """
    first, second = inputs * width, width * width
    return 2.0 * (4.0 * first + 6.0 * second)
