"""Members of a run on a cluster: one shard per actor, moved to another actor if one is lost.

The owner has every shard's state of at most a minute ago and the calls since then. An actor that
takes over a shard receives both and repeats the calls, so results are bit-identical. With fewer
actors than shards, some run several; later actors take them over. Each chunk of a replay buffer is
transferred once, into the files shared by checkpoints.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.core.errors import ResourceError, SlipstreamError
from slipstream.core.storage.checkpoint import ReceivedChunks
from slipstream.core.storage.signals import Interrupted, StoppedError
from slipstream.training.cluster.cluster import (
    HAND_OVER_SECONDS,
    ClusterOptions,
    Lost,
)
from slipstream.training.cluster.node_service import (
    Arrays,
    NodeService,
    environment_payload,
    work_for,
)
from slipstream.training.cluster.ray_cluster import RayActor, connect
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.forked_process import set_torch_threads
from slipstream.training.settings.config import RunConfig
from slipstream.training.shard import Shard, split_members
from slipstream.training.workers import Workers, curriculum_of, make_shard

if TYPE_CHECKING:
    from slipstream.training.runs.run import Run

SERVICE = "slipstream.training.cluster.cluster_workers:ShardService"
_GATHER_SECONDS = 10.0  # wait for another actor after each arrival
_LOSSES = 6  # consecutive lost actors with the same shard before the run stops
_CHANGING = ("reset", "set_state", "iterate")  # methods that change a shard's state

Call = tuple[str, tuple[Any, ...]]


class _ReturnedState(NamedTuple):
    """Returned state of a shard: the small state, and files of its replay buffers by hash."""

    state: Any
    files: Mapping[str, str]


@dataclass(eq=False)
class _Part:
    """A shard.

    Attributes:
        members: its members.
        actor: its actor; None while it waits for one.
        pending: pending calls; the result of the last one is returned.
        journal: calls since `returned` that changed the state.
        returned: last returned state; None before the first.
        losses: actors lost with it since its last answer.
    """

    members: range
    actor: RayActor | None = None
    pending: deque[Call] = field(default_factory=deque)
    journal: list[Call] = field(default_factory=list)
    returned: _ReturnedState | None = None
    answer: Any = None
    losses: int = 0

    def move(self, actor: RayActor) -> None:
        """Move to another actor, which repeats the journaled calls."""
        restore = [] if self.returned is None else [("set_state", self.returned)]
        pending = [self.pending[-1]] if self.pending else []
        self.actor, self.pending = actor, deque([("begin", ()), *restore, *self.journal, *pending])


class ClusterWorkers(Workers):
    """Workers of a cluster: as many shards as actors at the start.

    Args:
        config, environment, check_stop: see `make_workers`.
        options: cluster options.
        run: owner of the work, with the folder of its chunks.

    Raises:
        SlipstreamError: the cluster cannot be used.
    """

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        options: ClusterOptions,
        run: Run,
        check_stop: Callable[[], None],
    ) -> None:
        self._run, self._check_stop, self._log, self._config = (
            run.path,
            check_stop,
            run.notify,
            config,
        )
        self._chunks = ReceivedChunks(run.bulk)
        self._spare: list[RayActor] = []  # actors without a shard
        self._busy: dict[RayActor, _Part] = {}
        self._saved = time.monotonic()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slipstream-files-"))
            work = work_for(f"the run {run.path.name}", SERVICE, environment, config, Path(folder))
            self._cluster = stack.enter_context(connect(options, work, self._log))
            self._shared = self._cluster.share(work.arrays)
            shared = self._shared if environment.part(KernelEnvironment) is not None else None
            self._begin = {
                "config": config,
                "environment": environment_payload(environment, shared),
                "curriculum": curriculum_of(config, environment),
            }
            shards = split_members(config.training.members, self._gather())
            self._parts = [_Part(members) for members in shards]
            self.members = [part.members for part in self._parts]
            self._stack = stack.pop_all()

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        return self._cluster.status()

    def call_each_shard(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if method == "get_state":  # for a checkpoint, whose files are kept
            return [returned.state for returned in self._hand_over()]
        if method == "save_bulk":  # belongs to the state of the previous call
            return [self._chunks.keep(returned.files) for returned in self._returned()]
        if method == "set_state":
            arguments = [_ReturnedState(state, dict(bulk[1])) for state, bulk in arguments]
        began = time.monotonic()
        values = self._call(self._parts, [(method, values) for values in arguments])
        for part, shard_arguments in zip(self._parts, arguments, strict=True):
            if isinstance(shard_arguments, _ReturnedState):
                part.returned, part.journal = shard_arguments, []
            elif method in _CHANGING:
                part.journal.append((method, shard_arguments))
        now = time.monotonic()
        if method == "iterate" and 2 * now - began - self._saved >= HAND_OVER_SECONDS:
            self._hand_over()  # the next call would end too late
            self._spread_shards()
        return values

    def _hand_over(self) -> list[_ReturnedState]:
        """Fetch all shards' states, and new chunks of their replay buffers."""
        replies = self._call(self._parts, [("hand_over", ())] * len(self._parts))
        before = {file for reply in self._returned() for file in reply.files}
        for part, reply in zip(self._parts, replies, strict=True):
            files = self._chunks.take(reply["chunks"])
            part.returned, part.journal = _ReturnedState(reply["state"], files), []
        self._chunks.drop(before - {file for reply in self._returned() for file in reply.files})
        self._saved = time.monotonic()
        return self._returned()

    def _returned(self) -> list[_ReturnedState]:
        return [part.returned for part in self._parts if part.returned is not None]

    def call_member(self, member: int, method: str, *arguments: Any) -> Any:
        part = next(part for part in self._parts if member in part.members)
        return self._call([part], [(method, arguments)])[0]

    def close(self) -> None:
        self._stack.close()

    def _gather(self) -> int:
        """Wait for actors; return their number when no more arrive."""
        shards = self._config.training.shards
        most = self._config.training.members if shards == "auto" else int(shards)
        last = time.monotonic()
        while len(self._spare) < most:
            try:
                self._check_stop()
            except StoppedError:
                raise Interrupted(self._run) from None
            new_actors = self._cluster.new_actors()
            self._spare += new_actors
            last = time.monotonic() if new_actors else last
            if self._spare and time.monotonic() - last > _GATHER_SECONDS:
                break
            wait([self._cluster.arrival_pipe], 0.2)
        return len(self._spare)

    def _call(self, parts: Sequence[_Part], calls: Sequence[Call]) -> list[Any]:
        """Return answers in the order of the parts, replacing lost actors."""
        for part, call in zip(parts, calls, strict=True):
            part.pending.append(call)
        while any(part.pending for part in parts):
            self._send(parts)
            pipes = {actor.pipe: actor for actor in self._busy}
            for pipe in wait([*pipes, self._cluster.arrival_pipe], 0.5):
                if pipe in pipes:
                    self._take(pipes[pipe])
            self._spare += self._cluster.new_actors()
            self._leave()
        return [part.answer for part in parts]

    def _leave(self) -> None:
        """Stop running evaluations after a stop request."""
        try:
            self._check_stop()
        except StoppedError:
            for actor in self._busy:
                actor.request_stop()

    def _send(self, parts: Sequence[_Part]) -> None:
        """Send the next call of every part whose actor is idle."""
        for part in parts:
            while part.pending:
                actor = part.actor or self._assign_actor(part)
                if actor is None or actor in self._busy:
                    break
                if self._request(part, actor):
                    self._busy[actor] = part
                    break
                self._handle_loss(actor, Lost(f"on {actor.node} was lost", "silent"))

    def _assign_actor(self, part: _Part) -> RayActor | None:
        """Assign an actor to a part without one: a spare actor, or the one with the fewest
        parts.
        """
        if self._spare:
            actor = self._spare.pop(0)
        else:
            assigned = [other.actor for other in self._parts if other.actor is not None]
            if not assigned:
                return None
            actor = min(assigned, key=assigned.count)
        part.move(actor)
        return actor

    def _spread_shards(self) -> None:
        """Move shards that share an actor to spare ones; their states were just fetched."""
        for k, part in enumerate(self._parts):
            shared = any(other.actor is part.actor for other in self._parts[:k])
            if self._spare and shared:
                part.move(self._spare.pop(0))

    def _request(self, part: _Part, actor: RayActor) -> bool:
        """Send a part's next call; return False if its actor is lost."""
        method, arguments = part.pending[0]
        request: dict[str, Any] = {"method": method, "arguments": arguments}
        request["members"] = part.members
        if method == "begin":
            request |= self._begin
        elif isinstance(arguments, _ReturnedState):  # replay chunks are read only when sent
            chunks = {m: self._chunks.read(m, arguments.files) for m in part.members}
            request["arguments"] = (arguments.state, chunks)
        request["kept"] = [other.members for other in self._parts if other.actor is actor]
        return actor.send(pickle.dumps(request), [self._shared] if method == "begin" else [])

    def _take(self, actor: RayActor) -> None:
        content = actor.receive()
        if isinstance(content, Lost):
            self._handle_loss(actor, content)
            return
        reply = pickle.loads(content)
        if isinstance(reply, SlipstreamError):
            raise reply
        part = self._busy.pop(actor)
        part.losses = 0
        part.pending.popleft()
        if not part.pending:
            part.answer = reply

    def _handle_loss(self, actor: RayActor, lost: Lost) -> None:
        """Handle a lost actor with all its parts; the running part is held responsible."""
        self._busy.pop(actor, None)
        for part in self._parts:
            if part.actor is not actor:
                continue
            part.actor = None
            part.losses += 1
            name = f"The worker of members {part.members.start} to {part.members.stop - 1}"
            if part.losses >= _LOSSES:
                raise ResourceError(
                    f"{name} {lost.how}, the last of {_LOSSES} in a row. Continue from the last "
                    "checkpoint with `slipstream resume`."
                )
            self._log(f"{name} {lost.how}; another one continues.")


