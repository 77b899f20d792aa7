"""The two sides of the tables in which a study's owner and other machines exchange work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slipstream.studies.machines.postgres import Heart, Postgres

OWNER_SILENT, MACHINE_SILENT = 60.0, 30.0  # seconds without a beat, by the server's clock
HERE, LEFT = "here", "left"  # states of a machine
_LOCK_SECONDS = 5.0  # the server needs a moment to notice that an owner was killed


class Posted(NamedTuple):
    """A study as its owner has announced it.

    Attributes:
        session: of the owner; another one after every start.
        facts: a parcel, see `entry_facts`.
        running: whether the owner trains; False: it was stopped and may be resumed.
        silent: seconds since its last beat.
    """

    session: str
    facts: bytes
    running: bool
    silent: float

    @property
    def alive(self) -> bool:
        """Whether somebody hands out work."""
        return self.running and self.silent < OWNER_SILENT


class Guest(NamedTuple):
    """A machine as the owner sees it."""

    machine: str
    facts: bytes
    state: str
    silent: float


class Assigned(NamedTuple):
    """A stretch of work as a machine sees it; `wanted` is False where it is called back."""

    work: str
    seat: int
    wanted: bool


class OwnerDesk(Postgres):
    """The side of the process that asks and tells."""

    def take(self, session: str, facts: bytes) -> bool:
        """Makes this connection the study's only owner and announces it.

        Returns:
            False where another connection is.
        """
        self.make_tables()
        deadline = time.monotonic() + _LOCK_SECONDS
        while not self.rows("SELECT pg_try_advisory_lock(%s)", [self.key])[0][0]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        with self.transaction():
            self.execute(
                "INSERT INTO slipstream_studies VALUES (%s, %s, %s, TRUE, clock_timestamp()) "
                "ON CONFLICT (study) DO UPDATE SET session = EXCLUDED.session, "
                "facts = EXCLUDED.facts, running = TRUE, beat = EXCLUDED.beat",
                [self.study, session, facts],
            )
        return True

    def heart(self, session: str) -> Heart:
        """Not started yet."""
        statement = (
            "UPDATE slipstream_studies SET beat = clock_timestamp() "
            "WHERE study = %s AND session = %s"
        )
        return Heart(self.url, self.study, statement, [self.study, session])

    def guests(self, session: str) -> list[Guest]:
        """Machines that have joined this session."""
        rows = self.rows(
            "SELECT machine, facts, state, extract(epoch FROM clock_timestamp() - beat)::float8 "
            "FROM slipstream_workers WHERE study = %s AND session = %s ORDER BY machine",
            [self.study, session],
        )
        return [Guest(*row) for row in rows]

    def leftover(self) -> list[str]:
        """Work that is known of this study, oldest names first."""
        rows = self.rows("SELECT work FROM slipstream_work WHERE study = %s", [self.study])
        return sorted(work for (work,) in rows)

    def assign(
        self, work: str, machine: str, seat: int, request: bytes, states: Mapping[str, bytes]
    ) -> None:
        """Hands out a stretch; doing it twice does no more."""
        with self.transaction():
            added = self.execute(
                "INSERT INTO slipstream_work VALUES (%s, %s, %s, %s, %s, TRUE, NULL) "
                "ON CONFLICT DO NOTHING",
                [work, self.study, machine, seat, request],
            )
            if added:
                for name, content in states.items():
                    self.add_state(work, False, name, content)

    def call_back(self, work: str) -> None:
        """The machine shall give it back after its iteration."""
        with self.transaction():
            self.execute("UPDATE slipstream_work SET wanted = FALSE WHERE work = %s", [work])

    def answered(self) -> list[str]:
        """Work that has an answer."""
        rows = self.rows(
            "SELECT work FROM slipstream_work WHERE study = %s AND answer IS NOT NULL",
            [self.study],
        )
        return [work for (work,) in rows]

    def answer(self, work: str) -> bytes:
        """Of a stretch that has one."""
        found = self.rows("SELECT answer FROM slipstream_work WHERE work = %s", [work])
        return bytes(found[0][0]) if found else b""

    def forget(self, work: str) -> None:
        """Removes a stretch; whoever does it finds it gone."""
        with self.transaction():
            self.execute("DELETE FROM slipstream_work WHERE work = %s", [work])

    def dismiss(self, machine: str) -> None:
        """Removes a machine with all its work."""
        with self.transaction():
            self.execute("DELETE FROM slipstream_work WHERE machine = %s", [machine])
            self.execute("DELETE FROM slipstream_workers WHERE machine = %s", [machine])

    def clear(self) -> None:
        """Removes all machines and all work of the study."""
        with self.transaction():
            self._clear()

    def _clear(self) -> None:
        self.execute("DELETE FROM slipstream_work WHERE study = %s", [self.study])
        self.execute("DELETE FROM slipstream_workers WHERE study = %s", [self.study])

    def rest(self, ended: bool) -> None:
        """The owner goes: the study has ended, or may be resumed."""
        with self.transaction():
            if ended:  # the study first, which `join` looks for
                self.execute("DELETE FROM slipstream_studies WHERE study = %s", [self.study])
            else:
                self.execute(
                    "UPDATE slipstream_studies SET running = FALSE WHERE study = %s", [self.study]
                )
            self._clear()


class GuestDesk(Postgres):
    """The side of a machine that lends its cores."""

    def studies(self) -> list[str]:
        """Names of all studies that can be joined."""
        rows = self.rows("SELECT study FROM slipstream_studies ORDER BY study")
        return [name for (name,) in rows]

    def posted(self) -> Posted | None:
        """The study; None where it has not begun, or has ended."""
        rows = self.rows(
            "SELECT session, facts, running, "
            "extract(epoch FROM clock_timestamp() - beat)::float8 FROM slipstream_studies "
            "WHERE study = %s",
            [self.study],
        )
        return Posted(*rows[0]) if rows else None

    def join(self, machine: str, session: str, facts: bytes) -> None:
        """Announces this machine, unless the owner has gone meanwhile."""
        with self.transaction():
            running = self.rows(
                "SELECT 1 FROM slipstream_studies WHERE study = %s AND session = %s AND running "
                "FOR SHARE",
                [self.study, session],
            )
            if not running:
                return
            self.execute(
                "INSERT INTO slipstream_workers VALUES (%s, %s, %s, %s, %s, clock_timestamp()) "
                "ON CONFLICT DO NOTHING",
                [machine, self.study, session, facts, HERE],
            )

    def heart(self, machine: str) -> Heart:
        """Not started yet."""
        statement = "UPDATE slipstream_workers SET beat = clock_timestamp() WHERE machine = %s"
        return Heart(self.url, self.study, statement, [machine])

    def known(self, machine: str) -> bool:
        """Whether the owner still counts on this machine."""
        found = self.rows("SELECT 1 FROM slipstream_workers WHERE machine = %s", [machine])
        return bool(found)

    def assigned(self, machine: str) -> list[Assigned]:
        """Work of this machine that has no answer yet."""
        rows = self.rows(
            "SELECT work, seat, wanted FROM slipstream_work "
            "WHERE machine = %s AND answer IS NULL ORDER BY seat",
            [machine],
        )
        return [Assigned(*row) for row in rows]

    def request(self, work: str) -> bytes:
        """What is to be done; empty where the owner has thought better of it."""
        rows = self.rows("SELECT request FROM slipstream_work WHERE work = %s", [work])
        return bytes(rows[0][0]) if rows else b""

    def hand_in(
        self, work: str, states: Sequence[tuple[str, bytes]], answer: bytes | None = None
    ) -> None:
        """Saves states and perhaps the answer, all or nothing; nothing where nobody wants them."""
        with self.transaction():
            wanted = self.rows("SELECT 1 FROM slipstream_work WHERE work = %s FOR UPDATE", [work])
            if not wanted:
                return
            for name, content in states:
                self.add_state(work, True, name, content)
            if answer is not None:
                self.execute(
                    "UPDATE slipstream_work SET answer = %s WHERE work = %s", [answer, work]
                )

    def leave(self, machine: str) -> None:
        """This machine does no more; what it has handed in goes on elsewhere."""
        with self.transaction():
            self.execute(
                "UPDATE slipstream_workers SET state = %s WHERE machine = %s", [LEFT, machine]
            )
