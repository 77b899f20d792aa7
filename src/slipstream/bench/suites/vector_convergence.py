"""Score against wall-clock: one agent, its copies stepped by each vector layer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from slipstream.bench.machine import Neighbours
from slipstream.bench.row import Row
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.worker import WorkerError, run_worker

COPIES, STEPS, SCORE = 8, 150_000, 400.0
OURS = {"serial": "CartPole-v1", "process": "CartPole-v1", "compiled": "cartpole"}
PEERS = {
    "gym_sync": "Gymnasium SyncVectorEnv",
    "gym_async": "Gymnasium AsyncVectorEnv (shared memory)",
    "sb3_dummy": "SB3 DummyVecEnv",
    "sb3_subproc": "SB3 SubprocVecEnv",
    "envpool": "EnvPool",
}
_POINTS = 60  # of a curve that are kept


def convergence(settings: SuiteOptions) -> Iterable[Row]:
    """Our PPO on CartPole in 8 copies, by the settings of `gym:ID`, on every layer.

    The layer is all that differs, but for the seeds that it hands to episodes: what a training
    learns differs by chance, so the file has each seed's curve. One seed; three with --full.
    """
    seeds = range(3 if settings.full else 1)
    cells: list[dict[str, Any]] = []
    with Neighbours() as neighbours:
        for seed in seeds:  # layers in turn, so that a change of the machine's mood meets all
            for layer in (*OURS, *PEERS):
                found = _curve(layer, seed)
                if found is not None:
                    cells.append(found)
    ours = _fastest(cells, [f"slipstream {one}" for one in OURS])
    peer = _fastest(cells, list(PEERS.values()))
    if ours is None:
        yield Row(case="convergence", unit="not measured: no score was reached", ours=None, runs=0)
        return
    yield Row(
        case="convergence",
        unit=f"s of one agent to a mean return of {SCORE:g} on CartPole ({COPIES} copies, "
        f"{ours[0]})",
        ours=ours[1],
        peer=None if peer is None else peer[1],
        peer_name=None if peer is None else f"the same agent on {peer[0]}, the best of its kind",
        runs=len(seeds),
        others_cpu=round(neighbours.share, 3),
        cells=tuple(cells),
    )


def _curve(layer: str, seed: int) -> dict[str, Any] | None:
    """What one training gave; None where a peer is not installed."""
    asked = {
        "layer": layer,
        "env": OURS.get(layer, "CartPole-v1"),
        "num_envs": COPIES,
        "steps": STEPS,
        "seed": seed,
        "score": SCORE,
    }
    try:
        found = run_worker("ours.vector_convergence", asked, threads=1)
    except WorkerError:
        if layer != "envpool":
            raise
        return None
    kept = thinned(len(found["scores"]))
    curves = {name: [found[name][k] for k in kept] for name in ("seconds", "steps", "scores")}
    system = PEERS.get(layer, f"slipstream {layer}")
    return {"system": system, "seed": seed, "reached": found["reached"], **curves}


def thinned(count: int) -> list[int]:
    """Indices of about `_POINTS` points, the last one among them."""
    stride = max(1, -(-count // _POINTS))
    return sorted({*range(0, count, stride), count - 1})


def _fastest(cells: Sequence[dict[str, Any]], systems: Sequence[str]) -> tuple[str, float] | None:
    """The system that reached the score soonest, and its median seconds; None where none did."""
    found = {}
    for system in systems:
        mine = [one for one in cells if one["system"] == system]
        if mine and all(one["reached"] for one in mine):
            found[system] = statistics.median(one["seconds"][-1] for one in mine)
    return min(found.items(), key=lambda item: item[1]) if found else None
