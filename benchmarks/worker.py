"""Measurement in its own process: settings in, one line of JSON out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from slipstream.core.errors import ResourceError

# Import paths of workers: this package, slipstream for interpreters without it, and the oracles
# of the tests.
_ROOT = Path(__file__).parents[1]
_PATHS = (str(_ROOT), str(_ROOT / "src"), str(_ROOT / "tests/applications/helpers"))
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TAIL = 1500  # characters shown of a failed worker's output


class WorkerError(ResourceError):
    """Measurement that could not be made, for example because a peer is not installed."""


def run_worker(
    worker: str,
    asked: Mapping[str, Any],
    *,
    threads: int | None = None,
    timeout: float = 300.0,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Call a function of this package in a process of its own and return its answer.

    Args:
        worker: name of the function, such as ``peers.sb3.step_forex``.
        asked: its arguments, sent as JSON.
        threads: limit for the threads of array libraries, None for their own choice.
        timeout: seconds after which the worker is terminated.
        python: interpreter of a peer with its own packages, relative to the checkout.
    """
    if not (_ROOT / python).is_file():
        raise WorkerError(f"{worker} requires {python}. Run `make bench-loops` to set it up.")
    environment = {name: text for name, text in os.environ.items() if name not in _THREAD_VARIABLES}
    if threads is not None:
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([before, *_PATHS] if before else _PATHS)
    # -P skips the working directory, which may contain this package instead of the requested one.
    command = [
        str(_ROOT / python),
        "-P",
        "-m",
        "benchmarks.worker",
        worker,
        json.dumps(dict(asked)),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(
            f"{worker} did not finish within {timeout:g} s. Measure on a machine with less load."
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        output = (done.stderr or done.stdout).strip()[-_TAIL:]
        raise WorkerError(
            f"{worker} failed with exit code {done.returncode}. If a peer is missing, "
            f"`pip install --no-deps -r requirements/peers.lock` installs it. Output:\n{output}"
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def rate(worker: str, asked: Mapping[str, Any], *, threads: int | None = 1) -> float:
    """Return the steps per second of a worker."""
    return float(run_worker(worker, asked, threads=threads)["steps_per_second"])


def side_by_side(
    worker: str, asked: Mapping[str, Any], processes: int, threads: int
) -> dict[str, float]:
    """Run one process on `threads` cores, or several on a core each, and add their steps.

    Other figures are the maximum over the processes.

    Args:
        worker: function that calls `stay_on` with its argument `cores`.
        asked: its other arguments.
        processes: number of concurrent processes.
        threads: cores of a single process.
    """
    sets = [[i] for i in range(processes)] if processes > 1 else [list(range(threads))]

    def answer(cores: Sequence[int]) -> dict[str, float]:
        return run_worker(worker, {"cores": cores, **asked}, threads=len(cores))

    with ThreadPoolExecutor(len(sets)) as pool:
        answers = list(pool.map(answer, sets))
    largest = {name: max(figures[name] for figures in answers) for name in answers[0]}
    return {**largest, "steps_per_second": sum(figures["steps_per_second"] for figures in answers)}


def stay_on(cores: Sequence[int]) -> None:
    """Pin this process to the given cores, counted within its CPU affinity."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[i] for i in cores})


def steps_per_second(step: Callable[[], int], seconds: float) -> float:
    """Measure steps per second of repeated calls that return their number of steps."""
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        steps += step()
    return steps / (time.perf_counter() - began)


@contextmanager
def elsewhere(checkout: Path) -> Iterator[None]:
    """Start processes in this context with the package of another checkout.

    Workers also run the benchmarks of that checkout, if it has them, because these use its
    internal names.
    """
    with_it = os.pathsep.join([str(checkout), str(checkout / "src")])
    before, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH"), with_it
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def main(worker: str, asked: str) -> None:
    """Call the function in the worker process and print its answer."""
    module, _, name = worker.rpartition(".")
    measure = getattr(import_module(f"benchmarks.{module}"), name)
    print(json.dumps(dict(measure(**json.loads(asked)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
