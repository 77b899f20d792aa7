"""A whole `slipstream tune` as a user runs it, and what it said about itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from slipstream.bench.worker import WorkerError
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader
from slipstream.training.record import yaml_file

_PROGRAM = "from slipstream.cli import main; main()"  # what the command `slipstream` does
_LOOK_SECONDS = 10.0  # looking is not free: the kernel walks all pages
_WORK = ("env", "policy", "update")


class Ran(NamedTuple):
    """A finished study.

    Attributes:
        search: wall seconds of the search, confirm: of everything after it up to the hold-out.
        report: wall seconds of writing the page again, from starting the process.
        train, evaluate, rest: the workers' seconds in the search, by kind.
        rungs: share of `evaluate` that went into scores before a trial's end.
        trials, members: of the search; asked and scored.
        steps: of training in the search, all members together.
        test_bars: of one fold.
        peak_bytes: memory of all processes together, shared pages counted once.
    """

    search: float
    confirm: float
    report: float
    train: float
    evaluate: float
    rest: float
    rungs: float
    trials: int
    members: int
    steps: int
    test_bars: int
    peak_bytes: int


def run_study(
    config: Mapping[str, Any],
    folder: Path,
    hours: float | None = None,
    options: Sequence[str] = (),
) -> Ran:
    """Runs the config's study in `folder`, with further options of `slipstream tune`.

    Raises:
        WorkerError: it ended with an error; its last words are in the message.
    """
    file = folder.with_suffix(".yaml")
    file.write_text(yaml_file.dump(config), encoding="utf-8")
    more = [] if hours is None else ["--hours", f"{hours:g}"]
    peak = _command("tune", str(file), "--study-name", str(folder), *more, *options)
    began = time.perf_counter()
    _command("study", "report", str(folder))
    return _read(folder, time.perf_counter() - began, peak)


def _command(*words: str) -> int:
    """Runs a command of ours and returns the most memory that its processes held."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = _Memory(process.pid)
    with watch:
        said, _ = process.communicate()
    if process.returncode != 0:
        raise WorkerError(
            f"`slipstream {' '.join(words)}` ended with exit code {process.returncode}. It said:\n"
            f"{said.strip()[-1500:]}"
        )
    return watch.peak


class _Memory:
    """Looks now and then at what a process and its children hold."""

    def __init__(self, pid: int) -> None:
        self.peak, self._pid, self._stop = 0, pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                root = psutil.Process(self._pid)
                held = sum(_bytes(one) for one in [root, *root.children(recursive=True)])
            except psutil.Error:
                continue
            self.peak = max(self.peak, held)


def _bytes(process: psutil.Process) -> int:
    """Proportional set size: a page shared by n processes counts 1/n in each."""
    try:
        full = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(full, "pss", full.rss))


def _read(path: Path, report: float, peak: int) -> Ran:
    with StudyReader(StudyFolder(path)) as reader:
        seconds, totals = reader.fact("seconds"), reader.totals("search")
        trials = reader.trials()
        facts = reader.provenance["environment"]["folds"]
    stages = [len(trial.stages) for trial in trials if trial.state != "failed"]
    return Ran(
        search=float(seconds["search"]),
        confirm=float(sum(value for phase, value in seconds.items() if phase != "search")),
        report=report,
        train=sum(totals.get(kind, 0.0) for kind in _WORK),
        evaluate=totals.get("evaluate", 0.0),
        rest=totals.get("overhead", 0.0),
        rungs=1.0 - len(stages) / max(sum(stages), 1),
        trials=len(trials),
        members=int(totals["outcomes"]),
        steps=int(totals["steps"]),
        test_bars=_test_bars(facts),
        peak_bytes=peak,
    )


def _test_bars(facts: Mapping[str, Any]) -> int:
    return sum(facts["group_bars"][group] for group in facts["folds"][0]["groups"])
