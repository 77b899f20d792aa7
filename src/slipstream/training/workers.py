"""Who runs the shards: this process, or one process per core.

Threads would share the interpreter lock: the array operations of a small population take some ten
microseconds each, and two threads handing the lock back and forth ran 8 members slower than one
thread did (37,000 against 50,000 steps per second on 2 cores; two processes: 88,000). Processes are
forked, so that all share one copy of the data; where the system cannot fork, one process runs all.
A lone member's parts are long operations and do well on threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any

import torch

from slipstream.core.cores import usable_cores
from slipstream.core.errors import ResourceError, SlipstreamError
from slipstream.training.config import RunConfig
from slipstream.training.crew import Crew
from slipstream.training.environment import Environment
from slipstream.training.shard import Shard, cut

_PATIENCE_SECONDS = 10.0
_BEFORE_WAITING = 100  # at exit: before multiprocessing waits for its children


class Workers(ABC):
    """Calls methods of all shards at once.

    Attributes:
        members: the range of members of each shard, in order.
    """

    members: list[range]

    @abstractmethod
    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every shard with its own arguments; results in the shards' order."""

    @abstractmethod
    def of(self, member: int, method: str, *arguments: Any) -> Any:
        """Calls a method of the one shard that has this member."""

    @abstractmethod
    def close(self) -> None:
        """Ends what was started."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of every shard with the same arguments."""
        return self.call_each(method, [arguments] * len(self.members))

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def go_on() -> None:
    """Nobody asked to stop."""


def make_workers(
    config: RunConfig, environment: Environment, go_on: Callable[[], None] = go_on
) -> Workers:
    """As many workers as the config says and the members allow; results do not depend on it.

    Args:
        config, environment: of the run.
        go_on: called now and then in an evaluation, in whichever process runs it; it may raise
            `StoppedError`.
    """
    training = config.training
    wanted = usable_cores() if training.shards == "auto" else int(training.shards)
    members = cut(training.members, wanted)
    if len(members) == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return LocalWorker(config, environment, go_on)
    return ProcessWorkers(config, environment, members, go_on)


def _shard(
    config: RunConfig,
    environment: Environment,
    members: range,
    go_on: Callable[[], None],
    run: Any = None,
) -> Shard:
    training = config.training
    return Shard(
        environment,
        config.agent,
        [training.seed + m for m in range(training.members)],
        members,
        int(training.num_envs),
        training.backend,
        run,
        longest=config.evaluation.max_steps,
        go_on=go_on,
    )


class LocalWorker(Workers):
    """One shard in this process; the parts of a lone member run on a crew of threads."""

    def __init__(
        self, config: RunConfig, environment: Environment, go_on: Callable[[], None] = go_on
    ) -> None:
        self.members = [range(config.training.members)]
        lone = config.training.members == 1
        parts = config.agent.parts(int(config.training.num_envs)) if lone else 1
        self._crew = Crew(min(parts, usable_cores()))
        side_by_side = self._crew.run if self._crew.workers > 1 else None
        try:
            self._shard = _shard(config, environment, self.members[0], go_on, side_by_side)
        except BaseException:
            self._crew.close()
            raise

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self._shard, method)(*arguments[0])]

    def of(self, member: int, method: str, *arguments: Any) -> Any:
        return getattr(self._shard, method)(*arguments)

    def close(self) -> None:
        self._shard.close()
        self._crew.close()


class ProcessWorkers(Workers):
    """One forked process per shard, asked over a pipe."""

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        members: list[range],
        go_on: Callable[[], None] = go_on,
    ) -> None:
        self.members = members
        context = multiprocessing.get_context("fork")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a forked child must not inherit a pool that it cannot use
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        # Should `close` never be called: at exit Python waits for children, who wait for a word.
        self._abandoned = Finalize(
            self, _abandon, (self._pipes, self._processes), exitpriority=_BEFORE_WAITING
        )
        try:
            for part in members:
                ours, theirs = context.Pipe()
                self._pipes.append(ours)
                # Ends that the child inherits: it must see when this process is gone.
                arguments = (theirs, list(self._pipes), config, environment, part, go_on)
                process = context.Process(
                    target=_serve, args=arguments, daemon=True, name=f"slipstream {part}"
                )
                with theirs:
                    process.start()
                self._processes.append(process)
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                raise _no_process(len(members), len(self._processes), error) from error
            raise

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for i, own in enumerate(arguments):
            self._send(i, (method, own))
        answers = [
            self._receive(i) for i in range(len(self._pipes))
        ]  # all of them, before any error is raised
        return [_value(answer) for answer in answers]

    def of(self, member: int, method: str, *arguments: Any) -> Any:
        i = next(i for i, part in enumerate(self.members) if member in part)
        self._send(i, (method, arguments))
        return _value(self._receive(i))

    def _send(self, i: int, message: Any) -> None:
        try:
            self._pipes[i].send(message)
        except (BrokenPipeError, ConnectionError):
            raise self._lost(i) from None

    def _receive(self, i: int) -> tuple[bool, Any]:
        try:
            answer: tuple[bool, Any] = self._pipes[i].recv()
        except (EOFError, ConnectionError):
            raise self._lost(i) from None
        return answer

    def _lost(self, i: int) -> ResourceError:
        process, part = self._processes[i], self.members[i]
        process.join(_PATIENCE_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (out of memory?)"
        else:
            how = f"ended with exit code {code}"
        return ResourceError(
            f"The worker process of members {part.start} to {part.stop - 1} (pid {process.pid}) "
            f"{how}. Nothing that was saved is lost: go on from the last checkpoint with "
            "`slipstream resume`."
        )

    def close(self) -> None:
        try:
            for pipe in self._pipes:
                with suppress(OSError, ValueError):  # it is gone, or was cut off in a message
                    pipe.send(None)
                pipe.close()
            for process in self._processes:
                process.join(_PATIENCE_SECONDS)
        finally:  # also when interrupted
            self._end()

    def _end(self) -> None:
        """Leaves no child, whatever it does."""
        self._abandoned.cancel()
        _abandon(self._pipes, self._processes)
        torch.set_num_threads(self._threads)


def _abandon(pipes: Sequence[Connection], processes: Sequence[Any]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()


def _no_process(wanted: int, begun: int, error: OSError) -> ResourceError:
    return ResourceError(
        f"Only {begun} of {wanted} worker processes could be started ({error.strerror}): the "
        "system allows no more processes, open files or memory (see `ulimit -u`, `ulimit -n`). "
        f"Raise the limit, or set training.shards to less than {max(2, begun)}; results do not "
        "depend on it."
    )


def _value(answer: tuple[bool, Any]) -> Any:
    worked, value = answer
    if worked:
        return value
    raise value


def _serve(
    pipe: Connection,
    inherited: list[Connection],
    config: RunConfig,
    environment: Environment,
    members: range,
    go_on: Callable[[], None],
) -> None:
    """The child: answers until told to stop or until its parent is gone."""
    for end in inherited:
        end.close()
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
    ):  # the parent decides when to stop, and checkpoints first
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)
    shard: Shard | None = None
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while (message := pipe.recv()) is not None:
            method, arguments = message
            try:
                if shard is None:
                    shard = _shard(config, environment, members, go_on)
                answer: tuple[bool, Any] = (True, getattr(shard, method)(*arguments))
            except SlipstreamError as error:
                answer = (False, error)
            except Exception:
                text = f"worker process {os.getpid()}, members {members}:\n{traceback.format_exc()}"
                answer = (False, RuntimeError(text))
            pipe.send(answer)
    os._exit(0)  # nothing of the parent's may be flushed or closed twice
