"""A study on several nodes beside the same one on forked workers: `bench study --case cluster`."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.machine import Neighbours, threads
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.study_settings import FOLDS, FULL, SLICE, Size, market, study_config
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.worker import WorkerError, run_worker

# A search of five minutes and more on two cores.
_LONG = Size(trials=160, steps=100_000, confirmed=1, seeds=1, final_seeds=1)
_SEATS = 16  # of a node in the forecast
_NETWORK = 125e6  # bytes per second: 1 Gbit/s into the owner's machine
_TIMEOUT = 7_200.0


def cluster(settings: SuiteOptions) -> Iterable[Row]:
    """Ray's overhead, the owner's time, and a forecast; --full has searches of five minutes."""
    if importlib.util.find_spec("ray") is None:
        raise WorkerError("Ray is not installed: pip install 'slipstream[ray]'")
    size = _LONG if settings.full else SLICE
    with market(settings.data_dir) as env, Neighbours() as neighbours:
        config = study_config(env, size, pruning=False)
        cores, pairs = threads(), 3 if settings.full else 1
        both = [(_run(config, 0), _run(config, cores)) for _ in range(pairs)]
        by_nodes = {cores: both[-1][1]}
        for nodes in (1, 2, 4):
            if nodes not in by_nodes:
                by_nodes[nodes] = _run(config, nodes)
    others = round(neighbours.share, 3)
    yield _overhead(both, size, cores, others)
    yield _owner(by_nodes[cores], cores, others)
    yield from _scaling(by_nodes, size, cores, others)


def _run(config: Mapping[str, Any], nodes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        asked = {"config": config, "folder": str(Path(folder) / "study"), "nodes": nodes}
        return run_worker("ours.cluster_study", asked, timeout=_TIMEOUT)


def _overhead(
    both: list[tuple[dict[str, float], dict[str, float]]], size: Size, cores: int, others: float
) -> Row:
    ratio = Ratio.of([far["search"] / near["search"] for near, far in both])
    return Row(
        case="ray_overhead",
        unit=f"s of a search of {size.trials} trials x {FOLDS} folds x {size.steps:,} steps on "
        f"{cores} Ray nodes of one core, starting Ray apart; ratio = times the forked workers'",
        ours=statistics.median(far["search"] for _, far in both),
        peer=statistics.median(near["search"] for near, _ in both),
        peer_name=f"{cores} forked workers",
        ratio=ratio,
        runs=len(both),
        others_cpu=others,
        **judged(Goal("<=", 1.10), ratio.median),
    )


def _owner(ran: Mapping[str, float], seats: int, others: float) -> Row:
    """Its time grows with the stretches, which grow with the seats."""
    share = 100.0 * ran["owner"] / ran["wall"] * _SEATS / seats
    return Row(
        case="ray_owner",
        unit=f"% of a core for the owner per {_SEATS} seats (from {seats} seats, imports and "
        "loading among it)",
        ours=share,
        others_cpu=others,
        forecast=True,
        **judged(Goal("<", 10), share),
    )


def _scaling(
    by_nodes: Mapping[int, Mapping[str, float]], size: Size, cores: int, others: float
) -> Iterable[Row]:
    for nodes in sorted(by_nodes):
        ran = by_nodes[nodes]
        each = ran["work"] * ran["wall"] / max(ran["search"] * ran["stretches"], 1.0)
        yield Row(
            case="ray_nodes",
            unit=f"s of the search on {nodes} nodes of one core ({cores} cores in all; "
            f"{ran['stretches']:.0f} stretches of {each:.2g} s, "
            f"{ran['bytes'] / max(ran['stretches'], 1.0) / 1e6:.2g} MB each)",
            ours=ran["search"],
            others_cpu=others,
        )
    for nodes in (8, 16, 32, 64):
        seconds, bound = forecast(by_nodes[cores], size, nodes * _SEATS)
        yield Row(
            case="ray_nodes",
            unit=f"s of the search of {FULL.trials} trials x {FOLDS} folds on {nodes} nodes of "
            f"{_SEATS} cores like this one's, all seats busy (trials_in_flight raised to match), "
            f"1 Gbit/s, the owner's time a stretch as measured; bound by {bound}",
            ours=seconds,
            others_cpu=others,
            forecast=True,
        )


def forecast(ran: Mapping[str, float], size: Size, seats: int) -> tuple[float, str]:
    """Seconds of the full search on so many seats, and what bounds it.

    Three lower bounds, of which the largest holds: the workers' seconds shared by the seats; the
    owner's processor time; the bytes through its network. All grow with iterations of training.

    Args:
        ran: see `slipstream.bench.ours.cluster_study.measure`.
        size: of the study that ran.
        seats: how many.
    """
    scale = FULL.trials * FULL.iterations / (size.trials * size.iterations)
    bounds = {
        "the seats": scale * ran["work"] / seats,
        "the owner's core": scale * ran["owner"] * ran["search"] / ran["wall"],
        "the network": scale * ran["bytes"] * ran["search"] / ran["wall"] / _NETWORK,
    }
    name = max(bounds, key=lambda one: bounds[one])
    return bounds[name], name
