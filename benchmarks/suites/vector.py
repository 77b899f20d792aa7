"""Vector layers for Gymnasium environments: `python -m benchmarks vector`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.environments import rounds_for
from benchmarks.machine import Neighbours, threads
from benchmarks.race import Race
from benchmarks.row import Ratio, Row
from benchmarks.suite import SuiteOptions, specs_of
from benchmarks.worker import rate, run_worker

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
_TIMEOUT = 1800.0  # time limit of a training to a score, in seconds

Turns = dict[str, list[float] | None]


def _alone(env: str, num_envs: int, seconds: float, rounds: int = 0) -> dict[str, Any]:
    """Measure `num_envs` processes that step one env each with no layer."""
    asked = {"env": env, "num_envs": num_envs, "seconds": seconds, "rounds": rounds}
    return run_worker("layers.alone", asked, threads=1)


def _in_turns(
    cells: Sequence[dict[str, Any]], seconds: float, turns: int
) -> tuple[list[Turns], float]:
    """Return steps per second of every turn by system for each cell, and the share of others.

    All systems of a cell take their turns in one process, so that a cell takes seconds.
    """
    asked = [{"seconds": seconds, "turns": turns, **cell} for cell in cells]
    with Neighbours() as neighbours:
        answers = run_worker("layers.turns", {"cells": asked}, threads=1)
    return answers["cells"], neighbours.share


def _median(rates: Turns, system: str) -> float:
    """Return the median of a system's turns, 0 if it is not installed."""
    turns = rates[system]
    return statistics.median(turns) if turns else 0.0


def _beside(rates: Turns, mine: str, other: str, others_cpu: float) -> Row:
    """Compare a slipstream system with another one, with the ratio of turns in pairs."""
    pairs = zip(rates[mine] or [], rates[other] or [], strict=True)
    ratios = [a / b for a, b in pairs]
    ours, peer = _median(rates, mine), _median(rates, other)
    runs = len(ratios)
    return Row(ours=ours, peer=peer, ratio=Ratio.of(ratios), runs=runs, others_cpu=others_cpu)


def cheap_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """Compare a slipstream backend with one peer, beside the environment's own loops.

    The upper bound of any layer is the rate of processes that step one env each with no layer, as
    many as slipstream has workers; see `alone` of `layers.py`.
    """
    for cell in settings.spec["cells"]:
        mine, kind = cell["systems"]
        cores = threads() if mine == "process" else 1
        loops = (_alone(cell["env"], cores, 0.5) for _ in range(settings.runs))
        bound = statistics.median(float(loop["steps_per_second"]) for loop in loops)
        words = {**cell, "mine": mine, "bound": bound / 1000}
        if settings.against is not None:
            asked = {"system": mine, "env": cell["env"], "num_envs": cell["num_envs"]}
            asked["seconds"] = settings.seconds
            yield settings.row(partial(rate, "layers.measure", asked), **words)
            continue
        (rates,), others = _in_turns([cell], 0.25 * settings.seconds, 2 * settings.runs)
        row = _beside(rates, mine, kind, others)
        peer_name = f"{cores} processes that step one env each, with no layer"
        row = replace(row, cells=({"what": peer_name, "steps_per_second": bound},))
        yield settings.told(row, **words)


cheap_vs_subproc = serial_vs_dummy = image_vs_async = cheap_vs_async


def _best(rates: Turns) -> str:
    """Return the fastest peer."""
    return max(_PEERS, key=lambda system: _median(rates, system))


def _tables(settings: SuiteOptions) -> Iterable[tuple[str, int, Turns, Row, str]]:
    """Compare slipstream with the best of the others, by environment and num_envs."""
    spec, asked, labels = settings.spec, [], []
    for label, kind in spec["kinds"].items():
        kind = dict(kind)
        systems = [*spec["systems"], *_PEERS, *(["envpool"] if kind.pop("envpool", 0) else [])]
        if "microseconds" in kind:  # CPU time on an idle machine
            kind["rounds"] = rounds_for(1e-6 * kind.pop("microseconds"))
        for num_envs in spec["num_envs"]:
            asked.append({**kind, "num_envs": num_envs, "systems": systems})
            labels.append((label, num_envs))
    seconds, turns = spec["seconds"][settings.full], spec["turns"][settings.full]
    all_rates, others = _in_turns(asked, seconds, turns)
    for (label, num_envs), rates in zip(labels, all_rates, strict=True):
        best = _best(rates)
        yield label, num_envs, rates, _beside(rates, spec["systems"][0], best, others), _NAMES[best]


def few_copies(settings: SuiteOptions) -> Iterable[Row]:
    """Compare `auto` with the best of the others at a small num_envs; the worst ratio decides."""
    cells: list[dict[str, Any]] = []
    for env, num_envs, _, row, best in _tables(settings):
        assert row.ratio is not None
        cell = {"ours": row.ours, "peer": row.peer, "peer_name": best, "ratio": row.ratio.median}
        cells.append({"env": env, "copies": num_envs, **cell})
    worst = min(cells, key=lambda cell: cell["ratio"])
    row = replace(row, ours=worst["ratio"], peer=None, ratio=None, cells=tuple(cells))
    yield settings.told(row, num_envs=worst["copies"], **worst)


