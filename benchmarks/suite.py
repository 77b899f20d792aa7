"""Suites: named cases, run one after another into a results file and a table."""

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
        spec: what the suite's YAML file says of it.
        against: a checkout whose package takes the peer's place; None: peers.
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
        """A row of both sides in turn, without words; see `alternate`.

        A case whose runs are long has fewer (`runs` of its spec); --full keeps its own.
        """
        runs = self.runs if self.full else spec.get("runs", self.runs)
        less, there = spec.get("less_is_better", False), self.against
        if there is not None:

            def peer() -> float:
                with elsewhere(there):
                    return ours()

        return alternate(ours, peer, runs=runs, until=self.until, less_is_better=less)

    def told(self, row: Row, spec: Mapping[str, Any] | None = None, **values: Any) -> Row:
        """The row with its case's words, in which values stand, and its goal."""
        spec = self.spec if spec is None else spec
        row = replace(row, case=spec.get("row", self.case), unit=spec["unit"].format_map(values))
        if self.against is not None:
            return replace(row, peer_name=f"slipstream of {self.against}")
        if "peer_name" in spec:
            row = replace(row, peer_name=spec["peer_name"].format_map(values))
        comparison, _, figure = spec.get("goal", "").partition(" ")
        return row.judged(Goal(comparison, float(figure))) if figure else row

    def row(self, ours: Side, peer: Side | None = None, **values: Any) -> Row:
        """Both sides in turn, with the case's words."""
        return self.told(self.measure(ours, peer, self.spec), **values)


QUICK = SuiteOptions()
FULL = SuiteOptions(runs=11, seconds=5.0, full=True)

Case: TypeAlias = Callable[[SuiteOptions], Iterable[Row]]


def specs_of(suite: str) -> dict[str, dict[str, Any]]:
    """What a suite's YAML file says of each case, in the order in which they run.

    Names that begin with an underscore are for others to refer to.
    """
    if suite not in SUITES:
        raise ConfigError(f"There is no suite `{suite}`; {did_you_mean(suite, SUITES)}")
    folder = Path(__file__).parent / "suites"
    text = "".join((folder / f"{name}.yaml").read_text("utf-8") for name in ("common", suite))
    specs: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return specs


def cases_of(suite: str) -> Mapping[str, Case]:
    """Cases of a suite by name: functions of its file, or what YAML alone declares."""
    from benchmarks.declared import declared  # which knows the options of this file

    names = [name for name in specs_of(suite) if not name.startswith("_")]
    module = importlib.import_module(f"benchmarks.suites.{suite}")
    return {name: getattr(module, name, declared) for name in names}


def _cells(path: Path) -> dict[str, dict[str, Any]]:
    """Cells of a results file by their `key`."""
    rows = [row for measured in measurements.read(path) for row in measured["rows"]]
    cells = [cell for row in rows for cell in row.get("cells", ())]
    return {cell["key"]: cell for cell in cells if "key" in cell}


def _comparable(spec: Mapping[str, Any]) -> bool:
    """Whether a case can be measured beside another checkout's package."""
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
    """Measures a suite and returns its rows.

    Args:
        suite: one of `SUITES`.
        path: the results file, where each case's rows take the place of its former ones as soon
            as they are measured. Cells that it has already are not measured again, if nothing that
            decides them has changed.
        full: more and longer runs, without a time limit.
        only: names of cases, empty for all.
        data_dir: prices that ``study`` runs on, None for a planted market.
        hours: wall time for the studies of a full ``study``, where what is cut off is forecast, or
            for a case that takes hours, whose rows say what is missing.
        against: a checkout whose package is measured in the place of peers, for cases that YAML
            declares whole.
        say: told which case begins.
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
            raise ConfigError("A case has no runs in turn, as `--against` needs them: name others.")
    began = time.monotonic()
    options = replace(FULL if full else QUICK, data_dir=data_dir, hours=hours, against=against)
    options = replace(options, earlier=_cells(path) if path is not None else {})
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    stamp, rows = machine.stamp(), []
    for i, name in enumerate(chosen):
        say(name)
        until = math.inf if full else began + _LIMIT_SECONDS * (i + 1) / len(chosen)
        own = replace(options, case=name, spec=specs.get(name, {}), until=until)
        measured: dict[str, Any] = {"case": name, "command": command, **stamp, "rows": []}
        for row in _rows(cases[name], own):
            measured["rows"].append(row.as_json())
            if path is not None:
                measurements.write(path, suite, measured)
        rows += measured["rows"]
    return rows


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
        if "full_only" in specs_of(suite)[name] and not full:
            raise ConfigError(f"The case `{name}` takes long: add --full.")


def _rows(case: Case, options: SuiteOptions) -> Iterable[Row]:
    """The rows of a case; where it cannot be measured, one row that says why."""
    try:
        yield from case(options)
    except WorkerError as error:
        print(f"{options.case}: {error}", file=sys.stderr)
        reason = str(error).splitlines()[0]
        yield Row(options.case, f"not measured: {reason}", ours=None, runs=0)
