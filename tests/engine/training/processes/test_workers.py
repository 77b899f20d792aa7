"""Making a shard: what is left where that fails."""

from contextlib import contextmanager

import pytest

from slipstream.core.errors import KernelError
from slipstream.training import workers
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve


def test_a_shard_is_closed_where_compiling_for_it_fails(monkeypatch):
    closed = []

    class Made:
        def __init__(self, *_, **__):
            pass

        def close(self):
            closed.append(self)

    @contextmanager
    def fails(helpers):
        yield
        raise KernelError("it cannot be compiled")

    monkeypatch.setattr(workers, "Shard", Made)
    monkeypatch.setattr(workers, "compile_in_parallel", fails)
    environment = resolve_environment("cartpole", {})
    with pytest.raises(KernelError):
        workers.make_shard(resolve({"env": "cartpole"}), environment, range(1), lambda: None)
    assert len(closed) == 1
