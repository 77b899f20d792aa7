"""Suites: named cases, run one after another into one JSON file and one table."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import machine
from benchmarks.alternate import Side, alternate
from benchmarks.row import Goal, Row
from benchmarks.suites import SUITES
from benchmarks.worker import WorkerError
from slipstream.core.advice import did_you_mean
from slipstream.core.errors import ConfigError
from slipstream.training.record.files import disk_errors, write_json

_LIMIT_SECONDS = 540.0  # for a suite without --full, and a minute to spare


@dataclass(frozen=True)
class SuiteOptions:
    """How thoroughly cases are measured.

    Attributes:
        runs: alternating runs of each side.
        seconds: measured time of one run, warm-up not counted.
        full: whether the time limit of ten minutes a suite is lifted.
        until: `time.monotonic()` by which a case should have ended: what is contended is measured
            again only if that can be done by then.
        data_dir: folder of prices for studies, None for a planted market.
        hours: wall time for studies and for cases that take hours, None for no limit.
        earlier: cells of the results file that is about to be replaced, by the digest of their key.
        case: the name of the case that is measured; its rows have it unless they say another.
    """

    runs: int = 5
    seconds: float = 1.5
    full: bool = False
    until: float = math.inf
    data_dir: str | None = None
    hours: float | None = None
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    case: str = ""

    def row(
        self,
        unit: str,
        ours: Side,
        peer: Side | None = None,
        peer_name: str | None = None,
        *,
        goal: Goal | None = None,
        runs: int | None = None,
        less_is_better: bool = False,
    ) -> Row:
        """A row of both sides in turn; see `alternate`.

        Args:
            unit, peer_name, goal: of the row.
            ours, peer, less_is_better: what is measured.
            runs: other than usual, for cases whose runs are long; --full keeps its own.
        """
        runs = self.runs if runs is None or self.full else runs
        row = alternate(ours, peer, runs=runs, until=self.until, less_is_better=less_is_better)
        return replace(row, case=self.case, unit=unit, peer_name=peer_name).judged(goal)


QUICK = SuiteOptions()
FULL = SuiteOptions(runs=11, seconds=5.0, full=True)

Case: TypeAlias = Callable[[SuiteOptions], Iterable[Row]]


def cases_of(suite: str) -> Mapping[str, Case]:
    """Cases of a suite by name, in the order in which they run."""
    if suite not in SUITES:
        raise ConfigError(f"There is no suite `{suite}`; {did_you_mean(suite, SUITES)}")
    cases: Mapping[str, Case] = importlib.import_module(f"benchmarks.suites.{suite}").CASES
    return cases


def _named(suite: str, tuple_name: str) -> tuple[str, ...]:
    """Cases that a suite lists as `FULL_ONLY` (they take long) or `ON_REQUEST` (need an extra)."""
    module = importlib.import_module(f"benchmarks.suites.{suite}")
    names: tuple[str, ...] = getattr(module, tuple_name, ())
    return names


def run_suite(
    suite: str,
    *,
    json_file: str | Path | None = None,
    full: bool = False,
    only: Sequence[str] = (),
    data_dir: str | None = None,
    hours: float | None = None,
    show: Callable[[Row], None] = lambda row: None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measures a suite and returns what is written to `json_file`.

    Args:
        suite: one of `SUITES`.
        json_file: where the result goes; rewritten after each case, so that nothing is lost. Cells
            that it has already are not measured again, if nothing that decides them has changed.
        full: more and longer runs, without a time limit.
        only: names of cases, empty for all.
        data_dir: prices that ``study`` runs on, None for a planted market.
        hours: wall time for the studies of a full ``study``, where what is cut off is forecast, or
            for a case that takes hours, whose rows say what is missing.
        show: called with each row as it is measured.
        say: told which case begins.
    """
    _check_options(suite, full, only, data_dir, hours)
    cases = cases_of(suite)
    path = None if json_file is None else Path(json_file)
    if path is not None:
        _check_writable(path)
    passed_over = (*_named(suite, "ON_REQUEST"), *(() if full else _named(suite, "FULL_ONLY")))
    chosen = only or tuple(name for name in cases if name not in passed_over)
    began = time.monotonic()
    options = replace(FULL if full else QUICK, data_dir=data_dir, hours=hours)
    options = replace(options, earlier=_cells(path) if path is not None else {})
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    result: dict[str, Any] = {"suite": suite, "command": command, **machine.stamp(), "rows": []}
    result["machine"]["date"] = time.strftime("%Y-%m-%d")
    for i, name in enumerate(chosen):
        say(name)
        until = math.inf if full else began + _LIMIT_SECONDS * (i + 1) / len(chosen)
        for row in _rows(cases[name], replace(options, case=name, until=until)):
            show(row)
            result["rows"].append(row.as_json())
            if path is not None:
                write_json(path, result)
    return result


def _check_options(
    suite: str, full: bool, only: Sequence[str], data_dir: str | None, hours: float | None
) -> None:
    """Refuses what a suite does not have, and cases that take long without `full`."""
    cases = cases_of(suite)
    if suite != "study" and data_dir is not None:
        raise ConfigError("`--data-dir` is for the suite `study`; leave it out.")
    if suite != "study" and hours is not None and tuple(only) != ("gym_defaults",):
        raise ConfigError(
            "`--hours` is for the suite `study` and for `train --case gym_defaults`; leave it out."
        )
    for name in only:
        if name not in cases:
            raise ConfigError(f"Suite `{suite}` has no case `{name}`; it has {', '.join(cases)}.")
        if name in _named(suite, "FULL_ONLY") and not full:
            raise ConfigError(f"The case `{name}` takes long: add --full.")


def _rows(case: Case, options: SuiteOptions) -> Iterable[Row]:
    """The rows of a case; where it cannot be measured, one row that says why."""
    try:
        yield from case(options)
    except WorkerError as error:
        print(f"{options.case}: {error}", file=sys.stderr)
        reason = str(error).splitlines()[0]
        yield Row(options.case, f"not measured: {reason}", ours=None, runs=0)


def _cells(path: Path) -> dict[str, dict[str, Any]]:
    """Cells of a results file by their `key`; none where it has none or is no results file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        cells = [cell for row in rows for cell in row.get("cells", ())]
        return {cell["key"]: cell for cell in cells if "key" in cell}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _check_writable(path: Path) -> None:
    """Minutes of measuring must not end with a file that cannot be written."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            empty = file.tell() == 0
        if empty:
            path.unlink()