def systems(settings: SuiteOptions) -> Iterable[Row]:
    """Measure steps per second of every system."""
    for env, num_envs, rates, row, best in _tables(settings):
        figures = {
            _NAMES[name]: values and statistics.median(values) for name, values in rates.items()
        }
        cells = tuple(
            {"system": name, "env": env, "copies": num_envs, "steps_per_second": figure}
            for name, figure in figures.items()
        )
        mine = settings.spec["systems"][0]
        row = replace(row, cells=cells)
        yield settings.told(row, env=env, num_envs=num_envs, mine=mine, best=best)


heavy = systems


def heavy_efficiency(settings: SuiteOptions) -> Iterable[Row]:
    """Compare 1 ms of CPU time a step, 16 envs a core, with the same loop without a layer.

    The loop's own speed is that of one process, by its CPU time. The rate of one process per core
    without synchronization is in the cells: a core may be slower while its neighbours work.
    """
    rounds, cores, seconds = rounds_for(1e-3), threads(), settings.seconds
    asked = {"system": "process", "env": "work", "rounds": rounds, "num_envs": 16 * cores}
    asked |= {"workers": cores, "seconds": seconds}

    def alone() -> float:
        return float(_alone("work", 1, seconds, rounds)["steps_per_cpu_second"]) * cores

    with Neighbours() as neighbours:
        together = _alone("work", cores, seconds, rounds)
        bound = float(together["steps_per_second"]) / alone()
    ours = partial(rate, "layers.measure", asked)
    row = settings.row(ours, alone, cores=cores, num_envs=16 * cores, bound=bound)
    peer_name = f"{cores} processes at once with no layer, of {cores} x one"
    yield replace(row, cells=({"what": peer_name, "ratio": bound, "others_cpu": neighbours.share},))


def _layer(system: str, num_envs: int, seconds: float) -> dict[str, Any]:
    asked = {"system": system, "env": "CartPole-v1", "num_envs": num_envs, "seconds": seconds}
    return run_worker("layers.measure", asked, threads=1)


def start_stop(settings: SuiteOptions) -> Iterable[Row]:
    """Measure 512 CartPole envs until the first observation and until all processes ended."""
    stops: list[float] = []

    def start() -> float:
        answer = _layer("process", 512, 0.1)
        stops.append(float(answer["stop"]))
        return float(answer["start"])

    row = settings.measure(start, None, settings.spec)
    starting, stopping = settings.spec["rows"]
    yield settings.told(row, starting)
    row = replace(row, ours=statistics.median_high(stops), runs=len(stops))
    yield settings.told(row, stopping)


def footprint(settings: SuiteOptions) -> Iterable[Row]:
    """Measure many CartPole envs: memory an env, time to start, CPU time of a step."""
    # Measured once, because all figures come from the same runs.
    settings = replace(settings, until=0.0)
    num_envs = settings.spec["num_envs"]

    def side(system: str, found: list[dict[str, Any]]) -> float:
        found.append(_layer(system, num_envs, 0.5))
        found[-1]["memory"] /= num_envs * 2**20
        return float(found[-1]["memory"])

    for mine, kind in settings.spec["pairs"]:
        answers: dict[str, list[dict[str, Any]]] = {mine: [], kind: []}
        ours, peer = (partial(side, *one) for one in answers.items())
        row = settings.measure(ours, peer, settings.spec)
        for spec in settings.spec["rows"]:
            figures = [[one[spec["figure"]] for one in found] for found in answers.values()]
            known, others = map(statistics.median, figures)
            ratio = Ratio.of([b / a for a, b in zip(*figures, strict=True)])
            row = replace(row, ours=known, peer=others, ratio=ratio, peer_name=_NAMES[kind])
            yield settings.told(row, spec, mine=mine)


footprint_256 = footprint


def to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Race one learner on slipstream's vector layer and on others, in turns."""
    seeds = range(1, 1 + settings.spec["seeds"])
    for learner, vectors in settings.spec["vectors"].items():
        with Neighbours() as neighbours:
            answers = [[_trained(learner, vector, seed) for vector in vectors] for seed in seeds]
        mine, *others = zip(*answers, strict=True)
        for vector, theirs in zip(vectors[1:], others, strict=True):
            ran = Race(mine, theirs, others_cpu=neighbours.share)
            yield ran.row(settings, learner=learner, vector=vector, seeds=len(seeds))


def _trained(learner: str, vector: str, seed: int) -> dict[str, Any]:
    """Train a learner of `time_to_score` up to its score; SB3's with one thread."""
    spec = specs_of("train")["time_to_score"]
    more: dict[str, Any] = {"score": spec["score"]}
    if learner == "SB3's PPO":
        more |= {"vector": vector, "seed": seed, "threads": 1}
        more |= {"game": "cartpole"} if vector == "ours" else {}
        return run_worker("peers.sb3.learn", {**spec["peer"], **more}, threads=1, timeout=_TIMEOUT)
    config = {**spec["ours"], "training": {**spec["ours"]["training"], "seed": seed}}
    if vector != "ours":
        config["env"] = {"name": "gym:CartPole-v1"}
        config["training"]["backend"] = vector
    asked = {"config": config, **more}
    return run_worker("ours.training.seconds_to_score", asked, timeout=_TIMEOUT)
