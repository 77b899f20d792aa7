"""Journal: every decision of an account, one row a pass and bar, kept before anything follows.

SQLite in WAL mode with ``synchronous=FULL``: what `add` has returned from survives a power cut.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream.core.errors import ResourceError
from slipstream.files.files import disk_errors, sync_folder

_SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
    pass TEXT NOT NULL,
    time INTEGER NOT NULL,
    bars TEXT NOT NULL,
    action TEXT NOT NULL,
    wanted TEXT NOT NULL,
    equity REAL NOT NULL,
    decided REAL NOT NULL,
    PRIMARY KEY (pass, time)
);
CREATE TABLE IF NOT EXISTS remarks (time REAL NOT NULL, text TEXT NOT NULL UNIQUE);
"""
_COLUMNS = "pass, time, bars, action, wanted, equity, decided"


class Decision(NamedTuple):
    """One row.

    Attributes:
        name: of the pass: a symbol, or all that a portfolio holds.
        time: UTC seconds at which the bar opened that was decided on.
        bars: hash of all bars up to it.
        action: what the environment received.
        wanted: units held after the next fill, as the rules say for a flat bar at the next open;
            empty where later bars were known already.
        equity: at the bar's close, account currency.
        decided: the feed's clock, UTC seconds.
    """

    name: str
    time: int
    bars: str
    action: tuple[float, ...]
    wanted: tuple[float, ...]
    equity: float
    decided: float


class Journal:
    """The table of an account's folder.

    Args:
        path: its file.
        read_only: for another process, while the account is led.

    Raises:
        ResourceError: it cannot be written, or is damaged.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        if read_only:
            with self._errors():
                self._table = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            return
        with self._errors():
            self._table = sqlite3.connect(path, isolation_level=None)
            self._table.execute("PRAGMA journal_mode=WAL")
            self._table.execute("PRAGMA synchronous=FULL")
            self._table.executescript(_SCHEMA)
        sync_folder(path.parent)

    def add(self, rows: Sequence[Decision]) -> None:
        """Keeps decisions, all or none of them."""
        values = [
            (*row[:3], json.dumps(row.action), json.dumps(row.wanted), *row[5:]) for row in rows
        ]
        with self._errors():
            self._table.execute("BEGIN IMMEDIATE")
            try:
                self._table.executemany(
                    f"INSERT INTO decisions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", values
                )
            except BaseException:
                self._table.execute("ROLLBACK")
                raise
            self._table.execute("COMMIT")

    def rows(self, name: str) -> list[Decision]:
        """All decisions of a pass, oldest first."""
        with self._errors():
            found = self._table.execute(
                f"SELECT {_COLUMNS} FROM decisions WHERE pass = ? ORDER BY time", (name,)
            ).fetchall()
        return [
            Decision(name, time, bars, tuple(json.loads(action)), tuple(json.loads(units)), *more)
            for name, time, bars, action, units, *more in found
        ]

    def names(self) -> list[str]:
        """The passes that have decisions."""
        with self._errors():
            found = self._table.execute("SELECT DISTINCT pass FROM decisions").fetchall()
        return sorted(name for (name,) in found)

    def remark(self, moment: float, text: str) -> bool:
        """Keeps a sentence; whether it is a new one."""
        with self._errors():
            made = self._table.execute(
                "INSERT OR IGNORE INTO remarks VALUES (?, ?)", (moment, text)
            )
            return made.rowcount > 0

    def remarks(self) -> list[tuple[float, str]]:
        """All sentences with their times."""
        with self._errors():
            return self._table.execute("SELECT time, text FROM remarks ORDER BY time").fetchall()

    def close(self) -> None:
        """Closes it."""
        self._table.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with disk_errors(self.path):
                yield
        except sqlite3.Error as error:
            raise ResourceError(
                f"{self.path} could not be read or written ({error}). What was decided before is "
                "intact: free the disk or mend its permissions, and begin again."
            ) from error
