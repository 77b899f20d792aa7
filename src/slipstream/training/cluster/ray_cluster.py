"""Owner's side of a Ray cluster: exchanges messages with the process that runs Ray.

The owner continues if that process ends.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from numpy.typing import NDArray

from slipstream.core import errors
from slipstream.core.child_process import TERMINATE_SECONDS, describe_exit, worker_start_error
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.extras import install_command
from slipstream.training.cluster import cluster

_PROGRAM = "slipstream.training.cluster.ray_process"
_CONNECT_SECONDS = 5.0  # timeout of a connection to the head
_JOIN_SECONDS = 120.0  # timeout of Ray's connection, with a busy head
_START_SECONDS = 60.0  # timeout of the first actor
_RISK = "anyone who can reach its ports can run any code on its machines"


def connect(
    options: cluster.ClusterOptions, work: cluster.ClusterWork, log: Callable[[str], None]
) -> RayCluster:
    """Connect to the cluster of the options.

    Raises:
        ResourceError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ResourceError(
            f"--cluster {options.address} needs Ray, which is not installed. Install it on "
            f"every machine of the cluster: {install_command('ray')}"
        )
    return RayCluster(options, work, log)


@dataclass(eq=False)
class _Node:
    """A machine and its statistics; see `RayCluster.status`.

    Attributes:
        bytes: bytes of requests, answers and updates.
    """

    name: str
    answers: int = 0
    losses: int = 0
    bytes: int = 0


class RayActor:
    """A process of a node that handles one request at a time, until it is lost.

    Args:
        node_stats: its node and statistics.
        send_to_driver: calls a method of the driver, with the actor's number and arguments.

    Attributes:
        pipe: readable when `receive` has a message.
    """

    def __init__(self, node_stats: _Node, send_to_driver: Callable[..., bool]) -> None:
        self.node_stats, self._call_driver = node_stats, send_to_driver
        self.pipe, self._message_pipe = Pipe(duplex=False)
        self._inbox: SimpleQueue[bytes | cluster.Lost] = SimpleQueue()
        self.busy = self.released = False

    @property
    def node(self) -> str:
        """Name of the machine."""
        return self.node_stats.name

    def send(self, request: bytes, shared: Sequence[cluster.Shared] = ()) -> bool:
        """Send a request and its arrays; return False if the actor is lost."""
        if self.released or not self._call_driver(
            "work", request, [item.digest for item in shared]
        ):
            return False
        self.busy = True
        self.node_stats.bytes += len(request)
        return True

    def receive(self) -> bytes | cluster.Lost:
        """Return a message of its service, an update or the answer; `Lost` if the actor is lost."""
        self.pipe.recv_bytes()
        return self._inbox.get()

    def request_stop(self) -> None:
        """Request an early answer of its service."""
        if self.busy and not self.released:
            self._call_driver("leave")

    def end(self) -> None:
        """Release the actor, whatever its state."""
        if not self.released:
            self.released = True
            self._call_driver("detach")

    def put(self, message: bytes | cluster.Lost, final: bool) -> None:
        """Add a message for `receive`; `final` marks the last one of a request."""
        self.busy = self.busy and not final
        if isinstance(message, cluster.Lost):
            self.released = True
            self.node_stats.losses += 1
        else:
            self.node_stats.answers += final
            self.node_stats.bytes += len(message)
        self._inbox.put(message)
        with suppress(OSError):  # no reader is left
            self._message_pipe.send_bytes(b".")


