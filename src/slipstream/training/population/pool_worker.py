"""Workers of a pool: child processes, and actors of a cluster seen from both sides.

The pool sends segments to a `Worker`, or through a `ClusterWorker` to a `SegmentService` on another
node. States are sent with the request and returned every minute; on the node they exist only in
memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from slipstream.core.child_process import is_orphaned
from slipstream.core.errors import CheckpointError, ConfigError, KernelError, SlipstreamError
from slipstream.training.cluster.cluster import (
    BEAT_SECONDS,
    HAND_OVER_SECONDS,
    Lost,
    Shared,
)
from slipstream.training.cluster.node_service import Arrays, NodeService, environment_payload
from slipstream.training.cluster.ray_cluster import RayActor, RayCluster
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.forked_process import ChildProcess, picklable_error, set_torch_threads
from slipstream.training.population.environment_source import EnvironmentSource, LruCache
from slipstream.training.population.member import Outcome
from slipstream.training.population.member_state import InMemoryStates, LiveStates, MemberProgress
from slipstream.training.population.training_segment import Task, run_training_segment
from slipstream.training.settings.config import RunConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_LARGE = 4 * 2**20
PATIENCE_SECONDS = 60.0  # for the current iteration or backtest after a stop request
Answer = list[Outcome] | Exception
_MEMBER_ERRORS = (KernelError, ConfigError)  # errors that a member causes on any machine
_CACHE_SIZE = 16  # cached environment payloads
SERVICE = "slipstream.training.population.pool_worker:SegmentService"
# A saved state waits for the actor's next message; the rest is for the current iteration.
SAVE_SECONDS = HAND_OVER_SECONDS - BEAT_SECONDS - 5.0


class Worker(ChildProcess):
    """Child process that runs one segment at a time.

    Args:
        source: source of environments.
        live: state files.

    Attributes:
        generation: generation of the source at the fork.
    """

    gone = False  # a lost child is replaced by another fork

    def __init__(self, source: EnvironmentSource, live: LiveStates) -> None:
        self.generation = source.generation
        set_torch_threads(1)
        serve = partial(_serve, source, live)
        super().__init__(serve, "study worker", "give fewer --workers")

    def receive(self) -> Answer | Lost:
        """Return the outcomes of its segment."""
        answer: Answer | None = super().receive()
        return Lost(self.terminate(1.0), "died") if answer is None else answer


class _StopRequested(BaseException):
    """The owner requested a stop, or has ended."""


def _serve(source: EnvironmentSource, live: LiveStates, pipe: Connection) -> None:
    """Run segments in the child process until a stop is requested."""
    keep_memory()
    gc.freeze()  # excludes inherited objects from `gc.collect` below
    parent = os.getppid()

    def check_stop() -> None:
        if pipe.poll() or is_orphaned(parent):
            raise _StopRequested

    first = True
    with suppress(_StopRequested):
        while (tasks := pipe.recv()) is not None:
            pipe.send(_answer(tasks, source, live, check_stop))
            gc.collect()  # frees populations, which have reference cycles
            if first:
                gc.freeze()  # modules and compiled loops loaded by the first segment
                first = False


def _answer(
    tasks: Sequence[Task],
    source: EnvironmentSource,
    live: LiveStates,
    check_stop: Callable[[], None],
) -> Answer:
    try:
        return run_training_segment(tasks, source, live, check_stop)
    except MemoryError:
        os._exit(1)  # like the system would; the segment is retried with fewer members
    except Exception as error:
        return picklable_error(error)


def keep_memory() -> None:
    """Configure glibc to keep freed memory: the next segment needs as much, and new pages are slow.

    With 48 members this takes 0.12 instead of 0.32 seconds of CPU to assemble a population. Blocks
    of at least `_LARGE` bytes are returned to the system: kept, they fragment memory, and a worker
    grew from 440 to 700 MB in five segments, compared with less than 390.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _LARGE)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


