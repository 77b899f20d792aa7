"""Training end to end: `python -m benchmarks train`."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.machine import Neighbours, best_threads, threads
from benchmarks.row import Goal, Row, race_row
from benchmarks.suite import Case, SuiteOptions
from benchmarks.suites.env import ALL_RULES, HOURLY_EURUSD
from benchmarks.suites.gym_defaults import gym_defaults
from benchmarks.worker import WorkerError, rate, run_worker
from slipstream.market.finding import plural
from slipstream.training.environments.factory import resolve_environment

_EPOCHS = 4
_SCORE = 475.0  # of CartPole

# One member on all rules; minibatch, epochs and network are those of the peer's recipe `tuned`.
_FOREX: dict[str, Any] = {
    "env": {"name": "forex", **ALL_RULES},
    "agent": {"horizon": 128, "minibatch": 4096, "epochs": _EPOCHS, "widths": [64, 64]},
    "training": {"num_envs": 512, "total_steps": 10**9},
    "evaluation": {"every": 1.0},
}
# One pass over each rollout; the update-to-data ratios of both sides are printed beside it.
_FOREX_FASTEST: dict[str, Any] = {
    **_FOREX,
    "agent": {"horizon": 64, "minibatch": 4096, "epochs": 1, "widths": [64, 64]},
    "training": {"num_envs": 1024, "total_steps": 10**9},
}
_LONE: dict[str, Any] = {
    "env": {"name": "cartpole"},
    "agent": {"horizon": 256, "minibatch": 4096, "epochs": _EPOCHS, "widths": [64, 64]},
    "training": {"num_envs": 64, "total_steps": 10**9},
    "evaluation": {"every": 1.0},
}
_RACE: dict[str, Any] = {
    "env": {"name": "cartpole"},
    "agent": {
        "horizon": 32,
        "minibatch": 256,
        "epochs": 6,
        "learning_rate": 0.0015,
        "learning_rate_schedule": "linear",
        "discount": 0.99,
        "gae_lambda": 0.95,
        "reward_scaling": "off",
        "widths": [64, 64],
    },
    "training": {"num_envs": 32, "total_steps": 150_000},
    "evaluation": {"every": 1.0},
}


def ours_of(config: Mapping[str, Any], seconds: float, timeout: float = 300.0) -> dict[str, Any]:
    """What the trainer does by a config, in a process of its own."""
    asked = {"config": config, "seconds": seconds}
    return run_worker("ours.training.speed", asked, timeout=timeout)


def speed_of(config: Mapping[str, Any], seconds: float) -> float:
    """Its training steps per second, of all members."""
    return float(ours_of(config, seconds)["steps_per_second"])


def changed(config: Mapping[str, Any], section: str = "training", **changes: Any) -> dict[str, Any]:
    """The config with other values in one of its sections."""
    return {**config, section: {**config[section], **changes}}


def _against_sb3(
    settings: SuiteOptions,
    recipe: str,
    config: Mapping[str, Any],
    goal: float,
    runs: int,
    work: str,
) -> Iterable[Row]:
    updates: dict[str, float] = {}

    def ours() -> float:
        answer = ours_of(config, settings.seconds)
        updates["ours"] = answer["updates_per_step"]
        return float(answer["steps_per_second"])

    def peer(n: int, seconds: float, short: bool) -> float:
        asked = {"recipe": recipe, "seconds": seconds, "threads": n, "short": short}
        answer = run_worker("peers.sb3.ppo_forex", asked, threads=n)
        updates["peer"] = answer["updates_per_step"]
        return float(answer["steps_per_second"])

    best = best_threads(lambda n: peer(n, 0.0, True))
    row = settings.row(
        "",
        ours,
        lambda: peer(best, settings.seconds, False),
        f"SB3 PPO {recipe}, {plural(best, 'thread')}",
        goal=Goal(">=", goal),
        runs=runs,
    )
    ratio = f"updates per step {updates['ours']:.2g} against {updates['peer']:.2g}"
    yield replace(row, unit=f"training steps/s ({ratio}: {work})")


def ppo_vs_sb3_default(settings: SuiteOptions) -> Iterable[Row]:
    """Against SB3 as its users run it: defaults, SubprocVecEnv(8), VecMonitor."""
    # An iteration of theirs takes some 20 s.
    yield from _against_sb3(settings, "default", _FOREX_FASTEST, 150, 2, "not equal work")


def ppo_vs_sb3_tuned(settings: SuiteOptions) -> Iterable[Row]:
    """Against SB3 tuned for throughput: same minibatch, epochs and network, copies free."""
    yield from _against_sb3(settings, "tuned", _FOREX, 5, 3, "equal work")


def ppo_vs_rlox(settings: SuiteOptions) -> Iterable[Row]:
    """Against rlox, whose environments are Rust: one member, minibatches of 4,096, equal work."""
    sizes = {"num_envs": 64, "horizon": 256, "minibatch": 4096, "epochs": 4}

    def peer(algorithm: str, n: int, seconds: float) -> float:
        asked = {"algorithm": algorithm, **sizes, "threads": n, "seconds": seconds}
        return rate("peers.rlox.ppo_cartpole", asked, threads=n)

    arrangements = [(one, n) for one in ("PPO", "HybridPPO") for n in sorted({1, threads()})]
    best = max(arrangements, key=lambda one: peer(*one, 0.5))
    yield settings.row(
        "training steps/s on CartPole (64 copies, 256 steps, 4 epochs of 4,096: equal work)",
        lambda: speed_of(_LONE, settings.seconds),
        lambda: peer(*best, settings.seconds),
        f"rlox {best[0]}, {plural(best[1], 'thread')}, the best of "
        f"{len(arrangements)} arrangements",
        goal=Goal(">=", 5),
    )


def time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Seconds until 100 training episodes of CartPole average 475; the runs are seeds."""
    worker, mine, theirs = "peers.sb3.ppo_cartpole", [], []
    short = {"seed": 0, "score": _SCORE, "budget": 4096}
    best = best_threads(lambda n: rate(worker, {**short, "threads": n}, threads=n))
    with Neighbours() as neighbours:
        for seed in range(1, 6):
            asked: dict[str, Any] = {"config": changed(_RACE, seed=seed), "score": _SCORE}
            mine.append(run_worker("ours.training.seconds_to_score", asked))
            asked = {"seed": seed, "score": _SCORE, "threads": best}
            theirs.append(run_worker(worker, asked, threads=best, timeout=1200.0))
    apart = statistics.median(one["warm_up"] for one in mine)
    yield race_row(
        settings.case,
        f"s to a mean of 475 on CartPole, 5 seeds (imports and compiling {apart:.2g} s apart)",
        Goal(">=", 10),
        mine,
        theirs,
        peer_name=f"SB3 PPO with the RL Zoo's settings, {plural(best, 'thread')}",
        others_cpu=neighbours.share,
    )


