"""Workers that run the shards: this process, one process per core, or the actors of a cluster.

Shards do not use threads, which would share the interpreter lock. Array operations of a small
population take about ten microseconds each. Two threads that hand over the lock ran 8 members
slower than one thread (37,000 against 50,000 steps per second on 2 cores; two processes: 88,000).
Processes are forked, so that all share the same data in memory. The parts of a single member are
long operations and run well on threads.
"""

from __future__ import annotations

import mmap
import multiprocessing
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.capacity import usable_cores
from slipstream.core.child_process import AT, BEAT, HEARTBEAT_WORDS, HEARTBEATS, TERMINATE_SECONDS
from slipstream.core.errors import KernelError, ResourceError
from slipstream.jit.cache import remove_unfinished
from slipstream.jit.fast.parallel_compile import compile_in_parallel
from slipstream.jit.work_sharing import RunTasks
from slipstream.training.environments.autotune_cache import Tunable
from slipstream.training.environments.curriculum import Curriculum
from slipstream.training.environments.environment import Environment
from slipstream.training.forked_process import (
    THREADED,
    ChildProcess,
    call_safely,
    set_torch_threads,
    unwrap_result,
)
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import EvaluationPlan
from slipstream.training.shard import Shard

# Threads hand over the interpreter lock between array operations of about 10 microseconds. With
# Python's default of 5 ms the others would wait for hundreds of operations.
_SWITCH_SECONDS = 1e-4
_POLL_SECONDS = 1.0  # interval of the checks for a hanging environment
_MAX_HEARTBEATS = 64  # watched environments and evaluations per child


class ThreadPool:
    """Run tasks in parallel, one thread each; threads start when first needed."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # The standard library's pool takes twice as long to hand over a task.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks and wait for them; raise the error of the first task that failed.

        An interrupt of the caller's own task is raised immediately: other tasks may wait for a
        message from that task or from the caller.
        """
        if self.workers == 1 or len(tasks) == 1:
            for task in tasks:
                task()
            return
        for k in range(1, 1 if self._threads else self.workers):
            self._threads.append(Thread(target=self._serve, name=f"slipstream_{k}", daemon=True))
            self._threads[-1].start()
        errors: dict[int, BaseException] = {}
        done: SimpleQueue[None] = SimpleQueue()

        def attempt(k: int) -> None:
            try:
                tasks[k]()
            except BaseException as error:
                errors[k] = error
            done.put(None)

        for k in range(1, len(tasks)):
            self._tasks.put(partial(attempt, k))
        # The caller runs the first task itself, which saves waking a thread.
        attempt(0)
        if 0 in errors and not isinstance(errors[0], Exception):
            raise errors[0]
        for _ in tasks:
            done.get()
        if errors:
            raise errors[min(errors)]

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        sys.setswitchinterval(self._interval)


