"""Whole `slipstream tune` as a user runs it, on workers or nodes, and its recorded figures."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.worker import WorkerError
from slipstream.core.storage import csv_table, yaml_file
from slipstream.core.timeline import FoldPlan
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger

_WORK = ("env", "policy", "update")
_STORE = (
    512 * 2**20
)  # bytes of a Ray node's object store; by default each takes a third of the memory


class Ran(NamedTuple):
    """A finished study.

    Attributes:
        search: wall seconds of the search.
        confirm: wall seconds from the end of the search to the hold-out.
        report: wall seconds of writing the report again, process start included.
        train, evaluate, rest: the workers' seconds in the search, by kind.
        rungs: share of `evaluate` that was spent on scores before a trial's end.
        trials: trials of the search.
        steps: training steps of all members in the search.
        test_bars: bars of one fold's test.
        peak_bytes: recorded memory of all processes; shared pages are counted once.
        owner: CPU seconds of the process that owns the study, in the search and while it writes
            the remaining storage after it.
        stretches: member segments that workers received in the search.
        bytes: bytes transferred for the segments.
    """

    search: float
    confirm: float
    report: float
    train: float
    evaluate: float
    rest: float
    rungs: float
    trials: int
    steps: int
    test_bars: int
    peak_bytes: int
    owner: float = 0.0
    stretches: float = 0.0
    bytes: float = 0.0


def run_study(
    config: Mapping[str, Any],
    folder: Path,
    hours: float | None = None,
    options: Sequence[str] = (),
) -> Ran:
    """Run the config's study in `folder`, with further options of `slipstream tune`.

    Raises:
        WorkerError: the study failed; the message contains its last output.
    """
    file = folder.with_suffix(".yaml")
    file.write_text(yaml_file.dump(config), encoding="utf-8")
    more = [] if hours is None else ["--hours", f"{hours:g}"]
    _command("tune", str(file), "--study-name", str(folder), *more, *options)
    began = time.perf_counter()
    if "--no-report" not in options:
        _command("study", "report", str(folder))
    return _read(folder, time.perf_counter() - began)


def _command(*words: str) -> None:
    """Run a slipstream command."""
    command = [sys.executable, "-c", "from slipstream.cli import main; main()", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise WorkerError(
            f"`slipstream {' '.join(words)}` failed with exit code {done.returncode}. Output:\n"
            f"{(done.stdout + done.stderr).strip()[-1500:]}"
        )


def _read(path: Path, report: float) -> Ran:
    study = StudyFolder(path)
    held = [
        value
        for value in csv_table.read_table(study.machine)["memory_gib"]
        if isinstance(value, float)
    ]
    folds = study.provenance["environment"]["folds"]
    with Ledger(study.ledger, read_only=True) as ledger:
        seconds, spent, trials = (
            ledger.get_metadata("seconds"),
            ledger.seconds("search"),
            ledger.trials(),
        )
        steps = sum(ledger.steps("search").values())
        cpu, stretches, carried = (
            ledger.get_metadata(name) or {} for name in ("cpu", "answers", "bytes")
        )
    stages = [len(trial.decisions) for trial in trials if trial.state != "failed"]
    return Ran(
        search=float(seconds["search"]),
        confirm=float(sum(value for phase, value in seconds.items() if phase != "search")),
        report=report,
        train=sum(spent.get(kind, 0.0) for kind in _WORK),
        evaluate=spent.get("evaluate", 0.0),
        rest=spent.get("overhead", 0.0),
        rungs=1.0 - len(stages) / max(sum(stages), 1),
        trials=len(trials),
        steps=steps,
        test_bars=sum(folds["group_bars"][group] for group in folds["folds"][0]["groups"]),
        peak_bytes=int(max(held) * 2**30),
        owner=float(cpu.get("search", 0.0) + cpu.get("mirror", 0.0)),
        stretches=float(stretches.get("search", 0.0)),
        bytes=float(carried.get("search", 0.0)),
    )


def on_nodes(config: Mapping[str, Any], folder: str, nodes: int) -> dict[str, Any]:
    """Run the config's study in `folder` and return the figures of `Ran`.

    Args:
        config, folder: see `run_study`.
        nodes: one-core nodes of a local Ray cluster; 0 runs forked workers, one per core.
    """
    with _cluster(nodes) as options:
        return run_study(config, Path(folder), options=("--no-report", *options))._asdict()


@contextmanager
def _cluster(nodes: int) -> Iterator[Sequence[str]]:
    """Start a Ray cluster and yield the options that run a study on its nodes."""
    if not nodes:
        yield ()
        return
    # Ray reads these variables on import.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    node_args = {"num_cpus": 1, "object_store_memory": _STORE}
    made = Cluster(initialize_head=True, head_node_args=node_args)
    try:
        for _ in range(nodes - 1):
            made.add_node(**node_args)
        yield ("--cluster", made.address)
    finally:
        made.shutdown()


def write_prices(env: Mapping[str, Any], folder: str) -> dict[str, float]:
    """Write the arrays that a study with these portfolio settings loads for its first fold.

    Peers read these arrays because they cannot read price files.
    """
    from portfolio_peer import PeerPrices  # of the tests

    kernel = load_kernel("portfolio")
    assert kernel.load_folds is not None
    loaded = kernel.load_folds(kernel.configure(env), FoldPlan())
    arrays, params = loaded.data, loaded.params
    first = params["fold0/train"][0]
    assets, columns = first.assets, first.num_features
    mean, deviation = arrays.feature_mean[first.scale], arrays.feature_std[first.scale]
    scaled = (arrays.features[:, :columns] - mean) / deviation
    rows = range(first.first_segment, first.first_segment + first.num_segments)
    PeerPrices(
        open=np.ascontiguousarray(arrays.prices[:, assets : 2 * assets]),
        close=np.ascontiguousarray(arrays.prices[:, :assets]),
        features=scaled.astype(np.float32),
        train=arrays.segments[list(rows)],
        test=arrays.segments[[record.first_segment for record in params["fold0/test"]]],
    ).write(folder)
    return {}
