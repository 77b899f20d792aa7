"""Any Gymnasium environment in our vector layer beside others: `python -m benchmarks vector`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from benchmarks.environments import rounds_for
from benchmarks.machine import Neighbours, threads
from benchmarks.row import Goal, Ratio, Row
from benchmarks.suite import Case, SuiteOptions
from benchmarks.worker import rate, run_worker

_CARTPOLE = "CartPole-v1"
_NAMES = {
    "serial": "slipstream serial",
    "process": "slipstream process",
    "auto": "slipstream auto",
    "gym_sync": "Gymnasium SyncVectorEnv",
    "gym_async": "Gymnasium AsyncVectorEnv (shared memory)",
    "sb3_dummy": "SB3 DummyVecEnv",
    "sb3_subproc": "SB3 SubprocVecEnv",
    "envpool": "EnvPool",
}
_PEERS = ("gym_sync", "gym_async", "sb3_dummy", "sb3_subproc")
_OURS = ("serial", "process", "auto")

Turns = dict[str, list[float] | None]


@cache
def _rounds(microseconds: int) -> int:
    """Of `work`, for so much processor time alone."""
    return rounds_for(1e-6 * microseconds)


def _layer(system: str, env: str, num_envs: int, seconds: float, **more: Any) -> dict[str, Any]:
    asked = {"system": system, "env": env, "num_envs": num_envs, "seconds": seconds, **more}
    return run_worker("layers.measure", asked, threads=1)


def _alone(env: str, num_envs: int, seconds: float, rounds: int = 0) -> dict[str, Any]:
    """As many processes as `num_envs` that step one copy each with no layer at all."""
    asked = {"env": env, "num_envs": num_envs, "seconds": seconds, "rounds": rounds}
    return run_worker("layers.alone", asked, threads=1)


def _in_turns(
    cells: Sequence[dict[str, Any]], *, seconds: float, turns: int
) -> tuple[list[Turns], float]:
    """Steps per second of every turn by system, for each cell; the share of others on the machine.

    All systems of a cell take their turns in one process: a cell is measured in seconds.
    """
    asked = [{"seconds": seconds, "turns": turns, **cell} for cell in cells]
    with Neighbours() as neighbours:
        found = run_worker("layers.turns", {"cells": asked}, threads=1)
    return found["cells"], neighbours.share


def _median(rates: Turns, system: str) -> float:
    """Of a system's turns; 0 where it is not installed."""
    own = rates[system]
    return statistics.median(own) if own else 0.0


def _beside(rates: Turns, mine: str, other: str) -> dict[str, Any]:
    """Figures of a row of one of ours beside another system, the ratio of turns in pairs."""
    pairs = zip(rates[mine] or [], rates[other] or [], strict=True)
    ratio = Ratio.of([a / b for a, b in pairs])
    return {"ours": _median(rates, mine), "peer": _median(rates, other), "ratio": ratio}


def _best(rates: Turns) -> str:
    """Which of the peers is the quickest."""
    return max(_PEERS, key=lambda system: _median(rates, system))


def _against(
    settings: SuiteOptions, env: str, num_envs: int, mine: str, kind: str, goal: float
) -> Row:
    """A backend of ours and one peer, in turn, with the environment's own loops for comparison.

    As many processes as ours has workers at work, which step one copy each with no layer at all,
    are what no layer can surpass; see `alone` of `layers.py`.
    """
    turns = 2 * settings.runs
    cores = threads() if mine == "process" else 1
    bound = statistics.median(
        float(_alone(env, cores, 0.5)["steps_per_second"]) for _ in range(settings.runs)
    )
    asked = {"systems": (mine, kind), "env": env, "num_envs": num_envs}
    (rates,), others = _in_turns([asked], seconds=0.25 * settings.seconds, turns=turns)
    what = f"{cores} processes that step one copy each, with no layer"
    return Row(
        settings.case,
        f"steps/s ({env}, {num_envs} copies, backend {mine}; with no layer {bound / 1000:,.0f} k)",
        **_beside(rates, mine, kind),
        peer_name=_NAMES[kind],
        runs=turns,
        others_cpu=others,
        cells=({"what": what, "steps_per_second": bound},),
    ).judged(Goal(">=", goal))


