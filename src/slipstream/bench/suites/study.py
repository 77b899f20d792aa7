"""Studies and the portfolio they search on: `slipstream bench study`."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.bench.fold import Setup, best
from slipstream.bench.machine import Neighbours, threads
from slipstream.bench.ours.study import Ran, run_study
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.study_figures import Figures, figures
from slipstream.bench.study_settings import (
    COPIES,
    FOLDS,
    FULL,
    HORIZON,
    SLICE,
    market,
    study_config,
)
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites import cluster
from slipstream.bench.worker import run_worker

_SIZE = f"{FULL.trials} trials x {FOLDS} folds x {FULL.steps:,} steps"
_ROWS = COPIES * HORIZON
_FULL_STEPS = FULL.iterations * _ROWS
_FULL_HOURS = 0.55  # of --hours for the first of two studies, which has no pruning


class _Study(NamedTuple):
    """A study that ran once for all rows of the suite."""

    ran: Ran
    figures: Figures
    others_cpu: float


@cache
def _unpruned(full: bool, data_dir: str | None, hours: float | None) -> _Study:
    """The study without pruning, or a slice of it."""
    size = FULL if full else SLICE
    budget = None if hours is None else _FULL_HOURS * hours
    with market(data_dir) as env, _folder() as folder, Neighbours() as neighbours:
        ran = run_study(study_config(env, size, pruning=False), folder / "unpruned", budget)
    return _Study(ran, figures(ran, size, threads()), round(neighbours.share, 3))


@cache
def _pruned(data_dir: str | None, hours: float | None) -> _Study:
    """The full study with pruning."""
    budget = None if hours is None else (1.0 - _FULL_HOURS) * hours
    with market(data_dir) as env, _folder() as folder, Neighbours() as neighbours:
        ran = run_study(study_config(env, FULL, pruning=True), folder / "pruned", budget)
    shown = figures(ran, FULL, threads(), rungs=True)
    return _Study(ran, shown, round(neighbours.share, 3))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="slipstream-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _arrays(data_dir: str | None) -> Iterator[tuple[dict[str, Any], str]]:
    """The market's settings, and a folder with the arrays that the peers read."""
    with market(data_dir) as env, _folder() as folder:
        run_worker("ours.portfolio_arrays", {"env": env, "folder": str(folder)})
        yield env, str(folder)


def portfolio_kernel(settings: SuiteOptions) -> Iterable[Row]:
    """Unit orders in seven assets of 14 features, 4,096 copies, against NumPy one at a time."""
    with _arrays(settings.data_dir) as (env, arrays):
        units = {**env, "orders": "units", "min_quantity": 0.01}
        asked = {"name": "portfolio", "settings": units, "num_envs": 4096, "threads": threads()}
        measured = settings.alternate(
            lambda: _rate("ours.vector_steps", {**asked, "seconds": settings.seconds}),
            lambda: _rate("peers.numpy_portfolio", {"folder": arrays, "seconds": settings.seconds}),
        )
    yield measured.row(
        "portfolio_kernel",
        f"steps/s (7 assets x 14 features, 4,096 copies, {threads()} threads)",
        Goal(">=", 200),
        "the same unit orders in NumPy, one environment at a time",
    )


def _rate(module: str, asked: dict[str, Any]) -> float:
    return float(run_worker(module, asked, threads=1)["steps_per_second"])


def study_full(settings: SuiteOptions) -> Iterable[Row]:
    """The whole study without pruning; without --full a slice of it, from which it is forecast."""
    study = _unpruned(settings.full, settings.data_dir, settings.hours)
    shown, others = study.figures, study.others_cpu
    yield Row(
        case="study_full",
        unit=f"s for {_SIZE}, no pruning, with a test pass of every fold and the report "
        f"({shown.how})",
        ours=shown.seconds,
        others_cpu=others,
        forecast=shown.forecast,
        **judged(Goal("<=", 3600), shown.seconds),
    )
    more = 100.0 * shown.confirm / shown.seconds
    yield Row(
        case="study_confirm",
        unit=f"s from the search to the hold-out, {more:.0f} % more ({FULL.confirming} members; "
        f"{shown.how})",
        ours=shown.confirm,
        others_cpu=others,
        forecast=shown.forecast,
    )
    yield from search_rows(study.ran, shown, others)


