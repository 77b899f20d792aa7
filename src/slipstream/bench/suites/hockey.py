"""The two-player hockey game: `slipstream bench hockey`."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.bench.alternate import alternate
from slipstream.bench.row import Goal, Row
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import run_worker


def hockey_step(settings: SuiteOptions) -> Iterable[Row]:
    """Physics and two strong bots, 1,024 copies on one core."""

    def ours() -> float:
        asked = {"num_envs": 1024, "seconds": settings.seconds}
        return float(run_worker("ours.hockey_steps", asked, threads=1)["steps_per_second"])

    measured = alternate(ours, runs=settings.runs, until=settings.until)
    yield measured.row(
        "hockey_step",
        "steps/s (two strong bots, 1,024 copies, one core)",
        Goal(">=", 500_000),
    )


CASES: dict[str, Case] = {"hockey_step": hockey_step}
