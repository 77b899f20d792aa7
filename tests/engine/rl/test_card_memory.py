"""Members that a card lacks memory for are halved, and what they learn stays the same."""

import numpy as np
import pytest
import torch

from slipstream.core.errors import ResourceError
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents import torch_agent
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.dqn.torch_dqn import TorchDQN
from slipstream.rl.agents.off_policy import torch_off_policy as off_policy_form
from slipstream.rl.agents.ppo import torch_ppo as ppo_form
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.torch_ppo import TorchPPO
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.agents.sac.torch_sac import TorchSAC
from slipstream.rl.agents.torch_agent import TorchGroup
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout

MEMBERS, COPIES, STEPS = 4, 2, 8
OFF_POLICY = {"buffer_size": 100, "batch_size": 4, "iteration": STEPS, "learning_starts": 0}
AGENTS = {
    "ppo": (TorchPPO, PPOConfig(n_steps=STEPS, batch_size=4, net_arch=(8,)), "discrete"),
    "dqn": (TorchDQN, DQNConfig(net_arch=(8,), prioritised=True, **OFF_POLICY), "discrete"),
    "sac": (TorchSAC, SACConfig(net_arch=(8,), **OFF_POLICY), "box"),
}


@pytest.fixture
def memory(monkeypatch):
    """Calls that may lack memory, counted; one that `refused` names does where members are many.

    They are a group's inputs, when it acts or begins to learn, and each gradient within an update.
    """
    memory = {"calls": 0, "refused": (), "most": 1}

    def validated(work, members_of):
        def call(*arguments):
            memory["calls"] += 1
            if memory["calls"] in memory["refused"] and members_of(*arguments) > memory["most"]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\n ")
            return work(*arguments)

        return call

    monkeypatch.setattr(
        TorchGroup, "inputs", validated(TorchGroup.inputs, lambda group, *_: group.count)
    )
    for form in (ppo_form, off_policy_form):
        gradient = validated(form.differentiate, lambda group, loss: len(loss))
        monkeypatch.setattr(form, "differentiate", gradient)
    monkeypatch.setattr(torch_agent, "member_batches", lambda members, _: [slice(0, members)])
    return memory


def trained(experience, memory, name, refused=()):
    """An agent after two iterations, what it left, and the calls when each phase was done."""
    form, config, action = AGENTS[name]
    spec = experience.spec(action=action)
    memory |= {"calls": 0, "refused": refused}
    agent = form(config, spec, range(MEMBERS), COPIES)
    rollout, replay = Rollout(spec, STEPS, MEMBERS, COPIES), None
    if agent.experience_type == "replay":
        replay = Replay(config.replay(COPIES), spec, MEMBERS, COPIES)
    left, calls = {}, [memory["calls"]]
    for iteration in range(2):
        experience.fill(agent, rollout, iteration, ends=0.0 if replay else 0.1)
        calls.append(memory["calls"])
        if replay is not None:
            replay.begin(rollout.obs[0], None)
            nothing = FinalObs(rollout.obs[0, :0], np.zeros((0, 2), np.int64))
            for t in range(STEPS):
                replay.write(rollout, t, nothing, np.full(MEMBERS * COPIES, -1))
            agent.learn(replay, np.array([2, 1, 0, 0]))
            agent.learn(replay, np.array([1, 0, 0, 2]))
            left["tree"] = replay.ring.tree.copy()
        metrics = agent.update(rollout)
        calls.append(memory["calls"])
    return agent, agent.state_dict() | metrics | left, calls


@pytest.mark.parametrize("name", AGENTS)
def test_halves_go_on_from_before(experience, memory, name):
    whole, expected, calls = trained(experience, memory, name)
    assert whole.drain_warnings() == []
    _, acted, learned, acted_again, learned_again = calls
    for refused in (
        acted // 2,  # while acting
        learned - 1,  # in the middle of the last update
        acted_again - 1,
        (learned_again + acted_again) // 2,
    ):
        halved, found, _ = trained(experience, memory, name, refused=[refused])
        assert [group.count for group in halved._groups] == [2, 2]
        said = halved.drain_warnings()
        assert len(said) == 1 and "in 2 groups of at most 2" in said[0]
        assert halved.drain_warnings() == []
        for key, values in expected.items():
            # A card, and a processor in SAC, round products of two members otherwise than of four.
            if name == "sac" or whole.device.type == "cuda":
                np.testing.assert_allclose(found[key], values, 1e-4, 1e-6, err_msg=key)
            else:
                assert values.tobytes() == found[key].tobytes(), (key, refused)


def test_a_half_is_halved_again_and_one_member_is_not(experience, memory):
    agent, _, _ = trained(experience, memory, "sac", refused=(1, 2))
    assert [group.count for group in agent._groups] == [1, 1, 2]
    memory["most"] = 0
    with pytest.raises(
        ResourceError, match=r"lacks memory to calculate a single member \(CUDA out of memory"
    ):
        trained(experience, memory, "sac", refused=range(1, 5))


def lacking(*arguments):
    raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize("method", ["mirror", "fetch"])
def test_weights_that_a_card_cannot_keep_end_in_words(experience, monkeypatch, method):
    monkeypatch.setattr(TorchGroup, method, lacking)
    form, config, action = AGENTS["sac"]
    with pytest.raises(ResourceError, match=r"the weights of 4 members \(CUDA out of memory"):
        form(config, experience.spec(action=action), range(MEMBERS), COPIES)


def test_halves_that_a_card_cannot_keep_end_in_words(experience, memory, monkeypatch):
    whole = TorchPPO._halve

    def halve(agent, *arguments):
        with monkeypatch.context() as here:
            here.setattr(TorchGroup, "to_device", lacking)
            whole(agent, *arguments)

    monkeypatch.setattr(TorchPPO, "_halve", halve)
    with pytest.raises(ResourceError, match="the weights of 4 members"):
        trained(experience, memory, "ppo", refused=[3])
