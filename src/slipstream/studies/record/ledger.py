"""Ledger: suggestions, outcomes and decisions of a study in one SQLite file with one writer.

The scheduler is a pure function of the outcomes in the ledger. A killed study resumes by replaying
it: recorded results are not computed again, and unrecorded results never counted. A row is written
once, in a transaction that is on disk before anything depends on it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError
from slipstream.core.safe_io import schema_mismatch
from slipstream.core.storage import database
from slipstream.core.storage.atomic_io import to_jsonable
from slipstream.studies.statistics.returns import (
    describe_nearest_violation,
    describe_violations,
    largest_values,
)
from slipstream.training.population.member import DailyReturns, Outcome
from slipstream.training.settings.trust import is_code_setting

FORMAT = 1
CONSTRAINED = "constrained"  # of a fold: figure and limit of each constrained metric
_BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS metadata (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS suggestions (
    trial INTEGER PRIMARY KEY, time INTEGER NOT NULL, params TEXT NOT NULL, overrides TEXT NOT NULL,
    notes TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (
    name TEXT NOT NULL, milestone INTEGER NOT NULL, phase TEXT NOT NULL, trial INTEGER NOT NULL,
    repeat INTEGER NOT NULL, fold INTEGER NOT NULL, failed INTEGER NOT NULL, reason TEXT NOT NULL,
    steps INTEGER NOT NULL, seconds TEXT NOT NULL, metrics TEXT, days BLOB, returns BLOB,
    benchmark BLOB, groups BLOB, at REAL NOT NULL, PRIMARY KEY (name, milestone)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS decisions (
    trial INTEGER NOT NULL, stage INTEGER NOT NULL, milestone INTEGER NOT NULL,
    time INTEGER NOT NULL, kind TEXT NOT NULL, score REAL, folds TEXT NOT NULL, rho REAL,
    reason TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (trial, stage)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS openings (
    number INTEGER PRIMARY KEY, what TEXT NOT NULL UNIQUE, at REAL NOT NULL);
"""
_REMEDY = (
    "Restore the file from a backup, or start another study with --study-name. Other studies are "
    "not affected."
)
_NUMBER, _NULL, _ANY = (int, float), type(None), (object, bool)
_MAYBE = (*_NUMBER, _NULL)
_FIGURES = (
    *("sharpe", "growth", "exposure", "fills", "days"),
    *(
        "benchmark_sharpe",
        "benchmark_growth",
        "net_exposure",
        "market_growth",
        "market_correlation",
    ),
)
_FOLD = {
    "score": _MAYBE,
    f"{CONSTRAINED}?": {"*": [_NUMBER]},
    "inactive?": bool,
    **dict.fromkeys((f"{name}?" for name in _FIGURES), _MAYBE),
}
_METADATA = database.StoredTable("metadata", _TABLES, _REMEDY, value=database.json_column(_ANY))
_SUGGESTIONS = database.StoredTable(
    "suggestions",
    _TABLES,
    _REMEDY,
    params=database.json_column({"*": (*_MAYBE, str, bool)}),
    overrides=database.json_column({}),
    notes=database.json_column([str]),
    at=database.MOMENT,
)
_OUTCOMES = database.StoredTable(
    "outcomes",
    _TABLES,
    _REMEDY,
    phase=database.ColumnRule(str, words=("search", "confirm", "final", "refit")),
    failed=database.ColumnRule(int, 0, 1),
    seconds=database.json_column({"*": _MAYBE}),
    metrics=database.json_column([{"*": _MAYBE}]),
    at=database.MOMENT,
)
_DECISIONS = database.StoredTable(
    "decisions",
    _TABLES,
    _REMEDY,
    kind=database.ColumnRule(str, words=("continued", "pruned", "complete", "failed", "timed_out")),
    folds=database.json_column([_FOLD]),
    at=database.MOMENT,
)
_OPENINGS = database.StoredTable("openings", _TABLES, _REMEDY, at=database.MOMENT)
_SHAPES: dict[str, Any] = {  # of facts by name; others are what a command was given
    "format": int,
    "storage": str,
    "cut": (int, _NULL),
    "cut_of": int,
    "forecast": {"warnings": [str], "sentences": [str]},
    **{name: {"*": _NUMBER} for name in ("seconds", "cpu", "answers", "bytes")},
    "warm_start": {
        "study": str,
        "trials": [{"params": {}, "score": _NUMBER, "violations": [_NUMBER]}],
        "num_skipped": int,
        "num_started": int,
    },
}


