"""Suites: named cases, run one after another into one JSON file and one table."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.bench import machine
from slipstream.bench.alternate import Alternated, Side, alternate
from slipstream.bench.row import Row
from slipstream.bench.suites import SUITES
from slipstream.bench.worker import WorkerError
from slipstream.core.advice import did_you_mean
from slipstream.core.errors import ConfigError, ResourceError

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
    """

    runs: int = 5
    seconds: float = 1.5
    full: bool = False
    until: float = math.inf
    data_dir: str | None = None
    hours: float | None = None
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def alternate(
        self, ours: Side, peer: Side | None = None, *, less_is_better: bool = False
    ) -> Alternated:
        """Runs of both sides in turn, as often as asked for; see `alternate`."""
        return alternate(
            ours, peer, runs=self.runs, until=self.until, less_is_better=less_is_better
        )


QUICK = SuiteOptions()
FULL = SuiteOptions(runs=11, seconds=5.0, full=True)

Case: TypeAlias = Callable[[SuiteOptions], Iterable[Row]]


def cases_of(suite: str) -> Mapping[str, Case]:
    """Cases of a suite by name, in the order in which they run."""
    if suite not in SUITES:
        raise ConfigError(f"There is no suite `{suite}`; {did_you_mean(suite, SUITES)}")
    module = importlib.import_module(f"slipstream.bench.suites.{suite}")
    cases: Mapping[str, Case] = module.CASES
    return cases


def long_cases(suite: str) -> tuple[str, ...]:
    """Names of the cases that take long and run with --full only."""
    module = importlib.import_module(f"slipstream.bench.suites.{suite}")
    names: tuple[str, ...] = getattr(module, "FULL_ONLY", ())
    return names


def asked_cases(suite: str) -> tuple[str, ...]:
    """Names of the cases that run only where they are asked for by name: they need an extra."""
    module = importlib.import_module(f"slipstream.bench.suites.{suite}")
    names: tuple[str, ...] = getattr(module, "ON_REQUEST", ())
    return names


# Long: what is refused, chosen and written stands in the order in which it happens.
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
    if json_file is not None:
        _check_writable(Path(json_file))
    passed_over = (*asked_cases(suite), *(() if full else long_cases(suite)))
    chosen = only or tuple(name for name in cases if name not in passed_over)
    began = time.monotonic()
    earlier = _cells(Path(json_file)) if json_file is not None else {}
    result: dict[str, Any] = {
        "suite": suite,
        "command": " ".join(["slipstream", *sys.argv[1:]]),
        "commit": machine.commit(),
        "machine": machine.describe() | {"date": time.strftime("%Y-%m-%d")},
        "versions": machine.versions(),
        "rows": [],
    }
    for i, name in enumerate(chosen):
        say(name)
        until = began + _LIMIT_SECONDS * (i + 1) / len(chosen)
        settings = FULL if full else replace(QUICK, until=until)
        settings = replace(settings, data_dir=data_dir, hours=hours, earlier=earlier)
        for row in _rows(name, cases[name], settings):
            show(row)
            result["rows"].append(row.as_json())
            if json_file is not None:
                write_result(Path(json_file), result)
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
        if name in long_cases(suite) and not full:
            raise ConfigError(f"The case `{name}` takes long: add --full.")


def _rows(name: str, case: Case, settings: SuiteOptions) -> Iterable[Row]:
    """The rows of a case; where it cannot be measured, one row that says why."""
    try:
        yield from case(settings)
    except WorkerError as error:
        print(f"{name}: {error}", file=sys.stderr)
        reason = str(error).splitlines()[0]
        yield Row(case=name, unit=f"not measured: {reason}", ours=None, runs=0)


def _cells(path: Path) -> dict[str, dict[str, Any]]:
    """Cells of a results file by their `key`; none where it has none or is no results file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        cells = [cell for row in rows for cell in row.get("cells", ())]
        return {cell["key"]: cell for cell in cells if "key" in cell}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Writes the file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def _check_writable(path: Path) -> None:
    """Minutes of measuring must not end with a file that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            empty = file.tell() == 0
        if empty:
            path.unlink()
    except OSError as error:
        raise ResourceError(
            f"The result cannot be written to {path}: {error.strerror}; name another file."
        ) from error


def with_runs(settings: SuiteOptions, runs: int) -> SuiteOptions:
    """The settings with fewer runs, for cases whose runs are long; --full keeps its own."""
    return settings if settings.full else replace(settings, runs=runs)
