"""SQLite files that are only looked at: other processes write them, or strangers did."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from os import stat_result
from pathlib import Path

from slipstream.core.errors import ResourceError
from slipstream.core.reader import UnreadableError, regular_file

_BESIDE = ("", "-wal", "-shm", "-journal")  # files that SQLite opens itself
_MOST_BYTES = 1 << 26  # of a value: a damaged file may claim a gigabyte in a few pages
_COMPUTED = """
SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'
UNION SELECT one.name FROM sqlite_master AS one, pragma_table_xinfo(one.name) AS its
WHERE one.type = 'table' AND its.hidden > 0"""


class ChangedError(ResourceError):
    """Somebody began to write a file while it was read: what was read may be half of each."""


class _Unwritten(sqlite3.Connection):
    """To a file that nobody writes. It locks nobody out, so the file is compared at the end."""

    path: Path
    before: stat_result

    def close(self) -> None:
        """Closes it.

        Raises:
            ChangedError: the file is not as it was.
        """
        super().close()
        with suppress(OSError):
            if _state(self.path.stat()) == _state(self.before):
                return
        raise ChangedError(f"{self.path} was written while it was read: look again.")


def _state(facts: stat_result) -> tuple[int, int, int]:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def open_to_read(path: Path, wait: float = 5.0) -> sqlite3.Connection:
    """A connection that writes nothing, to a file all of whose rows are written down.

    Beside one that nobody writes SQLite makes no files: it may lie where this user may not write.

    A view, a virtual table or a generated column is computed when it is read, without end where
    its author wants it so.

    Args:
        path: of the file.
        wait: seconds for a writer that holds it.

    Raises:
        sqlite3.Error: it cannot be read, or some of its rows would be computed. Later, too: a value
            is too large.
        ChangedError: when it is closed, where a writer began meanwhile.
    """
    beside: dict[str, stat_result] = {}
    for suffix in _BESIDE:
        try:
            with suppress(FileNotFoundError):
                beside[suffix] = regular_file(path.with_name(path.name + suffix))
        except UnreadableError as error:
            raise sqlite3.OperationalError(f"{path.name}{suffix}: {error}") from error
    target, kind = f"{path.absolute().as_uri()}?mode=ro", sqlite3.Connection
    unfinished = any(beside[one].st_size for one in ("-wal", "-journal") if one in beside)
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
