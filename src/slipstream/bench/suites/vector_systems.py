"""Tables of vector layers beside each other: few copies, cheap and heavy environments."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from slipstream.bench.machine import Neighbours
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.vector_envs import rounds_for
from slipstream.bench.worker import run_worker

CARTPOLE = "CartPole-v1"
NAMES = {
    "serial": "slipstream serial",
    "process": "slipstream process",
    "auto": "slipstream auto",
    "gym_sync": "Gymnasium SyncVectorEnv",
    "gym_async": "Gymnasium AsyncVectorEnv (shared memory)",
    "sb3_dummy": "SB3 DummyVecEnv",
    "sb3_subproc": "SB3 SubprocVecEnv",
    "envpool": "EnvPool",
}
PEERS = ("gym_sync", "gym_async", "sb3_dummy", "sb3_subproc")
OURS = ("serial", "process", "auto")
Turns = dict[str, list[float] | None]


@cache
def rounds(microseconds: int) -> int:
    """Of `work`, for so much processor time alone."""
    return rounds_for(1e-6 * microseconds)


def in_turns(
    cells: Sequence[dict[str, Any]], *, seconds: float, turns: int
) -> tuple[list[Turns], float]:
    """Steps per second of every turn by system, for each cell; the share of others on the machine.

    All systems of a cell take their turns in one process: a cell is measured in seconds.
    """
    asked = [{"seconds": seconds, "turns": turns, **cell} for cell in cells]
    with Neighbours() as neighbours:
        found = run_worker("peers.vector_turns", {"cells": asked}, threads=1)
    return found["cells"], round(neighbours.share, 3)


def few_copies(settings: SuiteOptions) -> Iterable[Row]:
    """`auto` beside the best of the others, with few copies; the worst ratio decides."""
    kinds: Sequence[tuple[str, str, int]] = (
        (CARTPOLE, CARTPOLE, 0),
        ("Acrobot-v1", "Acrobot-v1", 0),
        ("100 us", "work", rounds(100)),
    )
    systems = ("auto", *PEERS)
    asked = [
        {"systems": systems, "env": env, "num_envs": copies, "rounds": own}
        for _, env, own in kinds
        for copies in (1, 2, 4, 8)
    ]
    labels = [(label, copies) for label, _, _ in kinds for copies in (1, 2, 4, 8)]
    turns = 11 if settings.full else 5
    found, others = in_turns(asked, seconds=0.2 if settings.full else 0.05, turns=turns)
    cells = []
    for (label, copies), rates in zip(labels, found, strict=True):
        best = best_of(rates, PEERS)
        ratio = ratio_of(rates, "auto", best)
        mine, theirs = median_of(rates, "auto"), median_of(rates, best)
        cells.append({
            "env": label, "copies": copies, "ours": mine, "peer": theirs,
            "peer_name": NAMES[best], "ratio": ratio.median,
        })  # fmt: skip
    worst = min(cells, key=lambda cell: cell["ratio"])
    yield Row(
        case="few_copies",
        unit=f"worst ratio of 12, of {worst['env']} in {worst['copies']} copies (backend auto)",
        ours=worst["ratio"],
        peer_name="the best of SB3's and Gymnasium's",
        runs=turns,
        others_cpu=others,
        cells=tuple(cells),
        **judged(Goal(">=", 0.97), worst["ratio"]),
    )


def systems(settings: SuiteOptions) -> Iterable[Row]:
    """1, 4, 8 and 12 copies of a cheap environment and of 1 ms, everywhere.

    These are the copies that the systems before us were measured with.
    """
    kinds: Sequence[tuple[str, dict[str, Any]]] = (
        ("CartPole-v1", {"env": CARTPOLE, "systems": (*OURS, *PEERS, "envpool")}),
        ("1 ms", {"env": "work", "rounds": rounds(1000), "steps": 4, "systems": (*OURS, *PEERS)}),
    )
    labels = [(label, copies) for label, _ in kinds for copies in (1, 4, 8, 12)]
    asked = [{**cell, "num_envs": copies} for _, cell in kinds for copies in (1, 4, 8, 12)]
    turns = 5 if settings.full else 3
    found, others = in_turns(asked, seconds=0.5 if settings.full else 0.1, turns=turns)
    for (label, copies), rates in zip(labels, found, strict=True):
        yield _table(label, copies, "auto", rates, turns, others)


def heavy(settings: SuiteOptions) -> Iterable[Row]:
    """Steps of 10 ms, and of 1 to 20 ms asleep with a worker for each copy; 8 copies."""
    labels = ("10 ms", "asleep for 1 to 20 ms, a worker a copy")
    asked: list[dict[str, Any]] = [
        {"env": "work", "rounds": rounds(10_000), "steps": 2},
        {"env": "uneven", "steps": 4, "workers": 8},
    ]
    asked = [{**cell, "num_envs": 8, "systems": ("process", *PEERS)} for cell in asked]
    turns = 5 if settings.full else 3
    found, others = in_turns(asked, seconds=0.5, turns=turns)
    for label, rates in zip(labels, found, strict=True):
        yield _table(label, 8, "process", rates, turns, others)


def _table(env: str, copies: int, mine: str, rates: Turns, turns: int, others: float) -> Row:
    """A row of one of ours beside the best of the others, with all that were measured."""
    best = best_of(rates, PEERS)
    return Row(
        case="systems",
        unit=f"steps/s ({env}, {copies} copies, backend {mine})",
        ours=median_of(rates, mine),
        peer=median_of(rates, best),
        peer_name=f"{NAMES[best]}, the best of four",
        ratio=ratio_of(rates, mine, best),
        runs=turns,
        others_cpu=others,
        cells=tuple(
            {
                "system": NAMES[name],
                "env": env,
                "copies": copies,
                "steps_per_second": own and statistics.median(own),
            }
            for name, own in rates.items()
        ),
    )


def best_of(rates: Turns, systems: Sequence[str]) -> str:
    """Which of these systems is the quickest."""
    return max(systems, key=lambda system: median_of(rates, system))


def median_of(rates: Turns, system: str) -> float:
    """Of a system's turns; 0 where it is not installed."""
    own = rates[system]
    return statistics.median(own) if own else 0.0


def ratio_of(rates: Turns, mine: str, other: str) -> Ratio:
    """Of the turns in pairs."""
    pairs = zip(rates[mine] or [], rates[other] or [], strict=True)
    return Ratio.of([a / b for a, b in pairs])
