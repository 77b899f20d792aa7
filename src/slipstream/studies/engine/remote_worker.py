"""A worker on another machine: takes stretches to an actor, and states and scores back."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from slipstream.core.errors import CheckpointError, ConfigError, KernelError, SlipstreamError
from slipstream.environments.environment import Environment
from slipstream.studies.engine.member import DailyReturns, Outcome
from slipstream.studies.engine.recent import Recent
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.engine.state import LiveStates
from slipstream.studies.engine.stretch import Task
from slipstream.studies.engine.under_way import UnderWay
from slipstream.training.processes.cluster import Cluster, Lost, RemoteActor, Shared
from slipstream.training.processes.node import sent_as
from slipstream.training.processes.wire import pack, unpack

_BLAMED: Mapping[str, type[SlipstreamError]] = {
    "KernelError": KernelError,
    "ConfigError": ConfigError,
}
_KEPT = 16  # environments that were made ready to be sent
SERVICE = "slipstream.studies.engine.stretch_service:StretchService"


class DataStore:
    """The arrays of a study's environments, handed to a cluster once each."""

    def __init__(self, source: EnvironmentSource, cluster: Cluster) -> None:
        self._source, self._cluster = source, cluster
        self._shared: dict[int, Shared] = {}
        self._sent: Recent[int, tuple[Environment, dict[str, Any]]] = Recent(_KEPT)

    def sent(self, tasks: Sequence[Task]) -> tuple[dict[str, Any], list[Shared]]:
        """The environments of tasks for a parcel, and the arrays that they need."""
        environments = [self._source.environment(task.member.config) for task in tasks]
        distinct = list({id(one): one for one in environments}.values())
        shared = [self._arrays(one) for one in distinct]
        numbers = {id(one): k for k, one in enumerate(distinct)}
        facts = {
            "environments": [self._parcel(*pair) for pair in zip(distinct, shared, strict=True)],
            "environment_of": [numbers[id(one)] for one in environments],
        }
        return facts, list({one.digest: one for one in shared if one is not None}.values())

    def _arrays(self, environment: Environment) -> Shared | None:
        number = self._source.data_number(environment)
        if environment.data is not None and number not in self._shared:
            self._shared[number] = self._cluster.share(environment.data)
        return self._shared.get(number)

    def _parcel(self, environment: Environment, shared: Shared | None) -> dict[str, Any]:
        """See `sent_as`; what is kept keeps its environment, and so its id."""
        return self._sent.get(id(environment), lambda: (environment, sent_as(environment, shared)))[
            1
        ]


class RemoteWorker:
    """Has the face of `slipstream.studies.engine.worker.Worker`.

    Args:
        actor: of a cluster.
        data: of the study.
        live: where members stand; states that come back are there before an answer is told.

    Attributes:
        generation: of the source; a node is sent what it lacks.
        gone: it takes no more work.
    """

    generation = sys.maxsize

    def __init__(self, actor: RemoteActor, data: DataStore, live: LiveStates) -> None:
        self._actor, self._data, self._live = actor, data, live
        self._tasks: Sequence[Task] = ()
        self.gone = False

    @property
    def pipe(self) -> Connection:
        """Readable when `receive` has something."""
        return self._actor.pipe

    @property
    def node(self) -> str:
        """Its machine."""
        return self._actor.node

    def send(self, tasks: Sequence[Task]) -> bool:
        """Hands it a stretch; False where it is gone."""
        if self.gone:
            return False
        facts, shared = self._data.sent(tasks)
        states = {}
        for task in tasks:
            content = self._live.content(task.member.name)
            if content is not None and self._live.iteration(task.member) > 0:
                states[task.member.name] = content
        request = pack({**facts, "tasks": pickle.dumps(list(tasks)), "states": states})
        self._tasks = list(tasks)
        self.gone = not self._actor.send(request, shared)
        return not self.gone

    def receive(self) -> list[Outcome] | Lost | SlipstreamError | None:
        """What came of its stretch; None where it only handed over states, and goes on."""
        content = self._actor.receive()
        if isinstance(content, Lost):
            self.gone, self._tasks = True, ()
            return content
        try:
            facts = unpack(content)
            self._take(facts["states"])
            self._live.tell([UnderWay(*one) for one in facts.pop("said", ())])
            tasks, final = self._tasks, facts.keys() != {"states"}
            self._tasks = () if final else tasks
            if "blamed" in facts:
                kind, text = facts["blamed"]
                return _BLAMED[kind](str(text))
            if "left" in facts:
                return Lost("gave back what it did", "left")
            return _outcomes(facts["done"], tasks) if final else None
        except (CheckpointError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.gone = True
            self._actor.end()
            return Lost(f"on {self.node} sent something else than an answer ({error})", "silent")

    def ask_to_leave(self) -> None:
        """It saves the members under way after their iteration, and gives them back."""
        self._actor.ask_to_leave()

    def end(self, patience: float) -> str:
        """Waits for what it still does; says how it ended."""
        how = "left"
        while self._tasks and not self.gone and self.pipe.poll(patience):
            answer = self.receive()
            if answer is not None:
                how = answer.how if isinstance(answer, Lost) else how
        self.gone = True
        self._actor.end()
        return how

    def _take(self, states: Mapping[str, bytes]) -> None:
        own = {task.member.name: task.member.fingerprint for task in self._tasks}
        for name, content in states.items():
            if name not in own or not self._live.put(name, content, own[name]):
                raise CheckpointError(f"a state of {name} is damaged, or of another member")


def _outcomes(found: Sequence[Mapping[str, Any]], tasks: Sequence[Task]) -> list[Outcome]:
    """Those of the tasks, or a ValueError."""
    outcomes = []
    for facts, task in zip(found, tasks, strict=True):
        passes = None if facts["passes"] is None else DailyReturns(**facts["passes"])
        one, member = Outcome(**{**facts, "passes": passes}), task.member
        fine = one.failed or (passes is None) == (member.test is None)
        if (one.name, one.milestone) != (member.name, task.until) or not fine:
            raise ValueError(f"{one.name} at {one.milestone}, not {member.name} at {task.until}")
        outcomes.append(one)
    return outcomes