def _population(members: int, num_envs: int, horizon: int, minibatch: int) -> dict[str, Any]:
    config = changed(_FOREX, "agent", horizon=horizon, minibatch=minibatch)
    return changed(config, num_envs=num_envs, members=members)


def population_16(settings: SuiteOptions) -> Iterable[Row]:
    """16 members with minibatches of 1,024, against the same members one after another."""
    shape, seeds = (16, 256, 1024), count()
    yield settings.row(
        "training steps/s of all members (minibatch 1024, 16 copies each)",
        lambda: speed_of(_population(16, *shape), settings.seconds),
        lambda: speed_of(changed(_population(1, *shape), seed=next(seeds)), settings.seconds),
        "slipstream, the same members one after another",
        goal=Goal(">=", 2),
        runs=3,
    )


def population_96(settings: SuiteOptions) -> Iterable[Row]:
    """96 members with minibatches of 128, against two with 4,096 side by side, one a core."""
    yield settings.row(
        "training steps/s of all members (minibatch 128, 8 copies each; 4 epochs both)",
        lambda: speed_of(_population(96, 8, 64, 128), settings.seconds),
        lambda: speed_of(changed(_FOREX, members=2), settings.seconds),
        "slipstream, two members with minibatches of 4,096, one a core",
        goal=Goal(">=", 0.9),
        runs=3,
    )


