"""The members of one run on a cluster: a shard for each actor, moved on when one is lost.

The owner has every shard's state of at most a minute ago, and what it was asked since. Who takes a
lost shard over is given both: a shard's numbers follow from what it is asked, so no bit differs.
Of a replay each chunk is handed over once, into the files that checkpoints share.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from slipstream.core import errors
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.environments.environment import Environment
from slipstream.files.bulk import HandedChunks
from slipstream.files.interruption import Interrupted, StoppedError
from slipstream.settings.config import RunConfig
from slipstream.training.processes.cluster import (
    HAND_OVER_SECONDS,
    ClusterOptions,
    Lost,
    RemoteActor,
    connect,
)
from slipstream.training.processes.node import sent_as
from slipstream.training.processes.premises import work_for
from slipstream.training.processes.wire import pack, unpack
from slipstream.training.processes.workers import Workers, curriculum_of
from slipstream.training.shard import cut

if TYPE_CHECKING:
    from slipstream.runs.run import Run

SERVICE = "slipstream.training.processes.shard_service:ShardService"
_GATHER_SECONDS = 10.0  # after an actor has come, for the next one
_LOSSES = 6  # of actors in a row
_CHANGING = ("reset", "set_state", "iterate")  # methods after which a shard is another one

Call = tuple[str, tuple[Any, ...]]


class _Handed(NamedTuple):
    """What a shard goes on from: its small state, and files of its replays by their hashes."""

    state: Any
    files: Mapping[str, str]


@dataclass(eq=False)
class _Part:
    """A shard.

    Attributes:
        members: which.
        actor: who has it; None: it waits for one.
        todo: calls that are to be answered; the last answer is what was asked for.
        journal: calls since `handed` that changed it.
        handed: None: before the first time.
    """

    members: range
    actor: RemoteActor | None = None
    todo: deque[Call] = field(default_factory=deque)
    journal: list[Call] = field(default_factory=list)
    handed: _Handed | None = None
    answer: Any = None

    def move(self, actor: RemoteActor, begin: Call) -> None:
        """To another actor, which makes up for what was done."""
        known = [] if self.handed is None else [("set_state", self.handed)]
        asked = [self.todo[-1]] if self.todo else []
        self.actor, self.todo = actor, deque([begin, *known, *self.journal, *asked])


class ClusterWorkers(Workers):
    """As many shards as there are actors when it begins; later ones stand in for the lost.

    Args:
        config, environment, go_on: see `make_workers`.
        options: which cluster.
        run: who asks, and where its chunks are.

    Raises:
        SlipstreamError: the cluster cannot be used.
    """

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        options: ClusterOptions,
        run: Run,
        go_on: Callable[[], None],
    ) -> None:
        self._run, self._go_on, self._say, self._config = run.path, go_on, run.say, config
        self._chunks = HandedChunks(run.bulk)
        self._spare: list[RemoteActor] = []
        self._losses, self._saved = 0, time.monotonic()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slipstream-files-"))
            work = work_for(f"the run {run.path.name}", SERVICE, environment, config, Path(folder))
            self._cluster = stack.enter_context(connect(options, work, self._say))
            self._shared = self._cluster.share(work.arrays)
            own = self._shared if environment.data is not None else None
            self._begin = {
                "config": pickle.dumps(config),
                "environment": sent_as(environment, own),
                "curriculum": pickle.dumps(curriculum_of(config, environment)),
            }
            self._parts = [_Part(one) for one in cut(config.training.members, self._gather())]
            self.members = [part.members for part in self._parts]
            self._stack = stack.pop_all()

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        return self._cluster.standing()

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if method == "get_state":  # for a checkpoint, whose files stay
            return [one.state for one in self._hand_over()]
        if method == "save_bulk":  # of the state that was just asked for
            return [self._chunks.keep(one.files) for one in self._handed()]
        if method == "set_state":
            arguments = [_Handed(state, dict(bulk[1])) for state, bulk in arguments]
        began = time.monotonic()
        values = self._ask(self._parts, [(method, own) for own in arguments])
        for part, own in zip(self._parts, arguments, strict=True):
            if isinstance(own, _Handed):
                part.handed, part.journal = own, []
            elif method in _CHANGING:
                part.journal.append((method, own))
        now = time.monotonic()
        if method == "iterate" and 2 * now - began - self._saved >= HAND_OVER_SECONDS:
            self._hand_over()  # the next one would end too late
        return values

    def _hand_over(self) -> list[_Handed]:
        """Takes all shards' states, and what is new in their replays."""
        found = self._ask(self._parts, [("hand_over", ())] * len(self._parts))
        before = {file for one in self._handed() for file in one.files}
        for part, one in zip(self._parts, found, strict=True):
            files = self._chunks.take(one["chunks"])
            part.handed, part.journal = _Handed(one["state"], files), []
        self._chunks.drop(before - {file for one in self._handed() for file in one.files})
        self._saved = time.monotonic()
        return self._handed()

    def _handed(self) -> list[_Handed]:
        return [part.handed for part in self._parts if part.handed is not None]

    def of(self, member: int, method: str, *arguments: Any) -> Any:
        part = next(part for part in self._parts if member in part.members)
        return self._ask([part], [(method, arguments)])[0]

    def close(self) -> None:
        self._stack.close()

    def _gather(self) -> int:
        """How many actors there are, once no more come."""
        shards = self._config.training.shards
        most = self._config.training.members if shards == "auto" else int(shards)
        last = time.monotonic()
        while len(self._spare) < most:
            try:
                self._go_on()
            except StoppedError:
                raise Interrupted(self._run) from None
            found = self._cluster.arrivals()
            self._spare += found
            last = time.monotonic() if found else last
            if self._spare and time.monotonic() - last > _GATHER_SECONDS:
                break
            wait([self._cluster.bell], 0.2)
        return len(self._spare)

    def _ask(self, parts: Sequence[_Part], calls: Sequence[Call]) -> list[Any]:
        """Answers in the order of the parts, whoever is lost meanwhile."""
        for part, call in zip(parts, calls, strict=True):
            part.todo.append(call)
            self._send(part)
        leaving = False
        while any(part.todo for part in parts):
            pipes: dict[Any, _Part] = {
                part.actor.pipe: part for part in parts if part.actor is not None and part.todo
            }
            for pipe in wait([*pipes, self._cluster.bell], 0.5):
                if pipe in pipes:
                    self._take(pipes[pipe])
            self._spare += self._cluster.arrivals()
            for part in parts:
                if part.actor is None and self._spare:
                    begin = ("begin", (part.members.start, part.members.stop))
                    part.move(self._spare.pop(0), begin)
                    self._send(part)
            leaving = leaving or self._leave(parts)
        return [part.answer for part in parts]

    def _leave(self, parts: Sequence[_Part]) -> bool:
        """Cuts evaluations short where a signal came."""
        try:
            self._go_on()
        except StoppedError:
            for part in parts:
                if part.actor is not None:
                    part.actor.ask_to_leave()
            return True
        return False

    def _send(self, part: _Part) -> None:
        if part.actor is None:
            return
        method, arguments = part.todo[0]
        facts: dict[str, Any] = {"method": method, "arguments": arguments}
        begins = method == "begin"
        if begins:
            facts = {"method": method, "members": arguments, **self._begin}
        elif isinstance(arguments, _Handed):  # a replay is read when it is sent, not before
            chunks = {str(m): self._chunks.read(m, arguments.files) for m in part.members}
            facts = {"method": method, "state": arguments.state, "chunks": chunks}
        if not part.actor.send(pack(facts), [self._shared] if begins else []):
            self._lose(part, Lost(f"on {part.actor.node} is gone", "silent"))

    def _take(self, part: _Part) -> None:
        assert part.actor is not None
        content = part.actor.receive()
        if isinstance(content, Lost):
            self._lose(part, content)
            return
        found = unpack(content)
        if "error" in found:
            _raise(*found["error"])
        self._losses = 0
        part.todo.popleft()
        if part.todo:
            self._send(part)
        else:
            part.answer = found["value"]

    def _lose(self, part: _Part, lost: Lost) -> None:
        self._losses += 1
        name = f"The worker of members {part.members.start} to {part.members.stop - 1}"
        if self._losses >= _LOSSES:
            raise ResourceError(
                f"{name} {lost.how}, the last of {_LOSSES} in a row. Nothing that was saved is "
                "lost: go on from the last checkpoint with `slipstream resume`."
            )
        self._say(f"{name} {lost.how}; another one goes on.")
        part.actor = None


def _raise(kind: str, text: str) -> NoReturn:
    """An error that a user can act on, from another process."""
    raise getattr(errors, kind, ConfigError)(text)
