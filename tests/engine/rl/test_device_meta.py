"""Where a processor waits for a card, found without one.

The torch forms run with the device's tensors on torch's `meta`, which has shapes and no numbers: it
refuses `.item()`, `bool(tensor)`, `.cpu()` and boolean indices, all of which would wait for a card.
What is left is `TorchGroup.to_numpy_async`, whose answers are counted. A copy to the device from
memory that is not pinned waits as well; each must be said to be `non_blocking`.
"""

import forms
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.dqn.torch_dqn import TorchDQN
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.torch_ppo import TorchPPO
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.agents.sac.torch_sac import TorchSAC
from slipstream.rl.agents.td3.config import TD3Config
from slipstream.rl.agents.td3.torch_td3 import TorchTD3
from slipstream.rl.agents.torch_agent import TorchGroup
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout

MEMBERS, COPIES, STEPS = 3, 4, 8
IMAGE = {"shape": (1, 8, 8), "dtype": np.uint8}


class CopiesDoNotWait(TorchDispatchMode):
    """Refuses a copy to the device for which the processor would wait."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten._to_copy.default:
            there, device = kwargs.get("device", args[0].device), args[0].device
            waits = not kwargs.get("non_blocking", False)
            assert not (device.type == "cpu" and torch.device(there).type == "meta" and waits)
        if function is torch.ops.aten.copy_.default:
            assert args[0].device == args[1].device
        return function(*args, **kwargs)


@pytest.fixture
def waits(monkeypatch):
    """How often the processor waited for the device, by what it was told; numbers are made up."""
    forms.move(monkeypatch, "meta")
    counted = []

    def to_numpy_async(group, *tensors):
        def told():
            counted.append(len(tensors))
            return [torch.zeros(tensor.shape, dtype=tensor.dtype).numpy() for tensor in tensors]

        assert all(tensor.device.type == "meta" for tensor in tensors)
        return told

    monkeypatch.setattr(TorchGroup, "to_numpy_async", to_numpy_async)
    return counted


@pytest.mark.parametrize(
    ("action", "shape", "settings", "precision"),
    [
        ("discrete", {}, {"target_kl": 0.01, "reward_scaling": "on"}, "float32"),
        ("multi", {}, {"normalize_advantage": False}, "bfloat16_products"),
        ("box", {}, {"activation": "relu", "max_grad_norm": None}, "tf32"),
        ("discrete", IMAGE, {"net_arch": (8,)}, "bfloat16_products"),
    ],
)
def test_ppo_waits_once_a_step_and_once_an_update(
    experience, waits, action, shape, settings, precision
):
    spec = experience.spec(action=action, **shape)
    config = PPOConfig(n_steps=STEPS, batch_size=16, n_epochs=3, **settings)
    agent = TorchPPO(config, spec, range(MEMBERS), COPIES, precision=precision)
    masked = 3 if action == "discrete" else 0
    rollout = Rollout(spec, STEPS, MEMBERS, COPIES, masked)
    with CopiesDoNotWait():
        experience.fill(agent, rollout)
        assert len(waits) == STEPS
        agent.update(rollout)
    assert len(waits) == STEPS + 1


def test_a_half_is_waited_for_when_the_other_one_is_under_way(experience, waits):
    spec = experience.spec(action="box")
    agent = TorchPPO(PPOConfig(n_steps=STEPS, batch_size=16), spec, range(MEMBERS), COPIES)
    rollout = Rollout(spec, STEPS, MEMBERS, COPIES)
    experience.fill(agent, rollout, act=False)
    with CopiesDoNotWait():
        for t in range(STEPS):
            halves = [agent.begin_act(rollout, t, lo, hi) for lo, hi in ((0, 4), (4, 12))]
            assert len(waits) == 2 * t
            for half in halves:
                half()
        agent.update(rollout)
    assert len(waits) == 2 * STEPS + 1


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize(
    ("form", "config", "action", "shape", "settings"),
    [
        (TorchDQN, DQNConfig, "discrete", {}, {"dueling": True}),
        (TorchDQN, DQNConfig, "discrete", IMAGE, {"double": False}),
        (TorchSAC, SACConfig, "box", {}, {}),
        (TorchTD3, TD3Config, "box", {}, {"max_grad_norm": 1.0}),
    ],
)
def test_learning_from_a_replay_waits_for_priorities_alone(
    experience, waits, form, config, action, shape, settings, prioritised
):
    spec = experience.spec(action=action, **shape)
    config = config(
        **{"buffer_size": 200, "batch_size": 8, "iteration": STEPS, "net_arch": (8,)},
        **{"learning_starts": 2, "prioritised": prioritised, **settings},
    )
    agent = form(config, spec, range(MEMBERS), COPIES)
    masked = 3 if action == "discrete" else 0
    rollout = Rollout(spec, STEPS, MEMBERS, COPIES, masked)
    replay = Replay(config.replay(COPIES), spec, MEMBERS, COPIES, masked)
    with CopiesDoNotWait():
        experience.fill(agent, rollout, ends=0.0)
        assert len(waits) == STEPS  # one an acting step
        replay.begin(rollout.obs[0], None if rollout.mask is None else rollout.mask[0])
        nothing = FinalObs(rollout.obs[0, :0], np.zeros((0, 2), np.int64))
        for t in range(STEPS):
            replay.write(rollout, t, nothing, np.full(MEMBERS * COPIES, -1))
        agent.learn(replay, np.array([3, 0, 2]))
        priorities = 3 if prioritised else 0  # one an update
        assert len(waits) == STEPS + priorities
        metrics = agent.update(rollout)
    assert len(waits) == STEPS + priorities + 1  # one an iteration
    assert not metrics["failed"].any()


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: torch.zeros(2).to(x.device),
        lambda x: x.copy_(torch.zeros(2)),
    ],
)
def test_a_wait_is_found(wait):
    with CopiesDoNotWait(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        wait(torch.zeros(2, device="meta"))
