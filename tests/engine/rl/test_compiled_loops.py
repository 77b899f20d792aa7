"""The compiled loops against the definitions in torch, and autograd."""

import gymnasium
import numpy as np
import pytest
import torch

from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.ppo import ppo
from slipstream.rl.agents.ppo.losses import explained_variance, minibatch_normalisation, pack_rows
from slipstream.rl.agents.ppo.update import member_gradient
from slipstream.rl.compiled_loops import compile_loops
from slipstream.rl.experience import running_mean_std
from slipstream.rl.nets import action_selection
from slipstream.rl.nets.layers import BLOCK, tanh_f32
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.torch_distributions import Categorical, DiagonalGaussian, MultiCategorical

G, B, R = 2, 40, 90
CLIP, ENTROPY, CRITIC = 0.2, 0.05, 0.7


def minibatch(kind, masked):
    """Random rows, and the distribution's definition for rows in the order of the minibatch."""
    rng = np.random.default_rng(5)
    sizes = {"one": (5,), "several": (2, 3), "gaussian": ()}[kind]
    width = len(sizes) or 2
    packed = rng.standard_normal((G, R, 5 + width)).astype(np.float32)
    packed[..., 0] = -1.5 + 0.3 * packed[..., 0]
    packed[..., 4] = rng.random((G, R)) < 0.8
    for c, n in enumerate(sizes):
        packed[..., 5 + c] = rng.integers(0, n, (G, R))
    mask = rng.random((G, R, sum(sizes))) < 0.6
    begin = 0
    for c, n in enumerate(sizes):
        taken = begin + packed[..., 5 + c].astype(int)
        np.put_along_axis(mask, taken[..., None], True, -1)
        begin += n
    return {
        "sizes": sizes,
        "head": rng.standard_normal((G, B, 8)).astype(np.float32),
        "value": rng.standard_normal((G, B, 8)).astype(np.float32),
        "log_std": (0.3 * rng.standard_normal((G, 2))).astype(np.float32),
        "packed": packed,
        "order": np.stack([rng.permutation(R) for _ in range(G)]),
        "mask": mask if masked else np.zeros((G, 0, 0), bool),
    }


def oracle(case, at, head, value, log_std):
    """Losses of rows at .. at + B by their definitions: total [G], statistics [G, 5]."""
    rows = torch.from_numpy(case["order"][:, at : at + B])[..., None]
    take = (
        torch.from_numpy(case["packed"])
        .double()
        .gather(1, rows.expand(-1, -1, case["packed"].shape[2]))
    )
    mask = None
    if case["mask"].size:
        mask = torch.from_numpy(case["mask"]).gather(1, rows.expand(-1, -1, case["mask"].shape[2]))
    action, sizes = take[..., 5:], case["sizes"]
    if not sizes:
        distribution = DiagonalGaussian(head[..., :2], log_std)
    elif len(sizes) == 1:
        distribution, action = Categorical(head[..., :5], mask), action.long()
    else:
        distribution, action = MultiCategorical(head[..., :5], sizes, mask), action.long()
    old, advantage, target, _, valid = take[..., :5].unbind(-1)
    weight = valid / valid.sum(1, keepdim=True)
    mean = (weight * advantage).sum(1, keepdim=True)
    std = (weight * (advantage - mean) ** 2).sum(1, keepdim=True).sqrt()
    advantage = (advantage - mean) / (std + 1e-8)
    log_ratio = distribution.log_prob(action) - old
    ratio = log_ratio.exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    critic = (value[..., 0] - target) ** 2
    entropy = distribution.entropy()
    total = (weight * (policy + CRITIC * critic - ENTROPY * entropy)).sum(1)
    rows = (policy, critic, entropy, ratio - 1 - log_ratio, ((ratio - 1).abs() > CLIP).double())
    return total, torch.stack([(weight * x).sum(1) for x in rows], 1)


def normalisation_of(packed, order, out):
    minibatch_normalisation(packed, order, True, out)


def explain(packed, out):
    out[0] = explained_variance(packed)


def compiled(function, *examples):
    return compile_loops("rows_test", {function: examples})[function.__name__]


