"""Training end to end: `python -m benchmarks train`."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.machine import threads
from benchmarks.race import race
from benchmarks.row import Row
from benchmarks.suite import SuiteOptions, specs_of
from benchmarks.suites.gym_defaults import gym_defaults as gym_defaults
from benchmarks.worker import WorkerError

_SLIPSTREAM = (sys.executable, "-c", "from slipstream.cli import main; main()")  # the command


def time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the seconds until 100 training episodes of CartPole average 475; runs are seeds."""
    spec = settings.spec
    ran = race(spec["ours"], spec["peer"], range(1, 6), score=spec["score"])
    apart = statistics.median(answer["warm_up"] for answer in ran.mine)
    yield ran.row(settings, apart=apart)


def warm_start(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the seconds from the start of a second `slipstream train` to its first update."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        _first_forex(Path(folder) / "cold")  # fills the cache of compiled code
        names = (Path(folder) / f"warm-{i}" for i in count())
        yield settings.row(lambda: _first_forex(next(names)))


def cold_start(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the seconds from a first `slipstream train`, which compiles, to its first update."""
    for name, training in settings.spec["trainings"].items():
        spec = {**settings.spec, "row": f"cold_start {name}", "goal": training["goal"]}
        yield settings.told(settings.measure(partial(_cold, training["command"]), None, spec), spec)


def _cold(command: Sequence[str]) -> float:
    """Return the seconds to the first update with an empty cache of compiled code."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        out = Path(folder) / "run"
        rest = ["--out", str(out), "--total-timesteps", "100000000", "--no-report"]
        return _first_update(out, [*command, *rest], {"SLIPSTREAM_CACHE": f"{folder}/cache"})


def _train_forex(out: Path, steps: int) -> list[str]:
    """Return arguments of `slipstream` that train on forex with 64 envs."""
    prices = f"env.data={json.dumps(specs_of('env')['_hourly_eurusd'])}"
    command = ["train", "forex", "--out", str(out), "--total-timesteps", str(steps)]
    return [*command, "--num-envs", "64", "--no-report", "--set", prices]


def jobs_four(settings: SuiteOptions) -> Iterable[Row]:
    """Compare four trainings as jobs of a queue with the same four one after another."""
    steps = settings.spec["steps"]
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        _first_forex(Path(folder) / "cold")
        names = (Path(folder) / str(i) for i in count())
        yield settings.row(
            lambda: _four(next(names), steps, True),
            lambda: _four(next(names), steps, False),
            cores=threads(),
        )


def _four(folder: Path, steps: int, queued: bool) -> float:
    """Return the seconds of four trainings, in sequence or run by a queue's supervisor."""
    commands = [_train_forex(folder / f"run-{i}", steps) for i in range(4)]
    if queued:
        for command in commands:
            _slipstream(["jobs", "add", "--", *command], folder)
        commands = [["jobs", "run", "--until-idle"]]
    began = time.perf_counter()
    for command in commands:
        _slipstream(command, folder)
    return time.perf_counter() - began


def _slipstream(command: Sequence[str], state: Path) -> None:
    """Run a command whose queue is in its own folder."""
    ran = subprocess.run(
        [*_SLIPSTREAM, *command],
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise WorkerError(f"slipstream {command[0]} failed: {ran.stderr[-500:]}")


def _first_forex(out: Path) -> float:
    """Return the seconds from starting a training on forex to its first update."""
    return _first_update(out, _train_forex(out, 100_000_000), {})


def _first_update(out: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> float:
    """Return the seconds from starting `slipstream` to the first update in its metrics table."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*_SLIPSTREAM, *arguments],
        # Python keeps its bytecode cache, as for a user.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    table = out / "metrics.csv"
    try:
        while time.perf_counter() - began < 120.0:
            if table.is_file() and _updated(table):
                return time.perf_counter() - began
            if process.poll() is not None:
                output = process.stderr.read().decode() if process.stderr else ""
                raise WorkerError(
                    f"slipstream train ended before its first update: {output[-500:]}"
                )
            time.sleep(0.01)
        raise WorkerError("slipstream train made no update within 120 s")
    finally:
        process.kill()
        process.communicate()


def _updated(table: Path) -> bool:
    """Return whether a complete row of a metrics table records an update."""
    with table.open(encoding="utf-8") as lines:
        whole = [line for line in lines if line.endswith("\n")]
    return any(int(row["updates"]) > 0 for row in csv.DictReader(whole))