class Workers(ABC):
    """Interface that calls methods of all shards in parallel.

    Attributes:
        members: range of members of each shard, in order.
    """

    members: list[range]

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        """Return the nodes of a cluster, see `RayCluster.status`; empty on a single machine."""
        return ()

    @abstractmethod
    def call_each_shard(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every shard with its own arguments; return results in shard order."""

    @abstractmethod
    def call_member(self, member: int, method: str, *arguments: Any) -> Any:
        """Call a method of the shard that contains this member."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers and release their resources."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every shard with the same arguments."""
        return self.call_each_shard(method, [arguments] * len(self.members))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def never_stop() -> None:
    """Do nothing: the default stop check."""


def make_shard(
    config: RunConfig,
    environment: Environment,
    members: range,
    check_stop: Callable[[], None],
    run_tasks: RunTasks | None = None,
    curriculum: Curriculum | None = None,
) -> Shard:
    """Create the shard of some members of a run.

    Args:
        config, environment: config and environment of the run.
        members: range of members.
        check_stop, run_tasks: see `Shard`.
        curriculum: curriculum of the run, if this machine cannot load its settings; None: created
            here.
    """
    training = config.training
    if curriculum is None:
        curriculum = curriculum_of(config, environment)
    cores = (
        usable_cores() * len(members) // training.members
    )  # the other shards compile at the same time
    with ExitStack() as stack:
        with compile_in_parallel(partial(compilers, cores)):
            shard = Shard(
                environment,
                config.agent,
                [training.seed + m for m in range(training.members)],
                members,
                int(training.num_envs),
                training.resolved_backend,
                run_tasks,
                learner=training.learner,
                device=training.device,
                precision=training.precision,
                max_steps=EvaluationPlan.from_config(config, environment).max_steps,
                stochastic=not config.evaluation.deterministic,
                check_stop=check_stop,
                curriculum=None if curriculum is None else curriculum.for_members(len(members)),
            )
            stack.callback(shard.close)
        stack.pop_all()
    return shard


def curriculum_of(config: RunConfig, environment: Environment) -> Curriculum | None:
    """Return the curriculum of a run's members; None if its config has no phases."""
    if not config.curriculum.phases:
        return None
    members = config.training.members
    return Curriculum(config.curriculum, environment, config.env_settings, members)


class LocalWorker(Workers):
    """One shard in this process; the parts of a single member run on a thread pool."""

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        check_stop: Callable[[], None] = never_stop,
    ) -> None:
        self.members = [range(config.training.members)]
        self._thread_pool = ThreadPool(_threads(config, environment))
        run_tasks = self._thread_pool.run if self._thread_pool.workers > 1 else None
        try:
            self._shard = make_shard(config, environment, self.members[0], check_stop, run_tasks)
        except BaseException:
            self._thread_pool.close()
            raise

    def call_each_shard(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self._shard, method)(*arguments[0])]

    def call_member(self, member: int, method: str, *arguments: Any) -> Any:
        return getattr(self._shard, method)(*arguments)

    def close(self) -> None:
        self._shard.close()
        self._thread_pool.close()


def _threads(config: RunConfig, environment: Environment) -> int:
    """Return the number of threads that share the parts of a single member."""
    num_envs = int(config.training.num_envs)
    parts = config.agent.parts(num_envs) if config.training.members == 1 else 1
    tunable = environment.part(Tunable)
    step_config = None if tunable is None else tunable.step_config(num_envs)
    # The measurement holds for threads that step a kernel and learn from rollouts (PPO). Foreign
    # environments use worker processes, and updates from a replay are split differently.
    if (
        step_config is None
        or step_config.backend != "compiled"
        or config.agent.replay(num_envs) is not None
    ):
        return min(parts, usable_cores())
    return min(parts, step_config.workers)