def search_rows(ran: Ran, shown: Figures, others: float) -> Iterable[Row]:
    """How well a study that ran used the machine."""
    told = f"in {ran.trials} trials, {'with' if ran.rungs else 'without'} scores at rungs"
    yield Row(
        case="study_overhead",
        unit=f"% of the search that is neither rollout nor update nor test pass ({told})",
        ours=100.0 * shown.overhead,
        others_cpu=others,
        forecast=shown.forecast,
        **judged(Goal("<", 5), 100.0 * shown.overhead),
    )
    alone = threads() * ran.steps / ran.train
    share = ran.steps / ran.search / alone
    yield Row(
        case="study_efficiency",
        unit=f"steps/s of training in the search ({told}); the same workers while they only step, "
        "act and learn",
        ours=ran.steps / ran.search,
        peer=alone,
        peer_name="its populations, training alone",
        ratio=Ratio.of([share]),
        others_cpu=others,
        **judged(Goal(">=", 0.85), share),
    )
    gigabytes = ran.peak_bytes / 1e9
    yield Row(
        case="study_memory",
        unit=f"GB at most, all processes, shared pages once (in {ran.trials} trials)",
        ours=gigabytes,
        others_cpu=others,
        **judged(Goal("<", 3), gigabytes),
    )


def study_pruned(settings: SuiteOptions) -> Iterable[Row]:
    """The full study with pruning; without --full what the rule promises, from a slice."""
    if settings.full:
        study = _pruned(settings.data_dir, settings.hours)
        yield from pruned_rows(study.ran, study.figures, study.others_cpu)
        return
    study = _unpruned(settings.full, settings.data_dir, settings.hours)
    whole, seconds = study.figures.seconds, study.figures.pruned
    yield Row(
        case="study_pruned",
        unit="s with pruning, if both rungs stay armed and stop half (by the rule); "
        "ratio = share of study_full",
        ours=seconds,
        peer=whole,
        peer_name="slipstream without pruning",
        ratio=Ratio.of([seconds / whole]),
        others_cpu=study.others_cpu,
        forecast=True,
    )


def pruned_rows(ran: Ran, shown: Figures, others: float) -> Iterable[Row]:
    """Of the full study with pruning: what it trained, beside what the same trials would have."""
    unpruned = ran.trials * FOLDS * _FULL_STEPS
    yield Row(
        case="study_pruned",
        unit=f"steps of training of {_SIZE} with pruning, in {shown.seconds:,.0f} s with test "
        f"passes and the report ({shown.how}); the same trials, none stopped",
        ours=float(ran.steps),
        peer=float(unpruned),
        peer_name=f"{ran.trials} trials x {FOLDS} folds x {_FULL_STEPS:,} steps",
        ratio=Ratio.of([ran.steps / unpruned]),
        others_cpu=others,
        **judged(Goal("<=", 0.70), ran.steps / unpruned),
    )
    yield from search_rows(ran, shown, others)


def fold_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """Folds of trials, against Optuna and SB3's PPO on 12 copies, in its best arrangement."""
    module, cores = "peers.sb3_ppo_portfolio", threads()
    setups = [
        Setup(f"Optuna and SB3 PPO on {kind}({COPIES})", module, {"vector": kind}, processes, 1)
        for kind in ("DummyVecEnv", "SubprocVecEnv")
        for processes in sorted({1, cores})
    ]
    yield _fold_against("fold_vs_sb3", setups, Goal(">=", 20), settings)


def _fold_against(case: str, setups: Sequence[Setup], goal: Goal, settings: SuiteOptions) -> Row:
    """Throughput beside throughput: seconds of the whole machine for a fold, on both sides."""
    study = _unpruned(settings.full, settings.data_dir, settings.hours)
    ours = study.figures.seconds / FULL.members
    runs = with_runs(settings, 3).runs
    iterations = 8 if settings.full else 3
    bars = study.ran.test_bars
    with _arrays(settings.data_dir) as (_, arrays), Neighbours() as neighbours:
        asked = {"folder": arrays, "iterations": iterations, "test_steps": 2_000}
        setups = [setup._replace(asked={**asked, **setup.asked}) for setup in setups]
        chosen, folds = best(setups, _FULL_STEPS, bars, runs)
    ratio = Ratio.of([fold.seconds / ours for fold in folds])
    build = statistics.median(fold.build for fold in folds)
    return Row(
        case=case,
        unit=f"s of the whole machine for one fold of one trial: {_FULL_STEPS:,} steps and a test "
        f"pass of {bars:,} bars (theirs from {iterations * _ROWS:,} steps and 2,000 bars, "
        f"{build:.2g} s to start not counted; ours {study.figures.how})",
        ours=ours,
        peer=statistics.median(fold.seconds for fold in folds),
        peer_name=f"{chosen}; the best of {len(setups)}",
        ratio=ratio,
        runs=len(folds),
        others_cpu=round(max(neighbours.share, study.others_cpu), 3),
        forecast=study.figures.forecast,
        **judged(goal, ratio.median),
    )


CASES: dict[str, Case] = {
    "portfolio_kernel": portfolio_kernel,
    "study_full": study_full,
    "study_pruned": study_pruned,
    "fold_vs_sb3": fold_vs_sb3,
    **cluster.CASES,
}
ON_REQUEST = tuple(cluster.CASES)  # they need slipstream[ray]
