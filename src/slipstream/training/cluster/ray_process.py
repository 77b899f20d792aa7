"""Ray in a child process of its owner: Ray may end this process, and the owner reports it.

`RayCluster` runs this program and talks to it over a pipe; nothing else imports Ray. Ray places the
actors, restarts them if their processes or nodes die, and transfers data. Ray never repeats
interrupted work: the owner sends it again.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayError, RayTaskError

from slipstream.core.capacity import usable_cores
from slipstream.core.child_process import follow_parent, ignore_stop_signals
from slipstream.core.errors import ConfigError, ResourceError, SlipstreamError
from slipstream.core.extras import install_command
from slipstream.training.cluster.cluster import (
    BEAT_SECONDS,
    SILENT_SECONDS,
    ClusterOptions,
    ClusterWork,
    connection_error,
    first_line,
    store_full_error,
)

_VERSIONS = ((2, 52), (2, 61))  # minimum with tokens, and first untested version
_NAMESPACE = "slipstream"
_TICK_SECONDS = 1.0  # interval of checks for free resources
_NODE_SECONDS = 20.0  # time that Ray needs to detect a lost node
_REST_SECONDS = 60.0  # delay before an actor without a service is restarted
# Arguments of `Lost`.
_DIED, _WENT = ("died (out of memory?)", "died"), ("went away with its node", "silent")
_OWNER_SECONDS = 10.0  # time that Ray needs to detect a killed owner


class Process:
    """An actor: a service, created when its process starts, and one thread that works for it.

    Ray sends this class by value, because it is defined in a program. So a node without slipstream
    can
    report that.

    Args:
        service: ``module:Class`` of a `NodeService`.
        needs, arrays: its arguments.
    """

    def __init__(self, service: str, needs: bytes, arrays: Sequence[NDArray[Any]]) -> None:
        self._thread = ThreadPoolExecutor(1)
        module, _, name = service.partition(":")
        notes: Sequence[str] = ()
        why, refused = "", False
        try:
            make = getattr(importlib.import_module(module), name)
            self._service = self._thread.submit(make, needs, arrays).result()
            notes = self._service.notes
        except Exception as error:
            refused = "SlipstreamError" in {kind.__name__ for kind in type(error).__mro__}
            why = str(error) if refused else f"{type(error).__name__}: {error}"
        place = (ray.get_runtime_context().get_node_id(), platform.node())
        self._hello = (*place, why, refused, notes)

    def hello(self) -> tuple[str, str, str, bool, Sequence[str]]:
        """Return node id and name, error without a service ("" with one), whether it is final,
        notes.
        """
        return self._hello

    def answer(
        self, request: bytes, *arrays: Sequence[NDArray[Any]]
    ) -> Iterator[tuple[bool, bytes]]:
        """Yield updates during work, then the answer; each with a flag for the last one."""
        answer = self._thread.submit(self._service.answer, request, arrays)
        while not wait_for([answer], BEAT_SECONDS).done:
            yield False, self._service.updates()
        yield True, answer.result()

    def leave(self) -> None:
        """See `NodeService`."""
        self._service.leave()


class _Holder:
    """Reserves an owner's name during its lifetime."""

    def where(self) -> str:
        """Return its machine."""
        return platform.node()