class ProcessWorkers(Workers):
    """One child process per shard."""

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        members: list[range],
        check_stop: Callable[[], None] = never_stop,
    ) -> None:
        self.members, self._name = members, environment.name
        self._threads = set_torch_threads(1)
        self._children: list[ChildProcess] = []
        # With `serial` a user may be in a debugger, so no time limit applies.
        self._hang = config.training.hang_seconds if config.training.backend == "auto" else np.inf
        self._pages = [mmap.mmap(-1, 8 * HEARTBEAT_WORDS * _MAX_HEARTBEATS) for _ in members]
        try:
            for i, part in enumerate(members):
                remedy = f"set training.shards to less than {max(2, i)}"
                serve = partial(_serve, config, environment, part, check_stop, self._pages[i])
                self._children.append(
                    ChildProcess(serve, f"worker of {_format_members(part)}", remedy)
                )
        except BaseException:
            self._end(0.0)
            raise

    def call_each_shard(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for i, shard_arguments in enumerate(arguments):
            self._send(i, (method, shard_arguments))
        answers = [self._receive(i) for i in range(len(self._children))]
        return [
            unwrap_result(answer) for answer in answers
        ]  # raise errors only after all have answered

    def call_member(self, member: int, method: str, *arguments: Any) -> Any:
        i = next(i for i, part in enumerate(self.members) if member in part)
        self._send(i, (method, arguments))
        return unwrap_result(self._receive(i))

    def _send(self, i: int, message: Any) -> None:
        if not self._children[i].send(message):
            raise self._loss_error(i)

    def _receive(self, i: int) -> tuple[bool, Any]:
        child, heartbeats = self._children[i], self._heartbeats(i)
        before, since = heartbeats.copy(), np.full(_MAX_HEARTBEATS, time.monotonic())
        while not child.pipe.poll(min(_POLL_SECONDS, self._hang / 4)):
            same, before = (heartbeats == before).all(axis=1), heartbeats.copy()
            since[~same | (before[:, BEAT] % 2 == 0)] = time.monotonic()
            longest = int(since.argmin())
            if time.monotonic() - since[longest] > self._hang:
                raise self._hang_error(i, int(before[longest, AT]))
        answer: tuple[bool, Any] | None = child.receive()
        if answer is None:
            raise self._loss_error(i)
        return answer

    def _hang_error(self, i: int, env: int) -> KernelError:
        self._children[i].terminate(0.0)
        return KernelError(
            f"{self._name}: a call of environment {env} in the process of "
            f"{_format_members(self.members[i])} took more than {self._hang:g} s "
            "(training.hang_seconds), and the process was stopped. Fix the environment. With "
            "`training.backend: serial` it runs in this process, where a debugger works. With "
            "`process` a hanging environment is stopped and created again while the others "
            "continue."
        )

    def _loss_error(self, i: int) -> ResourceError:
        child = self._children[i]
        called = self._heartbeats(i)[:, BEAT] % 2 == 1
        where = f" while it called an environment of {self._name}" if called.any() else ""
        return ResourceError(
            f"The worker process of {_format_members(self.members[i])} (pid {child.pid}) "
            f"{child.terminate(TERMINATE_SECONDS)}{where}. "
            "Continue from the last checkpoint with `slipstream resume`."
        )

    def _heartbeats(self, i: int) -> NDArray[np.uint64]:
        """Return the pulse counters of a child's environments, [_PULSES, PULSE_WORDS]."""
        return np.frombuffer(self._pages[i], np.uint64).reshape(_MAX_HEARTBEATS, HEARTBEAT_WORDS)

    def close(self) -> None:
        for child in self._children:
            child.request_stop()
        self._end(TERMINATE_SECONDS)

    def _end(self, patience: float) -> None:
        """Terminate all children, whatever state they are in."""
        try:
            for child in self._children:
                child.terminate(patience)
        finally:  # runs on an interrupt as well
            for child in self._children:
                child.terminate(0.0)
            set_torch_threads(self._threads)


def _format_members(members: range) -> str:
    last = members.stop - 1
    return f"members {members.start} to {last}" if last > members.start else f"member {last}"


def _serve(
    config: RunConfig,
    environment: Environment,
    members: range,
    check_stop: Callable[[], None],
    page: mmap.mmap,
    pipe: Connection,
) -> None:
    """Answer requests in the child process until a stop is requested."""
    shard: Shard | None = None
    heartbeats = memoryview(page).cast("Q")
    HEARTBEATS[:] = [
        heartbeats[at : at + HEARTBEAT_WORDS] for at in range(0, len(heartbeats), HEARTBEAT_WORDS)
    ]
    pool = ThreadPool(_threads(config, environment))
    run_tasks = pool.run if pool.workers > 1 else None

    def call(method: str, arguments: tuple[Any, ...]) -> Any:
        nonlocal shard
        if shard is None:
            shard = make_shard(config, environment, members, check_stop, run_tasks)
        return getattr(shard, method)(*arguments)

    while (message := pipe.recv()) is not None:
        pipe.send(call_safely(call, *message))


@contextmanager
def compilers(cores: int, work: Callable[[], None], most: int) -> Iterator[None]:
    """Run `work` in at most `most` child processes; all are terminated at the end of the block.

    Args:
        cores: cores that this process may use; it uses one of them itself.
    """
    children: list[ChildProcess] = []
    # A daemonic process, such as a worker of a user's pool, may have no children.
    compile_alone = multiprocessing.current_process().daemon or not THREADED.isdisjoint(sys.modules)
    timeout = 0.0
    try:
        with suppress(ResourceError):  # then this process compiles alone
            for _ in range(0 if compile_alone else min(cores - 1, most)):
                children.append(
                    ChildProcess(lambda pipe: work(), "compiler", "close other programs")
                )
        yield
        timeout = TERMINATE_SECONDS  # everything is compiled, and the children are about to exit
    finally:
        deadline = time.monotonic() + timeout
        for child in children:
            child.terminate(max(0.0, deadline - time.monotonic()))
            remove_unfinished(child.pid)
