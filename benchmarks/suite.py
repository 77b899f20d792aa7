"""Suites: named cases that run one after another into a results file and a table."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from benchmarks import machine, measurements
from benchmarks.alternate import Side, alternate
from benchmarks.row import Goal, Row
from benchmarks.suites import SUITES
from benchmarks.worker import WorkerError, elsewhere
from slipstream.core.errors import ConfigError
from slipstream.core.text import did_you_mean

_LIMIT_SECONDS = 540.0  # limit of a suite without --full, with a minute to spare


@dataclass(frozen=True)
class SuiteOptions:
    """Options of a suite's measurements.

    Attributes:
        runs: alternating runs of each side.
        seconds: measured time of one run, without warm-up.
        full: whether the time limit of ten minutes a suite is lifted.
        until: value of `time.monotonic()` by which a case should have ended. Contended rows are
            measured again only if that ends by then.
        data_dir: folder of prices for studies, None for a synthetic market.
        hours: wall time for studies and for cases that take hours, None for no limit.
        earlier: cells of the results file that is about to be replaced, by the digest of their key.
        case: name of the case, which its rows have by default.
        spec: the case in the suite's YAML file.
        against: checkout whose package replaces the peers, or None.
    """

    runs: int = 5
    seconds: float = 1.5
    full: bool = False
    until: float = math.inf
    data_dir: str | None = None
    hours: float | None = None
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    case: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    against: Path | None = None

    def measure(self, ours: Side, peer: Side | None, spec: Mapping[str, Any]) -> Row:
        """Return a row of both sides in turn, without texts; see `alternate`.

        A case with long runs has fewer (`runs` of its spec); --full ignores that.
        """
        runs = self.runs if self.full else spec.get("runs", self.runs)
        less, there = spec.get("less_is_better", False), self.against
        if there is not None:

            def peer() -> float:
                with elsewhere(there):
                    return ours()

        return alternate(ours, peer, runs=runs, until=self.until, less_is_better=less)

    def told(self, row: Row, spec: Mapping[str, Any] | None = None, **values: Any) -> Row:
        """Return the row with its case's texts, formatted with `values`, and its goal."""
        spec = self.spec if spec is None else spec
        row = replace(row, case=spec.get("row", self.case), unit=spec["unit"].format_map(values))
        if self.against is not None:
            return replace(row, peer_name=f"slipstream of {self.against}")
        if "peer_name" in spec:
            row = replace(row, peer_name=spec["peer_name"].format_map(values))
        comparison, _, figure = spec.get("goal", "").partition(" ")
        return row.judged(Goal(comparison, float(figure))) if figure else row

    def row(self, ours: Side, peer: Side | None = None, **values: Any) -> Row:
        """Measure both sides in turn and return the row with the case's texts."""
        return self.told(self.measure(ours, peer, self.spec), **values)


QUICK = SuiteOptions()
FULL = SuiteOptions(runs=11, seconds=5.0, full=True)

Case: TypeAlias = Callable[[SuiteOptions], Iterable[Row]]


def specs_of(suite: str) -> dict[str, dict[str, Any]]:
    """Return the cases of a suite's YAML file by name, in the order in which they run.

    Names that begin with an underscore are anchors for other entries.
    """
    if suite not in SUITES:
        raise ConfigError(f"There is no suite `{suite}`; {did_you_mean(suite, SUITES)}")
    folder = Path(__file__).parent / "suites"
    text = "".join((folder / f"{name}.yaml").read_text("utf-8") for name in ("common", suite))
    specs: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return specs


def cases_of(suite: str) -> Mapping[str, Case]:
    """Return the cases of a suite by name: functions of its module, or rows declared by YAML."""
    from benchmarks.cases import declared  # imported late: cases.py imports this module

    names = [name for name in specs_of(suite) if not name.startswith("_")]
    module = importlib.import_module(f"benchmarks.suites.{suite}")
    return {name: getattr(module, name, declared) for name in names}


