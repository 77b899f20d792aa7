"""What lost workers cost: a kill, and a thousand of them within a training."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.bench.machine import Neighbours
from slipstream.bench.row import Goal, Row, judged
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.worker import run_worker


def worker_kill(settings: SuiteOptions) -> Iterable[Row]:
    """How long the copies of other workers wait when one is killed."""
    asked = {"what": "kill", "env": "CartPole-v1", "num_envs": 16, "rounds": 0, "workers": 4}

    def lost() -> float:
        return float(run_worker("ours.vector_layer", asked, threads=1)["lost"])

    measured = settings.alternate(lost, less_is_better=True)
    yield measured.row(
        "worker_kill", "seconds that the others lose by a killed worker", Goal("<", 1)
    )


def crashing(settings: SuiteOptions) -> Iterable[Row]:
    """Rows that are learned from where copies raise now and then."""
    asked = {"what": "crashing", "num_envs": 8, "steps": 7500}
    found = run_worker("ours.vector_layer", asked, threads=1)
    yield Row(
        case="crashing",
        unit=f"share of 60,000 rows that are real, with {found['faults']:.0f} raised exceptions",
        ours=round(found["real"], 4),
        cells=(found,),
        **judged(Goal(">=", 0.95), found["real"]),
    )


def chaos(settings: SuiteOptions) -> Iterable[Row]:
    """Kills and hangs at random over a training; 1,000 with --full, else 40."""
    asked = {"faults": 1000, "seed": 0, "steps": 450_000} if settings.full else {"faults": 40}
    with Neighbours() as neighbours:
        found = run_worker("ours.vector_chaos", asked, threads=1, timeout=7200.0)
    left = sum(found[name] for name in ("runs_lost", "processes_left", "memory_files_left"))
    yield Row(
        case="chaos",
        unit=f"runs lost, processes and memory files left, of {found['faults']} kills and hangs "
        f"(hang time-out 0.5 s) in a training of {found['steps']:,} steps",
        ours=float(left),
        others_cpu=round(neighbours.share, 3),
        cells=(found,),
        **judged(Goal("<=", 0), float(left)),
    )
