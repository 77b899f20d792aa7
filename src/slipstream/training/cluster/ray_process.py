"""Ray in a child process of its owner: Ray may end this process, and the owner reports it.

`RayCluster` runs this program and is connected to it by a pipe. Nothing else imports Ray. Ray
places the actors, restarts them if their processes or nodes die, and transfers data. Ray never
repeats interrupted work: the owner sends it again.
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
_POLL_SECONDS = 1.0  # interval of checks for free resources
_NODE_SECONDS = 20.0  # time that Ray needs to detect a lost node
_RETRY_SECONDS = 60.0  # delay before an actor without a service is restarted
# Arguments of `Lost`.
_DIED, _NODE_LOST = ("died (out of memory?)", "died"), ("went away with its node", "silent")
_OWNER_SECONDS = 10.0  # time that Ray needs to detect a killed owner


class Process:
    """An actor: a service, created when its process starts, and one thread that works for it.

    Ray sends this class by value, because it is defined in a program. A node without slipstream can
    therefore report that slipstream is missing.

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
        """Return node id, node name, error ("" with a service), whether it is final, and notes."""
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


class _NameHolder:
    """Reserves an owner's name during its lifetime."""

    def where(self) -> str:
        """Return its machine."""
        return platform.node()


class _Slot:
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
        self.refused = self.released = False
        threading.Thread(target=self._run, daemon=True).start()

    def detach(self) -> None:
        """Terminate its actor, whatever its state."""
        self.released = True
        self.tasks.put(None)
        with suppress(Exception):
            ray.kill(self.handle)

    def _run(self) -> None:
        while not self.released:
            self.handle = self._driver.actor()
            try:
                while not self.released and self._use_actor():
                    pass
            except Exception as error:  # no actor can be created
                self._send("failed", "a node", first_line(error), False)
                time.sleep(_RETRY_SECONDS)
            with suppress(Exception):
                ray.kill(self.handle)

    def _use_actor(self) -> bool:
        """Use its actor until it is lost; return True if Ray restarts it, False for a new one."""
        self._node, host, why, self.refused, notes = ray.get(self._hello())
        if not why:
            self._send("arrived", self._node, host, notes)
            return self._work()
        self._send("failed", host, why, self.refused)
        time.sleep(_RETRY_SECONDS)
        return self.refused  # it may restart elsewhere if its node is lost

    def _work(self) -> bool:
        """Forward requests until the actor is lost or released; see `_take_part`."""
        while (request := self.tasks.get()) is not None:
            try:
                how = self._answer(*request)
            except RayTaskError as error:  # raised by its service: this node's problem, or a defect
                how = (f"failed: {first_line(error)}", "died")
            except (RayError, StopIteration):
                ray.wait([self._hello()], timeout=_NODE_SECONDS)
                alive = self._node in self._driver.capacity()
                self._send("lost", *(_DIED if alive else _NODE_LOST))
                return True
            if how is not None:
                self._send("lost", *how)
                return False
        return False

    def _answer(self, request: bytes, arrays: Sequence[Any]) -> tuple[str, str] | None:
        """Forward all messages of a request to the owner; return the reason of a loss, or None."""
        messages = self.handle.answer.options(num_returns="streaming").remote(request, *arrays)
        final = False
        while not final:
            if not ray.wait([messages], timeout=SILENT_SECONDS)[0]:
                return f"has not answered for {SILENT_SECONDS:.0f} s", "silent"
            final, content = ray.get(next(messages))
            if content or final:
                self._send("message", content, final)
        return None

    def _hello(self) -> Any:
        """Return the actor's hello once it has started or restarted."""
        return self.handle.hello.options(max_task_retries=-1).remote()

    def _send(self, name: str, *arguments: Any) -> None:
        if not self.released:
            self._driver.send(name, self._number, *arguments)


