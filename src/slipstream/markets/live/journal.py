"""Journal: the decisions of an account, one row per pass and bar, written before anything else.

With a broker, it also contains each order before it is sent, and the outcome of each bar.

SQLite in WAL mode with ``synchronous=FULL``: committed rows survive a power failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.storage.atomic_io import disk_errors, fsync_folder
from slipstream.core.storage.database import (
    MOMENT,
    TIME,
    StoredTable,
    connect_reader,
    connect_writer,
    database_errors,
    json_column,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
    pass TEXT NOT NULL,
    time INTEGER NOT NULL,
    bars_digest TEXT NOT NULL,
    action TEXT NOT NULL,
    target_units TEXT NOT NULL,
    equity REAL NOT NULL,
    decided_at REAL NOT NULL,
    PRIMARY KEY (pass, time)
);
CREATE TABLE IF NOT EXISTS notices (time REAL NOT NULL, text TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS orders (
    id TEXT NOT NULL PRIMARY KEY,
    time INTEGER NOT NULL,
    symbol TEXT NOT NULL,
    number INTEGER NOT NULL,
    quantity REAL NOT NULL,
    state TEXT NOT NULL,
    filled REAL NOT NULL,
    average REAL NOT NULL,
    UNIQUE (time, symbol, number)
);
CREATE TABLE IF NOT EXISTS executions (
    time INTEGER NOT NULL PRIMARY KEY,
    rules_equity REAL NOT NULL,
    equity REAL NOT NULL,
    outcome TEXT NOT NULL,
    unfilled TEXT NOT NULL
);
"""
_FIX = (
    "Restore the file from a backup, or deploy again, which starts a new account. Keep the file: "
    "it contains the decisions so far."
)
_NUMBERS = json_column([(int, float)])
_DECISIONS = StoredTable(
    "decisions",
    _SCHEMA,
    _FIX,
    time=TIME,
    action=_NUMBERS,
    target_units=_NUMBERS,
    decided_at=MOMENT,
)
_NOTICES = StoredTable("notices", _SCHEMA, _FIX, time=MOMENT)
_ORDERS = StoredTable("orders", _SCHEMA, _FIX, time=TIME)
_UNFILLED = json_column({"*": [(int, float, str)]})
_EXECUTIONS = StoredTable("executions", _SCHEMA, _FIX, time=TIME, unfilled=_UNFILLED)
PLANNED, OPEN = "planned", "open"
SUPERSEDED = "superseded by the next bar"


class Decision(NamedTuple):
    """Row of the journal.

    Attributes:
        name: name of the pass: a symbol, or all symbols of a portfolio.
        time: open of the bar that was decided on, UTC seconds.
        bars_digest: hash of all bars up to it.
        action: action that the environment received.
        target_units: units after the next fill, simulated on a flat bar at the next open; empty if
            later bars were known.
        equity: equity at the bar's close, account currency.
        decided_at: the feed's clock, UTC seconds.
    """

    name: str
    time: int
    bars_digest: str
    action: tuple[float, ...]
    target_units: tuple[float, ...]
    equity: float
    decided_at: float


class PlannedOrder(NamedTuple):
    """Order that is stored before it is sent.

    Attributes:
        id: client id that identifies the order at the broker.
        time: open of the bar that was decided on, UTC seconds.
        number: index among the orders of this bar and symbol, from 0.
        quantity: coins, sales negative.
        state: `PLANNED` until the broker lists it, then `OPEN`, then its final state.
        filled: coins; average: their price.
    """

    id: str
    time: int
    symbol: str
    number: int
    quantity: float
    state: str = PLANNED
    filled: float = 0.0
    average: float = 0.0


class BarExecution(NamedTuple):
    """Execution of a bar's target units.

    Attributes:
        time: open of the bar that was decided on, UTC seconds.
        rules_equity: equity according to the rules at its close.
        equity: equity of the broker's account at the first request.
        outcome: how execution ended; empty until then.
        unfilled: target coins, coins held and the reason for the difference, by symbol.
    """

    time: int
    rules_equity: float
    equity: float
    outcome: str
    unfilled: dict[str, list[Any]]