class _Seat:
    """A slot for an actor, and the thread that requests it from Ray and forwards requests.

    Attributes:
        tasks: requests with the references of their arrays; None stops it.
        handle: Ray's handle of its actor.
        refused: its node is incompatible; the actor stays, so that no other one is placed there.
    """

    def __init__(self, number: int, driver: _Driver) -> None:
        self._number, self._driver = number, driver
        self.tasks: SimpleQueue[tuple[bytes, Sequence[Any]] | None] = SimpleQueue()
        self.handle: Any = None
        self.refused = self.over = False
        threading.Thread(target=self._sit, daemon=True).start()

    def detach(self) -> None:
        """Terminate its actor, whatever its state."""
        self.over = True
        self.tasks.put(None)
        with suppress(Exception):
            ray.kill(self.handle)

    def _sit(self) -> None:
        while not self.over:
            self.handle = self._driver.actor()
            try:
                while not self.over and self._take_part():
                    pass
            except Exception as error:  # no actor can be created
                self._tell("failed", "a node", first_line(error), False)
                time.sleep(_REST_SECONDS)
            with suppress(Exception):
                ray.kill(self.handle)

    def _take_part(self) -> bool:
        """Use its actor until it is lost; return whether Ray restarts it, or a new one is
        required.
        """
        self._node, host, why, self.refused, notes = ray.get(self._hello())
        if not why:
            self._tell("arrived", self._node, host, notes)
            return self._work()
        self._tell("failed", host, why, self.refused)
        time.sleep(_REST_SECONDS)
        return self.refused  # it may restart elsewhere if its node is lost

    def _work(self) -> bool:
        """Forward requests until the actor is lost or released; see `_take_part`."""
        while (sent := self.tasks.get()) is not None:
            try:
                how = self._answer(*sent)
            except (
                RayTaskError
            ) as error:  # raised by its service: a problem of this node, or a defect
                how = (f"failed: {first_line(error)}", "died")
            except (RayError, StopIteration):
                ray.wait([self._hello()], timeout=_NODE_SECONDS)
                alive = self._node in self._driver.rooms()
                self._tell("lost", *(_DIED if alive else _WENT))
                return True
            if how is not None:
                self._tell("lost", *how)
                return False
        return False

    def _answer(self, request: bytes, arrays: Sequence[Any]) -> tuple[str, str] | None:
        """Forward all messages of a request to the owner; return the reason if the actor is
        lost.
        """
        said = self.handle.answer.options(num_returns="streaming").remote(request, *arrays)
        final = False
        while not final:
            if not ray.wait([said], timeout=SILENT_SECONDS)[0]:
                return f"has not answered for {SILENT_SECONDS:.0f} s", "silent"
            final, content = ray.get(next(said))
            if content or final:
                self._tell("said", content, final)
        return None

    def _hello(self) -> Any:
        """Return the actor's hello once it has started or restarted."""
        return self.handle.hello.options(max_task_retries=-1).remote()

    def _tell(self, name: str, *facts: Any) -> None:
        if not self.over:
            self._driver.tell(name, self._number, *facts)