def gradient(policy, case, x, m, p, order):
    """What `member_gradient` gives for a part of a minibatch that has two; its statistics."""
    own = ppo._make_rows(policy, R, 1, BLOCK)._replace(
        x=x[m], packed=case["packed"][m], mask=case["mask"][m]
    )
    normalisation, statistics = np.zeros(3), np.full(8, np.nan)
    compiled(normalisation_of, own.packed, order, normalisation)(own.packed, order, normalisation)
    half = order[p * B // 2 : (p + 1) * B // 2]
    given = (
        *(ppo._make_net(policy, policy.network), policy.parameters.arrays, own, m, p, half),
        *(normalisation, np.array([CLIP, ENTROPY, CRITIC]), statistics),
        ppo._make_workspace(policy, policy.network, 2, BLOCK),
    )
    compiled(member_gradient, *given)(*given)
    return statistics[:5]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("net_arch", [(64, 64), (9,), (300, 16, 8)])
@pytest.mark.parametrize("kind", ["several", "gaussian"])
def test_gradients_of_a_minibatch_agree_with_autograd(kind, net_arch, activation, monkeypatch):
    monkeypatch.setitem(globals(), "B", 130)  # three blocks, the last one short
    monkeypatch.setitem(globals(), "R", 260)
    case, inputs = minibatch(kind, False), 7
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action = box if kind == "gaussian" else gymnasium.spaces.MultiDiscrete([2, 3])
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (inputs,), np.float32), action)
    policy = Policy([spec] * G, range(G), net_arch=net_arch, activation=activation, parts=2)
    parameters = policy.parameters
    for name in ("actor", "critic"):  # heads that say something
        parameters.weights[f"{name}.{len(net_arch)}.weight"] *= 30.0 if name == "actor" else 1.0
    x = policy.inputs(R)
    x[..., :inputs] = np.random.default_rng(0).standard_normal((*x.shape[:2], inputs))
    statistics = np.zeros((G, 5))
    for m in range(G):
        order = case["order"][m, B : 2 * B].copy()
        statistics[m] = sum(gradient(policy, case, x, m, p, order) for p in range(2))

    weights = {k: torch.from_numpy(w) for k, w in parameters.weights.items()}
    leaves = {k: w.double().requires_grad_() for k, w in weights.items()}
    batch = np.take_along_axis(x, case["order"][:, B:, None], 1)
    batch = torch.from_numpy(batch).double()
    head, value = (mlp(leaves, name, batch, activation) for name in ("actor", "critic"))
    total, expected = oracle(case, B, head, value, leaves.get("log_std"))
    total.sum().backward()
    np.testing.assert_allclose(statistics, expected.detach(), rtol=1e-4, atol=1e-5)
    gradients = parameters.split(parameters.gradients.sum(1))
    for name, leaf in leaves.items():
        ours, theirs = gradients[name], leaf.grad.numpy()
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours / scale, theirs / scale, rtol=1e-4, atol=1e-5)
        assert (ours[theirs == 0] == 0).all()  # padding


def mlp(weights, name, x, activation):
    layers = [k for k in weights if k.startswith(name) and k.endswith("weight")]
    for i, key in enumerate(layers):
        x = x @ weights[key]
        if i:
            x = x + weights[key.replace("weight", "bias")]
        if i < len(layers) - 1:
            x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
    return x


def tangents(x, out):
    for i in range(len(out)):
        out[i] = tanh_f32(x[i])


def test_the_hyperbolic_tangent_is_as_exact_as_float32():
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.logspace(-20, 0, 10_001)])
    x = np.concatenate([x, [np.inf, -np.inf, 0.0, -0.0]]).astype(np.float32)
    out, row = np.zeros_like(x), np.zeros(1, np.float32)
    compile_loops("tangents", {tangents: (row, row)})["tangents"](x, out)
    exact = np.tanh(x.astype(np.float64))
    assert np.abs(out - exact).max() < 3e-7
    assert (np.abs(out - exact) <= 5 * np.spacing(np.abs(exact).astype(np.float32))).all()
    assert np.abs(out).max() <= 1.0
    some = slice(0, None, 500)
    interpreted = np.array([tanh_f32(v) for v in x[some]], np.float32)
    assert interpreted.tobytes() == out[some].tobytes()
    assert np.isnan(tanh_f32(np.float32(np.nan)))


