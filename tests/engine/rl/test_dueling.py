"""Dueling networks: what a policy of one does, saves and starts with; weights from the fan-in."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slipstream.kernels.spec import EnvSpec
from slipstream.rl.nets.networks import clear_cross_gradient, dueling_mask, dueling_values
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack
from slipstream.rl.nets.torch_networks import TorchMlp

EXAMPLE = Path(__file__).parents[3] / "examples/09_act_with_numpy.py"
N = 3  # choices


def policy_of(net_arch=(9, 6), dueling=True):
    spec = EnvSpec(spaces.Box(-np.inf, np.inf, (5,), np.float32), spaces.Discrete(N, start=1))
    return Policy(
        [spec] * 2, [3, 4], net_arch=net_arch, activation="relu", head="q", dueling=dueling
    )


def actor_outputs(policy, rows):
    """[2, R, n + 1] of rows [2 R, 5]."""
    return policy.actor(len(rows) // 2).head(rows)[:, :, : N + 1]


@pytest.mark.parametrize("net_arch", [(9, 6), (8,), (16, 16, 24)])
def test_each_stream_reads_its_own_half(net_arch):
    policy, stream = policy_of(net_arch), net_arch[-1]
    last = policy.parameters.weights[f"actor.{len(net_arch)}.weight"]
    value, advantage = last[:, :stream, N], last[:, stream : 2 * stream, :N]
    assert (value != 0).all() and (advantage != 0).all()
    assert (last != 0).sum() == value.size + advantage.size
    assert ((last != 0) == dueling_mask(last.shape[1:], stream, N).astype(bool)).all()
    rows = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    before = actor_outputs(policy, rows).copy()
    hidden = policy.parameters.weights[f"actor.{len(net_arch) - 1}.weight"]
    hidden[..., :stream] += 0.1  # the value's
    after = actor_outputs(policy, rows)
    assert np.array_equal(before[..., :N], after[..., :N])
    assert (before[..., N] != after[..., N]).any()


def test_values_are_the_state_and_advantages_around_zero():
    values = np.zeros(N)
    dueling_values(np.array([1.0, 4.0, 1.0, 10.0], np.float32), N, values)
    assert values.tolist() == [9.0, 12.0, 9.0]


def test_a_gradient_stays_within_its_stream():
    policy = policy_of()
    gradient = np.ones(policy.parameters.flat.shape[1], np.float32)
    clear_cross_gradient(gradient, policy.network.tables[0], 6, N)
    at, shape = policy.parameters.offsets["actor.2.weight"], (16, 8)
    matrix = gradient[at : at + 128].reshape(shape)
    assert (matrix[:6, :N] == 0).all() and (matrix[6:12, N] == 0).all()
    assert (matrix[:6, N] == 1).all() and (matrix[6:12, :N] == 1).all()
    gradient[at : at + 128] = 1.0
    assert (gradient == 1.0).all()  # nothing else was touched


def test_a_file_gives_the_same_policy_and_needs_no_slipstream():
    policy = policy_of()
    rows = np.random.default_rng(2).normal(0, 3, (40, 5)).astype(np.float32)
    act = runpy.run_path(str(EXAMPLE))["act"]
    for m in range(2):
        tensors, manifest = pack(policy, m)
        assert manifest["network"]["dueling"] and manifest["network"]["net_arch"] == [9, 6]
        assert tensors["weights.actor.2.weight"].shape == (12, N + 1)
        assert not [name for name in tensors if "critic" in name]
        again = unpack(tensors, json.loads(json.dumps(manifest)))
        acts = policy.act_rows(np.concatenate([rows, rows])).reshape(2, len(rows))[m]
        assert np.array_equal(again.act_rows(rows)[:, 0], acts)
        assert [act(tensors, manifest, row)[0] for row in rows] == acts.tolist()
        mask = rows[:, :N] > -1
        mask[~mask.any(1)] = True
        masked = again.act_rows(rows, mask=mask)[:, 0]
        by_hand = [act(tensors, manifest, *pair)[0] for pair in zip(rows, mask, strict=True)]
        assert by_hand == masked.tolist()
        assert mask[np.arange(40), masked - 1].all()


def test_the_greatest_advantage_is_the_greatest_value():
    policy = policy_of()
    rows = np.random.default_rng(3).normal(0, 3, (60, 5)).astype(np.float32)
    outputs = actor_outputs(policy, rows).reshape(60, N + 1)
    values = outputs[:, N:] + outputs[:, :N] - outputs[:, :N].mean(1, keepdims=True)
    assert np.array_equal(policy.act_rows(rows)[:, 0] - 1, values.argmax(1))


def test_networks_of_values_start_as_torch_layers_do():
    policy = policy_of((64, 32), dueling=False)
    for i, inputs in enumerate((5, 64, 32)):
        weight = policy.parameters.weights[f"actor.{i}.weight"]
        weight = weight[:, : inputs + (i == 0), : (64, 32, N)[i]]  # the first bias is a row
        limit = 1 / np.sqrt(inputs)
        assert 0.9 * limit < abs(weight).max() <= limit
        assert abs(weight.mean()) < 0.15 * limit
        layer = torch.nn.Linear(inputs, (64, 32, N)[i])
        assert float(layer.weight.detach().abs().max()) <= limit
    assert (policy.parameters.weights["actor.0.weight"][0] != 0).sum() == 6 * 64
    assert not np.array_equal(*policy.parameters.weights["actor.0.weight"])  # members differ


def test_the_torch_network_calculates_the_same():
    policy = policy_of()
    x = policy.inputs(20)
    x[..., :5] = np.random.default_rng(0).normal(size=(2, 20, 5))
    weights = {k: torch.from_numpy(v) for k, v in policy.parameters.weights.items()}
    plain = TorchMlp("relu").head(weights, torch.from_numpy(x[..., :5].copy()))
    ours = policy.network.act(policy.parameters.weights, x, policy.network.workspace(2, 20))
    np.testing.assert_allclose(ours, plain, atol=1e-5)
