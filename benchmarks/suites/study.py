"""Studies and their portfolio environment: `python -m benchmarks study`."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import Neighbours, threads
from benchmarks.ours.study import Ran, run_study
from benchmarks.row import Ratio, Row
from benchmarks.suite import SuiteOptions, specs_of
from benchmarks.worker import WorkerError, rate, run_worker
from slipstream.core.extras import install_command
from slipstream.markets.features.feature_registry import FEATURE_SETS
from slipstream.markets.synthetic import SyntheticCrypto

BARS = 125_000  # five-minute bars; the hold-out leaves about 100,000 for development
FOLDS = 6
_CONFIG = specs_of("study")["_config"]
NUM_ENVS, _IN_FLIGHT = _CONFIG["training"]["num_envs"], _CONFIG["study"]["max_concurrent_trials"]
_ROWS: int = NUM_ENVS * _CONFIG["agent"]["n_steps"]
_FULL_HOURS = 0.55  # share of --hours for the first of two studies, which has no pruning

# A synthetic bar opens at the last close, so another column replaces that constant feature.
PLANTED_FEATURES = tuple(
    "log_return_5" if name == "log_open" else name for name in FEATURE_SETS["portfolio"]
)


class Size(NamedTuple):
    """Size of a study.

    Attributes:
        trials: number of trials.
        steps: training steps of each member.
        confirmed: best trials that are trained again.
        seeds: trainings of each of them.
    """

    trials: int
    steps: int
    confirmed: int = 1
    seeds: int = 1
    final_seeds: int = 1

    @property
    def iterations(self) -> int:
        """Return the whole rollouts of one member."""
        return -(-self.steps // _ROWS)

    @property
    def members(self) -> int:
        """Return the number of members trained in the search."""
        return self.trials * FOLDS

    @property
    def confirming(self) -> int:
        """Return the number of members trained between the search and the hold-out's result."""
        return self.confirmed * self.seeds * FOLDS + self.final_seeds


FULL = Size(trials=500, steps=100_000, confirmed=10, seeds=5, final_seeds=5)
# As many parallel members as in the full study, a tenth of the steps: 2.9 million in total.
SLICE = Size(trials=_IN_FLIGHT, steps=10 * _ROWS)
_SHORT = Size(trials=24, steps=100_000)  # about a minute
_SIZE = f"{FULL.trials} trials x {FOLDS} folds x {FULL.steps:,} steps"
_FULL_STEPS = FULL.iterations * _ROWS


def study_config(env: Mapping[str, Any], size: Size, *, pruning: bool) -> dict[str, Any]:
    """Return the content of a config file.

    Args:
        env: settings yielded by `_market`.
        size: trials and steps.
        pruning: whether trials stop early.
    """
    sizes: dict[str, Any] = {"n_trials": size.trials, "final_seeds": size.final_seeds}
    confirmation = {"top": size.confirmed, "seeds": size.seeds}
    sizes |= {"pruning": {"enabled": pruning}, "confirmation": confirmation}
    return {
        "env": {"name": "portfolio", **env},
        "agent": _CONFIG["agent"],
        "training": {**_CONFIG["training"], "total_timesteps": size.steps},
        "study": {**_CONFIG["study"], **sizes},
    }


class Figures(NamedTuple):
    """Figures of the full study, from a study that ran.

    Attributes:
        seconds: search, one test pass of every fold, report.
        confirm: seconds from the end of the search to the hold-out.
        overhead: share of the workers' time in the search that is neither rollout nor update.
        forecast: whether `seconds` was extrapolated.
        how: description of the measurement.
    """

    seconds: float
    confirm: float
    overhead: float
    forecast: bool
    how: str


def figures(ran: Ran, size: Size, workers: int, *, rungs: bool = False) -> Figures:
    """Add up the parts: training by steps, passes by their number, the rest by trials.

    Args:
        ran: measured study.
        size: size of the full study.
        workers: number of parallel processes.
        rungs: whether scores at rungs are part of the study, as they are with pruning.
    """
    busy = ran.train + ran.evaluate + ran.rest
    wall = ran.search / busy  # seconds of the study per second of work
    members = ran.trials * FOLDS
    train = wall * ran.train / (members * size.iterations)  # per iteration of a member
    evaluate = wall * ran.evaluate * (1.0 - ran.rungs) / members  # per pass
    rest = wall * ran.rest / ran.trials
    searched = FULL.members * (train * FULL.iterations + evaluate) + FULL.trials * rest
    if rungs:
        searched = ran.search * FULL.trials / ran.trials
    whole = size == FULL and ran.trials == FULL.trials
    steps = f"{members:,} members x {size.iterations} iterations"
    return Figures(
        seconds=searched + ran.report,
        confirm=ran.confirm if whole else FULL.confirming * (train * FULL.iterations + evaluate),
        overhead=1.0 - (ran.train + ran.evaluate) / (workers * ran.search),
        forecast=not whole,
        how="measured" if whole else f"forecast from {steps}",
    )