class ShardService(NodeService):
    """Calls methods of shards on a node for `ClusterWorkers`."""

    def __init__(self, needs: bytes, arrays: Arrays) -> None:
        super().__init__(needs, arrays)
        self._shards: dict[range, Shard] = {}  # by members
        self._known: dict[int, Collection[str]] = {}  # chunks of each member stored by the owner

    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """Return a method's result, or the user error that ends the run."""
        message = pickle.loads(request)
        self._leaving.clear()
        for members in [stored for stored in self._shards if stored not in message["kept"]]:
            self._shards.pop(members).close()
        try:
            return pickle.dumps(self._call(message, arrays))
        except SlipstreamError as error:
            return pickle.dumps(error)

    def _call(self, message: Any, arrays: Sequence[Arrays]) -> Any:
        """Return the result of a method, or the user error that ends the run."""
        method, members, arguments = message["method"], message["members"], message["arguments"]
        if method == "begin":
            return self._begin(message, arrays)
        shard = self._shards[members]  # a restarted actor has none and counts as lost
        if method == "set_state":
            return self._set_state(shard, *arguments)
        if method == "hand_over":
            return self._hand_over(shard)
        value = getattr(shard, method)(*arguments)
        return [str(fault) for fault in value] if method == "faults" else value

    def _begin(self, message: Any, arrays: Sequence[Arrays]) -> None:
        set_torch_threads(1)
        config, members = message["config"], message["members"]
        environment = self.restored(message["environment"], arrays).with_stepping(
            config.training.stepping
        )
        self._shards[members] = make_shard(
            config, environment, members, self._check_stop, curriculum=message["curriculum"]
        )

    def _hand_over(self, shard: Shard) -> dict[str, Any]:
        """Return the state and chunks of its replay buffers; None for chunks stored by the
        owner.
        """
        chunks: dict[int, dict[str, Any]] = {}
        for row, member in enumerate(shard.members):
            stored = self._known.get(member, ())
            makers = shard.collector.bulk(row)
            chunks[member] = {
                name: None if name in stored else make() for name, make in makers.items()
            }
            self._known[member] = set(makers)
        return {"state": shard.get_state(), "chunks": chunks}

    def _set_state(self, shard: Shard, state: Any, chunks: Mapping[int, Mapping[str, Any]]) -> int:
        self._known |= {member: set(names) for member, names in chunks.items()}
        return shard.set_state(state, chunks=[chunks[member].items() for member in shard.members])

    def _check_stop(self) -> None:
        if self._leaving.is_set():
            raise StoppedError
