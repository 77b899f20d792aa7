"""Damaged cells of the four databases: a refusal names file, table, row and value."""

from __future__ import annotations

import itertools
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, SlipstreamError
from slipstream.jobs.queue import FAILED, JobQueue
from slipstream.markets.evaluation import holdout_register
from slipstream.markets.live.journal import Decision, Journal, PlannedOrder
from slipstream.studies.record.ledger import Ledger, Slot, Suggestion, TrialDecision
from slipstream.studies.record.warm_start import METADATA_KEY
from slipstream.training.population.member import DailyReturns, Outcome

CELLS = (
    *(None, "seven", b"\xff\x00", 2**63 - 1, 1e308, '{"a": [', "[[]]", '{"a": {}}'),
    *("9" * 5000, "[" * 100_000, "a\0b"),
)
DAYS = np.arange(70, dtype=np.int64)
RETURNS = np.random.default_rng(0).standard_normal(70)
SERIES = holdout_register.PriceSeries.from_returns(DAYS, RETURNS)


class Database(NamedTuple):
    """A database: what makes it, and what reads everything in it."""

    file: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    columns: Sequence[tuple[str, str]] = ()


def _make_queue(folder: Path) -> None:
    place = {"python": sys.executable, "cwd": "/", "variables": {}}
    with JobQueue(folder) as queue:
        job = queue.add("run", folder / "a", ["train", "cartpole"], ["resume", "a"], place, cores=1)
        queue.end(job, FAILED, "no such environment")


def _read_queue(folder: Path) -> None:
    with JobQueue(folder) as queue:
        queue.jobs()
        queue.job(1)
        queue.add("run", folder / "b", ["train"], ["resume"], queue.jobs()[0].environment)


def _make_ledger(folder: Path) -> None:
    ones = np.ones(70)
    backtests = DailyReturns(DAYS, ones, ones, DAYS * 0, ({"fills": 3.0},))
    name = Slot("search", 0, 0, 0).name
    fold = {"score": 1.0, "sharpe": None, "inactive": False, "constrained": {"fills": (3.0, 4.0)}}
    with Ledger(folder / "ledger.db") as ledger:
        ledger.set_metadata(
            forecast={"warnings": [], "sentences": []}, seconds={"search": 1.0}, cut=3
        )
        ledger.add_suggestion(
            Suggestion(0, 0, {"a": 1.0}, {"agent.learning_rate": 1e-3}, ("rounded",))
        )
        ledger.add_outcomes([Outcome(name, 4, backtests, seconds={"env": 1.0})])
        ledger.add_decision(TrialDecision(0, 0, 4, 0, "complete", 1.0, (fold,)))
        ledger.open_holdout("the winner")


def _read_ledger(folder: Path) -> None:
    with Ledger(folder / "ledger.db", read_only=True) as ledger:
        for fact in ("forecast", "seconds", "cut", "cut_of", "storage", METADATA_KEY):
            ledger.get_metadata(fact)
        ledger.complete_backtests()
        [(one.final_state, one.last_decision.constraint_values) for one in ledger.trials()]
        (
            ledger.failed_by_outcome("search"),
            ledger.steps("search"),
            ledger.seconds("search"),
            ledger.row_counts(),
        )
    with Ledger(folder / "ledger.db") as ledger:
        ledger.open_holdout("the winner")


def _make_journal(folder: Path) -> None:
    with closing(Journal(folder / "journal.db")) as journal:
        journal.add_decisions([Decision("EURUSD", 900, "hash", (1.0,), (2.0,), 100.0, 1000.0)])
        journal.add_notice(1.0, "A sentence.")
        journal.add_orders([PlannedOrder("id", 900, "EURUSD", 0, 1.0)])
        journal.begin_bar(900, 100.0, 100.0)
        journal.end_bar(900, "held", {"EURUSD": [1.0, 0.0, "too small"]})


def _read_journal(folder: Path) -> None:
    with closing(Journal(folder / "journal.db")) as journal:
        journal.first_time()
        [journal.decisions(name) for name in journal.pass_names()]
        journal.notices(), journal.orders(), journal.pending_orders(), journal.executed_bars()


