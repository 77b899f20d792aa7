"""A cluster in this process: its actors are threads, which a test may lose at any moment."""

from __future__ import annotations

import importlib
import queue
import threading
from contextlib import suppress
from multiprocessing import Pipe

import numpy as np

from slipstream.training.cluster.cluster import Lost, Shared


class FakeActor:
    """See `slipstream.training.cluster.ray_cluster.RayActor`.

    Attributes:
        lie: replaces its next answer.
    """

    def __init__(self, node, service, stored):
        self.node, self.service, self.lie, self._stored = node, service, None, stored
        self.pipe, self._bell = Pipe(duplex=False)
        self._inbox, self._thread = queue.SimpleQueue(), None
        self.busy = self.released = False
        self.answers = 0

    def send(self, request, shared=()):
        if self.released:
            return False
        self.busy = True
        arrays = [self._stored[one.digest] for one in shared]
        self._thread = threading.Thread(target=self._work, args=(request, arrays))
        self._thread.start()
        return True

    def _work(self, request, arrays):
        try:
            answer = self.service.answer(request, arrays)
        except Exception as error:  # of the node, or a defect
            answer, self.released = Lost(f"on {self.node} failed: {error!r}", "died"), True
            self._put(answer)
        if not self.released:
            answer, self.lie = self.lie or answer, None
            self.answers += 1
            self._put(answer)

    def receive(self):
        self.pipe.recv_bytes()
        found = self._inbox.get()
        if isinstance(found, Lost):
            self.busy = False
        return found

    def request_stop(self):
        self.service.leave()

    def end(self):
        self.released = True
        self.service.leave()
        if self._thread is not None:
            self._thread.join()

    def hand_over(self):
        """Asks for news, as a cluster does every minute; whether there were any."""
        news = self.service.updates()
        if news:
            self._put(news)
        return bool(news)

    def lose(self, cause="died"):
        """Its process is gone in the middle of what it does."""
        self.released = True
        self._put(Lost(f"on {self.node} was lost", cause))
        self.service.leave()

    def _put(self, found):
        self._inbox.put(found)
        with suppress(OSError):
            self._bell.send_bytes(b".")


class FakeCluster:
    """See `slipstream.training.cluster.ray_cluster.RayCluster`; a context, too."""

    def __init__(self, work, actors=1, corrupt=False):
        self._work, self._corrupt = work, corrupt
        self.arrival_pipe, self._arrival_end = Pipe(duplex=False)
        self.actors, self._new, self._stored = [], [], {}
        self.add(actors)

    def add(self, count=1):
        """Nodes come up."""
        module, _, name = self._work.service.partition(":")
        make = getattr(importlib.import_module(module), name)
        for _ in range(count):
            service = make(self._work.needs, self._read(self._work.arrays))
            self._new.append(FakeActor(f"node{len(self.actors)}", service, self._stored))
            self.actors.append(self._new[-1])
            self._arrival_end.send_bytes(b".")

    def _read(self, arrays):
        """As an object store hands them out: read-only copies."""
        found = [np.array(one, copy=True) for one in arrays]
        for one in found:
            if self._corrupt and one.size:
                one.reshape(-1).view(np.uint8)[0] ^= 1
            one.flags.writeable = False
        return found

    def new_actors(self):
        while self.arrival_pipe.poll():
            self.arrival_pipe.recv_bytes()
        found, self._new = self._new, []
        return found

    def share(self, arrays):
        shared = Shared.of(arrays)
        self._stored[shared.digest] = self._read(arrays)
        return shared

    def status(self):
        return [
            {
                "node": one.node,
                "slots": 1,
                "busy": int(one.busy),
                "answers": one.answers,
                "losses": 0,
            }
            for one in self.actors
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.actors:
            one.end()
