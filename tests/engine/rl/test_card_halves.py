"""A card acts for one half of the copies while the other half is stepped: the bits are the same."""

from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.rl.agents import torch_agent
from slipstream.rl.agents.ppo import torch_ppo
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.torch_agent import TorchGroup
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.shard import Shard

MASKED = str(Path(__file__).parents[1] / "samples/masked.py")
HORIZON = 16
CONFIG = PPOConfig(n_steps=HORIZON, batch_size=16, n_epochs=2, net_arch=(8,), learning_rate=1e-2)


@pytest.fixture
def stepped(monkeypatch):
    """Ranges of copies that were stepped, () for all; four copies are enough for halves."""
    stepped, step_rows = [], KernelVectorEnv.step_rows

    def step(env, actions, out, t=0, *half):
        stepped.append(half)
        step_rows(env, actions, out, t, *half)

    monkeypatch.setattr(KernelVectorEnv, "step_rows", step)
    monkeypatch.setattr(torch_ppo, "_MIN_DOUBLE_BUFFERED_ENVS", 4)
    return stepped


def trained(game, members, copies, halves, iterations=1):
    """A shard after some iterations, and its state with the metrics of each.

    Args:
        halves: ranges that it steps in turn; None: as it does on a card.
    """
    environment = resolve_environment(game, {} if game == MASKED else {"max_steps": 10})
    shard = Shard(environment, CONFIG, range(members), range(members), copies, learner="torch")
    if halves is None:
        shard.agent.device = torch.device("cuda:0")  # its groups calculate where they did
    else:
        shard.agent.double_buffered_ranges = lambda: halves
    shard.reset()
    found = {}
    for i in range(iterations):
        metrics = shard.iterate(i / iterations)
        found |= {f"{name} {i}": values for name, values in metrics.items()}
    return shard, found | shard.get_state()


@pytest.mark.parametrize(
    ("game", "members", "copies"),
    [("cartpole", 3, 2), ("cartpole", 1, 6), ("pendulum", 1, 5), (MASKED, 2, 3)],
)
def test_halves_are_the_same_bits(stepped, device, game, members, copies):
    iterations = 3 if device == "cpu" else 1  # what a card rounds, environments may make much of
    _, expected = trained(game, members, copies, [], iterations)
    assert set(stepped) == {()}
    stepped.clear()
    shard, found = trained(game, members, copies, None, iterations)
    total, middle = members * copies, copies // 2 if members == 1 else members // 2 * copies
    assert stepped == [(0, middle), (middle, total)] * (iterations * HORIZON)
    for name, values in expected.items():
        if device == "cpu":
            assert values.tobytes() == found[name].tobytes(), name
        else:
            np.testing.assert_allclose(found[name], values, 1e-4, 1e-4, err_msg=name)
    assert min(shard.stats()[name] for name in ("seconds_env", "seconds_policy")) > 0


def test_few_copies_are_stepped_at_once(stepped):
    trained("cartpole", 1, 3, None)
    assert set(stepped) == {()}


@pytest.mark.parametrize("refused", [1, 2, HORIZON, 2 * HORIZON])
def test_halves_of_a_group_that_lacks_memory(stepped, monkeypatch, refused):
    """Two halves act for a group; it is halved when either does, and nothing is lost."""
    monkeypatch.setattr(torch_agent, "member_batches", lambda members, _: [slice(0, members)])
    _, expected = trained("cartpole", 3, 2, [])
    calls, inputs = [], TorchGroup.inputs

    def validated(group, *arguments):
        calls.append(1)
        if len(calls) == refused:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inputs(group, *arguments)

    monkeypatch.setattr(TorchGroup, "inputs", validated)
    shard, found = trained("cartpole", 3, 2, [(0, 2), (2, 6)])
    assert [group.count for group in shard.agent._groups] == [1, 2]
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, 1e-4, 1e-6, err_msg=name)