class DataStore:
    """Arrays of a study's environments, sent to a cluster once each."""

    def __init__(self, source: EnvironmentSource, cluster: RayCluster) -> None:
        self._source, self._cluster = source, cluster
        self._shared: dict[int, Shared] = {}
        self._cached: LruCache[int, tuple[Environment, dict[str, Any]]] = LruCache(_CACHE_SIZE)

    def sent(self, tasks: Sequence[Task]) -> tuple[dict[str, Any], list[Shared]]:
        """Return the environment payloads of tasks and the arrays that they need."""
        environments = [self._source.environment(task.member.config) for task in tasks]
        distinct = list({id(environment): environment for environment in environments}.values())
        shared = [self._arrays(environment) for environment in distinct]
        numbers = {id(environment): k for k, environment in enumerate(distinct)}
        payload = {
            "environments": [self._payload(*pair) for pair in zip(distinct, shared, strict=True)],
            "environment_of": [numbers[id(environment)] for environment in environments],
        }
        return payload, list(
            {
                environment.digest: environment for environment in shared if environment is not None
            }.values()
        )

    def _arrays(self, environment: Environment) -> Shared | None:
        number = self._source.data_number(environment)
        rules = environment.part(KernelEnvironment)
        if rules is not None and number not in self._shared:
            self._shared[number] = self._cluster.share(rules.data)
        return self._shared.get(number)

    def _payload(self, environment: Environment, shared: Shared | None) -> dict[str, Any]:
        """Return the payload of an environment; the cache holds a reference, so its id stays
        unique.
        """
        entry = self._cached.get(
            id(environment), lambda: (environment, environment_payload(environment, shared))
        )
        return entry[1]


@dataclass(frozen=True)
class Reply:
    """Reply of a segment's service.

    Attributes:
        states: states of members by name, newer than those of earlier replies.
        progress: progress of the members.
        end: result of the segment; None while it runs.
    """

    states: Mapping[str, bytes]
    progress: Sequence[MemberProgress] = ()
    end: list[Outcome] | SlipstreamError | Lost | None = None


class ClusterWorker:
    """Remote counterpart of `slipstream.training.population.pool_worker.Worker`.

    Args:
        actor: actor of a cluster.
        data: arrays of the study.
        live: member states; returned states are stored before an answer is reported.

    Attributes:
        generation: newer than any source, because a node is sent what it lacks.
        gone: True if it accepts no more work.
    """

    generation = sys.maxsize

    def __init__(self, actor: RayActor, data: DataStore, live: LiveStates) -> None:
        self._actor, self._data, self._live = actor, data, live
        self._tasks: Sequence[Task] = ()
        self.gone = False

    @property
    def pipe(self) -> Connection:
        """Connection that is readable when `receive` has a result."""
        return self._actor.pipe

    @property
    def node(self) -> str:
        """Node of the actor."""
        return self._actor.node

    def send(self, tasks: Sequence[Task]) -> bool:
        """Send a segment; return False if the actor is lost."""
        if self.gone:
            return False
        payload, shared = self._data.sent(tasks)
        states = {}
        for task in tasks:
            content = self._live.content(task.member.name)
            if content is not None and self._live.iteration(task.member) > 0:
                states[task.member.name] = content
        request = pickle.dumps({**payload, "tasks": list(tasks), "states": states})
        self._tasks = list(tasks)
        self.gone = not self._actor.send(request, shared)
        return not self.gone

    def receive(self) -> list[Outcome] | Lost | SlipstreamError | None:
        """Return the outcomes of its segment; None if it only returned states and continues."""
        content = self._actor.receive()
        if isinstance(content, Lost):
            self.gone, self._tasks = True, ()
            return content
        reply: Reply = pickle.loads(content)
        try:
            self._process_answer(reply.states)
            self._live.write_progress(reply.progress)
            if reply.end is None:
                return None
            tasks, self._tasks = self._tasks, ()
            return _checked(reply.end, tasks) if isinstance(reply.end, list) else reply.end
        except (CheckpointError, ValueError) as error:
            self.gone = True
            self._actor.end()
            return Lost(f"on {self.node} sent an invalid answer ({error})", "silent")

    def request_stop(self) -> None:
        """Request a stop: members are saved after their iteration and returned."""
        self._actor.request_stop()

    def terminate(self, timeout: float) -> str:
        """Wait for the current work; return how it ended."""
        how = "left"
        while self._tasks and not self.gone and self.pipe.poll(timeout):
            answer = self.receive()
            if answer is not None:
                how = answer.how if isinstance(answer, Lost) else how
        self.gone = True
        self._actor.end()
        return how

    def _process_answer(self, states: Mapping[str, bytes]) -> None:
        fingerprints = {task.member.name: task.member.fingerprint for task in self._tasks}
        for name, content in states.items():
            if name not in fingerprints or not self._live.store(name, content, fingerprints[name]):
                raise CheckpointError(f"a state of {name} is damaged, or of another member")


