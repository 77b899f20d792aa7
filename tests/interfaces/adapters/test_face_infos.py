"""Faces of libraries whose protocols know little of infos hand on what an environment says."""

import gymnasium
import numpy as np
import pytest

from slipstream.api import make_adapter

pytestmark = pytest.mark.usefixtures("one_server")

TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
TARGET = f"gym:{TAXI}"  # says a probability and which actions change anything


def serial_infos(seeds, actions):
    """Infos of `reset` and of one step of each copy alone."""
    found = []
    for seed, action in zip(seeds, actions, strict=True):
        env = gymnasium.make(TAXI)
        found.append((env.reset(seed=seed)[1], env.step(action)[4]))
    return list(zip(*found, strict=True))


def equals(batch, infos):
    assert batch["_prob"].all() and batch["prob"].tolist() == [one["prob"] for one in infos]
    assert np.array_equal(batch["action_mask"], np.stack([one["action_mask"] for one in infos]))


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_elegantrl(backend):
    torch = pytest.importorskip("torch", reason="pip install torch")
    first, second = serial_infos(range(3), [0, 1, 2])
    env = make_adapter("elegantrl", TARGET, 3, backend=backend, workers=2)
    equals(env.reset()[1], first)
    *_, info = env.step(torch.tensor([0, 1, 2]))
    equals(info, second)
    assert "ended" not in info
    env.close()
    alone = make_adapter("elegantrl", TARGET, 1, backend=backend, workers=1)
    assert alone.reset()[1]["prob"] == first[0]["prob"]
    assert np.array_equal(alone.step(0)[4]["action_mask"], second[0]["action_mask"])
    alone.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_envpool(backend):
    first, second = serial_infos(range(42, 45), [0, 1, 2])
    pool = make_adapter("envpool", TARGET, 3, backend=backend, workers=2)
    equals(pool.reset()[1], first)
    *_, info = pool.step(np.array([0, 1, 2]))
    equals(info, second)
    assert info["env_id"].tolist() == [0, 1, 2]
    pool.close()


def test_envpools_first_results_have_their_own_infos():
    pool = make_adapter("envpool", TARGET, 4, batch_size=2, backend="process", workers=2)
    pool.async_reset()
    *_, info = pool.recv()
    for _ in range(6):
        pool.send(np.zeros(2, int), info["env_id"])
        *_, info = pool.recv()
        assert info["_action_mask"].tolist() == [True, True] and len(info["env_id"]) == 2
    pool.close()


@pytest.mark.peers
def test_pettingzoo():
    pytest.importorskip("pettingzoo", reason="pip install pettingzoo")
    ((first,), (second,)) = serial_infos([7], [1])
    env = make_adapter("pettingzoo", TARGET, backend="serial")
    assert np.array_equal(env.reset(seed=7)[1]["player_0"]["action_mask"], first["action_mask"])
    *_, infos = env.step({"player_0": 1})
    assert infos["player_0"]["prob"] == second["prob"]
    env.close()