class _Driver:
    """Methods called by the owner; each message is a method's name and its arguments."""

    def __init__(self, pipe: Connection, options: ClusterOptions, work: ClusterWork) -> None:
        self._pipe, self._options, self._work = pipe, options, work
        self._lock = threading.Lock()  # guards the pipe
        self._shared: dict[str, Any] = {}
        self._slots: dict[int, _Slot] = {}
        self._started = 0
        self._holder = _reserve_name(work.owner)
        try:
            self._first = ray.put(list(work.arrays))
        except RayError as error:
            raise ResourceError(store_full_error(work.arrays, first_line(error))) from error

    def serve(self) -> None:
        """Process the owner's messages and keep actors in all free slots, until the owner ends."""
        last_fill = -_POLL_SECONDS
        while True:
            if time.monotonic() - last_fill >= _POLL_SECONDS:
                self._fill()
                last_fill = time.monotonic()
            if self._pipe.poll(_POLL_SECONDS):
                name, *arguments = self._pipe.recv()
                if name == "close":
                    break
                getattr(self, name)(*arguments)
        for slot in self._slots.values():
            slot.detach()
        with suppress(Exception):
            ray.kill(self._holder)
        ray.shutdown()

    def send(self, name: str, *arguments: Any) -> None:
        """Call a method of the owner by name."""
        with self._lock, suppress(OSError):  # the owner has ended, and so will this process
            self._pipe.send((name, *arguments))

    def share(self, digest: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Store arrays in the object store."""
        why = ""
        try:
            self._shared[digest] = ray.put(list(arrays))
        except RayError as error:
            why = store_full_error(arrays, first_line(error))
        self.send("shared", why)

    def work(self, number: int, request: bytes, digests: Sequence[str]) -> None:
        """Send a request to an actor."""
        self._slots[number].tasks.put((request, [self._shared[digest] for digest in digests]))

    def leave(self, number: int) -> None:
        """Request an early answer of an actor."""
        with suppress(Exception):
            self._slots[number].handle.leave.remote()

    def detach(self, number: int) -> None:
        """Terminate an actor; another one takes its slot."""
        if number in self._slots:
            self._slots.pop(number).detach()

    def actor(self) -> Any:
        """Create an actor, which waits for free resources."""
        gpus = self._options.gpu_share if self._work.gpu else 0
        actor_class = ray.remote(Process).options(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=2,  # the second thread handles `leave`
            scheduling_strategy="SPREAD",
        )
        return actor_class.remote(self._work.service, self._work.needs, self._first)

    def capacity(self) -> dict[str, int]:
        """Return the actors that fit on each live node, used or not: one per core or GPU share."""
        capacity = {}
        for node in ray.nodes():
            if node["Alive"]:
                slots = node["Resources"].get("CPU", 0.0)
                if self._work.gpu:
                    slots = min(slots, node["Resources"].get("GPU", 0.0) / self._options.gpu_share)
                capacity[node["NodeID"]] = int(slots + 1e-9)
        return capacity

    def _fill(self) -> None:
        """Start as many actors as fit; they wait while others use the resources."""
        capacity = self.capacity()
        num_slots = sum(capacity.values())
        if self._options.max_workers is not None:
            refused = sum(slot.refused for slot in self._slots.values())
            num_slots = min(num_slots, self._options.max_workers + refused)
        while len(self._slots) < num_slots:
            self._slots[self._started] = _Slot(self._started, self)
            self._started += 1
        total = ray.cluster_resources()
        cpus, gpus = (total.get(kind, 0.0) for kind in ("CPU", "GPU"))
        self.send(
            "capacity", num_slots, f"{cpus:g} cores and {gpus:g} GPUs (nodes: {len(capacity)})"
        )


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


def _reserve_name(name: str) -> Any:
    """Reserve this owner's name; return the actor that holds it.

    Raises:
        ConfigError: another process has it.
    """
    holder_class = ray.remote(_NameHolder).options(name=name, num_cpus=0, max_restarts=-1)
    deadline = time.monotonic() + _OWNER_SECONDS
    while True:
        try:
            return holder_class.remote()
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
