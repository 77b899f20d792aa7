"""Any Gymnasium environment in our vector layer beside others: `slipstream bench vector`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from slipstream.bench.alternate import alternate
from slipstream.bench.machine import Neighbours, threads
from slipstream.bench.row import Goal, Row, judged
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.vector_faces import face_cost, sb3_on_us
from slipstream.bench.suites.vector_faults import chaos, worker_kill
from slipstream.bench.vector_envs import rounds_for
from slipstream.bench.worker import WorkerError, run_worker

_CARTPOLE = "CartPole-v1"
_NAMES = {
    "gym_sync": "Gymnasium SyncVectorEnv",
    "gym_async": "Gymnasium AsyncVectorEnv (shared memory)",
    "sb3_dummy": "SB3 DummyVecEnv",
    "sb3_subproc": "SB3 SubprocVecEnv",
    "envpool": "EnvPool",
}
PEERS = ("gym_sync", "gym_async", "sb3_dummy", "sb3_subproc")


@cache
def rounds(microseconds: int) -> int:
    """Of `work`, for so much processor time alone."""
    return rounds_for(1e-6 * microseconds)


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
    settings: SuiteOptions, case: str, env: str, copies: int, kind: str, goal: Goal, backend: str
) -> Row:
    measured = alternate(
        lambda: rate(ours(env, copies, settings.seconds, backend=backend)),
        lambda: rate(peer(kind, env, copies, settings.seconds)),
        runs=settings.runs,
        until=settings.until,
    )
    unit = f"steps/s ({env}, {copies} copies, backend {backend})"
    return measured.row(case, unit, goal, _NAMES[kind])


def cheap_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """A cheap environment in 64 copies."""
    goal = Goal(">=", 10)
    yield _beside(settings, "cheap_vs_async", _CARTPOLE, 64, "gym_async", goal, "process")


def cheap_vs_subproc(settings: SuiteOptions) -> Iterable[Row]:
    """The same against SB3."""
    goal = Goal(">=", 10)
    yield _beside(settings, "cheap_vs_subproc", _CARTPOLE, 64, "sb3_subproc", goal, "process")


def serial_vs_dummy(settings: SuiteOptions) -> Iterable[Row]:
    """One after another in this process, one copy and eight."""
    for copies in (1, 8):
        yield _beside(
            settings, "serial_vs_dummy", _CARTPOLE, copies, "sb3_dummy", Goal(">=", 1.3), "serial"
        )


def few_copies(settings: SuiteOptions) -> Iterable[Row]:
    """`auto` beside the best of the others, with few copies; the worst ratio decides."""
    settings = with_runs(settings, 1)
    kinds: Sequence[tuple[str, dict[str, int]]] = (
        (_CARTPOLE, {}),
        ("Acrobot-v1", {}),
        ("work", {"rounds": rounds(100)}),
    )
    with Neighbours() as neighbours:
        cells = [
            _beside_the_best(settings, env, copies, more)
            for env, more in kinds
            for copies in (1, 2, 4, 8)
        ]
    worst = min(cells, key=lambda cell: cell["ratio"])
    yield Row(
        case="few_copies",
        unit=f"worst ratio of 12, of {worst['env']} in {worst['copies']} copies (backend auto)",
        ours=worst["ratio"],
        peer_name="the best of SB3's and Gymnasium's",
        runs=settings.runs,
        others_cpu=round(neighbours.share, 3),
        cells=tuple(cells),
        **judged(Goal(">=", 0.97), worst["ratio"]),
    )


def _beside_the_best(
    settings: SuiteOptions, env: str, copies: int, more: dict[str, int]
) -> dict[str, Any]:
    """One environment in so many copies, beside the quickest of the others."""
    seconds = 0.4 * settings.seconds
    best = max(PEERS, key=lambda kind: rate(peer(kind, env, copies, 0.5 * seconds, **more)))
    measured = alternate(
        lambda: rate(ours(env, copies, seconds, backend="auto", **more)),
        lambda: rate(peer(best, env, copies, seconds, **more)),
        runs=settings.runs,
        until=settings.until,
    )
    assert measured.ratio is not None
    return {
        "env": "100 us" if env == "work" else env,
        "copies": copies,
        "ours": measured.ours,
        "peer": measured.peer,
        "peer_name": _NAMES[best],
        "ratio": measured.ratio.median,
    }


def heavy_efficiency(settings: SuiteOptions) -> Iterable[Row]:
    """A step of 1 ms of processor time, 16 copies a core."""
    own = rounds(1000)
    cores = threads()

    def share() -> float:
        found = rate(ours("work", 16 * cores, settings.seconds, rounds=own, workers=cores))
        return found * 0.001 / cores

    measured = alternate(share, runs=settings.runs, until=settings.until)
    yield measured.row(
        "heavy_efficiency", f"of what {cores} cores do of 1 ms steps alone", Goal(">=", 0.95)
    )


def image_vs_async(settings: SuiteOptions) -> Iterable[Row]:
    """Observations of 84x84x4 bytes, 16 copies."""
    yield _beside(settings, "image_vs_async", "image", 16, "gym_async", Goal(">=", 3), "process")


def uneven_async(settings: SuiteOptions) -> Iterable[Row]:
    """Sleeps of 1 to 20 ms, 16 copies, one a worker: the first half that is ready, or all."""
    more = {"workers": 16, "backend": "process"}
    measured = alternate(
        lambda: rate(ours("uneven", 16, settings.seconds, receive=8, **more)),
        lambda: rate(ours("uneven", 16, settings.seconds, **more)),
        runs=settings.runs,
        until=settings.until,
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
        kept.append(ours(_CARTPOLE, 512, 0.1))
        return float(kept[-1]["start"])

    measured = alternate(start, runs=settings.runs, until=settings.until, less_is_better=True)
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


def systems(settings: SuiteOptions) -> Iterable[Row]:
    """1, 4, 8 and 12 copies everywhere: the table of the systems before us.

    With --full also 10 ms and frames.
    """
    settings = with_runs(settings, 1)
    seconds = 0.4 * settings.seconds
    kinds: Sequence[tuple[str, str, dict[str, int]]] = (
        ("cheap (CartPole)", _CARTPOLE, {}),
        ("1 ms", "work", {"rounds": rounds(1000)}),
        ("10 ms", "work", {"rounds": rounds(10_000)}),
        ("84x84x4", "image", {}),
    )
    for label, env, more in kinds if settings.full else kinds[:2]:
        for copies in (1, 4, 8, 12):
            cells = []
            with Neighbours() as neighbours:
                for backend in ("serial", "process", "auto"):
                    found = rate(ours(env, copies, seconds, backend=backend, **more))
                    cells.append({"system": f"slipstream {backend}", "steps_per_second": found})
                others = (*PEERS, "envpool") if env == _CARTPOLE else PEERS
                for kind in others:
                    found_peer = _or_none(kind, env, copies, seconds, more)
                    cells.append({"system": _NAMES[kind], "steps_per_second": found_peer})
            auto = cells[2]["steps_per_second"]
            best = max(
                (cell for cell in cells[3:7] if cell["steps_per_second"]),
                key=lambda cell: cell["steps_per_second"],
            )
            yield Row(
                case="systems",
                unit=f"steps/s ({label}, {copies} copies, backend auto)",
                ours=auto,
                peer=best["steps_per_second"],
                peer_name=f"{best['system']}, the best of four",
                others_cpu=round(neighbours.share, 3),
                cells=tuple(cells),
            )


def _or_none(
    kind: str, env: str, copies: int, seconds: float, more: dict[str, int]
) -> float | None:
    """EnvPool need not be there."""
    try:
        return rate(peer(kind, env, copies, seconds, **more))
    except WorkerError:
        if kind != "envpool":
            raise
        return None


def memory(settings: SuiteOptions) -> Iterable[Row]:
    """Memory of all processes together, shared parts counted once, by copy."""
    settings = with_runs(settings, 3)
    for kind in ("gym_async", "sb3_subproc"):
        measured = alternate(
            lambda: float(ours(_CARTPOLE, 64, 0.1)["memory"]) / 64 / 2**20,
            lambda kind=kind: float(peer(kind, _CARTPOLE, 64, 0.1)["memory"]) / 64 / 2**20,
            runs=settings.runs,
            until=settings.until,
            less_is_better=True,
        )
        yield measured.row("memory", "MiB (PSS) a copy, of 64", None, _NAMES[kind])


CASES: dict[str, Case] = {
    "cheap_vs_async": cheap_vs_async,
    "cheap_vs_subproc": cheap_vs_subproc,
    "serial_vs_dummy": serial_vs_dummy,
    "few_copies": few_copies,
    "heavy_efficiency": heavy_efficiency,
    "image_vs_async": image_vs_async,
    "uneven_async": uneven_async,
    "worker_kill": worker_kill,
    "chaos": chaos,
    "face_cost": face_cost,
    "sb3_on_us": sb3_on_us,
    "start_stop": start_stop,
    "systems": systems,
    "memory": memory,
}
