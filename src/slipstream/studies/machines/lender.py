"""A machine that lends its cores to a study that another machine owns."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError, ResourceError, SlipstreamError
from slipstream.studies.engine.seats import Lost
from slipstream.studies.engine.state import LiveStates
from slipstream.studies.engine.stretch import SAVE_SECONDS, Task
from slipstream.studies.engine.worker import PATIENCE_SECONDS, Worker
from slipstream.studies.machines.desk import Assigned, GuestDesk, Posted
from slipstream.studies.machines.entry import Premises
from slipstream.studies.machines.postgres import Heart, Unreachable
from slipstream.studies.machines.wire import blamed, pack, pack_answer, unpack_tasks

_POLL_SECONDS = 1.0  # notifications come sooner
_RETRY_SECONDS = 2.0
_TOLD_SECONDS = 60.0


@dataclass(eq=False)
class _Seat:
    """A worker of this machine.

    Attributes:
        number: which.
        worker: its process; None before the first stretch.
        work: id of the stretch under way; empty where there is none.
        tasks: of that stretch.
        known: iterations that the owner has of each member.
        answer: parcel that is to be handed in.
        saved: seconds of the monotonic clock, when states were handed in.
    """

    number: int
    worker: Worker | None = None
    work: str = ""
    tasks: list[Task] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    answer: bytes | None = None
    saved: float = 0.0


class Lender:
    """Trains what an owner hands out, in local workers, until the owner goes.

    Args:
        url, study: see `Postgres`.
        session: of the owner.
        premises: what this machine has of the study.
        workers: processes.
        folder: for states; its content may be lost.
        wait: seconds that a server may be away.
        say: told in sentences.

    Attributes:
        done: milestones of members reached.
    """

    def __init__(
        self,
        url: str,
        study: str,
        session: str,
        premises: Premises,
        workers: int,
        folder: Path,
        wait: float,
        say: Callable[[str], None],
    ) -> None:
        self._url, self._study, self._session = url, study, session
        self._premises, self._live, self._wait, self._say = premises, LiveStates(folder), wait, say
        self._seats = [_Seat(number) for number in range(workers)]
        self._facts = pack({"host": platform.node(), "workers": workers})
        self._desk: GuestDesk | None = None
        self._machine = ""
        self._heart: Heart | None = None
        self._away_since: float | None = None
        self._told, self._told_at = 0, time.monotonic()
        self.done = 0

    def run(self, leave: Callable[[], bool]) -> Posted | None:
        """Works until the owner ends, rests or falls silent.

        Args:
            leave: asked often; True: what is under way is handed back, and this returns.

        Returns:
            What the owner last announced; None where the study has ended.

        Raises:
            ResourceError: the server was away for too long, or this machine lacks something.
            CheckpointError: what came is not work.
        """
        try:
            while True:
                try:
                    self._desk = self._desk or GuestDesk(self._url, self._study)
                    posted = self._desk.posted()
                    over = posted is None or posted.session != self._session or not posted.alive
                    if over or leave():
                        if not over:
                            self._hand_back(self._desk, "left")
                        return posted
                    self._round(self._desk)
                    self._away_since = None
                except Unreachable as error:
                    self._trouble(error)
                    if leave():
                        return None
                    time.sleep(_RETRY_SECONDS)
        except Exception as error:
            if self._desk is not None:  # others go on with what was done here
                with suppress(ResourceError):
                    self._hand_back(self._desk, f"had to give up ({type(error).__name__})")
            raise
        finally:
            self._end()

    def _round(self, desk: GuestDesk) -> None:
        """Everything that is to be done now, then a wait for more."""
        if not self._machine or not desk.known(self._machine):
            self._join(desk)
        assigned = {one.work: one for one in desk.assigned(self._machine)}
        for seat in self._seats:
            if seat.work and seat.work not in assigned:
                self._abandon(seat)
        held = {seat.work for seat in self._seats}
        for one in assigned.values():
            if one.work not in held and one.seat in range(len(self._seats)):
                self._begin(desk, self._seats[one.seat], one)
        for seat in self._seats:
            if seat.work and not assigned[seat.work].wanted and seat.answer is None:
                self._recall(seat)
            if seat.work and seat.answer is not None:
                self._hand_in(desk, seat)
            elif seat.work and time.monotonic() - seat.saved >= SAVE_SECONDS:
                desk.hand_in(seat.work, self._news(seat))
                seat.saved = time.monotonic()
        self._tell()
        pipes: dict[Any, _Seat] = {
            seat.worker.pipe: seat
            for seat in self._seats
            if seat.worker is not None and seat.work and seat.answer is None
        }
        for pipe in desk.wait(_POLL_SECONDS, list(pipes)):
            self._take(pipes[pipe])

    def _join(self, desk: GuestDesk) -> None:
        """Announces this machine, also after the owner has given it up."""
        for seat in self._seats:
            self._abandon(seat)
        if self._heart is not None:
            self._heart.stop()
        self._machine = uuid.uuid4().hex
        desk.join(self._machine, self._session, self._facts)
        self._heart = desk.heart(self._machine)
        self._heart.start()

    def _begin(self, desk: GuestDesk, seat: _Seat, assigned: Assigned) -> None:
        """Takes a stretch up."""
        request = desk.request(assigned.work)
        if not request:  # called back meanwhile
            return
        self._abandon(seat)
        tasks = unpack_tasks(request, self._premises.copies)
        names = {task.member.name for task in tasks}
        for name, content in desk.states(assigned.work, False):
            if name not in names or not self._live.put(name, content):
                raise CheckpointError(f"The state of {name} in the database is damaged.")
        for task in tasks:  # in this process, whose workers share what is loaded
            self._premises.source.environment(task.member.config)
        seat.work, seat.tasks, seat.answer = assigned.work, tasks, None
        seat.known = {task.member.name: self._live.iteration(task.member) for task in tasks}
        seat.saved = time.monotonic()
        while not self._worker(seat).send(tasks):
            self._lose(seat)

    def _worker(self, seat: _Seat) -> Worker:
        source, worker = self._premises.source, seat.worker
        if worker is not None and worker.generation < source.generation:
            worker.ask_to_leave()
            worker.end(PATIENCE_SECONDS)
            worker = None
        if worker is None:
            seat.worker = None
            worker = seat.worker = Worker(source, self._live)
        return worker

    def _lose(self, seat: _Seat) -> str:
        assert seat.worker is not None
        worker, seat.worker = seat.worker, None
        return worker.end(1.0)

    def _take(self, seat: _Seat) -> None:
        """The answer of a local worker; handed in by the next round."""
        assert seat.worker is not None
        answer = seat.worker.receive()
        if answer is None:
            seat.answer = pack_answer(Lost(self._lose(seat), "died"))
        elif isinstance(answer, list):
            seat.answer = pack_answer(answer)
            self.done += len(answer)
        elif isinstance(answer, SlipstreamError) and blamed(answer):
            seat.answer = pack_answer(answer)
        else:  # this machine's fault, or a defect: its owner's other workers shall not suffer
            raise answer

    def _recall(self, seat: _Seat) -> None:
        """The owner wants a stretch back, as far as it got."""
        self._stop(seat)
        seat.answer = pack_answer(Lost("gave back what it did", "left"))

    def _stop(self, seat: _Seat) -> None:
        if seat.worker is not None:
            seat.worker.ask_to_leave()
            seat.worker.end(PATIENCE_SECONDS)
            seat.worker = None

    def _news(self, seat: _Seat) -> list[tuple[str, bytes]]:
        """States that the owner has not seen."""
        found = []
        for task in seat.tasks:
            name, iteration = task.member.name, self._live.iteration(task.member)
            content = self._live.content(name) if iteration != seat.known[name] else None
            if content is not None:
                found.append((name, content))
                seat.known[name] = iteration
        return found

    def _hand_in(self, desk: GuestDesk, seat: _Seat) -> None:
        known = dict(seat.known)
        try:
            desk.hand_in(seat.work, self._news(seat), seat.answer)
        except Unreachable:
            seat.known = known
            raise
        self._clear(seat)

    def _hand_back(self, desk: GuestDesk, how: str) -> None:
        """All workers stop after their iteration; what they have is handed in."""
        busy = [seat for seat in self._seats if seat.work]
        for seat in busy:
            if seat.worker is not None:
                seat.worker.ask_to_leave()
        for seat in busy:
            self._stop(seat)
            if seat.answer is None:
                seat.answer = pack_answer(Lost(how, "left"))
            self._hand_in(desk, seat)
        if self._machine:
            desk.leave(self._machine)

    def _abandon(self, seat: _Seat) -> None:
        """Nobody waits for a stretch any more."""
        if seat.work and seat.worker is not None:
            seat.worker.end(0.0)
            seat.worker = None
        self._clear(seat)

    def _clear(self, seat: _Seat) -> None:
        for task in seat.tasks:
            self._live.drop(task.member.name)
        seat.work, seat.tasks, seat.known, seat.answer = "", [], {}, None

    def _trouble(self, error: Unreachable) -> None:
        """The server is away: workers train on, for a while."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._say(f"{error} This machine tries again for {self._wait / 60:g} minutes.")
        elif now - self._away_since > self._wait:
            raise ResourceError(f"{error} It has been away for {self._wait / 60:g} minutes.")

    def _tell(self) -> None:
        if self.done > self._told and time.monotonic() - self._told_at >= _TOLD_SECONDS:
            self._told, self._told_at = self.done, time.monotonic()
            busy = sum(bool(seat.work) for seat in self._seats)
            self._say(f"{self.done:,} milestones of members reached, {busy} workers busy.")

    def _end(self) -> None:
        for seat in self._seats:
            if seat.worker is not None:
                seat.worker.end(0.0)
                seat.worker = None
        if self._heart is not None:
            self._heart.stop()
        if self._desk is not None:
            self._desk.close()