def _enter(folder: Path, key: str) -> None:
    with holdout_register._register(folder / "openings.db") as db:
        holdout_register._record(db, (key, "opening", key, 1.0), [SERIES])


def _make_openings(folder: Path) -> None:
    _enter(folder, "first")
    with closing(sqlite3.connect(folder / "openings.db", isolation_level=None)) as db:  # older rows
        db.execute("INSERT INTO prices VALUES ('a', ?, ?)", (DAYS.tobytes(), RETURNS.tobytes()))
        db.execute("INSERT INTO of VALUES (1, 'a')")
        db.execute("INSERT INTO trials VALUES ('first/search', 40)")


def _read_openings(folder: Path) -> None:
    _enter(folder, "second")
    with holdout_register._register(folder / "openings.db") as db:
        holdout_register._trials_in(db)


DATABASES = {
    "queue": Database("jobs.sqlite", _make_queue, _read_queue),
    "ledger": Database("ledger.db", _make_ledger, _read_ledger),
    "journal": Database("journal.db", _make_journal, _read_journal),
    "openings": Database("openings.db", _make_openings, _read_openings),
}


def _columns(path: Path) -> Iterator[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        words = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        for (table,) in db.execute(words).fetchall():
            for row in db.execute(f"PRAGMA table_info({table})").fetchall():
                yield table, row[1]


def _damage(path: Path, table: str, statement: str, *values: Any) -> None:
    """Rebuild a table without types and constraints, so that every cell takes every value."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        found = db.execute(f"PRAGMA table_info({table})").fetchall()
        keys = [row[1] for row in found if row[2] == "INTEGER" and row[5]]
        made = [
            f"{row[1]} INTEGER PRIMARY KEY"
            if [row[1]] == keys and row[1] not in statement
            else row[1]
            for row in found
        ]
        db.execute(f"CREATE TABLE free ({', '.join(made)})")
        db.execute(f"INSERT INTO free SELECT * FROM {table}")
        db.execute(f"DROP TABLE {table}")
        db.execute(f"ALTER TABLE free RENAME TO {table}")
        db.execute(statement, values)


@pytest.fixture(params=DATABASES)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Database, Any]]:
    """A database, and what makes copies of its file that are damaged by a statement."""
    found = DATABASES[request.param]
    found.make(tmp_path)
    columns = list(_columns(tmp_path / found.file))
    content = (tmp_path / found.file).read_bytes()

    def copy(table: str, statement: str, *values: Any) -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / found.file).write_bytes(content)
        _damage(folder / found.file, table, statement, *values)
        return folder

    numbers = itertools.count()
    found = found._replace(columns=columns)
    yield found, copy


def test_no_cell_brings_a_traceback(damaged: tuple[Database, Any]) -> None:
    found, copy = damaged
    refused = set()
    for (table, column), value in itertools.product(found.columns, CELLS):
        folder = copy(table, f"UPDATE {table} SET {column} = ?", value)
        try:
            found.read(folder)
        except SlipstreamError as error:
            text = str(error)
            if f"table `{table}` in the row with" in text and f"`{column}`" in text:
                assert str(folder / found.file) in text and len(text) < 600
                refused.add((table, column))
    assert {*found.columns} - UNREAD <= refused


UNREAD = {  # columns by which rows are found: with another value there is no such row
    *(("metadata", "name"), ("outcomes", "phase"), ("openings", "what"), ("openings", "at")),
    *(("decisions", "pass"), ("seen", "key"), ("of", "number"), ("trials", "key")),
}


def test_a_column_too_many_or_missing_is_refused(damaged: tuple[Database, Any]) -> None:
    found, copy = damaged
    for table, column in found.columns:
        with pytest.raises(CheckpointError, match="column"):
            found.read(copy(table, f"ALTER TABLE {table} DROP COLUMN {column}"))
    for table in {table for table, _ in found.columns} - {"openings"}:  # not read as a whole
        with pytest.raises(CheckpointError, match="column"):
            found.read(copy(table, f"ALTER TABLE {table} ADD COLUMN more"))
