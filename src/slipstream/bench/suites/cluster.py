"""A study on several nodes beside the same one on forked workers: `bench study --case cluster`."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.worker import WorkerError, run_worker

# About a minute of two cores, and a search of five minutes and more.
_SHORT = Size(trials=24, steps=100_000, confirmed=1, seeds=1, final_seeds=1)
_LONG = Size(trials=136, steps=100_000, confirmed=1, seeds=1, final_seeds=1)
_SEATS = 16  # of a node in the forecast
_NETWORK = 125e6  # bytes per second: 1 Gbit/s into the owner's machine
_TIMEOUT = 7_200.0


def cluster(settings: SuiteOptions) -> Iterable[Row]:
    """Ray's overhead, the owner's time, and a forecast; --full compares searches of five minutes.

    About 12 minutes on two cores, 20 with --full.
    """
    if importlib.util.find_spec("ray") is None:
        raise WorkerError("Ray is not installed: pip install 'slipstream[ray]'")
    size, cores = _LONG if settings.full else _SHORT, threads()
    with market(settings.data_dir) as env, Neighbours() as neighbours:
        near, far = _run(env, size, 0), _run(env, size, cores)
        yield _overhead(near, far, size, cores, round(neighbours.share, 3))
        for nodes in (1, 2, 4):
            known = far if (nodes, size) == (cores, _SHORT) else None
            ran = known or _run(env, _SHORT, nodes)
            yield _scaling(nodes, ran, cores, round(neighbours.share, 3))
        dense = _as_many_seats_see_it(cores)
        owner = _run(env, dense, cores, FOLDS)
    others = round(neighbours.share, 3)
    yield _owner(owner, dense, _work(far, size) / _SEATS, others)
    for nodes in (8, 16, 32, 64):
        yield _forecast(far, size, owner, nodes, others)


def _run(
    env: Mapping[str, Any], size: Size, nodes: int, group_size: int | None = None
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        config = study_config(env, size, pruning=False)
        place = str(Path(folder) / "study")
        asked = {"config": config, "folder": place, "nodes": nodes, "group_size": group_size}
        return run_worker("ours.cluster_study", asked, timeout=_TIMEOUT)


def _as_many_seats_see_it(cores: int) -> Size:
    """The full search with so short members that these cores come back as often as many seats."""
    iterations = max(1, round(FULL.iterations * cores / _SEATS))
    steps = iterations * COPIES * HORIZON
    return Size(trials=FULL.trials, steps=steps, confirmed=1, seeds=1, final_seeds=1)


def _overhead(
    near: Mapping[str, float], far: Mapping[str, float], size: Size, cores: int, others: float
) -> Row:
    ratio = far["search"] / near["search"]
    return Row(
        case="ray_overhead",
        unit=f"s of a search of {size.trials} trials x {FOLDS} folds x {size.steps:,} steps on "
        f"{cores} Ray nodes of one core, starting Ray apart; ratio = times the forked workers'",
        ours=far["search"],
        peer=near["search"],
        peer_name=f"{cores} forked workers",
        ratio=Ratio.of([ratio]),
        others_cpu=others,
        **judged(Goal("<=", 1.10), ratio),
    )


def _scaling(nodes: int, ran: Mapping[str, float], cores: int, others: float) -> Row:
    stretches = max(ran["stretches"], 1.0)
    each = ran["work"] / stretches
    return Row(
        case="ray_nodes",
        unit=f"s of the search of {_SHORT.trials} trials on {nodes} nodes of one core ({cores} "
        f"cores in all; {stretches:.0f} stretches of {each:.2g} s, "
        f"{ran['bytes'] / stretches / 1e6:.2g} MB each, owner {ran['owner']:.2g} s of processor)",
        ours=ran["search"],
        others_cpu=others,
    )


def _work(ran: Mapping[str, float], size: Size) -> float:
    """The workers' seconds in the full search: they grow with iterations of training."""
    return ran["work"] * FULL.members * FULL.iterations / (size.members * size.iterations)


def _owner(owner: Mapping[str, float], size: Size, seconds: float, others: float) -> Row:
    """All that the owner does in the search, beside the time that so many seats take for it."""
    share = 100.0 * owner["owner"] / seconds
    return Row(
        case="ray_owner",
        unit=f"% of a core for the owner per {_SEATS} seats: its {owner['owner']:.3g} s in "
        f"{FULL.trials} trials x {FOLDS} folds of {size.iterations} iterations, in stretches of "
        f"{FOLDS} members, beside the {seconds:.3g} s that {_SEATS} seats take for "
        f"{FULL.iterations}",
        ours=share,
        others_cpu=others,
        forecast=True,
        **judged(Goal("<", 10), share),
    )


def _forecast(
    far: Mapping[str, float], size: Size, owner: Mapping[str, float], nodes: int, others: float
) -> Row:
    seconds, bound = forecast(far, size, owner, nodes * _SEATS)
    return Row(
        case="ray_nodes",
        unit=f"s of the search of {FULL.trials} trials x {FOLDS} folds on {nodes} nodes of "
        f"{_SEATS} cores like this one's, all seats busy (trials_in_flight raised to match), "
        f"1 Gbit/s, the owner's time and bytes a member as measured; bound by {bound}",
        ours=seconds,
        others_cpu=others,
        forecast=True,
    )


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
