"""Ray's side of a cluster: actors on every node that has room, watched by one thread.

This file and `ray_actor.py` alone import Ray. What is to be done there, a `ClusterWork` says.
"""

from __future__ import annotations

import logging
import os
import platform
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.process import STOP_SIGNALS
from slipstream.training.processes.cluster import ClusterOptions, ClusterWork, Shared
from slipstream.training.processes.cluster_access import first_line, lets_in_everybody, unreachable
from slipstream.training.processes.ray_actor import TRIES, Node, Process, RayActor
from slipstream.training.processes.wire import digest_of, unpack

_VERSIONS = ((2, 52), (2, 61))  # before the first there are no tokens; below the second: tested
_NAMESPACE = "slipstream"
_TICK_SECONDS, _FIRST_SECONDS = 1.0, 0.2  # between two looks; before the first actor has come
_ROOM_SECONDS = 60.0  # for the first actor
_OWNER_SECONDS = 10.0  # Ray needs a moment to notice that an owner was killed


class _Owner:
    """Holds a name as long as its owner lives."""

    def where(self) -> str:
        """The owner's machine."""
        return platform.node()


class RayCluster:
    """See `slipstream.training.processes.cluster.Cluster`; use it in a `with` statement.

    Args:
        options, work, say: see `connect`.

    Raises (on entering):
        ConfigError: another process owns the work, or a cluster that lets in everybody.
        ResourceError: no such cluster, or it does not fit.
    """

    def __init__(
        self, options: ClusterOptions, work: ClusterWork, say: Callable[[str], None]
    ) -> None:
        self._options, self._work, self._tell = options, work, say
        self.bell, self._ring = Pipe(duplex=False)
        self._nodes: dict[str, Node] = {}
        self._open: list[Node] = []  # have room, and are not refused
        self._arrived: queue.SimpleQueue[RayActor] = queue.SimpleQueue()
        self._sentences: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._shared: dict[str, Shared] = {}
        self._failures: list[str] = []  # since the last actor that came up
        self._closed, self._began, self._came = threading.Event(), time.monotonic(), False
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._watch, name="slipstream cluster", daemon=True)
        self._owner: Any = None

    def __enter__(self) -> RayCluster:
        _join(self._options, self._work, self._tell)
        try:
            self._owner = _own(self._work.owner)
            self._first = self.share(self._work.arrays)
        except BaseException:
            ray.shutdown()
            raise
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        for actor in self._actors():
            actor.end()
        with suppress(Exception):
            ray.kill(self._owner)
        ray.shutdown()

    def arrivals(self) -> list[RayActor]:
        """See `Cluster`."""
        while self.bell.poll():
            self.bell.recv_bytes()
        for sentence in _all(self._sentences):
            self._tell(sentence)
        if self._came:
            self._began = time.monotonic()
        waited = time.monotonic() - self._began
        failures, late = len(self._failures), waited > _ROOM_SECONDS
        if not self._came and failures and (late or self._hopeless()):
            raise ResourceError(
                f"No worker came up in the cluster, tried {failures} times in {waited:.0f} s: "
                f"{self._failures[-1]}"
            )
        if late and not self._came:
            raise ResourceError(
                f"The cluster has had no room for a worker for {waited:.0f} s: it has "
                f"{_total('CPU')} cores and {_total('GPU')} cards (nodes: {len(self._nodes)}), and "
                "others use them, or it offers none. Start a node (`ray start --address=...`), or "
                "leave --cluster out."
            )
        return _all(self._arrived)

    def _hopeless(self) -> bool:
        """Whether every node is refused, or was tried often; others may only be slower."""
        known = self._open or [node for node in list(self._nodes.values()) if node.refused]
        return bool(known) and all(one.refused or one.failures >= TRIES for one in known)

    def share(self, arrays: Sequence[NDArray[Any]]) -> Shared:
        """See `Cluster`; equal arrays are handed over once."""
        digest = digest_of(arrays)
        if digest not in self._shared:
            try:
                handle = ray.put(list(arrays))
            except RayError as error:
                size = sum(array.nbytes for array in arrays)
                raise ResourceError(
                    f"Ray's object store has no room for {size / 2**20:,.0f} MiB of arrays "
                    f"({first_line(error)}): start its nodes with a larger --object-store-memory."
                ) from error
            self._shared[digest] = Shared.of(arrays, handle)
        return self._shared[digest]

    def standing(self) -> list[dict[str, Any]]:
        """See `Cluster`."""
        found = []
        for node in list(self._nodes.values()):
            there = [actor for actor in list(node.actors) if actor.came]
            facts = {"seats": len(there), "busy": sum(actor.busy for actor in there)}
            if there or node.answers or node.losses:
                done = {"answers": node.answers, "losses": node.losses, "bytes": node.bytes}
                found.append({"node": node.name, **facts, **done})
        return found

    def _actors(self) -> list[RayActor]:
        with self._lock:
            return [actor for node in self._nodes.values() for actor in node.actors]

    def _watch(self) -> None:
        """The thread: sees nodes come, actors come up, and who says nothing any more."""
        while not self._closed.wait(_TICK_SECONDS if self._came else _FIRST_SECONDS):
            try:
                self._place()
                for actor in self._actors():
                    if actor.came:
                        actor.look()
                    else:
                        self._welcome(actor)
            except Exception as error:  # its head is away; work that is lost says so itself
                self._failures.append(first_line(error))
            if self._failures or not self._came:
                self._ring.send_bytes(b".")

    def _place(self) -> None:
        """An actor for each core, or share of a card, that is there; few of them on all nodes."""
        room: dict[str, int] = {}
        for facts in ray.nodes():
            node = self._known(facts)
            if facts["Alive"] and not node.refused:
                room[node.id] = self._room(facts["Resources"])
            for actor in list(node.actors):
                if not facts["Alive"]:  # who is busy says so itself
                    actor.end_idle()
        self._open = [self._nodes[one] for one in room if room[one]]
        most = self._options.max_workers or sum(room.values())
        able = [node for node in self._open if node.rests <= time.monotonic()]
        while len(self._actors()) < most:
            left = [node for node in able if len(node.actors) < room[node.id]]
            if not left:
                return
            self._start(min(left, key=lambda node: len(node.actors)))

    def _room(self, resources: Mapping[str, float]) -> int:
        """Actors that fit into what a node has: a core each, and a share of a card."""
        room = resources.get("CPU", 0.0)
        if self._work.gpu:
            room = min(room, resources.get("GPU", 0.0) / self._options.gpu_share)
        return int(room + 1e-9)

    def _known(self, facts: dict[str, Any]) -> Node:
        identity, name = facts["NodeID"], facts["NodeManagerHostname"]
        if identity not in self._nodes:
            if any(other.name == name for other in self._nodes.values()):
                name = f"{name}-{identity[:6]}"
            self._nodes[identity] = Node(name, identity)
        return self._nodes[identity]

    def _start(self, node: Node) -> None:
        handle = (
            ray.remote(Process)
            .options(
                num_cpus=1,
                num_gpus=self._options.gpu_share if self._work.gpu else 0,
                max_concurrency=2,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote()
        )
        ready = handle.begin.remote(self._work.service, self._work.needs, self._first.handle)
        with self._lock:
            node.actors.append(RayActor(handle, node, ready, self._forget))

    def _forget(self, actor: RayActor) -> None:
        with self._lock, suppress(ValueError):
            actor.place.actors.remove(actor)
        self._came = any(one.came for one in self._actors())

    def _welcome(self, actor: RayActor) -> None:
        """One that may have come up."""
        if not ray.wait([actor.ready], timeout=0)[0]:
            return
        node = actor.place
        try:
            said = unpack(ray.get(actor.ready))
            why = said.get("refused")
        except Exception as error:
            said, why = {}, first_line(error)
        if why is not None:
            self._failures.append(why if said else f"on {node.name}: {why}")
            if told := node.fail(why, refused=bool(said)):
                self._say(told)
            actor.end()
            return
        node.failures, node.rests = 0, 0.0
        for note in said["notes"]:
            if not any(other.came for other in node.actors):
                self._say(f"Note: {note}")
        actor.came = self._came = True
        self._failures.clear()
        self._arrived.put(actor)
        self._ring.send_bytes(b".")

    def _say(self, sentence: str) -> None:
        self._sentences.put(sentence)


def _join(options: ClusterOptions, work: ClusterWork, say: Callable[[str], None]) -> None:
    """Makes this process a driver of the cluster."""
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if not _VERSIONS[0] <= version < _VERSIONS[1]:
        raise ResourceError(
            f"Ray {ray.__version__} is installed, and slipstream works with 2.52 to 2.60: pip "
            "install 'slipstream[ray]' on every machine of the cluster."
        )
    if ray.is_initialized():
        raise ConfigError(
            "This process is connected to Ray already: call ray.shutdown() first, --cluster "
            "connects by itself."
        )
    own = options.address == "local"
    token = own or not lets_in_everybody(options, say)
    environment = {"working_dir": str(work.files)} if work.files is not None else None
    more: dict[str, Any] = {"num_cpus": usable_cores(), "include_dashboard": False} if own else {}
    with suppress(AttributeError):  # pages of a lost node's state; what happened we say ourselves
        ray._private.worker.print_to_stdstream = lambda *message, **how: None
    with _handlers_kept(), _silence():
        os.environ["RAY_AUTH_MODE"] = "token" if token else "disabled"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # what matters is raised, too
        ray._raylet.Config.initialize("")  # the mode was read when Ray was imported
        try:
            ray.init(
                options.address,
                namespace=_NAMESPACE,
                runtime_env=environment,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **more,
            )
        except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
            raise unreachable(options.address, error) from error


def _own(name: str) -> Any:
    """The actor that has this owner's name.

    Raises:
        ConfigError: another process has it.
    """
    made = ray.remote(_Owner).options(name=name, num_cpus=0, max_restarts=0)
    deadline = time.monotonic() + _OWNER_SECONDS
    while True:
        try:
            return made.remote()
        except ValueError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Another process of this cluster works on {name}: stop it there first."
                ) from error
            time.sleep(0.5)


@contextmanager
def _silence() -> Iterator[None]:
    """Drops what Ray's compiled parts write past Python's streams; what matters is raised, too."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray sets handlers of its own; whoever waits for a signal here keeps his."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _total(kind: str) -> str:
    with suppress(Exception):
        return f"{ray.cluster_resources().get(kind, 0.0):g}"
    return "an unknown number of"


def _all(found: queue.SimpleQueue[Any]) -> list[Any]:
    items = []
    with suppress(queue.Empty):
        while True:
            items.append(found.get_nowait())
    return items
