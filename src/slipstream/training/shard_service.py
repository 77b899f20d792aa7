"""A shard of a run on a node of a cluster."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.training.child import torch_threads
from slipstream.training.config import RunConfig
from slipstream.training.interruption import StoppedError
from slipstream.training.node import Arrays, NodeService
from slipstream.training.shard import Shard
from slipstream.training.wire import pack, unpack
from slipstream.training.workers import make_shard


class ShardService(NodeService):
    """Calls methods of a shard for `ClusterWorkers`."""

    _shard: Shard

    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """What a method returned, or why it could not."""
        asked = unpack(request)
        self._leaving.clear()
        try:
            if asked["method"] == "begin":
                self._begin(asked, arrays)
                return pack({"value": None})
            value = getattr(self._shard, asked["method"])(*asked["arguments"])
            if asked["method"] == "faults":
                value = [str(fault) for fault in value]
            return pack({"value": value})
        except SlipstreamError as error:
            return pack({"error": [type(error).__name__, str(error)]})

    def _begin(self, asked: Any, arrays: Sequence[Arrays]) -> None:
        torch_threads(1)
        config: RunConfig = pickle.loads(asked["config"])
        environment = self.restored(asked["environment"], arrays).prepared(config.training)
        members = range(*asked["members"])
        self._shard = make_shard(config, environment, members, self._go_on)

    def _go_on(self) -> None:
        if self._leaving.is_set():
            raise StoppedError
