"""SQLite files: opened as regular files, rows validated against column rules."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from os import stat_result
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.safe_io import (
    UnreadableError,
    describe_json,
    parse_json,
    regular_file,
    schema_mismatch,
)

_BESIDE = ("", "-wal", "-shm", "-journal")  # files that SQLite opens itself
_MOST_BYTES = 1 << 26  # of a value: a damaged file may declare a gigabyte
_COMPUTED = """
SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'
UNION SELECT one.name FROM sqlite_master AS one, pragma_table_xinfo(one.name) AS its
WHERE one.type = 'table' AND its.hidden > 0"""

_SECONDS = 253_402_300_799.0  # UTC, end of the year 9999: the limit of `time.gmtime`


class ColumnRule(NamedTuple):
    """Allowed values of a column.

    Attributes:
        kind: type of a value; float accepts integers.
        low, high: bounds of a number.
        shape: schema of JSON text, see `schema_mismatch`; None for other text.
        words: the only allowed texts; empty for any.
        empty: NULL is allowed.
    """

    kind: type
    low: float = -math.inf
    high: float = math.inf
    shape: Any = None
    words: tuple[str, ...] = ()
    empty: bool = False

    def read(self, value: Any) -> Any:
        """Return the value, decoded if it is JSON.

        Raises:
            UnreadableError: the value is not allowed.
        """
        if value is None and self.empty:
            return None
        if self.kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, self.kind):
            raise UnreadableError(f"is {describe_json(value)}, not {_NAMES[self.kind]}")
        if isinstance(value, str):
            return self._read_text(value)
        if isinstance(value, (int, float)) and not self.low <= value <= self.high:
            bounds = f"{self.low:g} to {self.high:g}"
            raise UnreadableError(f"is {describe_json(value)}, and {bounds} is possible")
        return value

    def _read_text(self, text: str) -> Any:
        if "\0" in text:
            raise UnreadableError(f"is {describe_json(text)}, with a NUL character")
        if self.words and text not in self.words:
            raise UnreadableError(
                f"is {describe_json(text)}, not one of {', '.join(map(repr, self.words))}"
            )
        if self.shape is None:
            return text
        try:
            value = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(
                f"is {describe_json(text)}, which is not JSON ({error})"
            ) from error
        problem = schema_mismatch(value, self.shape)
        if problem is not None:
            raise UnreadableError(f"is {describe_json(text)}: {problem}")
        return value


_NAMES = {int: "a whole number", float: "a number", str: "text", bytes: "bytes"}
_OF_TYPES = {
    "INTEGER": ColumnRule(int, 0, 2**53),
    "REAL": ColumnRule(float, -1e300, 1e300),
    "TEXT": ColumnRule(str),
    "BLOB": ColumnRule(bytes),
}
TIME, MOMENT = ColumnRule(int, 0, _SECONDS), ColumnRule(float, 0, _SECONDS)  # UTC seconds


def json_column(shape: Any) -> ColumnRule:
    """Return the rule of a column with JSON text, see `schema_mismatch`."""
    return ColumnRule(str, shape=shape)


class StoredTable:
    """Table of a database; all its rows are read by this class.

    Args:
        name: of the table.
        schema: SQL that creates it, with the type of each column.
        remedy: last sentence of an error.
        cells: rules of columns that are narrower than their type.

    Attributes:
        cells: rule of each column, in the order of the columns.
    """

    def __init__(self, name: str, schema: str, remedy: str, **cells: ColumnRule) -> None:
        self.name, self._remedy = name, remedy
        self.cells: dict[str, ColumnRule] = {}
        with closing(sqlite3.connect(":memory:")) as db:
            db.executescript(schema)
            for _, column, kind, full, _, key in db.execute(f"PRAGMA table_info({name})"):
                cell = cells.get(column, _OF_TYPES[kind])
                self.cells[column] = cell._replace(empty=not (full or key))

    def read(
        self,
        db: sqlite3.Connection,
        rest: str = "",
        values: Sequence[Any] = (),
        names: Sequence[str] = (),
        make: Callable[[Sequence[Any]], Any] = tuple,
    ) -> list[Any]:
        """Read rows and validate every value.

        Args:
            db: open connection.
            rest: SQL after the table's name; values: its parameters.
            names: columns; all by default.
            make: constructor called with the values of a row; raises ValueError for inconsistent
                values.

        Raises:
            CheckpointError: a column or a value is invalid.
            sqlite3.Error: the file cannot be read.
        """
        columns = names or tuple(self.cells)
        cursor = db.execute(f"SELECT {', '.join(names) or '*'} FROM {self.name} {rest}", values)
        stored_columns = [column[0] for column in cursor.description]
        for odd in sorted({*stored_columns} ^ {*columns}):
            which = "has another" if odd in stored_columns else "lacks the"
            raise self.refusal(db, f"{which} column `{odd}`")
        rows = []
        for row in cursor.fetchall():
            cells = dict(zip(stored_columns, row, strict=True))
            where = f"in the row with `{columns[0]}` {describe_json(cells[columns[0]])},"
            try:
                rows.append(make([self._value(name, cells[name]) for name in columns]))
            except (UnreadableError, ValueError) as error:
                raise self.refusal(db, f"{where} {error}") from error
        return rows

    def _value(self, name: str, value: Any) -> Any:
        try:
            return self.cells[name].read(value)
        except UnreadableError as error:
            raise UnreadableError(f"`{name}` {error}") from error

    def refusal(self, db: sqlite3.Connection, problem: str) -> CheckpointError:
        """Return the error for a problem in a connection's file."""
        path = db.execute("PRAGMA database_list").fetchone()[2]
        return CheckpointError(
            f"{path} is not what slipstream wrote: table `{self.name}` {problem}. {self._remedy}"
        )


