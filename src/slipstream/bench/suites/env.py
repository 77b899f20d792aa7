"""Stepping environments, without learning: `slipstream bench env`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from slipstream.bench.forex_settings import ALL_RULES
from slipstream.bench.machine import Neighbours, best_threads, threads
from slipstream.bench.row import Goal, Row, judged
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.members import rate
from slipstream.bench.worker import run_worker
from slipstream.market.finding import plural

_STEPS = "ours.vector_steps"


def _ours(
    name: str, env: Mapping[str, Any], num_envs: int, cores: int, seconds: float, rows: int = 32
) -> dict[str, Any]:
    settings = {
        "name": name,
        "settings": dict(env),
        "num_envs": num_envs,
        "threads": cores,
        "seconds": seconds,
        "rows": rows,
    }
    return run_worker(_STEPS, settings, threads=1)


def forex_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """Every trading rule on, 4,096 copies, against the best of SB3's vector environments."""

    def peer(kind: str, copies: int, seconds: float) -> float:
        asked = {"kind": kind, "num_envs": copies, "seconds": seconds}
        return rate(run_worker("peers.sb3_forex", asked, threads=1))

    choices = [(kind, n) for kind in ("DummyVecEnv", "SubprocVecEnv") for n in (1, 4, 8)]
    kind, copies = max(
        choices, key=lambda choice: peer(choice[0], choice[1], 0.5 * settings.seconds)
    )
    seen = _ours("forex", ALL_RULES, 4096, threads(), 0.1)["observation_numbers"]
    measured = settings.alternate(
        lambda: rate(_ours("forex", ALL_RULES, 4096, threads(), settings.seconds)),
        lambda: peer(kind, copies, settings.seconds),
    )
    yield measured.row(
        "forex_vs_sb3",
        f"steps/s (4,096 copies, {seen:.0f} numbers seen)",
        Goal(">=", 100),
        f"SB3 {kind}({copies}) on gym-anytrading forex-v0, the best of six",
    )


def forex_bandwidth(settings: SuiteOptions) -> Iterable[Row]:
    """Bytes that a step must move, times steps per second, against what copying reaches."""
    settings = with_runs(settings, 3)
    asked = {"threads": threads(), "seconds": settings.seconds}
    answers = []

    def share() -> float:
        answer = _ours("forex", ALL_RULES, 65_536, threads(), settings.seconds)
        copied = run_worker("ours.bandwidth", asked, threads=1)["bytes_per_second"]
        answers.append(copied)
        return 100.0 * _bytes(answer) * rate(answer) / float(copied)

    measured = settings.alternate(share)
    bandwidth = sorted(answers)[len(answers) // 2] / 1e9
    yield measured.row(
        "forex_bandwidth", f"% of {bandwidth:.1f} GB/s that copying reaches (65,536 copies)", None
    )


def _bytes(answer: Mapping[str, Any]) -> float:
    """Bytes that one step must move: records twice, a row of bars and features, results once."""
    record = answer["record_bytes"]
    market = 64 + 8  # the new bar's cache line and its calendar word; the old one is in cache
    seen = 4 * answer["observation_numbers"]  # features read, observation written
    return float(2 * record + market + 2 * seen + 8 + 4 + 2)  # action, reward, two flags


def cartpole_vs_envpool(settings: SuiteOptions) -> Iterable[Row]:
    """1,024 copies of CartPole against EnvPool at its best number of threads."""

    def peer(count: int, seconds: float) -> float:
        asked = {"num_envs": 1024, "num_threads": count, "seconds": seconds}
        return rate(run_worker("peers.envpool_cartpole", asked, threads=1))

    counts = sorted({1, 2, max(1, threads() // 2), threads()})
    best = max(counts, key=lambda count: peer(count, 0.5 * settings.seconds))
    ours = best_threads(lambda n: rate(_ours("cartpole", {}, 1024, n, 0.5)))
    measured = settings.alternate(
        lambda: rate(_ours("cartpole", {}, 1024, ours, settings.seconds)),
        lambda: peer(best, settings.seconds),
    )
    name = f"EnvPool CartPole-v1, {plural(best, 'thread')} (its best)"
    yield measured.row("cartpole_vs_envpool", "steps/s (1,024 copies)", Goal(">=", 30), name)


def cartpole_single(settings: SuiteOptions) -> Iterable[Row]:
    """One copy of CartPole, stepped from Python, against Gymnasium's own."""
    asked = {"seconds": settings.seconds}
    measured = settings.alternate(
        lambda: rate(_ours("cartpole", {}, 1, 1, settings.seconds, rows=1024)),
        lambda: rate(run_worker("peers.gymnasium_cartpole", asked, threads=1)),
    )
    yield measured.row(
        "cartpole_single", "steps/s (1 copy)", Goal(">=", 2), "Gymnasium CartPole-v1"
    )


def scaling(settings: SuiteOptions) -> Iterable[Row]:
    """Cost per forex step with many copies, relative to that with 1,024."""
    settings = with_runs(settings, 3)
    for copies, limit in ((16_384, 2.0), (65_536, 3.0)):
        measured = settings.alternate(
            partial(_cost, copies, settings.seconds),
            partial(_cost, 1024, settings.seconds),
        )
        yield measured.row(
            "scaling",
            f"ns per step at {copies:,} copies on one thread; ratio = cost relative to 1,024",
            Goal("<=", limit),
            "slipstream at 1,024 copies",
        )


def _cost(copies: int, seconds: float) -> float:
    """Nanoseconds per forex step on one thread."""
    return 1e9 / rate(_ours("forex", ALL_RULES, copies, 1, seconds))


def memory(settings: SuiteOptions) -> Iterable[Row]:
    """Resident memory of 16,384 forex copies on a million bars of 16 features."""
    del settings
    bars = 1_000_000
    folder = tempfile.mkdtemp(prefix="slipstream-bench-")
    asked = {"num_envs": 16_384, "steps": 100, "data": folder}
    try:
        run_worker("ours.memory", {**asked, "bars": bars})
        with Neighbours() as neighbours:
            megabytes = float(run_worker("ours.memory", asked, threads=1)["megabytes"])
    finally:
        shutil.rmtree(folder)
    yield Row(
        case="memory",
        unit="MB resident (16,384 forex copies, 1 M bars x 16 features)",
        ours=megabytes,
        others_cpu=round(neighbours.share, 3),
        **judged(Goal("<", 400), megabytes),
    )


CASES: dict[str, Case] = {
    "forex_vs_sb3": forex_vs_sb3,
    "forex_bandwidth": forex_bandwidth,
    "cartpole_vs_envpool": cartpole_vs_envpool,
    "cartpole_single": cartpole_single,
    "scaling": scaling,
    "memory": memory,
}