def count_outcomes(path: Path) -> int:
    """Return the number of outcomes in a ledger, also while it is written; 0 without one."""
    try:
        with closing(database.connect_reader(path)) as table:
            return int(table.execute("SELECT count(*) FROM outcomes").fetchone()[0])
    except (sqlite3.Error, database.ConcurrentWriteError):
        return 0


class Slot(NamedTuple):
    """Identifies the member of an outcome.

    Attributes:
        phase: ``search``, ``confirm``, ``final`` or ``refit``.
        trial: number of the trial whose params the member has.
        repeat: index of the fresh seed; 0 in the search.
        fold: index of the fold; 0 without folds.
    """

    phase: str
    trial: int
    repeat: int
    fold: int

    @property
    def name(self) -> str:
        """Unique name, safe as a file name: ``search-00012-3``, ``confirm-00012-1-3``."""
        repeat = "" if self.phase == "search" else f"-{self.repeat}"
        return f"{self.phase}-{self.trial:05d}{repeat}-{self.fold}"

    @classmethod
    def from_name(cls, name: str) -> Slot:
        """Return the slot of a name."""
        phase, trial, *rest = name.split("-")
        numbers = [int(number) for number in rest]
        return cls(phase, int(trial), numbers[0] if len(numbers) == 2 else 0, numbers[-1])


@dataclass(frozen=True)
class Suggestion:
    """A suggestion of the sampler.

    Attributes:
        trial: number of the trial.
        time: virtual time, in steps of one member.
        params: values by searched name.
        overrides: the same as settings for `resolve`, by dotted name.
        notes: sentences on rounded values.
        at: UTC seconds of the wall clock; informational.
    """

    trial: int
    time: int
    params: Mapping[str, Any]
    overrides: Mapping[str, Any]
    notes: Sequence[str] = ()
    at: float = 0.0


@dataclass(frozen=True)
class TrialDecision:
    """Decision on a trial at a stage.

    Attributes:
        trial: number of the trial.
        stage: index of the stage.
        milestone: iterations of a member at the stage.
        time: virtual time, in steps of one member.
        kind: ``continued``, ``pruned``, ``complete``, ``failed``, or ``timed_out`` at the end of a
            time budget.
        score: score of the trial at the stage; None if it failed.
        folds: per fold score, sharpe, benchmark_sharpe, inactive, constrained.
        rho: rank correlation of this rung's scores with final scores; None if unknown.
        reason: why the trial was pruned or failed, why the rung does not prune, or which constraint
            is violated.
        at: UTC seconds of the wall clock; informational.
    """

    trial: int
    stage: int
    milestone: int
    time: int
    kind: str
    score: float | None
    folds: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    rho: float | None = None
    reason: str = ""
    at: float = 0.0

    @property
    def is_inactive(self) -> bool:
        """True if a fold has almost no trades, so that its score is not that of a strategy."""
        return any(fold.get("inactive") for fold in self.folds)

    @property
    def constraint_values(self) -> dict[str, tuple[float, float]]:
        """Largest value of each constrained metric over the folds, and its limit."""
        return largest_values(fold.get(CONSTRAINED, {}) for fold in self.folds)

    @property
    def final_state(self) -> str:
        """`kind`, or ``inactive`` or ``violating`` for complete trials that cannot win."""
        if self.kind == "complete" and self.is_inactive:
            return "inactive"
        violates = self.kind == "complete" and describe_violations(self.constraint_values)
        return "violating" if violates else self.kind

    @property
    def is_eligible(self) -> bool:
        """True if the trial can win: complete, active in every fold and within its constraints."""
        return self.final_state == "complete"


@dataclass(frozen=True)
class Trial:
    """A trial and its decisions.

    Attributes:
        suggestion: its number, `params` by searched name, and the settings made of them.
        decisions: all decisions on it, by stage.
    """

    suggestion: Suggestion
    decisions: Sequence[TrialDecision] = ()

    @property
    def number(self) -> int:
        """Number of the trial, from 0."""
        return self.suggestion.trial

    @property
    def last_decision(self) -> TrialDecision:
        """The newest decision; ``continued`` before the first."""
        at = self.suggestion.time
        return (
            self.decisions[-1]
            if self.decisions
            else TrialDecision(self.number, -1, 0, at, "continued", None)
        )

    @property
    def state(self) -> str:
        """``running``, ``complete``, ``pruned`` or ``failed``."""
        return "running" if self.last_decision.kind == "continued" else self.last_decision.kind

    @property
    def final_state(self) -> str:
        """`state`, or ``inactive`` or ``violating`` for complete trials that cannot win."""
        return "running" if self.state == "running" else self.last_decision.final_state

    @property
    def score(self) -> float | None:
        """Current or final score; None before the first stage and if the trial failed."""
        return self.last_decision.score

    @property
    def reason(self) -> str:
        """Why the trial was pruned or failed, or which constraint it violates."""
        return "" if self.state == "running" else self.last_decision.reason


