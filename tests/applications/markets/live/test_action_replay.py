"""Known actions taken again in one call are, bit for bit, those taken step by step."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.markets.live import price_replay
from slipstream.markets.live.price_replay import ActionReplay
from slipstream.training.environments.factory import make_environment


@pytest.mark.parametrize("backend", ["serial", "compiled"])
def test_steps_taken_again(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_replay, "_CHUNK", 7)
    environment, every = make_environment("cartpole", {}), np.arange(3)
    single, again = (environment.make_eval_envs("test", 3, backend=backend) for _ in range(2))
    assert isinstance(single, KernelVectorEnv) and isinstance(again, KernelVectorEnv)
    names = tuple(again.state.dtype.names or ())
    actions = np.random.default_rng(0).integers(0, 2, (400, 3, 1)).astype(again.spec.action_dtype)
    one, other = ActionReplay(single), ActionReplay(again)
    for env, out in ((single, one.out), (again, other.out)):
        env.begin(every, every, 5, out.obs)
    lengths, rows = (3, 0, 400), []  # the last one ends before
    found = [other.run(e, actions[:n, e], names) for e, n in enumerate(lengths)]
    for t in range(400):
        single.hold((np.array(lengths) <= t) | (single.episode_state["held"] != 0))
        single.step(actions[t], one.out)
        rows.append(single.read(names))
    taken = [len(one["key"]) for one in found]
    assert taken[:2] == [3, 0] and 7 < taken[2] < 400
    for e, n in enumerate(taken):
        for name in names:
            assert found[e][name].tobytes() == b"".join(row[name][e].tobytes() for row in rows[:n])
    assert again.state.tobytes() == single.state.tobytes()
    assert other.out.obs.tobytes() == one.out.obs.tobytes()
