"""A connection to the PostgreSQL server through which machines of one study meet."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any

import psycopg
from psycopg import conninfo

from slipstream.core.errors import ResourceError
from slipstream.studies.record.storage import shown

HEARTBEAT_SECONDS = 5.0
_PATIENCE_SECONDS = 10
# A cable that was pulled must not leave either side waiting for hours: seconds, seconds, times.
_KEEPALIVE = {"idle": 10, "interval": 5, "count": 3}
_CHUNK = 16 * 2**20  # bytes of a row; the server's limit is 1 GB

# Rows that are lost with a crash of the server cost what was trained since the last save, so only
# the studies are logged: a missing one means that its study has ended.
_TABLES = """
CREATE TABLE IF NOT EXISTS slipstream_studies (
    study TEXT PRIMARY KEY, session TEXT NOT NULL, facts BYTEA NOT NULL,
    running BOOLEAN NOT NULL, beat TIMESTAMPTZ NOT NULL);
CREATE UNLOGGED TABLE IF NOT EXISTS slipstream_workers (
    machine TEXT PRIMARY KEY, study TEXT NOT NULL, session TEXT NOT NULL, facts BYTEA NOT NULL,
    state TEXT NOT NULL, beat TIMESTAMPTZ NOT NULL);
CREATE UNLOGGED TABLE IF NOT EXISTS slipstream_work (
    work TEXT PRIMARY KEY, study TEXT NOT NULL, machine TEXT NOT NULL, seat INTEGER NOT NULL,
    request BYTEA NOT NULL, wanted BOOLEAN NOT NULL, answer BYTEA);
CREATE UNLOGGED TABLE IF NOT EXISTS slipstream_states (
    work TEXT NOT NULL REFERENCES slipstream_work ON DELETE CASCADE, back BOOLEAN NOT NULL,
    name TEXT NOT NULL, part INTEGER NOT NULL, content BYTEA NOT NULL,
    PRIMARY KEY (work, back, name, part));
ALTER TABLE slipstream_states ALTER content SET STORAGE EXTERNAL;
"""


class Unreachable(ResourceError):  # noqa: N818 - a state of the server
    """The server does not answer; it may do so later."""


class Postgres:
    """One connection, in autocommit mode; it listens for a study.

    Args:
        url: as `storage_url` completes it.
        study: its name.

    Raises:
        Unreachable: the server does not answer.
        ResourceError: it refuses.
    """

    def __init__(self, url: str, study: str) -> None:
        self.url, self.study = url, study
        self._woken = False
        with self.errors():
            self._db = psycopg.connect(_address(url), autocommit=True)
            try:
                for name, value in _KEEPALIVE.items():
                    self._db.execute(f"SET tcp_keepalives_{name} = {value}")
                self._db.add_notify_handler(self._wake)
                self._db.execute(f"LISTEN {self._channel}")
            except BaseException:
                self._db.close()
                raise

    @property
    def key(self) -> int:
        """Of the study, for the server's advisory locks."""
        digest = hashlib.sha256(f"slipstream/{self.study}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def make_tables(self) -> None:
        """Makes what is missing, one session at a time."""
        if self.rows("SELECT 1 WHERE to_regclass('slipstream_states') IS NOT NULL"):
            return
        with self.transaction():
            self.rows("SELECT pg_advisory_xact_lock(%s)", [7_150_712])
            self.execute(_TABLES)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; the other side is woken once it is done."""
        with self.errors(), self._db.transaction():
            yield
            self._db.execute(f"NOTIFY {self._channel}")

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds; `bytes` come and go in binary."""
        with self.errors():
            # An encoded statement: none of them is built of anything but this module's constants.
            return self._db.execute(statement.encode(), values, binary=True).fetchall()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Number of rows that a statement changed."""
        with self.errors():
            return self._db.execute(statement.encode(), values or None).rowcount

    def add_state(self, work: str, back: bool, name: str, content: bytes) -> None:
        """Writes a member's state in rows that the server can take, in place of an older one."""
        place = [work, back, name]
        self.execute(
            "DELETE FROM slipstream_states WHERE work = %s AND back = %s AND name = %s", place
        )
        for part, at in enumerate(range(0, len(content), _CHUNK)):
            self.execute(
                "INSERT INTO slipstream_states VALUES (%s, %s, %s, %s, %s)",
                [*place, part, content[at : at + _CHUNK]],
            )

    def states(self, work: str, back: bool) -> Iterator[tuple[str, bytes]]:
        """Names and contents of a stretch's states, one after the other."""
        names = self.rows(
            "SELECT DISTINCT name FROM slipstream_states WHERE work = %s AND back = %s",
            [work, back],
        )
        for (name,) in names:
            parts = self.rows(
                "SELECT content FROM slipstream_states WHERE work = %s AND back = %s AND name = %s "
                "ORDER BY part",
                [work, back, name],
            )
            yield name, b"".join(part for (part,) in parts)

    def wait(self, seconds: float, others: Sequence[Pipe] = ()) -> list[Any]:
        """Waits until the other side or one of `others` has something; which of `others` have."""
        with self.errors():
            self._db.pgconn.consume_input()
            # Some may have come with the last answer: the socket would not tell of them any more.
            if self._woken or self._db.pgconn.notifies() is not None:
                seconds = 0.0
            ready = wait([self._db.fileno(), *others], seconds)
        self._woken = False  # the query that follows sees everything that was told by now
        return [one for one in ready if not isinstance(one, int)]

    def close(self) -> None:
        """Lets go of the connection and of its locks."""
        with suppress(psycopg.Error):
            self._db.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Unreachable(
                f"{shown(self.url)} does not answer ({_line(error)}). Check its address, its "
                "permissions and that its server runs; nothing is lost."
            ) from error
        except psycopg.Error as error:
            raise ResourceError(
                f"{shown(self.url)} refuses what several machines need ({_line(error)}): its user "
                "must be allowed to make tables and to write them."
            ) from error

    @property
    def _channel(self) -> str:
        return f"slipstream_{self.key & (2**64 - 1):016x}"

    def _wake(self, _: psycopg.Notify) -> None:
        self._woken = True


class Heart(threading.Thread):
    """Beats for this process by the server's clock, whatever its other threads are busy with.

    Args:
        url, study: see `Postgres`.
        statement, values: what a beat does.
    """

    def __init__(self, url: str, study: str, statement: str, values: Sequence[Any]) -> None:
        super().__init__(name="slipstream heartbeat", daemon=True)
        self._place, self._beat = (url, study), (statement, values)
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        server: Postgres | None = None
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            try:
                server = server or Postgres(*self._place)
                server.execute(*self._beat)
            except ResourceError:  # those who wait for the beat decide what that means
                if server is not None:
                    server.close()
                server = None
        if server is not None:
            server.close()

    def stop(self) -> None:
        """Ends it."""
        self._stopped.set()
        self.join(2 * _PATIENCE_SECONDS)


def _address(url: str) -> str:
    """What libpq connects to: the URL without Optuna's driver, and not waiting forever."""
    scheme, _, rest = url.partition("://")
    given = conninfo.conninfo_to_dict(f"{scheme.partition('+')[0]}://{rest}")
    usual: dict[str, Any] = {f"keepalives_{name}": value for name, value in _KEEPALIVE.items()}
    usual |= {"connect_timeout": _PATIENCE_SECONDS, "tcp_user_timeout": 30_000}
    return conninfo.make_conninfo("", **{**usual, "application_name": "slipstream", **given})


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)
