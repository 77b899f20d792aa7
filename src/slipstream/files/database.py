"""SQLite files that are only looked at: other processes write them, or strangers did."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from slipstream.core.reader import UnreadableError, regular_file

_BESIDE = ("", "-wal", "-shm", "-journal")  # files that SQLite opens itself
_MOST_BYTES = 1 << 26  # of a value: a damaged file may claim a gigabyte in a few pages
_COMPUTED = """
SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'
UNION SELECT one.name FROM sqlite_master AS one, pragma_table_xinfo(one.name) AS its
WHERE one.type = 'table' AND its.hidden > 0"""


def open_to_read(path: Path, wait: float = 5.0) -> sqlite3.Connection:
    """A connection that writes nothing, to a file all of whose rows are written down.

    A view, a virtual table or a generated column is computed when it is read, without end where
    its author wants it so.

    Args:
        path: of the file.
        wait: seconds for a writer that holds it.

    Raises:
        sqlite3.Error: it cannot be read, or some of its rows would be computed. Later, too: a value
            is too large.
    """
    for suffix in _BESIDE:
        try:
            with suppress(FileNotFoundError):
                regular_file(path.with_name(path.name + suffix))
        except UnreadableError as error:
            raise sqlite3.OperationalError(f"{path.name}{suffix}: {error}") from error
    target = f"{path.absolute().as_uri()}?mode=ro"
    table = sqlite3.connect(target, uri=True, timeout=wait, isolation_level=None)
    try:
        table.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        computed = table.execute(_COMPUTED).fetchone()
        if computed is not None:
            raise sqlite3.DatabaseError(f"{computed[0]} is no table of rows but is computed")
    except BaseException:
        table.close()
        raise
    return table