def _cells(path: Path) -> dict[str, dict[str, Any]]:
    """Return the cells of a results file by their `key`."""
    rows = [row for measured in measurements.read(path) for row in measured["rows"]]
    cells = [cell for row in rows for cell in row.get("cells", ())]
    return {cell["key"]: cell for cell in cells if "key" in cell}


def _comparable(spec: Mapping[str, Any]) -> bool:
    """Return whether a case can be measured beside another checkout's package."""
    return "cells" in spec or "worker" in spec.get("rows", [spec])[0].get("ours", ())


def run_suite(
    suite: str,
    *,
    path: Path | None = None,
    full: bool = False,
    only: Sequence[str] = (),
    data_dir: str | None = None,
    hours: float | None = None,
    against: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Measure a suite and return its rows.

    Args:
        suite: one of `SUITES`.
        path: results file, in which each case's rows replace its former ones as soon as they are
            measured. Cells that it contains are measured again only if their key changed.
        full: more and longer runs, without a time limit.
        only: names of cases, empty for all.
        data_dir: prices for ``study``, None for a synthetic market.
        hours: wall time for the studies of a full ``study``, which are extrapolated beyond it, or
            for a case that takes hours, whose rows list the missing parts.
        against: checkout whose package is measured instead of peers, for cases that are declared by
            YAML alone.
        say: called with a line when a case begins.
    """
    _check_options(suite, full, only, data_dir, hours)
    cases = cases_of(suite)
    if path is not None:
        measurements.check_writable(path)
    specs = specs_of(suite)
    hidden = {"on_request"} if full else {"on_request", "full_only"}
    chosen = only or [name for name in cases if not hidden & set(specs.get(name, ()))]
    if against is not None:
        chosen = [name for name in chosen if _comparable(specs[name])]
        if only and set(only) != set(chosen):
            raise ConfigError(
                "`--against` requires cases with alternating runs. Name such cases with --case."
            )
    began = time.monotonic()
    options = replace(FULL if full else QUICK, data_dir=data_dir, hours=hours, against=against)
    options = replace(options, earlier=_cells(path) if path is not None else {})
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    stamp, rows = machine.stamp(), []
    for i, name in enumerate(chosen):
        say(name)
        until = math.inf if full else began + _LIMIT_SECONDS * (i + 1) / len(chosen)
        case_options = replace(options, case=name, spec=specs.get(name, {}), until=until)
        measured: dict[str, Any] = {"case": name, "command": command, **stamp, "rows": []}
        for row in _rows(cases[name], case_options):
            measured["rows"].append(row.as_json())
            if path is not None:
                measurements.write(path, suite, measured)
        rows += measured["rows"]
    return rows


def _check_options(
    suite: str, full: bool, only: Sequence[str], data_dir: str | None, hours: float | None
) -> None:
    """Reject options that a suite does not have, and long cases without `full`."""
    cases = cases_of(suite)
    if suite != "study" and data_dir is not None:
        raise ConfigError("`--data-dir` applies only to the suite `study`. Remove it.")
    if suite != "study" and hours is not None and tuple(only) != ("gym_defaults",):
        raise ConfigError(
            "`--hours` applies only to `study` and `train --case gym_defaults`. Remove it."
        )
    for name in only:
        if name not in cases:
            raise ConfigError(f"Suite `{suite}` has no case `{name}`; it has {', '.join(cases)}.")
        if "full_only" in specs_of(suite)[name] and not full:
            raise ConfigError(f"The case `{name}` takes hours. Add --full.")


def _rows(case: Case, options: SuiteOptions) -> Iterable[Row]:
    """Measure the rows of a case; on failure return one row with the reason."""
    try:
        yield from case(options)
    except WorkerError as error:
        print(f"{options.case}: {error}", file=sys.stderr)
        reason = str(error).splitlines()[0]
        yield Row(options.case, f"not measured: {reason}", ours=None, runs=0)
