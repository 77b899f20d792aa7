"""A peer's seconds for one fold of one trial, with as many folds side by side as pay."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from slipstream.bench.worker import run_worker

Ask = Callable[[str, Mapping[str, Any], int], Mapping[str, float]]


class Setup(NamedTuple):
    """One way to run a peer's folds.

    Attributes:
        name: as the row shows it.
        module: of `slipstream.bench`.
        asked: its settings.
        processes: of one fold each, started together.
        threads: of PyTorch, in each of them.
    """

    name: str
    module: str
    asked: Mapping[str, Any]
    processes: int
    threads: int

    def __str__(self) -> str:
        folds = f"{self.processes} folds side by side" if self.processes > 1 else "one fold"
        return f"{self.name}, {folds}, {self.threads} thread{'s' if self.threads > 1 else ''} each"


class FoldCost(NamedTuple):
    """Seconds of the whole machine that one fold costs.

    Attributes:
        seconds: of training and test pass; a fold's latency over the folds side by side.
        build: seconds until training can begin, apart from them.
    """

    seconds: float
    build: float


def ask(module: str, settings: Mapping[str, Any], threads: int) -> Mapping[str, float]:
    """Runs a peer's worker in a process of its own."""
    return run_worker(module, settings, threads=threads, timeout=900.0)


def measure(setup: Setup, train_steps: int, test_steps: int, ask: Ask = ask) -> FoldCost:
    """Runs the processes of a setup side by side.

    Where one process ends before the others, these have its core to themselves at the end: what
    error that makes is in the peer's favour.

    Args:
        setup: what is run.
        train_steps, test_steps: of one fold; the workers measure fewer and say seconds a step.
        ask: runs a worker; it is called from threads.
    """
    settings = {**setup.asked, "threads": setup.threads}
    with ThreadPoolExecutor(setup.processes) as pool:
        futures = [
            pool.submit(ask, setup.module, settings, setup.threads) for _ in range(setup.processes)
        ]
        answers = [future.result() for future in futures]
    train = statistics.fmean(answer["train_seconds_per_step"] for answer in answers)
    test = statistics.fmean(answer["test_seconds_per_step"] for answer in answers)
    build = statistics.fmean(answer["build_seconds"] for answer in answers)
    return FoldCost((train_steps * train + test_steps * test) / setup.processes, build)


def best(
    setups: Sequence[Setup], train_steps: int, test_steps: int, runs: int, ask: Ask = ask
) -> tuple[Setup, list[FoldCost]]:
    """The setup whose folds cost least, and so many measurements of it."""
    tried = [measure(setup, train_steps, test_steps, ask) for setup in setups]
    first = min(tried, key=lambda fold: fold.seconds)
    chosen = setups[tried.index(first)]
    again = [measure(chosen, train_steps, test_steps, ask) for _ in range(runs - 1)]
    return chosen, [first, *again]
