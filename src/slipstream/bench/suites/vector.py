"""Any Gymnasium environment in our vector layer beside others: `slipstream bench vector`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from slipstream.bench.alternate import alternate
from slipstream.bench.machine import Neighbours, threads
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.vector_faces import face_cost, infos, sb3_on_us
from slipstream.bench.suites.vector_faults import chaos, crashing, worker_kill
from slipstream.bench.suites.vector_systems import (
    CARTPOLE,
    NAMES,
    few_copies,
    heavy,
    in_turns,
    median_of,
    ratio_of,
    rounds,
    systems,
)
from slipstream.bench.worker import run_worker


def ours(env: str, num_envs: int, seconds: float, **more: Any) -> dict[str, Any]:
    """See `ours/vector_layer.py`."""
    asked = {"env": env, "num_envs": num_envs, "seconds": seconds, **more}
    return run_worker("ours.vector_layer", asked, threads=1)


def peer(kind: str, env: str, num_envs: int, seconds: float, **more: Any) -> dict[str, Any]:
    """See `peers/vector_layers.py`."""
    asked = {"kind": kind, "env": env, "num_envs": num_envs, "seconds": seconds, **more}
    return run_worker("peers.vector_layers", asked, threads=1)


def rate(answer: dict[str, Any]) -> float:
    return float(answer["steps_per_second"])


def _beside(
    settings: SuiteOptions, case: str, cell: dict[str, Any], mine: str, kind: str, goal: Goal
) -> Row:
    """A backend of ours and one peer, in turn, with the environment's own loops for comparison.

    As many processes as ours has workers at work, which step one copy each with no layer at all,
    are what no layer can surpass; see `alone` of `ours/vector_layer.py`.
    """
    turns = 2 * settings.runs
    cores = threads() if mine == "process" else 1
    bound = statistics.median(
        float(ours(cell["env"], cores, 0.5, what="alone")["steps_per_second"])
        for _ in range(settings.runs)
    )
    asked = {"systems": (mine, kind), **cell}
    (rates,), others = in_turns([asked], seconds=0.25 * settings.seconds, turns=turns)
    ratio = ratio_of(rates, mine, kind)
    return Row(
        case=case,
        unit=(
            f"steps/s ({cell['env']}, {cell['num_envs']} copies, backend {mine}; with no layer "
            f"{bound / 1000:,.0f} k)"
        ),
        ours=median_of(rates, mine),
        peer=median_of(rates, kind),
        peer_name=NAMES[kind],
        ratio=ratio,
        runs=turns,
        others_cpu=others,
        cells=(
            {
                "what": f"{cores} processes that step one copy each, with no layer",
                "steps_per_second": bound,
            },
        ),
        **judged(goal, ratio.median),
    )


def cheap_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """A cheap environment in 64 copies."""
    cell = {"env": CARTPOLE, "num_envs": 64}
    yield _beside(settings, "cheap_vs_async", cell, "process", "gym_async", Goal(">=", 10))


def cheap_vs_subproc(settings: SuiteOptions) -> Iterable[Row]:
    """The same against SB3."""
    cell = {"env": CARTPOLE, "num_envs": 64}
    yield _beside(settings, "cheap_vs_subproc", cell, "process", "sb3_subproc", Goal(">=", 10))


def serial_vs_dummy(settings: SuiteOptions) -> Iterable[Row]:
    """One after another in this process, one copy and eight."""
    for copies in (1, 8):
        cell = {"env": CARTPOLE, "num_envs": copies}
        yield _beside(settings, "serial_vs_dummy", cell, "serial", "sb3_dummy", Goal(">=", 1.3))


def heavy_efficiency(settings: SuiteOptions) -> Iterable[Row]:
    """A step of 1 ms of processor time, 16 copies a core, beside the same loop with no layer.

    The loop's own speed is that of one process, by its processor time. What as many processes
    reach as there are cores, which neither wait nor are waited for, is in the cells: a core may be
    slower while its neighbours work.
    """
    own = rounds(1000)
    cores = threads()

    def alone() -> float:
        found = ours("work", 1, settings.seconds, what="alone", rounds=own)
        return float(found["steps_per_cpu_second"]) * cores

    with Neighbours() as neighbours:
        together = ours("work", cores, settings.seconds, what="alone", rounds=own)
        bound = float(together["steps_per_second"]) / alone()
    measured = settings.alternate(
        lambda: rate(ours("work", 16 * cores, settings.seconds, rounds=own, workers=cores)),
        alone,
    )
    row = measured.row(
        "heavy_efficiency",
        f"steps/s (1 ms of processor time alone, {16 * cores} copies, {cores} workers)",
        Goal(">=", 0.95),
        f"{cores} cores x the environment's own speed",
    )
    cell = {
        "what": f"{cores} processes at once with no layer, of {cores} x one",
        "ratio": bound,
        "others_cpu": round(neighbours.share, 3),
    }
    unit = f"{row.unit}; {cores} processes with no layer: {bound:.3f}"
    yield replace(row, unit=unit, cells=(cell,))


def image_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """Observations of 84x84x4 bytes, 16 copies."""
    cell = {"env": "image", "num_envs": 16}
    yield _beside(settings, "image_vs_async", cell, "process", "gym_async", Goal(">=", 3))


def uneven_async(settings: SuiteOptions) -> Iterable[Row]:
    """Sleeps of 1 to 20 ms, 16 copies, one a worker: the first half that is ready, or all."""
    more = {"workers": 16, "backend": "process"}
    measured = settings.alternate(
        lambda: rate(ours("uneven", 16, settings.seconds, receive=8, **more)),
        lambda: rate(ours("uneven", 16, settings.seconds, **more)),
    )
    yield measured.row(
        "uneven_async",
        "steps/s (16 copies, one a worker, 1 to 20 ms; `recv` of 8)",
        Goal(">=", 1.3),
        "slipstream, all together",
    )


def start_stop(settings: SuiteOptions) -> Iterable[Row]:
    """512 copies of CartPole, until the first observation and until nothing is left."""
    settings = with_runs(settings, 3)
    kept: list[dict[str, Any]] = []

    def start() -> float:
        kept.append(ours(CARTPOLE, 512, 0.1))
        return float(kept[-1]["start"])

    measured = settings.alternate(start, less_is_better=True)
    yield measured.row("start_512", "seconds until 512 copies are reset", Goal("<", 5))
    stops = sorted(float(one["stop"]) for one in kept)
    stop = stops[len(stops) // 2]
    yield Row(
        case="stop_512",
        unit="seconds until they are gone",
        ours=stop,
        runs=len(stops),
        others_cpu=measured.others_cpu,
        **judged(Goal("<", 2), stop),
    )


def footprint(settings: SuiteOptions) -> Iterable[Row]:
    """64 copies of CartPole: memory a copy, time to start, processor time of a step.

    Memory is of all processes together, shared parts counted once.
    """
    settings = with_runs(settings, 2)
    found: dict[str, list[dict[str, Any]]] = {}

    def side(kind: str) -> Callable[[], float]:
        def measured() -> float:
            one = ours if kind == "ours" else partial(peer, kind)
            found.setdefault(kind, []).append(one(CARTPOLE, 64, 0.5))
            return float(found[kind][-1]["memory"]) / 64 / 2**20

        return measured

    for kind in ("gym_async", "sb3_subproc"):
        found.clear()
        memory = alternate(
            side("ours"), side(kind), runs=settings.runs, until=0.0, less_is_better=True
        )
        yield memory.row("memory", "MiB (PSS) a copy, of 64 (CartPole)", None, NAMES[kind])
        for name, unit, factor in (
            ("start", "seconds until 64 copies are reset", 1.0),
            ("cpu", "us of processor time a step, all processes (64 copies)", 1e6),
        ):
            mine, theirs = ([factor * one[name] for one in found[k]] for k in ("ours", kind))
            yield Row(
                case=f"{name}_64",
                unit=unit,
                ours=statistics.median(mine),
                peer=statistics.median(theirs),
                peer_name=NAMES[kind],
                ratio=Ratio.of([b / a for a, b in zip(mine, theirs, strict=True)]),
                runs=len(mine),
                others_cpu=memory.others_cpu,
            )


CASES: dict[str, Case] = {
    "cheap_vs_async": cheap_vs_async,
    "cheap_vs_subproc": cheap_vs_subproc,
    "serial_vs_dummy": serial_vs_dummy,
    "few_copies": few_copies,
    "heavy_efficiency": heavy_efficiency,
    "image_vs_async": image_vs_async,
    "uneven_async": uneven_async,
    "worker_kill": worker_kill,
    "crashing": crashing,
    "chaos": chaos,
    "face_cost": face_cost,
    "sb3_on_us": sb3_on_us,
    "infos": infos,
    "start_stop": start_stop,
    "systems": systems,
    "heavy": heavy,
    "footprint": footprint,
}