def rank_eligible(decisions: Iterable[TrialDecision]) -> list[TrialDecision]:
    """Return last decisions of trials that can win, best first; ties are ordered by number."""
    able = [decision for decision in decisions if decision.is_eligible]
    return sorted(able, key=lambda decision: (-(decision.score or 0.0), decision.trial))


def best_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials that can win, best first, see `rank_eligible`."""
    by_number = {trial.number: trial for trial in trials}
    return [
        by_number[decision.trial]
        for decision in rank_eligible(trial.last_decision for trial in trials)
    ]


def nearest_violation(decisions: Iterable[TrialDecision]) -> str:
    """Describe the trial with the smallest violation, of trials excluded only by a constraint."""
    return describe_nearest_violation(
        {
            decision.trial: decision.constraint_values
            for decision in decisions
            if decision.final_state == "violating"
        }
    )


def count_states(decisions: Iterable[TrialDecision]) -> dict[str, int]:
    """Count complete, pruned, failed, timed-out, inactive and violating trials.

    Args:
        decisions: the last decision on each trial.
    """
    counts = dict.fromkeys(
        ("complete", "pruned", "failed", "timed_out", "inactive", "violating"), 0
    )
    for decision in decisions:
        for kind in {decision.kind, decision.final_state} & counts.keys():
            counts[kind] += 1
    return counts


def suggestion_to_row(ask: Suggestion) -> tuple[Any, ...]:
    """Return a row of the table `suggestions` with the current time."""
    texts = (to_jsonable(ask.params), to_jsonable(ask.overrides), list(ask.notes))
    return (ask.trial, ask.time, *(json.dumps(text) for text in texts), time.time())


def decision_to_row(decision: TrialDecision) -> tuple[Any, ...]:
    """Return a row of the table `decisions` with the current time."""
    facts = {
        **vars(decision),
        "folds": json.dumps(to_jsonable(list(decision.folds))),
        "at": time.time(),
    }
    return tuple(facts.values())


def outcome_to_row(outcome: Outcome) -> tuple[Any, ...]:
    """Return a row of the table `outcomes` with the current time."""
    slot, backtests = Slot.from_name(outcome.name), outcome.backtests
    head = (outcome.name, outcome.milestone, *slot, int(outcome.failed), outcome.reason)
    seconds = json.dumps(to_jsonable(dict(outcome.seconds)))
    blobs: tuple[Any, ...] = (None,) * 5
    if backtests is not None:
        blobs = (
            json.dumps(to_jsonable(list(backtests.metrics))),
            _to_bytes(backtests.days, np.int64),
            _to_bytes(backtests.returns, np.float64),
            _to_bytes(_benchmark_columns(backtests), np.float64),
            _to_bytes(backtests.group, np.int64),
        )
    return (*head, outcome.steps, seconds, *blobs, time.time())


def outcome_from_row(row: Sequence[Any]) -> Outcome:
    """Return the outcome of a row of `outcomes`.

    Raises:
        ValueError: its columns contradict each other.
    """
    name, milestone, phase, trial, repeat, fold, failed, reason, steps, seconds = row[:10]
    metrics, days, returns, benchmark, groups = row[10:15]
    slot, backtests = Slot(phase, trial, repeat, fold), None
    if name != slot.name:
        raise ValueError(f"is of the member {slot.name} by its other columns")
    if len({cell is None for cell in row[10:15]}) > 1:
        raise ValueError("has a part of its backtests")
    if metrics is not None:
        stamps, compared = _from_bytes(days, np.int64), _from_bytes(benchmark, np.float64)
        count = len(stamps)
        timed = count > 0 and len(compared) == 3 * count  # else no timing was recorded
        backtests = DailyReturns(
            days=stamps,
            returns=_from_bytes(returns, np.float64),
            benchmark=compared[:count] if timed else compared,
            group=_from_bytes(groups, np.int64),
            metrics=metrics,
            timing=compared[count : 2 * count] if timed else None,
            market=compared[2 * count :] if timed else None,
        )
        if (
            len(
                {
                    len(backtests.days),
                    *map(len, (backtests.returns, backtests.benchmark, backtests.group)),
                }
            )
            > 1
        ):
            raise ValueError("has backtests of several lengths")
    return Outcome(name, milestone, backtests, bool(failed), reason, steps, seconds)


def _benchmark_columns(backtests: DailyReturns) -> NDArray[np.float64]:
    """Return the benchmark, then timing and the market's returns if they were recorded."""
    if backtests.timing is None or backtests.market is None:
        return backtests.benchmark
    return np.concatenate([backtests.benchmark, backtests.timing, backtests.market])