class RayCluster:
    """Cluster whose machines come and go; a context that leaves nothing running at its end.

    A thread reads the driver's messages. Each is the name of a method below, without `_on_`, and
    its arguments.

    Args:
        options, work, log: see `connect`.

    Attributes:
        arrival_pipe: readable when `arrivals` has new actors.

    Raises (on entering):
        ConfigError: another process owns the work, or the cluster accepts everyone.
        ResourceError: there is no such cluster, or it is incompatible.
    """

    def __init__(
        self, options: cluster.ClusterOptions, work: cluster.ClusterWork, log: Callable[[str], None]
    ) -> None:
        self._options, self._work, self._log = options, work, log
        self.arrival_pipe, self._arrival_end = Pipe(duplex=False)
        self._nodes: dict[str, _Node] = {}
        self._actors: dict[int, RayActor] = {}  # started actors by number
        self._failures: dict[int, str] = {}  # errors of actors that did not start
        self._tries = 0  # attempts in total
        self._shared: dict[str, cluster.Shared] = {}
        self._replies: SimpleQueue[str] = SimpleQueue()
        self._new: SimpleQueue[RayActor] = SimpleQueue()
        self._sentences: SimpleQueue[str] = SimpleQueue()
        self._logged: set[str] = set()  # messages that are logged once
        self._target, self._capacity = 0, "an unknown number of cores"
        self._last = time.monotonic()  # last time with an actor
        self._lock = threading.Lock()  # guards the pipe
        self._gone, self._why = False, ""

    def __enter__(self) -> RayCluster:
        self._process, self._pipe = self._driver()
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._listen, name="slipstream cluster", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call_driver("close")
        _end(self._process, TERMINATE_SECONDS)
        self._thread.join()
        self._pipe.close()

    def _driver(self) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start a driver process that Ray accepts.

        A cluster that accepts a driver without a token accepts everyone, which is an error.
        """
        address = self._options.address
        if address == "local":
            return self._start_driver("token")
        _check_address(address)
        try:
            driver = self._start_driver("disabled")
        except ConfigError:
            raise
        except ResourceError:
            return self._start_driver("token")
        if not self._options.insecure:
            _end(driver[0], 0.0)
            raise ConfigError(
                f"The cluster at {address} requires no token: {_RISK}. Start it with "
                "RAY_AUTH_MODE=token (docs/guides/clusters.md), or give --insecure-cluster if no "
                "one "
                "else can reach it."
            )
        self._log(f"The cluster at {address} requires no token: {_RISK} (--insecure-cluster).")
        return driver

    def _start_driver(self, mode: str) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start a driver with or without a token.

        Raises:
            ConfigError, ResourceError: it is not accepted.
        """
        owner_end, driver_end = multiprocessing.Pipe()
        environment = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_BACKEND_LOG_LEVEL": "error",
            **os.environ,
            "RAY_AUTH_MODE": mode,
        }
        number = str(driver_end.fileno())
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, number, str(os.getpid())],
                env=environment,
                pass_fds=[driver_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise worker_start_error(error, "close other programs") from error
        driver_end.close()
        answer: tuple[str, ...] = ()
        try:
            with suppress(EOFError, OSError):
                owner_end.send((self._options, self._work))
                if not owner_end.poll(_JOIN_SECONDS):
                    silent = TimeoutError(f"no answer within {_JOIN_SECONDS:.0f} s")
                    raise cluster.connection_error(self._options.address, silent)
                answer = owner_end.recv()
            if not answer:
                how = describe_exit(process.wait(TERMINATE_SECONDS))
                raise cluster.connection_error(
                    self._options.address, OSError(f"Ray's process {how}")
                )
            if answer[0] == "refused":
                raise getattr(errors, answer[1])(answer[2])
        except BaseException:
            _end(process, 0.0)
            owner_end.close()
            raise
        return process, owner_end

    def new_actors(self) -> list[RayActor]:
        """Return new actors since the last call, including restarted ones.

        Raises:
            ResourceError: no actor can be started, or the cluster is lost.
        """
        while self.arrival_pipe.poll():
            self.arrival_pipe.recv_bytes()
        for sentence in _all(self._sentences):
            self._log(sentence)
        if self._gone:
            raise self._lost()
        actors, waited = _all(self._new), time.monotonic() - self._last
        if self._actors or actors:
            self._last = time.monotonic()
            return actors
        late, failures = waited > _START_SECONDS, list(self._failures.values())
        if failures and (late or len(failures) >= self._target):
            raise ResourceError(
                f"No worker started in the cluster after {self._tries} attempts in {waited:.0f} s: "
                f"{failures[-1]}"
            )
        if late:
            raise ResourceError(
                f"The cluster has had no room for a worker for {waited:.0f} s: it has "
                f"{self._capacity}, which are in use or unavailable. Start a node (`ray start "
                "--address=...`), or remove --cluster."
            )
        return actors

    def _lost(self) -> ResourceError:
        _end(self._process, TERMINATE_SECONDS)
        why = self._why or f"the process connected to it {describe_exit(self._process.returncode)}"
        return ResourceError(
            f"The cluster at {self._options.address} was lost: its head died, or this machine was "
            f"cut off from it ({why}). Continue with `slipstream resume`, with or without a "
            "cluster."
        )

    def share(self, arrays: Sequence[NDArray[Any]]) -> cluster.Shared:
        """Store arrays in the cluster, equal ones once.

        Raises:
            ResourceError: there is no room for them.
        """
        shared = cluster.Shared.of(arrays)
        if shared.digest not in self._shared:
            self._call_driver("share", shared.digest, list(arrays))
            why = self._replies.get()
            if self._gone:
                raise self._lost()
            if why:
                raise ResourceError(why)
            self._shared[shared.digest] = shared
        return self._shared[shared.digest]

    def status(self) -> list[dict[str, Any]]:
        """Return statistics of each node: `node`, `slots`, `busy`, `answers`, `losses`, `bytes`."""
        nodes, actors = [], list(self._actors.values())
        for node in list(self._nodes.values()):
            actors = [actor for actor in actors if actor.node_stats is node]
            load = {"slots": len(actors), "busy": sum(actor.busy for actor in actors)}
            counts = {"answers": node.answers, "losses": node.losses, "bytes": node.bytes}
            nodes.append({"node": node.name, **load, **counts})
        return nodes

    def _call_driver(self, name: str, *arguments: Any) -> bool:
        """Call a method of the driver; return False if it has ended."""
        with self._lock, suppress(OSError):
            self._pipe.send((name, *arguments))
            return not self._gone
        return False

    def _listen(self) -> None:
        """Dispatch the driver's messages until it ends; runs in a thread."""
        with suppress(EOFError, OSError):
            while True:
                name, *arguments = self._pipe.recv()
                getattr(self, f"_on_{name}")(*arguments)
        self._gone = True
        self._replies.put("")
        self._wake()

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            self._sentences.put(sentence)

    def _wake(self) -> None:
        with suppress(OSError):
            self._arrival_end.send_bytes(b".")

    def _on_arrived(self, number: int, identity: str, host: str, notes: Sequence[str]) -> None:
        """Handle an actor that started or restarted."""
        if identity not in self._nodes:
            known = {node.name for node in self._nodes.values()}
            self._nodes[identity] = _Node(f"{host}-{identity[:6]}" if host in known else host)

        def send_to_driver(name: str, *arguments: Any) -> bool:
            if name == "detach":
                self._actors.pop(number, None)
            return self._call_driver(name, number, *arguments)

        actor = self._actors[number] = RayActor(self._nodes[identity], send_to_driver)
        self._failures.pop(number, None)
        for note in notes:
            self._log_once(f"Note: {note}")
        self._new.put(actor)
        self._wake()

    def _on_failed(self, number: int, host: str, why: str, refused: bool) -> None:
        """Handle an actor that did not start; a refused one is not retried."""
        self._failures[number] = why if refused else f"on {host}: {why}"
        self._tries += 1
        if refused:
            self._log_once(f"{host} is not used. {why}")
        else:
            self._log_once(f"No worker starts on {host} ({why}); retrying every minute.")
        self._wake()

    def _on_message(self, number: int, content: bytes, final: bool) -> None:
        actor = self._actors.get(number)
        if actor is not None:
            actor.put(content, final)

    def _on_lost(self, number: int, how: str, cause: str) -> None:
        actor = self._actors.pop(number, None)
        if actor is not None:
            actor.put(cluster.Lost(f"on {actor.node} {how}", cause), True)

    def _on_died(self, why: str) -> None:
        self._why = why

    def _on_capacity(self, wanted: int, size: str) -> None:
        self._target, self._capacity = wanted, size

    def _on_shared(self, why: str) -> None:
        self._replies.put(why)


def _check_address(address: str) -> None:
    """Raise if no process listens on an address: Ray would retry for a long time."""
    host, _, port = address.rpartition(":")
    if host:
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:  # the latter: no such port
            raise cluster.connection_error(address, error) from error


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait for the process to end; kill it after `patience` seconds."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _all(items_queue: SimpleQueue[Any]) -> list[Any]:
    items = []
    with suppress(Empty):
        while True:
            items.append(items_queue.get_nowait())
    return items
