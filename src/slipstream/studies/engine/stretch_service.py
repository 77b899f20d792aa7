"""Stretches on a node of a cluster: states come with the request, and go back every minute.

They are in memory only: what an actor has goes with it.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.core.errors import ConfigError, KernelError
from slipstream.environments.environment import Environment
from slipstream.settings.config import RunConfig
from slipstream.studies.engine.member import Outcome
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.engine.state import HeldStates, LiveStates
from slipstream.studies.engine.stretch import Task, run_stretch
from slipstream.studies.engine.worker import keep_memory
from slipstream.training.processes.child import torch_threads
from slipstream.training.processes.cluster import BEAT_SECONDS, HAND_OVER_SECONDS
from slipstream.training.processes.node import Arrays, NodeService
from slipstream.training.processes.wire import pack, unpack

# What is saved waits for the next question; the rest is for the iteration under way.
SAVE_SECONDS = HAND_OVER_SECONDS - BEAT_SECONDS - 5.0
_BLAMED = (KernelError, ConfigError)  # what a member's own numbers can cause, on any machine


class _Leave(BaseException):
    """The owner wants back what is under way."""


class _Sent(EnvironmentSource):
    """Environments that came with a request."""

    def __init__(self, tasks: Sequence[Task], environments: Sequence[Environment]) -> None:
        self._sent = {
            id(task.member.config): one for task, one in zip(tasks, environments, strict=True)
        }

    def environment(self, config: RunConfig) -> Environment:
        return self._sent[id(config)]


class _Request:
    """A request's tasks, and where their members stand.

    Args:
        tasks: of the request.
        states: that came with it.
    """

    def __init__(self, tasks: Sequence[Task], states: Mapping[str, bytes]) -> None:
        self.live, self._tasks = HeldStates(), tasks
        for name, content in states.items():
            self.live.put(name, content)
        self.came = {task.member.name: self.live.iteration(task.member) for task in tasks}
        self.told = dict(self.came)

    def newer(self, known: dict[str, int]) -> dict[str, bytes]:
        """States of later iterations than `known`, which has them from now on."""
        found = {}
        for task in self._tasks:
            name, iteration = task.member.name, self.live.iteration(task.member)
            content = self.live.content(name) if iteration != known[name] else None
            if content is not None:
                found[name], known[name] = content, iteration
        return found


class StretchService(NodeService):
    """Does stretches for a `RemoteWorker`."""

    def __init__(self, needs: bytes, arrays: Arrays) -> None:
        super().__init__(needs, arrays)
        self._under_way: _Request | None = None
        keep_memory()
        torch_threads(1)

    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """A stretch, or as much of it as was done when the owner wanted it back."""
        asked = unpack(request)
        self._leaving.clear()
        tasks: list[Task] = pickle.loads(asked["tasks"])
        made = [self.restored(one, arrays) for one in asked["environments"]]
        source = _Sent(tasks, [made[k] for k in asked["environment_of"]])
        under_way = self._under_way = _Request(tasks, asked["states"])
        facts = self._run(tasks, source, under_way.live)
        self._under_way = None
        for task in tasks if "done" in facts else ():
            under_way.live.slim(task.member)
        # All that is newer, for news that were asked for at this moment may be passed over.
        answer = pack({**facts, "states": under_way.newer(under_way.came)})
        del under_way
        gc.collect()  # populations are cyclic: they would wait for one another
        return answer

    def news(self) -> bytes:
        """States that were saved since the owner last heard."""
        under_way = self._under_way
        states = {} if under_way is None else under_way.newer(under_way.told)
        said = [] if under_way is None else under_way.live.said()
        return pack({"states": states, "said": said}) if states or said else b""

    def _run(self, tasks: list[Task], source: EnvironmentSource, live: LiveStates) -> Any:
        try:
            return {"done": _plain(run_stretch(tasks, source, live, self._go_on, SAVE_SECONDS))}
        except _Leave:
            return {"left": True}
        except MemoryError:
            os._exit(1)  # as the system would: the stretch is tried again with fewer members
        except _BLAMED as error:
            return {"blamed": [type(error).__name__, str(error)]}

    def _go_on(self) -> None:
        if self._leaving.is_set():
            raise _Leave


def _plain(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {**vars(one), "passes": None if one.passes is None else dict(vars(one.passes))}
        for one in outcomes
    ]
