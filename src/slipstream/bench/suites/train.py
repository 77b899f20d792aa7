"""Training end to end: `slipstream bench train`."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from slipstream.bench.forex_settings import HOURLY_EURUSD
from slipstream.bench.machine import Neighbours, best_threads, threads
from slipstream.bench.row import Goal, Row, race_row
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.gym_defaults import gym_defaults
from slipstream.bench.suites.members import (
    FOREX,
    LONE,
    PPO,
    ours_of,
    population_16,
    population_96,
    ppo_lone,
    rate,
    train_peak,
)
from slipstream.bench.worker import WorkerError, run_worker
from slipstream.market.finding import plural

# One pass over each rollout; the update-to-data ratios of both sides are printed beside it.
_FOREX_FASTEST: dict[str, Any] = {
    **FOREX,
    "agent": {"horizon": 64, "minibatch": 4096, "epochs": 1, "widths": [64, 64]},
    "training": {"num_envs": 1024, "total_steps": 10**9},
}


def _better_threads(module: str, asked: Mapping[str, Any], figure: str) -> int:
    """One thread or all, whichever gives a peer the higher rate (`figure`)."""
    return best_threads(
        lambda n: float(run_worker(module, {**asked, "threads": n}, threads=n)[figure])
    )


def _against_sb3(
    case: str,
    settings: SuiteOptions,
    recipe: str,
    config: Mapping[str, Any],
    goal: Goal,
    label: str,
) -> Row:
    asked = {"recipe": recipe, "seconds": settings.seconds}
    module = "peers.sb3_ppo_forex"
    best = _better_threads(module, {**asked, "seconds": 0.0, "short": True}, "steps_per_second")
    updates: dict[str, float] = {}

    def ours() -> float:
        answer = ours_of(config, settings.seconds)
        updates["ours"] = answer["updates_per_step"]
        return rate(answer)

    def peer() -> float:
        answer = run_worker(module, {**asked, "threads": best}, threads=best)
        updates["peer"] = answer["updates_per_step"]
        return rate(answer)

    measured = settings.alternate(ours, peer)
    work = f"updates per step {updates['ours']:.2g} against {updates['peer']:.2g}"
    name = f"SB3 PPO {recipe}, {plural(best, 'thread')}"
    return measured.row(case, f"training steps/s ({work}{label})", goal, name)


def ppo_vs_sb3_default(settings: SuiteOptions) -> Iterable[Row]:
    """Against SB3 as its users run it: defaults, SubprocVecEnv(8), VecMonitor."""
    yield _against_sb3(
        "ppo_vs_sb3_default",
        with_runs(settings, 2),  # an iteration of theirs takes some 20 s
        "default",
        _FOREX_FASTEST,
        Goal(">=", 150),
        ": not equal work",
    )


def ppo_vs_sb3_tuned(settings: SuiteOptions) -> Iterable[Row]:
    """Against SB3 tuned for throughput: same minibatch, epochs and network, copies free."""
    yield _against_sb3(
        "ppo_vs_sb3_tuned", with_runs(settings, 3), "tuned", FOREX, Goal(">=", 5), ": equal work"
    )


def ppo_vs_rlox(settings: SuiteOptions) -> Iterable[Row]:
    """Against rlox, whose environments are Rust: one member, minibatches of 4,096, equal work."""
    sizes = {"num_envs": 64, "horizon": 256, "minibatch": 4096, "epochs": 4}
    module = "peers.rlox_ppo_cartpole"

    def peer(algorithm: str, threads: int, seconds: float) -> float:
        asked = {"algorithm": algorithm, **sizes, "threads": threads, "seconds": seconds}
        return rate(run_worker(module, asked, threads=threads))

    arrangements = [(one, n) for one in ("PPO", "HybridPPO") for n in sorted({1, threads()})]
    best = max(arrangements, key=lambda one: peer(*one, 0.5))
    measured = settings.alternate(
        lambda: rate(ours_of(LONE, settings.seconds)),
        lambda: peer(*best, settings.seconds),
    )
    yield measured.row(
        "ppo_vs_rlox",
        "training steps/s on CartPole (64 copies, 256 steps, 4 epochs of 4,096: equal work)",
        Goal(">=", 5),
        f"rlox {best[0]}, {plural(best[1], 'thread')}, the best of "
        f"{len(arrangements)} arrangements",
    )


CARTPOLE: dict[str, Any] = {
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


def time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Seconds until 100 training episodes of CartPole average 475; the runs are seeds."""
    score, seeds = 475.0, count(1)
    module = "peers.sb3_ppo_cartpole"
    best = _better_threads(module, {"seed": 0, "score": score, "budget": 4096}, "steps_per_second")
    mine: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with Neighbours() as neighbours:
        for _ in range(5):
            seed = next(seeds)
            config = {**CARTPOLE, "training": {**CARTPOLE["training"], "seed": seed}}
            mine.append(run_worker(PPO, {"config": config, "score": score}))
            asked = {"seed": seed, "score": score, "threads": best}
            theirs.append(run_worker(module, asked, threads=best, timeout=1200.0))
    del settings
    apart = statistics.median(one["warm_up"] for one in mine)
    yield race_row(
        "time_to_score",
        f"s to a mean of 475 on CartPole, 5 seeds (imports and compiling {apart:.2g} s apart)",
        Goal(">=", 10),
        mine,
        theirs,
        f"SB3 PPO with the RL Zoo's settings, {plural(best, 'thread')}",
        round(neighbours.share, 3),
    )


def warm_start(settings: SuiteOptions) -> Iterable[Row]:
    """From the start of a second `slipstream train` to its first update."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-bench-"))
    try:
        _first_update(folder / "cold")  # fills the cache of compiled code
        names = (folder / f"warm-{i}" for i in count())
        measured = settings.alternate(
            lambda: _first_update(next(names)),
        )
    finally:
        shutil.rmtree(folder)
    yield measured.row(
        "warm_start",
        "s to the first update of `slipstream train` on forex, imports and all",
        Goal("<=", 2.5),
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
