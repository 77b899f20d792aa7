"""A shard of a run on a node of a cluster."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.files.interruption import StoppedError
from slipstream.settings.config import RunConfig
from slipstream.training.processes.child import torch_threads
from slipstream.training.processes.node import Arrays, NodeService
from slipstream.training.processes.wire import pack, unpack
from slipstream.training.processes.workers import make_shard
from slipstream.training.shard import Shard


class ShardService(NodeService):
    """Calls methods of a shard for `ClusterWorkers`."""

    _shard: Shard
    _known: Mapping[str, Collection[str]] = {}  # chunks of each member that the owner has

    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """What a method returned, or why it could not."""
        asked = unpack(request)
        self._leaving.clear()
        try:
            return pack({"value": self._call(asked, arrays)})
        except SlipstreamError as error:
            return pack({"error": [type(error).__name__, str(error)]})

    def _call(self, asked: Any, arrays: Sequence[Arrays]) -> Any:
        method = asked["method"]
        if method == "begin":
            return self._begin(asked, arrays)
        if method == "set_state":
            return self._set_state(asked["state"], asked["chunks"])
        if method == "hand_over":
            return self._hand_over()
        value = getattr(self._shard, method)(*asked["arguments"])
        return [str(fault) for fault in value] if method == "faults" else value

    def _begin(self, asked: Any, arrays: Sequence[Arrays]) -> None:
        torch_threads(1)
        config: RunConfig = pickle.loads(asked["config"])
        environment = self.restored(asked["environment"], arrays).prepared(config.training.stepping)
        members = range(*asked["members"])
        curriculum = pickle.loads(asked["curriculum"])
        self._shard = make_shard(config, environment, members, self._go_on, curriculum=curriculum)

    def _hand_over(self) -> dict[str, Any]:
        """The state, and chunks of its replays; None stands for those that the owner has."""
        chunks: dict[str, dict[str, Any]] = {}
        for row, member in enumerate(self._shard.members):
            known = self._known.get(str(member), ())
            made = self._shard.collector.bulk(row)
            chunks[str(member)] = {
                name: None if name in known else make() for name, make in made.items()
            }
        self._known = {member: set(one) for member, one in chunks.items()}
        return {"state": self._shard.get_state(), "chunks": chunks}

    def _set_state(self, state: Any, chunks: Mapping[str, Mapping[str, Any]]) -> int:
        own = [chunks[str(member)] for member in self._shard.members]
        self._known = {member: set(one) for member, one in chunks.items()}
        return self._shard.set_state(state, chunks=[one.items() for one in own])

    def _go_on(self) -> None:
        if self._leaving.is_set():
            raise StoppedError