class Journal:
    """Journal of an account's folder.

    Args:
        path: the database file.
        read_only: open for reading while another process runs the account.

    Raises:
        ResourceError: the file cannot be written.
        CheckpointError: the file is damaged.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        if read_only:
            with self._errors():
                self._table = connect_reader(path)
            return
        with self._errors():
            self._table = connect_writer(path)
            self._table.execute("PRAGMA journal_mode=WAL")
            self._table.execute("PRAGMA synchronous=FULL")
            self._table.executescript(_SCHEMA)
        fsync_folder(path.parent)

    def add_decisions(self, rows: Sequence[Decision]) -> None:
        """Store decisions, all or none."""
        values = [
            (*row[:3], json.dumps(row.action), json.dumps(row.target_units), *row[5:])
            for row in rows
        ]
        self._write(_insert(_DECISIONS), values)

    def decisions(self, name: str) -> list[Decision]:
        """Return all decisions of a pass, oldest first."""

        def decision(row: Sequence[Any]) -> Decision:
            name, time, bars, action, units, *more = row
            return Decision(name, time, bars, tuple(action), tuple(units), *more)

        with self._errors():
            rest = "WHERE pass = ? ORDER BY time"
            return _DECISIONS.read(self._table, rest, (name,), make=decision)

    def pass_names(self) -> list[str]:
        """Return the names of passes with decisions."""
        return sorted({name for (name,) in self._read(_DECISIONS, names=("pass",))})

    def first_time(self) -> int | None:
        """Return the open of the first bar that was decided on; None before it."""
        rows = self._read(_DECISIONS, "ORDER BY time LIMIT 1", names=("time",))
        return int(rows[0][0]) if rows else None

    def add_notice(self, moment: float, text: str, pattern: str | None = None) -> bool:
        """Store a message if it is new.

        Args:
            moment: UTC seconds.
            text: the message.
            pattern: GLOB pattern; a stored message that matches it counts as the same notice.

        Returns:
            True if the message is new.
        """
        statement = (
            "INSERT OR IGNORE INTO notices SELECT ?, ? "
            "WHERE NOT EXISTS (SELECT 1 FROM notices WHERE text GLOB ?)"
        )
        with self._errors():
            return self._table.execute(statement, (moment, text, pattern)).rowcount > 0

    def notices(self) -> list[tuple[float, str]]:
        """Return all messages with their times."""
        return [(time, text) for time, text in self._read(_NOTICES, "ORDER BY time")]

    def add_orders(self, orders: Sequence[PlannedOrder]) -> None:
        """Store orders before they are sent, all or none. They are on disk when this returns."""
        self._write(_insert(_ORDERS), orders)

    def update_orders(self, orders: Sequence[PlannedOrder]) -> None:
        """Store the state of orders reported by the broker."""
        rows = [(order.state, order.filled, order.average, order.id) for order in orders]
        self._write("UPDATE orders SET state = ?, filled = ?, average = ? WHERE id = ?", rows)

    def orders(self, since: int = 0) -> list[PlannedOrder]:
        """Return the orders of bars from a time on, oldest first."""
        return self._orders("time >= ?", since)

    def pending_orders(self) -> list[PlannedOrder]:
        """Return orders without a final state, oldest first."""
        return self._orders("state IN (?, ?)", PLANNED, OPEN)

    def _orders(self, which: str, *values: str | int) -> list[PlannedOrder]:
        rest = f"WHERE {which} ORDER BY time, symbol, number"
        return [PlannedOrder(*row) for row in self._read(_ORDERS, rest, *values)]

    def begin_bar(self, time: int, rules_equity: float, equity: float) -> None:
        """Store both equities of a bar before it is traded, and mark earlier bars as superseded.

        Does nothing if the bar was begun before.
        """
        supersede = "UPDATE executions SET outcome = ? WHERE outcome = '' AND time < ?"
        self._write(supersede, [(SUPERSEDED, time)])
        self._write(
            "INSERT OR IGNORE INTO executions VALUES (?, ?, ?, '', '{}')",
            [(time, rules_equity, equity)],
        )

    def end_bar(self, time: int, outcome: str, unfilled: Mapping[str, Sequence[Any]]) -> None:
        """Store the outcome of a bar."""
        row = (outcome, json.dumps(dict(unfilled)), time)
        self._write("UPDATE executions SET outcome = ?, unfilled = ? WHERE time = ?", [row])

    def executed_bars(self, since: int = 0) -> list[BarExecution]:
        """Return traded bars from a time on, oldest first."""
        return [
            BarExecution(*row)
            for row in self._read(_EXECUTIONS, "WHERE time >= ? ORDER BY time", since)
        ]

    def _read(
        self, table: StoredTable, rest: str = "", *values: str | int, names: Sequence[str] = ()
    ) -> list[Sequence[Any]]:
        with self._errors():
            return table.read(self._table, rest, values, names)

    def _write(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows in one transaction. When it returns, all rows are on disk."""
        with self._errors():
            self._table.execute("BEGIN IMMEDIATE")
            try:
                self._table.executemany(statement, rows)
            except BaseException:
                self._table.execute("ROLLBACK")
                raise
            self._table.execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._table.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with database_errors(self.path, _FIX), disk_errors(self.path):
            yield


def _insert(table: StoredTable) -> str:
    """Return the statement that inserts whole rows."""
    return (
        f"INSERT INTO {table.name} ({', '.join(table.cells)}) "
        f"VALUES ({', '.join('?' * len(table.cells))})"
    )