@contextmanager
def database_errors(path: Path, remedy: str) -> Iterator[None]:
    """Convert SQLite errors into one paragraph; violations of UNIQUE pass.

    Args:
        path: of the file.
        remedy: last sentence if the file itself is invalid.

    Raises:
        ResourceError: the disk is full, or another program holds the file.
        CheckpointError: the file cannot be used.
    """
    try:
        yield
    except sqlite3.IntegrityError as error:
        if "UNIQUE" in str(error):  # callers handle duplicate rows
            raise
        raise CheckpointError(f"{path} cannot be written ({error}). {remedy}") from error
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            raise ResourceError(
                f"The disk is full: {path} could not be written ({text}). What was written before "
                "is intact. Free some space, then run the same command again."
            ) from error
        if "locked" in text or "readonly" in text:
            raise ResourceError(
                f"{path} cannot be written ({text}). Close the program that holds it, or give "
                "yourself permission to write it. What was written before is intact."
            ) from error
        raise CheckpointError(f"{path} cannot be used ({text}). {remedy}") from error


def connect_writer(path: Path, wait: float = 30.0, threads: bool = False) -> sqlite3.Connection:
    """Connect to a regular file; SQLite creates a missing one.

    Args:
        path: of the file.
        wait: seconds to wait for another writer.
        threads: several threads use the connection, one at a time.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    _beside(path)
    return sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=not threads)


def _beside(path: Path) -> dict[str, stat_result]:
    """Return the files that SQLite opens itself, by suffix; all are regular files."""
    stats: dict[str, stat_result] = {}
    for suffix in _BESIDE:
        try:
            with suppress(FileNotFoundError):
                stats[suffix] = regular_file(path.with_name(path.name + suffix))
        except UnreadableError as error:
            raise sqlite3.OperationalError(f"{path.name}{suffix}: {error}") from error
    return stats


class ConcurrentWriteError(ResourceError):
    """Another process wrote a file while it was read, so the result may be inconsistent."""


class _Unwritten(sqlite3.Connection):
    """Lock-free connection to a file without a writer; the file is compared when it is closed."""

    path: Path
    before: stat_result

    def close(self) -> None:
        """Close the connection.

        Raises:
            ConcurrentWriteError: the file has changed.
        """
        super().close()
        with suppress(OSError):
            if _state(self.path.stat()) == _state(self.before):
                return
        raise ConcurrentWriteError(f"{self.path} was written while it was read: look again.")


def _state(facts: stat_result) -> tuple[int, int, int]:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def connect_reader(path: Path, wait: float = 5.0) -> sqlite3.Connection:
    """Return a read-only connection to a file that contains all of its rows.

    Without a writer SQLite creates no files, so the folder may be read-only.

    Views, virtual tables and generated columns are rejected: they are computed when read, which may
    never end.

    Args:
        path: of the file.
        wait: seconds to wait for a writer.

    Raises:
        sqlite3.Error: it cannot be read, or rows would be computed. Also later, for oversized
            values.
        ConcurrentWriteError: at closing, if a writer started meanwhile.
    """
    beside = _beside(path)
    target, kind = f"{path.absolute().as_uri()}?mode=ro", sqlite3.Connection
    unfinished = any(beside[suffix].st_size for suffix in ("-wal", "-journal") if suffix in beside)
    if "" in beside and not unfinished:
        target, kind = f"{target}&immutable=1", _Unwritten
    table = sqlite3.connect(target, wait, isolation_level=None, factory=kind, uri=True)
    if isinstance(table, _Unwritten):
        table.path, table.before = path, beside[""]
    try:
        table.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        computed = table.execute(_COMPUTED).fetchone()
        if computed is not None:
            raise sqlite3.DatabaseError(f"{computed[0]} is no table of rows but is computed")
    except BaseException:
        table.close()
        raise
    return table