@contextmanager
def _market(data_dir: str | None) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield settings of the portfolio that differ from its defaults, and a folder for results.

    Args:
        data_dir: the user's folder of prices, None for a synthetic market of seven assets.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        if data_dir is not None:
            yield {"data": {"folder": data_dir}}, Path(folder)
            return
        prices = Path(folder) / "prices"
        prices.mkdir()
        SyntheticCrypto().write(str(prices), BARS)
        env = {"data": {"folder": str(prices)}, "features": list(PLANTED_FEATURES)}
        yield env, Path(folder)


class _Study(NamedTuple):
    """A study that ran once for all rows of the suite."""

    ran: Ran
    figures: Figures
    others_cpu: float


@cache
def _study(size: Size, pruning: bool, data_dir: str | None, hours: float | None) -> _Study:
    """Run the full study or a slice; `hours` covers both full ones, without and with pruning."""
    share = 1.0 - _FULL_HOURS if pruning else _FULL_HOURS
    budget = None if hours is None else share * hours
    with _market(data_dir) as (env, folder), Neighbours() as neighbours:
        ran = run_study(study_config(env, size, pruning=pruning), folder / "study", budget)
    return _Study(ran, figures(ran, size, threads(), rungs=pruning), neighbours.share)


def _unpruned(settings: SuiteOptions) -> _Study:
    size = FULL if settings.full else SLICE
    return _study(size, False, settings.data_dir, settings.hours)


def portfolio_kernel(settings: SuiteOptions) -> Iterable[Row]:
    """Measure unit orders in seven assets of 14 features, 4,096 envs, beside one env in NumPy."""
    with _market(settings.data_dir) as (env, folder):
        arrays = {"folder": str(folder)}
        run_worker("ours.study.write_prices", {"env": env, **arrays})
        units = {**env, "orders": "units", "min_quantity": 0.01}
        asked = {"name": "portfolio", "settings": units, "num_envs": 4096, "threads": threads()}
        both = {"seconds": settings.seconds}
        yield settings.row(
            lambda: rate("ours.kernels.step", {**asked, **both}),
            lambda: rate("peers.stepping.numpy_portfolio", {**arrays, **both}),
            cores=threads(),
        )


