"""The owner's end of the line to other machines: a thread between the pool and PostgreSQL."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

from slipstream.core.errors import CheckpointError, ConfigError, ResourceError
from slipstream.studies.engine.seats import Lost
from slipstream.studies.engine.state import LiveStates, fingerprint
from slipstream.studies.machines.desk import LEFT, MACHINE_SILENT, Guest, OwnerDesk
from slipstream.studies.machines.entry import Entry
from slipstream.studies.machines.machine import Machine, MachineFile
from slipstream.studies.machines.postgres import Heart, Unreachable
from slipstream.studies.machines.remote_worker import RemoteWorker
from slipstream.studies.machines.wire import pack_tasks, unpack, unpack_answer
from slipstream.studies.record.rows import Slot
from slipstream.studies.record.storage import shown

_POLL_SECONDS = 1.0  # notifications come sooner
_RETRY_SECONDS = 2.0
_END_SECONDS = 30.0

Item = TypeVar("Item")


class _Order(NamedTuple):
    """What the pool asks of the thread: to hand a stretch over, or to call it back."""

    worker: RemoteWorker
    give: bool


class Relay:
    """Announces a study, welcomes machines, and carries stretches there and answers back.

    Use it in a `with` statement around the pool's. Whatever happens to the server or to a machine
    costs the study no more than the time since the last saved states.

    Args:
        url: as `storage_url` completes it.
        name: of the study.
        folder: of the study.
        entry: what a machine must have to join.
        say: told in sentences, by the thread that uses the pool.

    Attributes:
        bell: readable when there is news for `arrivals`.

    Raises (on entering):
        ConfigError: another process, perhaps elsewhere, owns the study.
        ResourceError: the server does not answer, or refuses.
    """

    def __init__(
        self, url: str, name: str, folder: Path, entry: Entry, say: Callable[[str], None]
    ) -> None:
        self._url, self._name, self._entry, self._tell = url, name, entry, say
        self._live, self._file = LiveStates(folder / "live"), MachineFile(folder)
        self._session = uuid.uuid4().hex
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._undone: list[_Order] = []
        self._machines: dict[str, Machine] = {}
        self._arrived: queue.SimpleQueue[RemoteWorker] = queue.SimpleQueue()
        self._sentences: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.bell, self._ring = multiprocessing.Pipe(duplex=False)
        self._ear, self._shout = multiprocessing.Pipe(duplex=False)
        self._desk: OwnerDesk | None = None
        self._away_since: float | None = None  # the server
        self._trusted_from = 0.0  # silence before does not count
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slipstream relay", daemon=True)
        self._heart: Heart | None = None

    def __enter__(self) -> Relay:
        desk = OwnerDesk(self._url, self._name)
        try:
            if not desk.take(self._session, self._entry.parcel()):
                raise ConfigError(
                    f"Another process, perhaps on another machine, runs the study {self._name} in "
                    f"{shown(self._url)}. Lend it this machine's cores with `slipstream study work "
                    f"{self._name} --storage ...`, or stop it there first. If its machine was "
                    "switched off, try again in a minute."
                )
            self._rescue(desk)
        except BaseException:
            desk.close()
            raise
        self._desk, self._heart = desk, desk.heart(self._session)
        self._heart.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._wake()
        self._thread.join(_END_SECONDS)
        if self._heart is not None:
            self._heart.stop()
        if self._desk is not None and not self._thread.is_alive():
            with suppress(ResourceError):  # machines find the owner silent
                self._desk.rest(ended=kind is None)
            self._desk.close()
        self._file.remove()
        for sentence in _all(self._sentences):
            self._tell(sentence)

    def arrivals(self) -> list[RemoteWorker]:
        """Workers that have joined since the last call; what else is new is said."""
        while self.bell.poll():
            self.bell.recv_bytes()
        for sentence in _all(self._sentences):
            self._tell(sentence)
        return _all(self._arrived)

    def _hand_over(self, worker: RemoteWorker) -> None:
        self._orders.put(_Order(worker, True))
        self._wake()

    def _call_back(self, worker: RemoteWorker) -> None:
        self._orders.put(_Order(worker, False))
        self._wake()

    def _wake(self) -> None:
        self._shout.send_bytes(b".")

    def _say(self, sentence: str) -> None:
        self._sentences.put(sentence)
        self._ring.send_bytes(b".")

    def _rescue(self, desk: OwnerDesk) -> None:
        """What machines saved for an owner that died, and then nothing of it."""
        for work in desk.leftover():
            for name, content in desk.states(work, True):
                with suppress(ValueError):
                    if Slot.parse(name).name == name:
                        self._live.put(name, content)
        desk.clear()

    def _run(self) -> None:
        """The thread: until stopped, whatever the server does."""
        while not self._stopped.is_set():
            try:
                if self._desk is None:
                    self._desk = self._reconnect()
                self._round(self._desk)
            except ResourceError as error:
                self._trouble(error)
                self._stopped.wait(_RETRY_SECONDS)
            except Exception as error:  # a defect here must not end a study that can go on alone
                self._say(f"Other machines are no longer used: {type(error).__name__}: {error}")
                self._lose_all("is no longer used")
                while not self._stopped.wait(_RETRY_SECONDS):
                    self._refuse_orders()
        self._refuse_orders()

    def _round(self, desk: OwnerDesk) -> None:
        """Everything that is to be done now, then a wait for more."""
        self._undone += _all(self._orders)
        while self._undone:
            self._follow(desk, self._undone[0])
            del self._undone[0]
        self._look_around(desk)
        for work in desk.answered():
            self._fetch(desk, work)
        if self._away_since is not None:
            self._say(f"{shown(self._url)} answers again.")
            self._away_since = None
        self._file.write(self._machines.values())
        if desk.wait(_POLL_SECONDS, [self._ear]):
            while self._ear.poll():
                self._ear.recv_bytes()

    def _follow(self, desk: OwnerDesk, order: _Order) -> None:
        worker = order.worker
        if not order.give:
            if worker.work:
                desk.call_back(worker.work)
        elif worker.gone:
            if worker.tasks:
                worker.deliver(Lost("is gone", "silent"))
        else:
            worker.work = worker.work or uuid.uuid4().hex
            states = {}
            for task in worker.tasks:
                content = self._live.content(task.member.name)
                if content is not None and self._live.iteration(task.member) > 0:
                    states[task.member.name] = content
            desk.assign(worker.work, worker.machine, worker.seat, pack_tasks(worker.tasks), states)

    def _look_around(self, desk: OwnerDesk) -> None:
        """Who has come, who has left, who is silent."""
        guests = {guest.machine: guest for guest in desk.guests(self._session)}
        for machine in [one for one in self._machines.values() if one.id not in guests]:
            self._part(desk, machine, "is no longer in the database", "silent")
        trusted = time.monotonic() >= self._trusted_from
        for guest in guests.values():
            known = self._machines.get(guest.machine)
            if guest.state == LEFT:
                if known is not None:
                    self._part(desk, known, "left", "left")
                else:
                    desk.dismiss(guest.machine)
            elif guest.silent > MACHINE_SILENT and trusted:
                if known is not None:
                    how = f"has been silent for {guest.silent:.0f} s"
                    self._part(desk, known, how, "silent")
                else:
                    desk.dismiss(guest.machine)
            elif known is None:
                self._welcome(desk, guest)

    def _welcome(self, desk: OwnerDesk, guest: Guest) -> None:
        try:
            facts, _ = unpack(guest.facts)
            host, cores = str(facts["host"]), int(facts["workers"])
            if not 1 <= cores <= 4096:
                raise ValueError(f"{cores} workers")
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            desk.dismiss(guest.machine)
            self._say(f"A machine could not join: {error}")
            return
        workers = [
            RemoteWorker(guest.machine, host, seat, self._hand_over, self._call_back)
            for seat in range(cores)
        ]
        self._machines[guest.machine] = Machine(guest.machine, host, workers)
        for worker in workers:
            self._arrived.put(worker)
        self._say(f"{host} lends {cores} {'worker' if cores == 1 else 'workers'}.")

    def _part(self, desk: OwnerDesk, machine: Machine, how: str, cause: str) -> None:
        """A machine goes; what it has saved is taken over first."""
        with suppress(CheckpointError):  # then they go on from what is here
            for worker in machine.workers:
                if worker.work:
                    self._take_states(desk, worker)
        desk.dismiss(machine.id)
        self._lose(machine, how, cause)
        self._say(f"{machine.host} {how}; the study goes on without it.")

    def _lose(self, machine: Machine, how: str, cause: str) -> None:
        for worker in machine.workers:
            worker.gone = True
            if worker.work:
                worker.deliver(Lost(f"on {machine.host} {how}", cause))
        self._machines.pop(machine.id, None)
        self._ring.send_bytes(b".")

    def _lose_all(self, how: str) -> None:
        for machine in list(self._machines.values()):
            self._lose(machine, how, "silent")
        self._refuse_orders()

    def _refuse_orders(self) -> None:
        self._undone += _all(self._orders)
        for order in self._undone:
            if order.give and order.worker.tasks:
                order.worker.gone = True
                order.worker.deliver(Lost("is gone", "silent"))
        self._undone.clear()

    def _fetch(self, desk: OwnerDesk, work: str) -> None:
        """Takes an answer with its states; a machine that sends anything else is dismissed."""
        machine, worker = next(
            (
                (machine, worker)
                for machine in self._machines.values()
                for worker in machine.workers
                if worker.work == work
            ),
            (None, None),
        )
        if machine is None or worker is None:
            desk.forget(work)
            return
        try:
            self._take_states(desk, worker)
            answer = unpack_answer(desk.answer(work), worker.tasks)
        except CheckpointError as error:
            self._say(f"{machine.host} is not trusted any more. {error}")
            desk.dismiss(machine.id)
            self._lose(machine, "sent something else than an answer", "silent")
            return
        desk.forget(work)
        if isinstance(answer, Lost):
            answer = Lost(f"on {machine.host} {answer.how}", answer.cause)
        elif isinstance(answer, list):
            machine.done(answer)
        worker.deliver(answer)

    def _take_states(self, desk: OwnerDesk, worker: RemoteWorker) -> None:
        own = {task.member.name: fingerprint(task.member) for task in worker.tasks}
        for name, content in desk.states(worker.work, True):
            if name not in own or not self._live.put(name, content, own[name]):
                raise CheckpointError(
                    f"A state of {name} in the database is damaged, or of another member."
                )

    def _trouble(self, error: ResourceError) -> None:
        """The server is away: machines are given up once they would be silent."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._say(
                f"{error} The study goes on; after "
                f"{MACHINE_SILENT:.0f} s it counts on no other machine until the server is back."
            )
        if now - self._away_since > MACHINE_SILENT:
            self._lose_all("cannot be reached")

    def _reconnect(self) -> OwnerDesk:
        desk = OwnerDesk(self._url, self._name)
        try:
            if not desk.take(self._session, self._entry.parcel()):
                raise Unreachable(f"{shown(self._url)} still holds the lock of a lost connection.")
        except BaseException:
            desk.close()
            raise
        self._trusted_from = time.monotonic() + MACHINE_SILENT
        return desk


def _all(found: queue.SimpleQueue[Item]) -> list[Item]:
    items = []
    with suppress(queue.Empty):
        while True:
            items.append(found.get_nowait())
    return items
