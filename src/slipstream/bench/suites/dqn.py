"""DQN on CartPole: speed of lone members and populations, and of updates alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream.bench.row import Goal, Row
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.members import ours_of, rate
from slipstream.bench.suites.peer_arrangement import best_peer
from slipstream.bench.worker import run_worker

_SB3 = "peers.sb3_dqn"
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


def _against_sb3(case: str, settings: SuiteOptions, members: int, goal: float) -> Row:
    peer = best_peer(_SB3, {"widths": [64, 64]}, _config()["agent"]["updates_per_step"])
    measured = settings.alternate(
        lambda: rate(ours_of(_config(members), settings.seconds)),
        lambda: peer.rate(settings.seconds),
    )
    who = f"{members} members in all" if members > 1 else "one member"
    return measured.row(
        case,
        f"training steps/s of {who} on CartPole (64x64, an update of 64 rows every 4 steps: equal "
        "work)",
        Goal(">=", goal),
        f"SB3 DQN, {peer.name}",
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
    measured = settings.alternate(
        lambda: _updates(settings, 100_000),
    )
    yield measured.row(
        "dqn_updates",
        "updates/s of one core (double, 64x64, batch 64, replay of 100,000)",
        Goal(">=", 15_000),
    )


def prioritised_cost(settings: SuiteOptions) -> Iterable[Row]:
    """What drawing by priorities costs at a million transitions."""
    measured = settings.alternate(
        lambda: _updates(settings, _MILLION, prioritised=True),
        lambda: _updates(settings, _MILLION),
    )
    yield measured.row(
        "prioritised_cost",
        "updates/s of one core, prioritised (64x64, batch 64, replay of 1 M)",
        Goal(">=", 1 / 1.2),
        "the same with uniform draws",
    )


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        dqn_vs_sb3,
        dqn_updates,
        dqn_population_16,
        prioritised_cost,
    )
}
