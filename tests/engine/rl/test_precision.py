"""`training.precision`: what is rounded, what stays float32, and that it learns."""

import numpy as np
import pytest
import torch

from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.dqn.torch_dqn import TorchDQN
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.torch_ppo import TorchPPO
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.agents.sac.torch_sac import TorchSAC
from slipstream.rl.agents.td3.config import TD3Config
from slipstream.rl.agents.td3.torch_td3 import TorchTD3
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets import torch_networks
from slipstream.rl.nets.torch_networks import BFLOAT16, TorchMlp
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.shard import Shard

MEMBERS, COPIES, STEPS = 2, 4, 16
IMAGE = {"shape": (1, 8, 8), "dtype": np.uint8}


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def rounded(x):
    return x.bfloat16().double()


def test_hidden_products_are_rounded_and_the_last_layer_is_not():
    x, first, last = drawn(2, 8, 5), drawn(2, 6, 16), drawn(2, 16, 3)
    weights = {"actor.0.weight": first, "actor.1.weight": last, "actor.1.bias": drawn(2, 1, 3)}
    hidden = torch.relu(first[:, 5:] + rounded(rounded(x) @ rounded(first[:, :5])).float())
    expected = torch.baddbmm(weights["actor.1.bias"], hidden, last)
    found = TorchMlp("relu", BFLOAT16).head(weights, x)
    assert found.dtype == torch.float32
    # A sum in float32 may round to the neighbour of the exact one: 2^-8 of a hidden number.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    exact = TorchMlp("relu").head(weights, x)
    assert (found - expected).abs().mean() < 0.1 * (found - exact).abs().mean()


def test_products_are_summed_in_float32():
    """torch's own bfloat16 convolution sums gradients of kernels in bfloat16: 4 % off here."""
    images, kernels = drawn(64, 3, 32, 32), 0.1 * drawn(8, 3, 8, 8)
    gradient = drawn(64, 8, 7, 7)
    own, exact = kernels.clone().requires_grad_(), rounded(kernels).requires_grad_()
    BFLOAT16.convolve(images, own, torch.zeros(8), 4).backward(gradient)
    torch.nn.functional.conv2d(rounded(images), exact, stride=4).backward(rounded(gradient))
    largest = exact.grad.abs().max()
    assert (own.grad - exact.grad).abs().max() < 0.004 * largest  # the result itself is rounded


@pytest.mark.parametrize("own", [False, True])
def test_a_processors_own_products_are_those_made_of_float32(monkeypatch, own):
    """At these sizes a member's bits are its own, whoever is beside it."""
    monkeypatch.setattr(torch_networks, "has_bfloat16_instructions", lambda: own)
    bias, x, weight = drawn(3, 1, 48), drawn(3, 40, 24) + 1, 0.1 * drawn(3, 24, 48) + 0.1
    factors = [t.requires_grad_() for t in (bias, x, weight)]
    found = BFLOAT16.dense(*factors)
    exact = (bias + (rounded(x) @ rounded(weight)).float()).detach()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.detach(), exact, rtol=0, atol=2**-7 * float(exact.abs().max()))
    above = drawn(3, 40, 48)
    gradients = torch.autograd.grad(found, factors, above)
    of_weight = (rounded(x).transpose(1, 2) @ rounded(above)).detach()
    error = (gradients[2] - of_weight).abs().max()
    assert error < 2**-7 * of_weight.abs().max()
    alone = [t[1:2].detach().requires_grad_() for t in factors]
    one = BFLOAT16.dense(*alone)
    assert torch.equal(one, found[1:2])
    for mine, ours in zip(torch.autograd.grad(one, alone, above[1:2]), gradients, strict=True):
        assert torch.equal(mine, ours[1:2])


AGENTS = [
    (TorchPPO, PPOConfig, "discrete", {}, {"n_steps": STEPS, "batch_size": 32}),
    (TorchPPO, PPOConfig, "discrete", IMAGE, {"n_steps": STEPS, "batch_size": 32}),
    (TorchDQN, DQNConfig, "discrete", {}, {"dueling": True}),
    (TorchSAC, SACConfig, "box", {}, {}),
    (TorchTD3, TD3Config, "box", {}, {}),
]


def _iteration(experience, form, kind, action, shape, settings, precision):
    """State and metrics after an iteration of random experience."""
    spec = experience.spec(action=action, **shape)
    off = {"buffer_size": 200, "batch_size": 16, "iteration": STEPS, "learning_starts": 0}
    config = kind(net_arch=(16, 16), **(off if kind is not PPOConfig else {}), **settings)
    agent = form(config, spec, range(MEMBERS), COPIES, precision=precision)
    rollout = Rollout(spec, STEPS, MEMBERS, COPIES)
    experience.fill(agent, rollout, ends=0.0)
    if agent.experience_type == "replay":
        replay = Replay(config.replay(COPIES), spec, MEMBERS, COPIES)
        replay.begin(rollout.obs[0], None)
        nothing = FinalObs(rollout.obs[0, :0], np.zeros((0, 2), np.int64))
        for t in range(STEPS):
            replay.write(rollout, t, nothing, np.full(MEMBERS * COPIES, -1))
        agent.learn(replay, np.array([4, 4]))
    metrics = agent.update(rollout)
    return agent.state_dict(), metrics


@pytest.mark.parametrize(("form", "kind", "action", "shape", "settings"), AGENTS)
def test_an_iteration_stays_near(experience, form, kind, action, shape, settings):
    case = experience, form, kind, action, shape, settings
    (one, _), (other, metrics) = (_iteration(*case, p) for p in ("float32", "bfloat16_products"))
    assert not metrics["failed"].any() and metrics["updates"].all()
    assert all(np.isfinite(values).all() for values in metrics.values())
    for name in one:
        assert one[name].shape == other[name].shape and one[name].dtype == other[name].dtype
    weights = one["parameters.weights"], other["parameters.weights"]
    assert (weights[0] != weights[1]).any()
    np.testing.assert_allclose(*weights, atol=0.02)


@pytest.mark.parametrize(("precision", "says"), [("float32", "ieee"), ("tf32", "tf32")])
def test_a_card_is_told_whether_to_round(experience, monkeypatch, precision, says):
    spec, places = experience.spec(), (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    agent = TorchPPO(PPOConfig(n_steps=2, batch_size=8), spec, [0], COPIES, precision=precision)

    def told(group=None):
        sums = places[0].allow_bf16_reduced_precision_reduction
        return [*(place.fp32_precision for place in places), sums]

    before = told()
    assert agent.map_groups(told) == [[says, says, False]]
    assert told() == before and before[-1]


def test_values_of_a_probe_are_learned_in_bfloat16():
    """The first observed number is the reward: only hidden layers can tell."""
    config = PPOConfig(
        **{"n_steps": 16, "batch_size": 64, "n_epochs": 8, "learning_rate": 3e-3, "gamma": 0.9},
        **{"observation_normalization": False, "net_arch": (32, 32)},
    )
    environment = resolve_environment("probes", {"probe": "observed", "max_steps": 8})
    shard = Shard(
        environment, config, [0], range(1), 16, learner="torch", precision="bfloat16_products"
    )
    shard.reset()
    for i in range(30):
        metrics = shard.iterate(i / 30)
        assert np.isfinite(metrics["value_loss"]).all() and not metrics["failed"].any()
    for seen in (1.0, -1.0):
        value = shard.agent.policy.actor(1).value(np.full((1, 3), seen, np.float32))
        np.testing.assert_allclose(value[0, 0, 0], seen, atol=0.1)
