"""Acting, stepping, keeping and learning in one compiled call: what it says of its time."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from slipstream.jit import codegen
from slipstream.jit.fast.parallel_compile import compile_in_parallel, pending_modules
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.shard import Shard


def _shares(**settings: float) -> tuple[float, float, float, float]:
    config = DQNConfig(iteration=600, learning_starts=0, net_arch=(16,), **settings)
    shard = Shard(resolve_environment("cartpole", {}), config, [0], range(1), 1)
    shard.reset()
    shard.iterate(0.0)  # compiles
    before = shard.stats()
    began = time.perf_counter()
    shard.iterate(0.0)
    wall = time.perf_counter() - began
    names = ("seconds_env", "seconds_policy", "seconds_update")
    env, policy, update = (shard.stats()[name] - before[name] for name in names)
    return env, policy, update, wall


def test_acting_stepping_and_learning_are_timed_apart() -> None:
    env, policy, update, wall = _shares(utd_ratio=2.0)
    assert min(env, policy, update) > 0
    assert env + policy + update <= wall
    idle = _shares(utd_ratio=1e-3)
    # 1,200 updates against none: whatever the machine does meanwhile.
    assert update / (env + policy) > idle[2] / (idle[0] + idle[1])


def test_the_update_is_compiled_with_the_rest_where_the_environment_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(codegen, "_loaded", {})
    environment, config = resolve_environment("gym:CartPole-v1", {}), DQNConfig(net_arch=(16,))
    with pytest.raises(InterruptedError), compile_in_parallel(lambda work, most: nullcontext()):
        with closing(Shard(environment, config, [0], range(1), 1, "serial")):
            names = [folder.name for folder in pending_modules() or ()]
        assert any(name.startswith("dqn_update") for name in names)
        raise InterruptedError  # before anything is compiled
