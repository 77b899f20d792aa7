"""DQN on CartPole: speed of lone members and populations, of updates alone, and time to a score."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from slipstream.bench.alternate import alternate
from slipstream.bench.machine import Neighbours, threads
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.members import PPO as OURS
from slipstream.bench.suites.members import ours_of, rate
from slipstream.bench.worker import run_worker

_SB3 = "peers.sb3_dqn_cartpole"
_SCORE = 475.0
_SEEDS = range(1, 6)
_MILLION = 1_000_000


def _config(members: int = 1) -> dict[str, Any]:
    """An update of 64 rows every 4 steps, single Q-learning, as SB3's has it."""
    agent = {"name": "dqn", "batch": 64, "updates_per_step": 0.25, "widths": [64, 64]}
    return {
        "env": {"name": "cartpole"},
        "agent": {
            **agent,
            **{"double": False, "n_step": 1, "target_rate": 1.0, "target_every": 2500},
            "observation_normalization": False,
        },
        "training": {"num_envs": 1, "members": members, "total_steps": 10**9},
        "evaluation": {"every": 1.0},
    }


def _threads(recipe: str, widths: Sequence[int]) -> int:
    """The number of threads with which SB3 is faster."""

    def speed(n: int) -> float:
        asked = {"recipe": recipe, "widths": list(widths), "threads": n, "seconds": 1.0}
        return rate(run_worker(_SB3, asked, threads=n))

    return max(sorted({1, threads()}), key=speed)


def _against_sb3(case: str, settings: SuiteOptions, members: int, goal: float) -> Row:
    best = _threads("plain", (64, 64))
    asked = {"recipe": "plain", "widths": [64, 64], "threads": best, "seconds": settings.seconds}
    measured = alternate(
        lambda: rate(ours_of(_config(members), settings.seconds)),
        lambda: rate(run_worker(_SB3, asked, threads=best)),
        runs=settings.runs,
        until=settings.until,
    )
    who = f"{members} members in all" if members > 1 else "one member"
    return measured.row(
        case,
        f"training steps/s of {who} on CartPole (64x64, an update of 64 rows every 4 steps: equal "
        "work)",
        Goal(">=", goal),
        f"SB3 DQN, {best} thread{'s' if best > 1 else ''}",
    )


def dqn_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """A lone member."""
    yield _against_sb3("dqn_vs_sb3", with_runs(settings, 3), 1, 15)


def dqn_population_16(settings: SuiteOptions) -> Iterable[Row]:
    """Sixteen members, in all."""
    yield _against_sb3("dqn_population_16", with_runs(settings, 3), 16, 40)


def _updates(settings: SuiteOptions, transitions: int, **agent: Any) -> float:
    asked = {"agent": {"batch": 64, **agent}, "transitions": transitions}
    answer = run_worker("ours.dqn_updates", {**asked, "seconds": settings.seconds}, threads=1)
    return float(answer["updates_per_second"])


def dqn_updates(settings: SuiteOptions) -> Iterable[Row]:
    """Updates of a lone member, draws and priorities included."""
    measured = alternate(
        lambda: _updates(settings, 100_000), runs=settings.runs, until=settings.until
    )
    yield measured.row(
        "dqn_updates",
        "updates/s of one core (double, 64x64, batch 64, replay of 100,000)",
        Goal(">=", 15_000),
    )


def prioritised_cost(settings: SuiteOptions) -> Iterable[Row]:
    """What drawing by priorities costs at a million transitions."""
    measured = alternate(
        lambda: _updates(settings, _MILLION, prioritised=True),
        lambda: _updates(settings, _MILLION),
        runs=settings.runs,
        until=settings.until,
    )
    yield measured.row(
        "prioritised_cost",
        "updates/s of one core, prioritised (64x64, batch 64, replay of 1 M)",
        Goal(">=", 1 / 1.2),
        "the same with uniform draws",
    )


def dqn_time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Seconds until 100 training episodes of CartPole average 475; the runs are seeds."""
    del settings
    for case, widths, goal in (
        ("dqn_time_to_score", (256, 256), 2),
        ("dqn_time_to_score 64x64", (64, 64), 10),
    ):
        yield _time_to_score(case, widths, goal)


def _time_to_score(case: str, widths: Sequence[int], goal: float) -> Row:
    best = _threads("zoo", widths)
    config = _config()
    config["agent"] |= {  # the RL Zoo's settings
        **{"widths": list(widths), "learning_rate": 2.3e-3, "updates_per_step": 0.5},
        **{"train_every": 256, "target_every": 5, "learning_starts": 1000},
        **{
            "exploration_steps": 8000,
            "exploration_final": 0.04,
            "learning_rate_schedule": "constant",
        },
    }
    mine, theirs = [], []
    missed = [0, 0]
    with Neighbours() as neighbours:
        for seed in _SEEDS:
            training = {**config["training"], "seed": seed, "total_steps": 50_000}
            asked = {"config": {**config, "training": training}, "score": _SCORE}
            answer = run_worker(OURS, asked, timeout=1200.0)
            mine.append(answer["seconds"])
            missed[0] += not answer["reached"]
            asked = {"recipe": "zoo", "widths": list(widths), "threads": best}
            asked |= {"score": _SCORE, "seed": seed}
            answer = run_worker(_SB3, asked, threads=best, timeout=1200.0)
            theirs.append(answer["seconds"])
            missed[1] += not answer["reached"]
    ratio = Ratio.of([b / a for a, b in zip(mine, theirs, strict=True)])
    never = f"; never reached by {missed[0]} of ours, {missed[1]} of theirs" if any(missed) else ""
    return Row(
        case=case,
        unit=f"s to a mean of 475 on CartPole or 50,000 steps, 5 seeds{never}",
        ours=statistics.median(mine),
        peer=statistics.median(theirs),
        peer_name=f"SB3 DQN with the RL Zoo's settings, {best} thread{'s' if best > 1 else ''}",
        ratio=ratio,
        runs=len(_SEEDS),
        others_cpu=round(neighbours.share, 3),
        **judged(Goal(">=", goal), ratio.median),
    )


def agent_start(settings: SuiteOptions) -> Iterable[Row]:
    """Seconds to the first iteration with updates, with an empty and a full cache of code."""
    del settings
    for agent, kernel in (("dqn", "cartpole"), ("sac", "pendulum")):
        with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as cache, Neighbours() as near:
            asked = {"agent": agent, "kernel": kernel, "cache": cache}
            cold, *warm = (
                float(run_worker("ours.agent_start", asked, timeout=600.0)["seconds"])
                for _ in range(4)
            )
        unit = f"s until a lone {agent} has learned on {kernel} for the first time, imports apart"
        share = round(near.share, 3)
        for case, value, goal in (
            ("cold_agent", cold, 25.0),
            ("warm_agent", statistics.median(warm), 0.5),
        ):
            yield Row(
                case=f"{case} {agent}",
                unit=unit,
                ours=value,
                others_cpu=share,
                **judged(Goal("<=", goal), value),
            )


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        dqn_vs_sb3,
        dqn_updates,
        dqn_population_16,
        prioritised_cost,
        dqn_time_to_score,
        agent_start,
    )
}
