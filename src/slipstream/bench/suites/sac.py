"""Soft actor-critic on Pendulum: an update of 256 rows for every step, as its peers do it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from slipstream.bench.alternate import Alternated
from slipstream.bench.machine import best_threads, threads
from slipstream.bench.row import Goal, Row
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.members import ours_of, rate
from slipstream.bench.suites.peer_arrangement import best_peer
from slipstream.bench.worker import run_worker
from slipstream.market.finding import plural

_SB3 = "peers.sb3_sac_pendulum"
_BATCH = 256
_WIDE, _SMALL = (256, 256), (64, 64)


def _config(widths: Sequence[int], members: int = 1, iteration: int = 128) -> dict[str, Any]:
    """SB3's defaults, which are the papers'."""
    agent = {"name": "sac", "widths": list(widths), "learning_starts": 100, "iteration": iteration}
    return {
        "env": {"name": "pendulum"},
        "agent": {**agent, "batch": _BATCH, "updates_per_step": 1.0},
        "training": {"num_envs": 1, "members": members, "total_steps": 10**9},
        "evaluation": {"every": 1.0},
    }


def _against_sb3(
    case: str, settings: SuiteOptions, widths: Sequence[int], members: int, goal: float
) -> Row:
    peer = best_peer(_SB3, {"widths": list(widths)}, 1.0)
    iteration = 128 if widths == _WIDE else 1024
    measured = settings.alternate(
        lambda: rate(ours_of(_config(widths, members, iteration), settings.seconds)),
        lambda: peer.rate(settings.seconds),
    )
    who = f"{members} members in all" if members > 1 else "one member"
    size = "x".join(map(str, widths))
    return measured.row(
        case,
        f"training steps/s of {who} on Pendulum ({size}, an update of {_BATCH} rows a step: equal "
        f"work{_bound(widths[0], measured) if widths == _WIDE else ''})",
        Goal(">=", goal),
        f"SB3 SAC, {peer.name}",
    )


def _bound(width: int, measured: Alternated) -> str:
    """What this processor could do at most, in words."""
    most = 1e9 * _products() / _operations(width)
    assert measured.peer is not None
    return (
        f"; if an update were its hidden layers' products alone, at the speed of our own on all "
        f"cores, {most:.0f} steps/s or {most / measured.peer:.2f} times the peer: "
        f"{measured.ours / most:.0%} reached"
    )


def sac_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """A lone member of 256x256, its updates shared by both cores."""
    yield _against_sb3("sac_vs_sb3", with_runs(settings, 3), _WIDE, 1, 4)


def sac_small(settings: SuiteOptions) -> Iterable[Row]:
    """A lone member of 64x64."""
    yield _against_sb3("sac_small", with_runs(settings, 3), _SMALL, 1, 15)


def sac_population_8(settings: SuiteOptions) -> Iterable[Row]:
    """Eight members of 256x256, in all."""
    yield _against_sb3("sac_population_8", with_runs(settings, 3), _WIDE, 8, 6)


def sac_vs_rlox(settings: SuiteOptions) -> Iterable[Row]:
    """Against rlox, whose replay is Rust."""
    settings = with_runs(settings, 3)

    def peer(n: int, seconds: float) -> float:
        asked = {"width": _WIDE[0], "seconds": seconds, "threads": n}
        return rate(run_worker("peers.rlox_sac_pendulum", asked, threads=n))

    best = best_threads(lambda n: peer(n, 1.0))
    measured = settings.alternate(
        lambda: rate(ours_of(_config(_WIDE), settings.seconds)),
        lambda: peer(best, settings.seconds),
    )
    yield measured.row(
        "sac_vs_rlox",
        f"training steps/s on Pendulum (256x256, an update of {_BATCH} rows a step: equal work)",
        Goal(">=", 2.5),
        f"rlox SAC, {plural(best, 'thread')}",
    )


def sac_peak(settings: SuiteOptions) -> Iterable[Row]:
    """Share of our own products' speed that a lone member's update reaches, on all cores."""
    settings = with_runs(settings, 3)

    def update() -> float:
        answer = ours_of(_config(_WIDE), settings.seconds)
        return _operations(_WIDE[0]) / float(answer["update_seconds_per_step"]) / 1e9

    measured = settings.alternate(update, _products)
    yield measured.row(
        "sac_peak",
        "GFLOP/s of the networks' products in the seconds of an update, 256x256, all cores",
        Goal(">=", 0.5),
        "our own float32 products on all cores",
    )


def _products() -> float:
    """GFLOP/s of our own products on all cores."""
    n = threads()
    return float(run_worker("ours.products", {"threads": n}, threads=n)["own"]) / 1e9


def _operations(width: int) -> float:
    """Of one update's products of hidden layers, 2 a multiplication; the narrow ones left out.

    Passes of the batch through a network: one of the actor and two of targets for the next value,
    two critics forward and each twice back; one of the actor, two critics forward and the smaller
    one of each row once back, the actor twice back.
    """
    passes = 3 + 6 + 6
    return 2.0 * passes * _BATCH * width * width


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        sac_vs_sb3,
        sac_small,
        sac_population_8,
        sac_vs_rlox,
        sac_peak,
    )
}
