"""Stepping environments, without learning: `python -m benchmarks env`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.machine import Neighbours, best_threads, threads
from benchmarks.row import Goal, Row
from benchmarks.suite import Case, SuiteOptions
from benchmarks.worker import rate, run_worker
from slipstream.market.finding import plural

# Hourly EURUSD of 2017, the file that gym-anytrading's forex-v0 trades.
HOURLY_EURUSD: dict[str, Any] = {
    "folder": "package:gym_anytrading/datasets/data",
    "files": {"EURUSD": "FOREX_EURUSD_1H_ASK.csv"},
    "symbols": ["EURUSD"],
    "time_zone": "UTC",
    "price_side": "ask",
    "spread_pips": 0.8,
}
# Forex with every rule on.
ALL_RULES: dict[str, Any] = {
    "data": HOURLY_EURUSD,
    "lookback": 2,
    "slippage_pips": 0.1,
    "commission_per_million": 30.0,
    "stop_loss": 20.0,
    "take_profit": 40.0,
    "max_daily_drawdown": 0.05,
    "flat_on_friday": "16:45",
    "cooldown": 1,
    "swap_long": -2.0,
    "swap_short": 0.5,
    "turnover_penalty": 1e-5,
    "holding_penalty": 1e-7,
    "drawdown_penalty": 1e-6,
}


def _ours(
    name: str, env: Mapping[str, Any], num_envs: int, cores: int, seconds: float, rows: int = 32
) -> dict[str, Any]:
    asked = {"name": name, "settings": dict(env), "num_envs": num_envs, "threads": cores}
    return run_worker("ours.kernels.step", {**asked, "seconds": seconds, "rows": rows}, threads=1)


def _rate(*asked: Any, **more: Any) -> float:
    return float(_ours(*asked, **more)["steps_per_second"])


def forex_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """Every trading rule on, 4,096 copies, against the best of SB3's vector environments."""

    def peer(choice: tuple[str, int], seconds: float) -> float:
        asked = {"kind": choice[0], "num_envs": choice[1], "seconds": seconds}
        return rate("peers.sb3.step_forex", asked)

    choices = [(kind, n) for kind in ("DummyVecEnv", "SubprocVecEnv") for n in (1, 4, 8)]
    best = max(choices, key=lambda choice: peer(choice, 0.5 * settings.seconds))
    seen = _ours("forex", ALL_RULES, 4096, threads(), 0.1)["observation_numbers"]
    yield settings.row(
        f"steps/s (4,096 copies, {seen:.0f} numbers seen)",
        lambda: _rate("forex", ALL_RULES, 4096, threads(), settings.seconds),
        lambda: peer(best, settings.seconds),
        f"SB3 {best[0]}({best[1]}) on gym-anytrading forex-v0, the best of six",
        goal=Goal(">=", 100),
    )


def forex_bandwidth(settings: SuiteOptions) -> Iterable[Row]:
    """Bytes that a step must move, times steps per second, against what copying reaches."""
    asked = {"threads": threads(), "seconds": settings.seconds}
    answers = []

    def share() -> float:
        answer = _ours("forex", ALL_RULES, 65_536, threads(), settings.seconds)
        copied = run_worker("ours.hardware.bandwidth", asked, threads=1)["bytes_per_second"]
        answers.append(float(copied))
        return 100.0 * _bytes(answer) * float(answer["steps_per_second"]) / answers[-1]

    row = settings.row("", share, runs=3)
    bandwidth = statistics.median_high(answers) / 1e9
    unit = f"% of {bandwidth:.1f} GB/s that copying reaches (65,536 copies)"
    yield replace(row, unit=unit)


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
        return rate("peers.stepping.envpool_cartpole", asked)

    counts = sorted({1, 2, max(1, threads() // 2), threads()})
    best = max(counts, key=lambda count: peer(count, 0.5 * settings.seconds))
    ours = best_threads(lambda n: _rate("cartpole", {}, 1024, n, 0.5))
    yield settings.row(
        "steps/s (1,024 copies)",
        lambda: _rate("cartpole", {}, 1024, ours, settings.seconds),
        lambda: peer(best, settings.seconds),
        f"EnvPool CartPole-v1, {plural(best, 'thread')} (its best)",
        goal=Goal(">=", 30),
    )


def cartpole_single(settings: SuiteOptions) -> Iterable[Row]:
    """One copy of CartPole, stepped from Python, against Gymnasium's own."""
    yield settings.row(
        "steps/s (1 copy)",
        lambda: _rate("cartpole", {}, 1, 1, settings.seconds, rows=1024),
        lambda: rate("peers.stepping.gymnasium_cartpole", {"seconds": settings.seconds}),
        "Gymnasium CartPole-v1",
        goal=Goal(">=", 2),
    )


def scaling(settings: SuiteOptions) -> Iterable[Row]:
    """Cost per forex step with many copies, relative to that with 1,024."""

    def cost(copies: int) -> float:
        """Nanoseconds per forex step on one thread."""
        return 1e9 / _rate("forex", ALL_RULES, copies, 1, settings.seconds)

    for copies, limit in ((16_384, 2.0), (65_536, 3.0)):
        yield settings.row(
            f"ns per step at {copies:,} copies on one thread; ratio = cost relative to 1,024",
            partial(cost, copies),
            partial(cost, 1024),
            "slipstream at 1,024 copies",
            goal=Goal("<=", limit),
            runs=3,
        )


def memory(settings: SuiteOptions) -> Iterable[Row]:
    """Resident memory of 16,384 forex copies on a million bars of 16 features."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        run_worker("ours.kernels.write_walks", {"folder": folder, "bars": 1_000_000})
        with Neighbours() as neighbours:
            asked = {"num_envs": 16_384, "steps": 100, "folder": folder}
            megabytes = float(run_worker("ours.kernels.memory", asked, threads=1)["megabytes"])
    unit = "MB resident (16,384 forex copies, 1 M bars x 16 features)"
    row = Row(settings.case, unit, megabytes, others_cpu=neighbours.share)
    yield row.judged(Goal("<", 400))


CASES: dict[str, Case] = {
    "forex_vs_sb3": forex_vs_sb3,
    "forex_bandwidth": forex_bandwidth,
    "cartpole_vs_envpool": cartpole_vs_envpool,
    "cartpole_single": cartpole_single,
    "scaling": scaling,
    "memory": memory,
}
