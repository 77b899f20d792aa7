"""The two-player hockey game: `slipstream bench hockey`."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.bench.alternate import alternate
from slipstream.bench.row import Goal, Row, judged
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import run_worker


def hockey_step(settings: SuiteOptions) -> Iterable[Row]:
    """Physics and two strong bots, 1,024 copies on one core."""

    def ours() -> float:
        asked = {"num_envs": 1024, "seconds": settings.seconds}
        return float(run_worker("ours.hockey_steps", asked, threads=1)["steps_per_second"])

    measured = alternate(ours, runs=settings.runs, until=settings.until)
    yield Row(
        case="hockey_step",
        unit="steps/s (two strong bots, 1,024 copies, one core)",
        ours=measured.ours,
        runs=measured.runs,
        others_cpu=measured.others_cpu,
        **judged(Goal(">=", 500_000), measured.ours),
    )


CASES: dict[str, Case] = {"hockey_step": hockey_step}