def cheap_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """A cheap environment in 64 copies."""
    yield _against(settings, _CARTPOLE, 64, "process", "gym_async", 10)


def cheap_vs_subproc(settings: SuiteOptions) -> Iterable[Row]:
    """The same against SB3."""
    yield _against(settings, _CARTPOLE, 64, "process", "sb3_subproc", 10)


def serial_vs_dummy(settings: SuiteOptions) -> Iterable[Row]:
    """One after another in this process, one copy and eight."""
    for copies in (1, 8):
        yield _against(settings, _CARTPOLE, copies, "serial", "sb3_dummy", 1.3)


def image_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """Observations of 84x84x4 bytes, 16 copies."""
    yield _against(settings, "image", 16, "process", "gym_async", 3)


def few_copies(settings: SuiteOptions) -> Iterable[Row]:
    """`auto` beside the best of the others, with few copies; the worst ratio decides."""
    kinds = (
        (_CARTPOLE, {"env": _CARTPOLE}),
        ("Acrobot-v1", {"env": "Acrobot-v1"}),
        ("100 us", {"env": "work", "rounds": _rounds(100)}),
    )
    labels = [(label, copies) for label, _ in kinds for copies in (1, 2, 4, 8)]
    asked = [
        {"systems": ("auto", *_PEERS), **kind, "num_envs": copies}
        for _, kind in kinds
        for copies in (1, 2, 4, 8)
    ]
    turns = 11 if settings.full else 5
    found, others = _in_turns(asked, seconds=0.2 if settings.full else 0.05, turns=turns)
    cells: list[dict[str, Any]] = []
    for (label, copies), rates in zip(labels, found, strict=True):
        best = _best(rates)
        figures = _beside(rates, "auto", best)
        figures |= {"peer_name": _NAMES[best], "ratio": figures["ratio"].median}
        cells.append({"env": label, "copies": copies, **figures})
    worst = min(cells, key=lambda cell: cell["ratio"])
    yield Row(
        settings.case,
        f"worst ratio of 12, of {worst['env']} in {worst['copies']} copies (backend auto)",
        worst["ratio"],
        peer_name="the best of SB3's and Gymnasium's",
        runs=turns,
        others_cpu=others,
        cells=tuple(cells),
    ).judged(Goal(">=", 0.97))


def systems(settings: SuiteOptions) -> Iterable[Row]:
    """1, 4, 8 and 12 copies of a cheap environment and of 1 ms, everywhere.

    These are the copies that the systems before us were measured with.
    """
    slow = {"env": "work", "rounds": _rounds(1000), "steps": 4}
    kinds = {
        _CARTPOLE: {"env": _CARTPOLE, "systems": (*_OURS, *_PEERS, "envpool")},
        "1 ms": {**slow, "systems": (*_OURS, *_PEERS)},
    }
    cells = [
        (label, {**kind, "num_envs": copies})
        for label, kind in kinds.items()
        for copies in (1, 4, 8, 12)
    ]
    yield from _tables(settings, cells, "auto", 0.5 if settings.full else 0.1)


def heavy(settings: SuiteOptions) -> Iterable[Row]:
    """Steps of 10 ms, and of 1 to 20 ms asleep with a worker for each copy; 8 copies."""
    kinds = {
        "10 ms": {"env": "work", "rounds": _rounds(10_000), "steps": 2},
        "asleep for 1 to 20 ms, a worker a copy": {"env": "uneven", "steps": 4, "workers": 8},
    }
    more = {"num_envs": 8, "systems": ("process", *_PEERS)}
    yield from _tables(
        settings, [(k, {**kind, **more}) for k, kind in kinds.items()], "process", 0.5
    )