class _Driver:
    """Methods called by the owner; each message is a method's name and its arguments."""

    def __init__(self, pipe: Connection, options: ClusterOptions, work: ClusterWork) -> None:
        self._pipe, self._options, self._work = pipe, options, work
        self._lock = threading.Lock()  # guards the pipe
        self._shared: dict[str, Any] = {}
        self._seats: dict[int, _Seat] = {}
        self._begun = 0
        self._holder = _own(work.owner)
        try:
            self._first = ray.put(list(work.arrays))
        except RayError as error:
            raise ResourceError(store_full_error(work.arrays, first_line(error))) from error

    def serve(self) -> None:
        """Process the owner's messages and keep actors in all free slots, until the owner ends."""
        looked = -_TICK_SECONDS
        while True:
            if time.monotonic() - looked >= _TICK_SECONDS:
                self._fill()
                looked = time.monotonic()
            if self._pipe.poll(_TICK_SECONDS):
                name, *arguments = self._pipe.recv()
                if name == "close":
                    break
                getattr(self, name)(*arguments)
        for seat in self._seats.values():
            seat.detach()
        with suppress(Exception):
            ray.kill(self._holder)
        ray.shutdown()

    def tell(self, name: str, *facts: Any) -> None:
        """Call a method of the owner by name."""
        with self._lock, suppress(OSError):  # the owner has ended, and so will this process
            self._pipe.send((name, *facts))

    def share(self, digest: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Store arrays in the object store."""
        why = ""
        try:
            self._shared[digest] = ray.put(list(arrays))
        except RayError as error:
            why = store_full_error(arrays, first_line(error))
        self.tell("shared", why)

    def work(self, number: int, request: bytes, digests: Sequence[str]) -> None:
        """Send a request to an actor."""
        self._seats[number].tasks.put((request, [self._shared[one] for one in digests]))

    def leave(self, number: int) -> None:
        """Request an early answer of an actor."""
        with suppress(Exception):
            self._seats[number].handle.leave.remote()

    def detach(self, number: int) -> None:
        """Terminate an actor; another one takes its slot."""
        if number in self._seats:
            self._seats.pop(number).detach()

    def actor(self) -> Any:
        """Create an actor, which waits for free resources."""
        gpus = self._options.gpu_share if self._work.gpu else 0
        made = ray.remote(Process).options(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=2,  # the second thread handles `leave`
            scheduling_strategy="SPREAD",
        )
        return made.remote(self._work.service, self._work.needs, self._first)

    def rooms(self) -> dict[str, int]:
        """Return the actors that fit on each live node, used or not: one per core or GPU share."""
        found = {}
        for facts in ray.nodes():
            if facts["Alive"]:
                room = facts["Resources"].get("CPU", 0.0)
                if self._work.gpu:
                    room = min(room, facts["Resources"].get("GPU", 0.0) / self._options.gpu_share)
                found[facts["NodeID"]] = int(room + 1e-9)
        return found

    def _fill(self) -> None:
        """Start as many actors as fit; they wait while others use the resources."""
        rooms = self.rooms()
        wanted = sum(rooms.values())
        if self._options.max_workers is not None:
            refused = sum(seat.refused for seat in self._seats.values())
            wanted = min(wanted, self._options.max_workers + refused)
        while len(self._seats) < wanted:
            self._seats[self._begun] = _Seat(self._begun, self)
            self._begun += 1
        total = ray.cluster_resources()
        cores, cards = (total.get(kind, 0.0) for kind in ("CPU", "GPU"))
        self.tell("room", wanted, f"{cores:g} cores and {cards:g} GPUs (nodes: {len(rooms)})")


def _join(options: ClusterOptions, work: ClusterWork) -> None:
    """Connect this process to the cluster as a driver."""
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if not _VERSIONS[0] <= version < _VERSIONS[1]:
        raise ResourceError(
            f"Ray {ray.__version__} is installed, but slipstream requires 2.52 to 2.60. "
            f"Install it on every machine of the cluster: {install_command('ray')}"
        )
    more: dict[str, Any] = {}
    if options.address == "local":
        more = {"num_cpus": usable_cores(), "include_dashboard": False}
    try:
        ray.init(
            options.address,
            namespace=_NAMESPACE,
            runtime_env=None if work.files is None else {"working_dir": str(work.files)},
            log_to_driver=False,
            logging_level=logging.ERROR,
            **more,
        )
    except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
        raise connection_error(options.address, error) from error


def _own(name: str) -> Any:
    """Reserve this owner's name; return the actor that holds it.

    Raises:
        ConfigError: another process has it.
    """
    made = ray.remote(_Holder).options(name=name, num_cpus=0, max_restarts=-1)
    deadline = time.monotonic() + _OWNER_SECONDS
    while True:
        try:
            return made.remote()
        except ValueError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Another process of this cluster works on {name}. Stop it there first."
                ) from error
            time.sleep(0.5)


def main() -> None:
    """Run the process; its arguments are a file descriptor and its owner's process id."""
    pipe = Connection(int(sys.argv[1]))
    follow_parent(int(sys.argv[2]))
    options, work = pipe.recv()
    driver = None
    try:
        _join(options, work)
        ignore_stop_signals()  # Ray changed them: signals to the process group are for the owner
        driver = _Driver(pipe, options, work)
        pipe.send(("joined",))
        driver.serve()
    except EOFError:
        pass  # the owner has ended
    except Exception as error:
        kind = type(error).__name__ if isinstance(error, SlipstreamError) else "ResourceError"
        with suppress(OSError):
            pipe.send(("died", first_line(error)) if driver else ("refused", kind, str(error)))
    os._exit(0)  # threads may wait for Ray forever


if __name__ == "__main__":
    main()