def study_full(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the whole study without pruning; without --full, extrapolate it from a slice."""
    study = _unpruned(settings)
    shown = study.figures
    whole, confirming = settings.spec["rows"]
    row = Row(others_cpu=study.others_cpu, forecast=shown.forecast)
    yield settings.told(replace(row, ours=shown.seconds), whole, size=_SIZE, how=shown.how)
    more = {"more": 100.0 * shown.confirm / shown.seconds, "confirming": FULL.confirming}
    yield settings.told(replace(row, ours=shown.confirm), confirming, how=shown.how, **more)
    yield from _search_rows(settings, study)


def study_pruned(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the full study with pruning."""
    yield from pruned_rows(settings, _study(FULL, True, settings.data_dir, settings.hours))


def pruned_rows(settings: SuiteOptions, study: _Study) -> Iterable[Row]:
    """Compare the training of a study with pruning with that of the same trials without it."""
    ran, shown = study.ran, study.figures
    unpruned = ran.trials * FOLDS * _FULL_STEPS
    trained, ratio = float(ran.steps), Ratio.of([ran.steps / unpruned])
    row = Row(ours=trained, peer=float(unpruned), ratio=ratio, others_cpu=study.others_cpu)
    words = {"trials": ran.trials, "folds": FOLDS, "steps": _FULL_STEPS, **shown._asdict()}
    yield settings.told(row, size=_SIZE, **words)
    yield from _search_rows(settings, study)


def _search_rows(settings: SuiteOptions, study: _Study) -> Iterable[Row]:
    """Measure the share of the machine that a study used."""
    ran, overhead = study.ran, 100.0 * study.figures.overhead
    alone, searched = threads() * ran.steps / ran.train, ran.steps / ran.search
    rows = (
        Row(ours=overhead, forecast=study.figures.forecast),
        Row(ours=searched, peer=alone, ratio=Ratio.of([searched / alone])),
        Row(ours=ran.peak_bytes / 1e9),
    )
    text = f"in {ran.trials} trials, {'with' if ran.rungs else 'without'} scores at rungs"
    for row, spec in zip(rows, settings.spec["search"], strict=True):
        row = replace(row, others_cpu=study.others_cpu)
        yield settings.told(row, spec, told=text, trials=ran.trials)


class Setup(NamedTuple):
    """One way to run a peer's folds.

    Attributes:
        vector: vector environment of its 12 sub-environments.
        processes: concurrent processes of one fold each, with one thread of PyTorch.
    """

    vector: str
    processes: int

    def __str__(self) -> str:
        folds = f"{self.processes} folds side by side" if self.processes > 1 else "one fold"
        return f"Optuna and SB3 PPO on {self.vector}({NUM_ENVS}), {folds}, 1 thread each"


class FoldCost(NamedTuple):
    """Seconds of the whole machine that one fold of one trial costs a peer.

    Attributes:
        seconds: training and test pass; a fold's latency divided by the number of parallel folds.
        build: seconds until training can begin, not included in `seconds`.
    """

    seconds: float
    build: float


Ask = Callable[[Mapping[str, Any]], Mapping[str, float]]


def fold_cost(setup: Setup, train_steps: int, test_steps: int, ask: Ask) -> FoldCost:
    """Run the processes of a setup concurrently.

    If one process ends before the others, these have its core to themselves at the end. The
    resulting error is in the peer's favour.

    Args:
        setup: processes to run.
        train_steps, test_steps: steps of one fold; workers measure fewer and return seconds a step.
        ask: runs a worker; called from threads.
    """
    asked = {"vector": setup.vector, "threads": 1}
    with ThreadPoolExecutor(setup.processes) as pool:
        answers = list(pool.map(ask, [asked] * setup.processes))
    train, test, build = (
        statistics.fmean(answer[name] for answer in answers)
        for name in ("train_seconds_per_step", "test_seconds_per_step", "build_seconds")
    )
    return FoldCost((train_steps * train + test_steps * test) / setup.processes, build)


def best_setup(
    setups: Sequence[Setup], runs: int, cost: Callable[[Setup], FoldCost]
) -> tuple[Setup, list[FoldCost]]:
    """Return the setup whose folds cost least, and `runs` measurements of it."""
    tried = [cost(setup) for setup in setups]
    first = min(tried, key=lambda fold: fold.seconds)
    chosen = setups[tried.index(first)]
    return chosen, [first, *(cost(chosen) for _ in range(runs - 1))]


def fold_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """Compare folds of trials with Optuna and SB3's PPO on 12 envs, in its best arrangement.

    Both sides are measured as throughput: seconds of the whole machine for a fold.
    """
    study = _unpruned(settings)
    ours, bars = study.figures.seconds / FULL.members, study.ran.test_bars
    iterations = 8 if settings.full else 3
    kinds, counts = ("DummyVecEnv", "SubprocVecEnv"), sorted({1, threads()})
    setups = [Setup(vector, processes) for vector in kinds for processes in counts]
    with _market(settings.data_dir) as (env, folder), Neighbours() as neighbours:
        run_worker("ours.study.write_prices", {"env": env, "folder": str(folder)})
        given = {"folder": str(folder), "iterations": iterations, "test_steps": 2_000}

        def ask(asked: Mapping[str, Any]) -> Mapping[str, float]:
            return run_worker("peers.sb3.ppo_portfolio", {**given, **asked}, threads=1, timeout=900)

        cost = partial(fold_cost, train_steps=_FULL_STEPS, test_steps=bars, ask=ask)
        chosen, folds = best_setup(setups, settings.runs if settings.full else 3, cost)
    row = Row(
        ours=ours,
        peer=statistics.median(fold.seconds for fold in folds),
        ratio=Ratio.of([fold.seconds / ours for fold in folds]),
        runs=len(folds),
        others_cpu=max(neighbours.share, study.others_cpu),
        forecast=study.figures.forecast,
    )
    words: dict[str, Any] = {"steps": _FULL_STEPS, "bars": bars, "measured": iterations * _ROWS}
    words |= {"build": statistics.median(fold.build for fold in folds), "how": study.figures.how}
    yield settings.told(row, **words, chosen=chosen, setups=len(setups))


def cluster(settings: SuiteOptions) -> Iterable[Row]:
    """Compare a short search on nodes of this machine with one on forked workers, in 6 minutes."""
    if importlib.util.find_spec("ray") is None:
        raise WorkerError(f"Ray is not installed: {install_command('ray')}")
    ran: dict[int, tuple[dict[str, Any], float]] = {}
    for nodes in {0, threads(), 1, 2, 4}:
        with _market(settings.data_dir) as (env, folder), Neighbours() as neighbours:
            config = study_config(env, _SHORT, pruning=False)
            asked = {"config": config, "folder": str(folder / "study"), "nodes": nodes}
            ran[nodes] = run_worker("ours.study.on_nodes", asked, timeout=7_200.0), neighbours.share
    words = {"trials": _SHORT.trials, "folds": FOLDS, "steps": _SHORT.steps, "cores": threads()}
    overhead, alone = settings.spec["rows"]
    (near, others), (far, more) = ran[0], ran[threads()]
    ratio = Ratio.of([far["search"] / near["search"]])
    row = Row(ours=far["search"], peer=near["search"], ratio=ratio, others_cpu=max(others, more))
    yield settings.told(row, overhead, **words)
    for nodes in (1, 2, 4):
        answer, others = ran[nodes]
        stretches = max(answer["stretches"], 1.0)
        work = (answer["train"] + answer["evaluate"] + answer["rest"]) / stretches
        figures_of_nodes = {
            "stretches": stretches,
            "work": work,
            "megabytes": answer["bytes"] / stretches / 1e6,
        }
        row = Row(ours=answer["search"], others_cpu=others)
        yield settings.told(
            row, alone, nodes=nodes, owner=answer["owner"], **figures_of_nodes, **words
        )