def _tables(
    settings: SuiteOptions, cells: Sequence[tuple[str, dict[str, Any]]], mine: str, seconds: float
) -> Iterable[Row]:
    """Rows of one of ours beside the best of the others, with all that were measured."""
    turns = 5 if settings.full else 3
    found, others = _in_turns([asked for _, asked in cells], seconds=seconds, turns=turns)
    for (env, asked), rates in zip(cells, found, strict=True):
        best, copies = _best(rates), asked["num_envs"]
        measured = {_NAMES[name]: own and statistics.median(own) for name, own in rates.items()}
        yield Row(
            "systems",
            f"steps/s ({env}, {copies} copies, backend {mine})",
            **_beside(rates, mine, best),
            peer_name=f"{_NAMES[best]}, the best of four",
            runs=turns,
            others_cpu=others,
            cells=tuple(
                {"system": name, "env": env, "copies": copies, "steps_per_second": figure}
                for name, figure in measured.items()
            ),
        )


def heavy_efficiency(settings: SuiteOptions) -> Iterable[Row]:
    """A step of 1 ms of processor time, 16 copies a core, beside the same loop with no layer.

    The loop's own speed is that of one process, by its processor time. What as many processes
    reach as there are cores, which neither wait nor are waited for, is in the cells: a core may be
    slower while its neighbours work.
    """
    own, cores = _rounds(1000), threads()
    copies, more = 16 * cores, {"rounds": own, "workers": cores}

    def alone() -> float:
        found = _alone("work", 1, settings.seconds, own)
        return float(found["steps_per_cpu_second"]) * cores

    with Neighbours() as neighbours:
        together = _alone("work", cores, settings.seconds, own)
        bound = float(together["steps_per_second"]) / alone()
    row = settings.row(
        f"steps/s (1 ms of processor time alone, {copies} copies, {cores} workers); "
        f"{cores} processes with no layer: {bound:.3f}",
        lambda: _layer("process", "work", copies, settings.seconds, **more)["steps_per_second"],
        alone,
        f"{cores} cores x the environment's own speed",
        goal=Goal(">=", 0.95),
    )
    what = f"{cores} processes at once with no layer, of {cores} x one"
    yield replace(row, cells=({"what": what, "ratio": bound, "others_cpu": neighbours.share},))


def uneven_async(settings: SuiteOptions) -> Iterable[Row]:
    """Sleeps of 1 to 20 ms, 16 copies, one a worker: the first half that is ready, or all."""
    asked = {"env": "uneven", "num_envs": 16, "seconds": settings.seconds, "workers": 16}
    yield settings.row(
        "steps/s (16 copies, one a worker, 1 to 20 ms; `recv` of 8)",
        lambda: rate("layers.receive", {**asked, "count": 8}),
        lambda: rate("layers.measure", {**asked, "system": "process"}),
        "slipstream, all together",
        goal=Goal(">=", 1.3),
    )


def worker_kill(settings: SuiteOptions) -> Iterable[Row]:
    """How long the copies of other workers wait when one is killed."""
    asked = {"env": _CARTPOLE, "num_envs": 16, "workers": 4}
    yield settings.row(
        "seconds that the others lose by a killed worker",
        lambda: float(run_worker("layers.kill", asked, threads=1)["lost"]),
        goal=Goal("<", 1),
        less_is_better=True,
    )


def _through(through: str, num_envs: int, seconds: float) -> float:
    asked = {"through": through, "num_envs": num_envs, "seconds": seconds}
    return rate("ours.kernels.step_face", asked)


def face_cost(settings: SuiteOptions) -> Iterable[Row]:
    """CartPole's kernel, 1,024 copies through Gymnasium's face (NEXT_STEP)."""
    for through, name in (
        ("values", "our `step` that returns fresh arrays, too"),
        ("arrays", "our `step` into the caller's arrays, as training calls it"),
    ):
        yield settings.row(
            "steps/s (kernel of CartPole, 1,024 copies, Gymnasium's face)",
            partial(_through, "gymnasium", 1024, settings.seconds),
            partial(_through, through, 1024, settings.seconds),
            name,
            goal=Goal(">=", 0.5),
        )