def _to_bytes(values: Any, dtype: type) -> bytes:
    return np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()


def _from_bytes(content: bytes, dtype: type) -> NDArray[Any]:
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(dtype)


class Ledger:
    """The ledger file of a study.

    Args:
        path: ``ledger.db``.
        read_only: open for reading while another process writes.

    Raises:
        CheckpointError: the file cannot be read, or another version wrote it.
        ResourceError: the disk is full; earlier rows are intact.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        with self._errors():
            if read_only:
                self._db = database.connect_reader(path, _BUSY_SECONDS)
            else:
                self._db = database.connect_writer(path, _BUSY_SECONDS)
        try:
            self._begin(read_only)
        except BaseException:
            self.close()
            raise

    def _begin(self, read_only: bool) -> None:
        """Create the tables and check the format."""
        if not read_only:
            with self._errors():
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")  # a row that was seen survives a crash
                self._db.executescript(_TABLES)
        known = self.get_metadata("format")
        if known is None and not read_only:
            self.set_metadata(format=FORMAT)
        elif known not in (None, FORMAT):
            raise CheckpointError(
                f"{self.path} has format {known}, this slipstream reads {FORMAT}; use the version "
                "that wrote it, or begin another study with --study-name."
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_metadata(self, **facts: Any) -> None:
        """Write JSON-able metadata by name, replacing older values."""
        rows = [(name, json.dumps(to_jsonable(value))) for name, value in facts.items()]
        self._write("INSERT OR REPLACE INTO metadata VALUES (?, ?)", rows)

    def get_metadata(self, name: str, default: Any = None) -> Any:
        """Return the metadata of a name."""
        rows = self._read(_METADATA, "WHERE name = ?", (name,))
        problem = schema_mismatch(rows[0][1], _SHAPES.get(name, _ANY)) if rows else None
        if problem is not None:
            raise _METADATA.refusal(self._db, f"in the row with `name` {name!r}: {problem}")
        return rows[0][1] if rows else default

    def add_suggestion(self, ask: Suggestion) -> None:
        """Record a suggestion."""
        self._write("INSERT INTO suggestions VALUES (?, ?, ?, ?, ?, ?)", [suggestion_to_row(ask)])

    def suggestions(self) -> dict[int, Suggestion]:
        """Return all suggestions by trial."""
        asks = {
            suggestion.trial: suggestion
            for suggestion in self._read(
                _SUGGESTIONS, "ORDER BY trial", make=lambda row: Suggestion(*row)
            )
        }
        for trial, ask in asks.items():
            odd = next(filter(is_code_setting, ask.overrides), None)
            if odd is not None:
                raise CheckpointError(
                    f"{self.path} is not what slipstream wrote: trial {trial} sets `{odd}`, which "
                    "no search varies. Restore the file from a backup."
                )
        return asks

    def add_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Record outcomes in one transaction; existing outcomes are kept."""
        rows = [outcome_to_row(outcome) for outcome in outcomes]
        marks = ", ".join("?" * 16)
        self._write(f"INSERT OR IGNORE INTO outcomes VALUES ({marks})", rows)

    def outcomes(self, phase: str) -> dict[tuple[str, int], Outcome]:
        """Return all outcomes of a phase by (member's name, milestone)."""
        rest = "WHERE phase = ? ORDER BY trial, repeat, fold, milestone"
        rows = self._read(_OUTCOMES, rest, (phase,), make=outcome_from_row)
        return {(row.name, row.milestone): row for row in rows}

    def outcome(self, name: str, milestone: int) -> Outcome | None:
        """Return an outcome; None if it is not recorded."""
        rest = "WHERE name = ? AND milestone = ?"
        rows = self._read(_OUTCOMES, rest, (name, milestone), make=outcome_from_row)
        return rows[0] if rows else None

    def failed_by_outcome(self, phase: str) -> dict[tuple[str, int], bool]:
        """Return for every outcome of a phase, by (member's name, milestone), whether it failed."""
        rows = self._outcome_columns(phase, "name", "milestone", "failed")
        return {(name, milestone): bool(failed) for name, milestone, failed in rows}

    def steps(self, phase: str) -> dict[str, int]:
        """Return the steps of every recorded member of a phase, by name."""
        steps_by_name: dict[str, int] = {}
        for name, steps in self._outcome_columns(phase, "name", "steps"):
            steps_by_name[name] = max(steps_by_name.get(name, 0), steps)
        return steps_by_name

    def seconds(self, phase: str) -> dict[str, float]:
        """Return the workers' seconds over a phase's outcomes, by kind."""
        seconds_by_kind: dict[str, float] = {}
        for (spent,) in self._outcome_columns(phase, "seconds"):
            for kind, seconds in spent.items():
                seconds_by_kind[kind] = seconds_by_kind.get(kind, 0.0) + (seconds or 0.0)
        return seconds_by_kind

    def _outcome_columns(self, phase: str, *names: str) -> list[Sequence[Any]]:
        """Return columns of a phase's outcomes."""
        return self._read(_OUTCOMES, "WHERE phase = ?", (phase,), names)

    def add_decision(self, decision: TrialDecision) -> None:
        """Record a decision; a replay records the same decision again."""
        row = decision_to_row(decision)
        marks = ", ".join("?" * len(row))
        self._write(f"INSERT OR IGNORE INTO decisions VALUES ({marks})", [row])

    def row_counts(self) -> tuple[int, int, int]:
        """Return the numbers of suggestions, decisions and hold-out openings."""
        tables = ("suggestions", "decisions", "openings")
        with self._errors():
            words = (f"SELECT count(*) FROM {name}" for name in tables)
            asks, decisions, openings = (self._db.execute(word).fetchone()[0] for word in words)
        return asks, decisions, openings

    def decisions(self) -> list[TrialDecision]:
        """Return all decisions in virtual order."""
        return self._read(_DECISIONS, "ORDER BY time, trial", make=lambda row: TrialDecision(*row))

    def trials(self) -> list[Trial]:
        """Return all trials so far, by number."""
        decisions: dict[int, list[TrialDecision]] = {}
        for decision in self.decisions():
            decisions.setdefault(decision.trial, []).append(decision)
        return [Trial(ask, decisions.get(number, ())) for number, ask in self.suggestions().items()]

    def backtests(self, phase: str) -> dict[tuple[int, int, int], DailyReturns]:
        """Return backtests with final weights by (trial, repeat, fold).

        Phases: ``search`` (repeat 0, complete trials only), ``confirm`` (repeat is the fresh seed),
        ``final`` (fold 0 is the hold-out). Pruned and failed members are not included.
        """
        ends = {name: one for (name, _), one in self.outcomes(phase).items()}  # the last one stays
        complete = {
            decision.trial: decision.milestone
            for decision in self.decisions()
            if decision.kind == "complete"
        }
        backtests: dict[tuple[int, int, int], DailyReturns] = {}
        for name, one in ends.items():
            slot = Slot.from_name(name)
            ended = phase != "search" or complete.get(slot.trial) == one.milestone
            if one.backtests is not None and ended:
                backtests[slot.trial, slot.repeat, slot.fold] = one.backtests
        return backtests

    def complete_backtests(self) -> dict[int, list[DailyReturns]]:
        """Return the backtests of each complete trial by fold."""
        by_trial: dict[int, list[DailyReturns]] = {}
        for (trial, _, _), backtests in sorted(
            self.backtests("search").items(), key=lambda item: item[0]
        ):
            by_trial.setdefault(trial, []).append(backtests)
        return by_trial

    def open_holdout(self, purpose: str) -> int:
        """Record that the hold-out is opened; the same purpose counts once.

        Returns:
            Number of this opening, from 1.
        """
        self._write(
            "INSERT OR IGNORE INTO openings (what, at) VALUES (?, ?)", [(purpose, time.time())]
        )
        (number,), *_ = self._read(_OPENINGS, "WHERE what = ?", (purpose,), names=("number",))
        return int(number)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything of the body in one transaction: one disk sync instead of many."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:  # also after an error: each row is true by itself
            with self._errors():
                if self._db.in_transaction:
                    self._db.execute("COMMIT")

    def _write(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._errors():
            if self._db.in_transaction:  # of `at_once`
                self._db.executemany(statement, rows)
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(
        self,
        table: database.StoredTable,
        rest: str = "",
        values: Sequence[Any] = (),
        names: Sequence[str] = (),
        make: Callable[[Sequence[Any]], Any] = tuple,
    ) -> list[Any]:
        with self._errors():
            return table.read(self._db, rest, values, names, make)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with database.database_errors(self.path, _REMEDY):
                yield
        except CheckpointError as error:
            if "no such table" in str(error):
                raise CheckpointError(
                    f"{self.path} holds nothing yet ({error.__cause__}): its study is beginning at "
                    "this very moment, so look again; or it was cut short, then restore it from a "
                    "backup."
                ) from error
            raise