def ppo_lone(settings: SuiteOptions) -> Iterable[Row]:
    """A lone member on all cores, against two such members, one a core."""
    yield settings.row(
        "training steps/s of all members on CartPole (64 copies, 256 steps, minibatch 4,096)",
        lambda: speed_of(_LONE, settings.seconds),
        lambda: speed_of(changed(_LONE, members=2), settings.seconds),
        "slipstream, two such members, one a core",
        goal=Goal(">=", 0.9),
    )


def train_peak(settings: SuiteOptions) -> Iterable[Row]:
    """Share of the machine's float32 products that a lone member's update reaches, by width.

    Of one row's pass through both networks and back; heads and element-wise work are left out.
    Forward and weight gradients take 2 operations a weight each, input gradients as many in all
    layers but the first.
    """
    spec = resolve_environment("forex", ALL_RULES).spec
    inputs = math.prod(spec.observation_shape) + 1  # and the bias

    def update(width: int) -> float:
        answer = ours_of(changed(_FOREX, "agent", widths=[width, width]), settings.seconds)
        work = 2.0 * (4.0 * inputs * width + 6.0 * width * width)
        return _EPOCHS * work / float(answer["update_seconds_per_step"]) / 1e9

    for width in (64, 256, 512):
        row = settings.row(
            "GFLOP/s of the networks' products in the seconds of an update, all cores",
            partial(update, width),
            lambda: products("blas", "own"),
            "this machine's float32 products, a BLAS or our own loops, the better",
            runs=3,
        )
        yield replace(row, case=f"train_peak {width}x{width}")


def products(*whose: str) -> float:
    """GFLOP/s of products on all cores: of a `blas`, of our `own` loops, or of the better."""
    n = threads()
    answer = run_worker("ours.hardware.products", {"threads": n}, threads=n)
    return max(float(answer[one]) for one in whose) / 1e9


def warm_start(settings: SuiteOptions) -> Iterable[Row]:
    """From the start of a second `slipstream train` to its first update."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        _first_update(Path(folder) / "cold")  # fills the cache of compiled code
        names = (Path(folder) / f"warm-{i}" for i in count())
        yield settings.row(
            "s to the first update of `slipstream train` on forex, imports and all",
            lambda: _first_update(next(names)),
            goal=Goal("<=", 2.5),
        )


def _first_update(out: Path) -> float:
    """Seconds from starting the process to the first row of its table of metrics."""
    program = "from slipstream.cli import main; main()"  # what the command `slipstream` does
    command = [sys.executable, "-c", program, "train", "forex", "--out", str(out)]
    command += ["--num-envs", "64", "--total-steps", "100000000"]
    command += ["--set", f"env.data={json.dumps(HOURLY_EURUSD)}"]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    table = out / "metrics.csv"
    try:
        while time.perf_counter() - began < 120.0:
            if table.is_file() and table.read_bytes().count(b"\n") >= 2:  # heading and one row
                return time.perf_counter() - began
            if process.poll() is not None:
                said = process.stderr.read().decode() if process.stderr else ""
                raise WorkerError(f"slipstream train ended before its first update: {said[-500:]}")
            time.sleep(0.01)
        raise WorkerError("slipstream train made no update within 120 s")
    finally:
        process.kill()
        process.communicate()


CASES: dict[str, Case] = {
    "ppo_vs_sb3_default": ppo_vs_sb3_default,
    "ppo_vs_sb3_tuned": ppo_vs_sb3_tuned,
    "time_to_score": time_to_score,
    "population_16": population_16,
    "population_96": population_96,
    "ppo_lone": ppo_lone,
    "ppo_vs_rlox": ppo_vs_rlox,
    "train_peak": train_peak,
    "warm_start": warm_start,
    "gym_defaults": gym_defaults,
}
FULL_ONLY = ("gym_defaults",)  # hours
