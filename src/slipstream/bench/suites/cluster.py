"""A study on several nodes beside the same one on forked workers: `bench study --case cluster`."""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slipstream.bench.machine import Neighbours, threads
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.study_settings import (
    COPIES,
    FOLDS,
    FULL,
    HORIZON,
    Size,
    market,
    study_config,
)
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import WorkerError, run_worker

_SHORT = Size(trials=24, steps=100_000, confirmed=1, seeds=1, final_seeds=1)  # about a minute
_LONG_SECONDS = 330.0  # of the search with --full: ten percent more than five minutes
_SEATS = 16  # of a node in the forecast
_NETWORK = 125e6  # bytes per second: 1 Gbit/s into the owner's machine
_TIMEOUT = 7_200.0


class _Ran(NamedTuple):
    """A study that ran once for all rows that follow from it; see `ours.cluster_study.measure`."""

    told: Mapping[str, float]
    others_cpu: float


@cache
def _run(data_dir: str | None, size: Size, nodes: int, group_size: int | None = None) -> _Ran:
    if importlib.util.find_spec("ray") is None:
        raise WorkerError("Ray is not installed: pip install 'slipstream[ray]'")
    with (
        market(data_dir) as env,
        tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder,
        Neighbours() as neighbours,
    ):
        config = study_config(env, size, pruning=False)
        place = str(Path(folder) / "study")
        asked = {"config": config, "folder": place, "nodes": nodes, "group_size": group_size}
        told = run_worker("ours.cluster_study", asked, timeout=_TIMEOUT)
    return _Ran(told, round(neighbours.share, 3))


def cluster(settings: SuiteOptions) -> Iterable[Row]:
    """All of `cluster_overhead`, `cluster_nodes` and `cluster_owner`.

    About 12 minutes on two cores; 20 with --full, which compares searches of five minutes.
    """
    for case in (overhead, nodes, owner):
        yield from case(settings)


def overhead(settings: SuiteOptions) -> Iterable[Row]:
    """Ray's overhead: two minutes; 13 with --full."""
    size, cores = _SHORT, threads()
    if settings.full:
        seconds = _run(settings.data_dir, _SHORT, 0).told["search"]
        trials = math.ceil(_SHORT.trials * _LONG_SECONDS / seconds)
        size = _SHORT._replace(trials=max(trials, _SHORT.trials))
    near, far = (_run(settings.data_dir, size, count) for count in (0, cores))
    ratio = far.told["search"] / near.told["search"]
    yield Row(
        case="ray_overhead",
        unit=f"s of a search of {size.trials} trials x {FOLDS} folds x {size.steps:,} steps on "
        f"{cores} Ray nodes of one core, starting Ray apart; ratio = times the forked workers'",
        ours=far.told["search"],
        peer=near.told["search"],
        peer_name=f"{cores} forked workers",
        ratio=Ratio.of([ratio]),
        others_cpu=max(near.others_cpu, far.others_cpu),
        **judged(Goal("<=", 1.10), ratio),
    )


def nodes(settings: SuiteOptions) -> Iterable[Row]:
    """A short search on 1, 2 and 4 nodes of this machine: four minutes."""
    for count in (1, 2, 4):
        ran, others = _run(settings.data_dir, _SHORT, count)
        stretches = max(ran["stretches"], 1.0)
        yield Row(
            case="ray_nodes",
            unit=f"s of the search of {_SHORT.trials} trials on {count} nodes of one core "
            f"({threads()} cores in all; {stretches:.0f} stretches of "
            f"{ran['work'] / stretches:.2g} s, {ran['bytes'] / stretches / 1e6:.2g} MB each, owner "
            f"{ran['owner']:.2g} s of processor)",
            ours=ran["search"],
            others_cpu=others,
        )


def owner(settings: SuiteOptions) -> Iterable[Row]:
    """The owner's processor time in a search as large as the full one, and a forecast: 5 minutes.

    Processor time hardly depends on who else works here.
    """
    cores = threads()
    dense = _as_many_seats_see_it(cores)
    far = _run(settings.data_dir, _SHORT, cores).told
    ran, others = _run(settings.data_dir, dense, cores, FOLDS)
    seconds = _work(far, _SHORT) / _SEATS
    share = 100.0 * ran["owner"] / seconds
    yield Row(
        case="ray_owner",
        unit=f"% of a core for the owner per {_SEATS} seats: its {ran['owner']:.3g} s, Optuna's "
        f"storage too, in {FULL.trials} trials x {FOLDS} folds of {dense.iterations} iterations, "
        f"in stretches of {FOLDS} members, beside the {seconds:.3g} s that {_SEATS} seats take "
        f"for {FULL.iterations}",
        ours=share,
        others_cpu=others,
        forecast=True,
        **judged(Goal("<", 10), share),
    )
    for count in (8, 16, 32, 64):
        whole, bound = forecast(far, _SHORT, ran, count * _SEATS)
        yield Row(
            case="ray_nodes",
            unit=f"s of the search of {FULL.trials} trials x {FOLDS} folds on {count} nodes of "
            f"{_SEATS} cores like this one's, all seats busy (trials_in_flight raised to match), "
            f"1 Gbit/s, the owner's time and bytes a member as measured; bound by {bound}",
            ours=whole,
            others_cpu=others,
            forecast=True,
        )


def _as_many_seats_see_it(cores: int) -> Size:
    """The full search with so short members that these cores come back as often as many seats."""
    iterations = max(1, round(FULL.iterations * cores / _SEATS))
    steps = iterations * COPIES * HORIZON
    return Size(trials=FULL.trials, steps=steps, confirmed=1, seeds=1, final_seeds=1)


def _work(ran: Mapping[str, float], size: Size) -> float:
    """The workers' seconds in the full search: they grow with iterations of training."""
    return ran["work"] * FULL.members * FULL.iterations / (size.members * size.iterations)


def forecast(
    ran: Mapping[str, float], size: Size, owner: Mapping[str, float], seats: int
) -> tuple[float, str]:
    """Seconds of the full search on so many seats, and what bounds it.

    Three lower bounds, of which the largest holds: the workers' seconds shared by the seats; the
    owner's processor time, which grows with members; the bytes through its network.

    Args:
        ran: see `slipstream.bench.ours.cluster_study.measure`.
        size: of the study that ran.
        owner: of one whose many short members kept the owner busy.
        seats: how many.
    """
    bounds = {
        "the seats": _work(ran, size) / seats,
        "the owner's core": owner["owner"] * FULL.members / owner["members"],
        "the network": owner["bytes"] * FULL.members / owner["members"] / _NETWORK,
    }
    name = max(bounds, key=lambda one: bounds[one])
    return bounds[name], name


CASES: dict[str, Case] = {
    "cluster": cluster,
    "cluster_overhead": overhead,
    "cluster_nodes": nodes,
    "cluster_owner": owner,
}
