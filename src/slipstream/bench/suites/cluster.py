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
from slipstream.bench.study_settings import FOLDS, Size, market, study_config
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import WorkerError, run_worker

_SHORT = Size(trials=24, steps=100_000, confirmed=1, seeds=1, final_seeds=1)  # about a minute
_LONG_SECONDS = 330.0  # of the search with --full: ten percent more than five minutes
_TIMEOUT = 7_200.0


class _Ran(NamedTuple):
    """A study that ran once for all rows that follow from it; see `ours.cluster_study.measure`."""

    told: Mapping[str, float]
    others_cpu: float


@cache
def _run(data_dir: str | None, size: Size, nodes: int) -> _Ran:
    if importlib.util.find_spec("ray") is None:
        raise WorkerError("Ray is not installed: pip install 'slipstream[ray]'")
    with (
        market(data_dir) as env,
        tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder,
        Neighbours() as neighbours,
    ):
        config = study_config(env, size, pruning=False)
        place = str(Path(folder) / "study")
        asked = {"config": config, "folder": place, "nodes": nodes}
        told = run_worker("ours.cluster_study", asked, timeout=_TIMEOUT)
    return _Ran(told, round(neighbours.share, 3))


def cluster(settings: SuiteOptions) -> Iterable[Row]:
    """Both of `cluster_overhead` and `cluster_nodes`.

    About 6 minutes on two cores; 17 with --full, which compares searches of five minutes.
    """
    for case in (overhead, nodes):
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


CASES: dict[str, Case] = {
    "cluster": cluster,
    "cluster_overhead": overhead,
    "cluster_nodes": nodes,
}
