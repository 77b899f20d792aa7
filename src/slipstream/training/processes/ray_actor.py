"""One actor of Ray, seen from both sides: it does work on a node, and hands over what it saved."""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from slipstream.core.errors import SlipstreamError
from slipstream.training.processes.cluster import BEAT_SECONDS, Lost, Shared
from slipstream.training.processes.cluster_access import first_line
from slipstream.training.processes.wire import pack

TRIES = 3  # of a node's actors in a row that do not come up
_SILENT_SECONDS = 60.0  # since its last word, a question for news being open
_IDLE_SECONDS = 30.0  # until one that has nothing to do is asked whether it is there
_REST_SECONDS = 60.0  # of a node after so many tries


class Process:
    """An actor: a service, and a second thread that is asked for news."""

    def begin(self, service: str, needs: bytes, arrays: Sequence[NDArray[Any]]) -> bytes:
        """Makes the service, or says why this node cannot."""
        module, _, name = service.partition(":")
        try:
            self._service = getattr(importlib.import_module(module), name)(needs, arrays)
        except SlipstreamError as error:
            return pack({"refused": str(error)})
        return pack({"notes": self._service.notes})

    def answer(self, request: bytes, *arrays: Sequence[NDArray[Any]]) -> Any:
        """See `Service`."""
        return self._service.answer(request, arrays)

    def news(self) -> Any:
        """See `Service`."""
        return self._service.news()

    def leave(self) -> None:
        """See `Service`."""
        self._service.leave()


@dataclass(eq=False)
class Node:
    """A machine, and what was done there; see `Cluster.standing`.

    Attributes:
        refused: it lacks something, and is not used.
        failures: actors in a row that did not come up; rests: until when no other one is begun.
        bytes: of requests, answers and news.
    """

    name: str
    id: str
    actors: list[RayActor] = field(default_factory=list)
    refused: bool = False
    failures: int = 0
    rests: float = 0.0
    answers: int = 0
    losses: int = 0
    bytes: int = 0

    def fail(self, why: str, refused: bool) -> str:
        """An actor did not come up; what the user should hear of it, which is said once."""
        self.failures += 1
        if refused:
            known, self.refused = self.refused, True
            return "" if known else f"{self.name} is not used. {why}"
        if self.failures < TRIES:
            return ""
        self.rests = time.monotonic() + _REST_SECONDS
        told = f"No worker comes up on {self.name} ({why}); it is tried again every minute."
        return told if self.failures == TRIES else ""


class RayActor:
    """An actor as its owner sees it; see `slipstream.training.processes.cluster.RemoteActor`.

    Args:
        handle: Ray's.
        place: its node.
        ready: Ray's reference to what `begin` says.
        gone: told once, when it was lost or let go.
    """

    def __init__(
        self, handle: Any, place: Node, ready: Any, gone: Callable[[RayActor], None]
    ) -> None:
        self.handle, self.place, self.ready, self._gone = handle, place, ready, gone
        self.pipe, self._bell = Pipe(duplex=False)
        self._inbox: queue.SimpleQueue[Future[Any] | bytes | Lost] = queue.SimpleQueue()
        self._question: Any = None  # for news, while it is open
        self._heard = time.monotonic()  # its last word, or when it was given work
        self._lock = threading.Lock()  # of the next two together: nobody ends who is given work
        self.came = self.busy = self.over = False

    @property
    def node(self) -> str:
        """The machine's name."""
        return self.place.name

    def send(self, request: bytes, shared: Sequence[Shared] = ()) -> bool:
        """See `RemoteActor`."""
        with self._lock:
            if self.over:
                return False
            self.busy, self._heard = True, time.monotonic()
        try:
            answer = self.handle.answer.remote(request, *[one.handle for one in shared])
        except (RayError, OSError):
            self._lose()
            return False
        self.place.bytes += len(request)
        answer.future().add_done_callback(self._deliver)
        return True

    def receive(self) -> bytes | Lost:
        """See `RemoteActor`."""
        self.pipe.recv_bytes()
        found = self._inbox.get()
        if not isinstance(found, Future):
            return found
        self.busy, self._question, self._heard = False, None, time.monotonic()
        try:
            answer: bytes = found.result()
        except RayError as error:
            self._lose()
            named = type(error).__name__.lower()
            node_died = "node" in named or "unavailable" in named or not _alive(self.place.id)
            how = "went away" if node_died else f"died: {first_line(error)}"
            return Lost(f"on {self.node} {how}", "silent" if node_died else "died")
        except Exception as error:  # raised by its service: of this node, or a defect
            self._lose()
            return Lost(f"on {self.node} failed: {first_line(error)}", "died")
        self.place.answers += 1
        self.place.bytes += len(answer)
        return answer

    def ask_to_leave(self) -> None:
        """See `RemoteActor`."""
        if self.busy and not self.over:
            with suppress(RayError):
                self.handle.leave.remote()

    def end(self) -> None:
        """See `RemoteActor`."""
        with self._lock:
            ended, self.over = self.over, True
        if not ended:
            self._let_go()

    def end_idle(self) -> None:
        """Lets it go, unless it was given work."""
        with self._lock:
            if self.busy or self.over:
                return
            self.over = True
        self._let_go()

    def look(self) -> None:
        """Asks for news now and then; gives one up that says nothing."""
        if self.over:
            return
        quiet = time.monotonic() - self._heard
        if not self.busy:
            self._look_at_idle(quiet)
        elif self._question is None:
            if quiet >= BEAT_SECONDS:
                with suppress(RayError):  # its answer tells
                    self._question = self.handle.news.remote()
        elif ray.wait([self._question], timeout=0)[0]:
            asked, self._question, self._heard = self._question, None, time.monotonic()
            with suppress(Exception):
                news = ray.get(asked)
                if news:
                    self.place.bytes += len(news)
                    self._put(news)
        elif quiet >= _SILENT_SECONDS:
            self._put(Lost(f"on {self.node} has been silent for {quiet:.0f} s", "silent"))
            self._lose()

    def _look_at_idle(self, quiet: float) -> None:
        """Who dies with nothing to do is not noticed by anybody else."""
        if self._question is None:
            if quiet >= _IDLE_SECONDS:
                with suppress(RayError):
                    self._question = self.handle.news.remote()
        elif ray.wait([self._question], timeout=0)[0]:
            asked, self._question, self._heard = self._question, None, time.monotonic()
            try:
                ray.get(asked)
            except Exception:
                self.end_idle()
        elif quiet >= _IDLE_SECONDS + _SILENT_SECONDS:
            self.end_idle()

    def _let_go(self) -> None:
        with suppress(Exception):
            ray.kill(self.handle)
        self._gone(self)

    def _lose(self) -> None:
        if not self.over:
            self.place.losses += 1
            self.end()

    def _deliver(self, answer: Future[Any]) -> None:
        if not self.over or answer.exception() is None:
            self._put(answer)

    def _put(self, found: Future[Any] | bytes | Lost) -> None:
        self._inbox.put(found)
        with suppress(OSError):  # nobody waits for it any more
            self._bell.send_bytes(b".")


def _alive(identity: str) -> bool:
    with suppress(Exception):
        return any(node["NodeID"] == identity and node["Alive"] for node in ray.nodes())
    return False