def _checked(outcomes: list[Outcome], tasks: Sequence[Task]) -> list[Outcome]:
    """Return the outcomes if they match the tasks, else raise a ValueError."""
    for outcome, task in zip(outcomes, tasks, strict=True):
        member = task.member
        is_complete = outcome.failed or (outcome.backtests is None) == (member.test is None)
        if (outcome.name, outcome.milestone) != (member.name, task.until) or not is_complete:
            raise ValueError(
                f"{outcome.name} at {outcome.milestone}, not {member.name} at {task.until}"
            )
    return outcomes


class _ReceivedSource(EnvironmentSource):
    """Environments received with a request."""

    def __init__(self, tasks: Sequence[Task], environments: Sequence[Environment]) -> None:
        self._cached = {
            id(task.member.config): environment
            for task, environment in zip(tasks, environments, strict=True)
        }

    def environment(self, config: RunConfig) -> Environment:
        return self._cached[id(config)]


class _Request:
    """Tasks of a request and the states of their members.

    Args:
        tasks: tasks of the request.
        states: states received with it.
    """

    def __init__(self, tasks: Sequence[Task], states: Mapping[str, bytes]) -> None:
        self.live, self._tasks = InMemoryStates(), tasks
        for name, content in states.items():
            self.live.store(name, content)
        self.received = {task.member.name: self.live.iteration(task.member) for task in tasks}
        self.sent = dict(self.received)

    def newer(self, known: dict[str, int]) -> dict[str, bytes]:
        """Return states of later iterations than `known`, and update `known`."""
        newer_states = {}
        for task in self._tasks:
            name, iteration = task.member.name, self.live.iteration(task.member)
            content = self.live.content(name) if iteration != known[name] else None
            if content is not None:
                newer_states[name], known[name] = content, iteration
        return newer_states


class SegmentService(NodeService):
    """Runs segments for a `ClusterWorker`."""

    def __init__(self, needs: bytes, arrays: Arrays) -> None:
        super().__init__(needs, arrays)
        self._request: _Request | None = None
        keep_memory()
        set_torch_threads(1)

    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """Run a segment, or the part of it before the owner requested a stop."""
        message = pickle.loads(request)
        self._leaving.clear()
        tasks: list[Task] = message["tasks"]
        environments = [self.restored(payload, arrays) for payload in message["environments"]]
        source = _ReceivedSource(tasks, [environments[k] for k in message["environment_of"]])
        work = self._request = _Request(tasks, message["states"])
        end = self._run(tasks, source, work.live)
        self._request = None
        for task in tasks if isinstance(end, list) else ():
            work.live.keep_policy_only(task.member)
        # Includes all newer states: an update requested at this moment may be ignored.
        answer = pickle.dumps(Reply(work.newer(work.received), end=end))
        del work
        gc.collect()  # frees the population, which has reference cycles
        return answer

    def updates(self) -> bytes:
        """Return the states saved since the last call."""
        work = self._request
        states = {} if work is None else work.newer(work.sent)
        drain_progress = (
            []
            if work is None
            else [MemberProgress(*fields) for fields in work.live.drain_progress()]
        )
        return pickle.dumps(Reply(states, drain_progress)) if states or drain_progress else b""

    def _run(
        self, tasks: list[Task], source: EnvironmentSource, live: LiveStates
    ) -> list[Outcome] | SlipstreamError | Lost:
        try:
            return run_training_segment(tasks, source, live, self._check_stop, SAVE_SECONDS)
        except _StopRequested:
            return Lost("returned its work", "left")
        except MemoryError:
            os._exit(1)  # like the system would; the segment is retried with fewer members
        except _MEMBER_ERRORS as error:
            return error

    def _check_stop(self) -> None:
        if self._leaving.is_set():
            raise _StopRequested