def sb3_on_us(settings: SuiteOptions) -> Iterable[Row]:
    """Stepping CartPole's kernel through SB3's face; then SB3's PPO on it, end to end."""
    yield settings.row(
        "steps/s (CartPole, 64 copies, SB3's VecEnv face)",
        lambda: _through("sb3", 64, settings.seconds),
        lambda: _layer("sb3_dummy", _CARTPOLE, 64, settings.seconds)["steps_per_second"],
        "SB3 DummyVecEnv",
        goal=Goal(">=", 5),
    )
    steps = 64 * 64 * (8 if settings.full else 3)

    def seconds(kind: str) -> float:
        """Of `learn`; without the time of its environments where they are SB3's."""
        asked = {"kind": kind, "num_envs": 64, "steps": steps}
        found = run_worker("peers.sb3.ppo_faces", asked, threads=1)
        return float(found["seconds"] - (found["stepping"] if kind == "dummy" else 0.0))

    yield settings.row(
        "steps/s (SB3's PPO on our face, end to end, 64 copies)",
        lambda: steps / seconds("ours"),
        lambda: steps / seconds("dummy"),
        "Amdahl's bound: SB3's PPO without the time of its environments",
        goal=Goal(">=", 0.9),
        runs=3,
    )


def infos(settings: SuiteOptions) -> Iterable[Row]:
    """Five numbers in every info, 64 copies: processor time of a step through Gymnasium's face."""

    def side(system: str) -> float:
        return 1e6 * float(_layer(system, "says", 64, settings.seconds)["cpu"])

    yield settings.row(
        "us of processor time a step, all processes (5 numbers in every info, 64 copies)",
        lambda: side("face"),
        lambda: side("gym_async"),
        "Gymnasium AsyncVectorEnv, shared memory",
        less_is_better=True,
    )


def start_stop(settings: SuiteOptions) -> Iterable[Row]:
    """512 copies of CartPole, until the first observation and until nothing is left."""
    stops: list[float] = []

    def start() -> float:
        found = _layer("process", _CARTPOLE, 512, 0.1)
        stops.append(float(found["stop"]))
        return float(found["start"])

    row = settings.row(
        "seconds until 512 copies are reset", start, goal=Goal("<", 5), runs=3, less_is_better=True
    )
    yield replace(row, case="start_512")
    stop = replace(row, case="stop_512", unit="seconds until they are gone", runs=len(stops))
    yield replace(stop, ours=statistics.median_high(stops)).judged(Goal("<", 2))


def footprint(settings: SuiteOptions) -> Iterable[Row]:
    """64 copies of CartPole: memory a copy, time to start, processor time of a step.

    Memory is of all processes together, shared parts counted once.
    """
    settings = replace(settings, until=0.0)  # measured once: the figures are of the same runs
    for kind in ("gym_async", "sb3_subproc"):
        found: dict[str, list[dict[str, Any]]] = {"process": [], kind: []}

        def side(system: str, found: dict[str, Any] = found) -> Callable[[], float]:
            def measured() -> float:
                found[system].append(_layer(system, _CARTPOLE, 64, 0.5))
                return float(found[system][-1]["memory"]) / 64 / 2**20

            return measured

        memory = settings.row(
            "MiB (PSS) a copy, of 64 (CartPole)",
            side("process"),
            side(kind),
            _NAMES[kind],
            runs=2,
            less_is_better=True,
        )
        yield replace(memory, case="memory")
        for name, unit, factor in (
            ("start", "seconds until 64 copies are reset", 1.0),
            ("cpu", "us of processor time a step, all processes (64 copies)", 1e6),
        ):
            mine, theirs = ([factor * one[name] for one in side] for side in found.values())
            yield replace(
                memory,
                case=f"{name}_64",
                unit=unit,
                ours=statistics.median(mine),
                peer=statistics.median(theirs),
                ratio=Ratio.of([b / a for a, b in zip(mine, theirs, strict=True)]),
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
    "face_cost": face_cost,
    "sb3_on_us": sb3_on_us,
    "infos": infos,
    "start_stop": start_stop,
    "systems": systems,
    "heavy": heavy,
    "footprint": footprint,
}