@pytest.mark.parametrize("masked", [False, True])
def test_sampled_choices_are_those_of_the_definition(masked):
    rng = np.random.default_rng(1)
    head = rng.standard_normal((3, 40, 8)).astype(np.float32)
    noise = rng.gumbel(size=(3, 35, 5)).astype(np.float32)
    mask = rng.random((3, 35, 5)) < 0.6
    mask[..., [0, 2]] = True
    action, log_prob = np.zeros((105, 2), np.int64), np.zeros(105, np.float32)
    allowed = mask.reshape(105, 5) if masked else np.zeros((0, 0), bool)
    action_selection.loops()["sample_categorical"](
        head, noise.reshape(3, -1), allowed, np.array([2, 3]), action, log_prob
    )
    distribution = MultiCategorical(
        torch.from_numpy(head[:, :35, :5]), (2, 3), torch.from_numpy(mask) if masked else None
    )
    expected = distribution.sample(torch.from_numpy(noise))
    assert (action == expected.view(105, 2).numpy()).all()
    np.testing.assert_allclose(log_prob, distribution.log_prob(expected).flatten(), rtol=1e-5)


def test_sampled_gaussians_are_those_of_the_definition():
    rng = np.random.default_rng(1)
    head = rng.standard_normal((3, 40, 8)).astype(np.float32)
    noise = rng.standard_normal((3, 35, 2)).astype(np.float32)
    log_std = (0.5 * rng.standard_normal((3, 2))).astype(np.float32)
    action, log_prob = np.zeros((105, 2), np.float32), np.zeros(105, np.float32)
    action_selection.loops()["sample_gaussian"](
        head, noise.reshape(3, -1), log_std, action, log_prob
    )
    distribution = DiagonalGaussian(torch.from_numpy(head[:, :35, :2]), torch.from_numpy(log_std))
    expected = distribution.sample(torch.from_numpy(noise))
    np.testing.assert_allclose(action, expected.view(105, 2), rtol=1e-5, atol=1e-6)
    density = distribution.log_prob(torch.from_numpy(action).view(3, 35, 2))
    np.testing.assert_allclose(log_prob, density.flatten(), rtol=1e-5, atol=1e-6)


def test_scaled_rows_lie_by_member():
    rng = np.random.default_rng(2)
    t, m, n, d = 4, 2, 3, 5
    obs = rng.standard_normal((t, m * n, d)).astype(np.float32)
    mean, inverse = rng.standard_normal((2, m, d)).astype(np.float32)
    limit = np.full((m, d), 1.5, np.float32)
    limit[:, 3] = np.inf  # a column that is not normalised
    out = np.zeros((m, 20, 8), np.float32)
    running_mean_std.loops()["scale_rows"](
        running_mean_std.Scale(mean, inverse, limit), obs, 2, out
    )
    expected = (obs.reshape(t, m, n, d) - mean[:, None]) * inverse[:, None]
    expected = (
        expected.clip(-limit[:, None], limit[:, None]).transpose(1, 0, 2, 3).reshape(m, t * n, d)
    )
    np.testing.assert_allclose(out[:, 2:14, :5], expected, rtol=1e-6)
    assert (out[:, :2] == 0).all() and (out[:, 14:] == 0).all() and (out[..., 5:] == 0).all()


def test_packed_rows_and_explained_variance():
    rng = np.random.default_rng(3)
    t, m, n = 4, 2, 3
    columns = rng.standard_normal((4, t, m * n)).astype(np.float32)
    valid, action = rng.random((t, m * n)) < 0.7, rng.standard_normal((t, m * n, 2))
    packed = np.zeros((m, t * n, 7), np.float32)
    given = (*columns, valid, action.astype(np.float32))
    for one in range(m):
        for lo, hi in ((one * n, one * n + 1), (one * n + 1, (one + 1) * n)):
            rows = (lo, hi, one * n, n, *given, packed[one])
            compiled(pack_rows, *rows)(*rows)
    rows = np.concatenate([columns, valid[None], np.moveaxis(action, -1, 0)]).astype(np.float32)
    assert (packed == rows.reshape(7, t, m, n).transpose(2, 1, 3, 0).reshape(m, t * n, 7)).all()

    out = np.zeros(1)
    for rows in packed:
        compiled(explain, rows, out)(rows, out)
        target, value = rows[rows[:, 4] > 0][:, [2, 3]].T
        np.testing.assert_allclose(out[0], 1 - np.var(target - value) / np.var(target), rtol=1e-5)
    packed[..., 2] = 1.0
    compiled(explain, packed[0], out)(packed[0], out)
    assert out[0] == 0.0
