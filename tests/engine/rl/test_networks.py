import numpy as np
import pytest
import torch

from slipstream.jit.gemm import add_transposed_product
from slipstream.rl.nets.layers import BLOCK, add_columns, forward, select_rows
from slipstream.rl.nets.networks import MlpNetwork, input_width
from slipstream.rl.nets.optimizer import Parameters
from slipstream.rl.nets.torch_networks import ConvolutionalNetwork, TorchCnn


def autograd_mlp(weights, name, x, activation):
    layers = [k for k in weights if k.startswith(name) and k.endswith("weight")]
    for i, key in enumerate(layers):
        x = torch.baddbmm(
            weights.get(key.replace("weight", "bias"), torch.zeros(1)), x, weights[key]
        )
        if i < len(layers) - 1:
            x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
    return x


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("net_arch", [(64, 64), (9,), (300, 16, 8)])
def test_outputs_agree_with_torch_and_pass_through_no_padding(activation, net_arch):
    members, rows, inputs, outputs = 3, 140, 5, 3
    network = MlpNetwork(inputs, net_arch, outputs, activation)
    parameters = Parameters(network.shapes(), members)
    draw = np.random.default_rng(0)
    parameters.flat[:] = 0.2 * draw.standard_normal(parameters.flat.shape)
    for layer in (layer for mlp in network.mlps for layer in mlp.layers):
        for name in {layer.weight, layer.bias} & parameters.weights.keys():
            parameters.weights[name][..., layer.outputs :] = 0.0
    apart = draw.standard_normal((members, 2 * rows, input_width(inputs)), np.float32)
    apart[..., inputs + 1 :] = np.nan
    x, space = apart[:, 7 : 7 + rows], network.workspace(members, rows)
    head = network.act(parameters.weights, x, space)
    value = network.value(parameters.weights, x, space)
    weights = {name: torch.from_numpy(weight) for name, weight in parameters.weights.items()}
    for name, ours in (("actor", head), ("critic", value)):
        theirs = autograd_mlp(weights, name, torch.from_numpy(np.nan_to_num(x)), activation)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_first_weights_are_orthogonal_and_follow_from_the_seed():
    network = MlpNetwork(6, (32,), 4, "relu")
    parameters, alone = Parameters(network.shapes(), 3), Parameters(network.shapes(), 1)
    network.initialize(parameters.weights, [7, 8, 9])
    network.initialize(alone.weights, [8])
    assert np.array_equal(parameters.flat[1], alone.flat[0])
    assert not np.array_equal(parameters.flat[0], parameters.flat[1])
    first = parameters.weights["actor.0.weight"][0, :6, :32]
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(6), atol=1e-5, rtol=1e-5)
    last = parameters.weights["actor.1.weight"][0, :, :4]
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(4), atol=1e-8, rtol=1e-5)


def test_the_number_of_rows_changes_no_row():
    network = MlpNetwork(600, (300,), 3, "tanh")
    parameters = Parameters(network.shapes(), 2)
    network.initialize(parameters.weights, [1, 2])
    x = np.random.default_rng(0).standard_normal((2, 100, input_width(600)), np.float32)
    full = network.act(parameters.weights, x, network.workspace(2, 100)).copy()
    for rows in (1, 8, 9, 17, 64, 70):
        part = np.ascontiguousarray(x[:, 20 : 20 + rows])
        out = network.act(parameters.weights, part, network.workspace(2, rows))
        assert np.array_equal(out, full[:, 20 : 20 + rows])


def test_gradients_of_a_few_columns_are_those_of_all_bit_for_bit():
    a, b, c = np.random.default_rng(0).standard_normal((3, 16, 8), np.float32)
    whole, few = c.copy(), c.copy()
    add_transposed_product(a, b, whole[:8])
    add_columns(a, b, few[:8], np.zeros((2, 8), np.float32))
    assert np.array_equal(few[:, :2], whole[:, :2]) and np.array_equal(few[:, 2:], c[:, 2:])


def test_rows_that_are_kept_are_as_if_no_other_had_passed():
    network = MlpNetwork(3, (5, 9), 2, "relu", critic=False)
    parameters = Parameters(network.shapes(), 1)
    network.initialize(parameters.weights, [1])
    rng, table = np.random.default_rng(0), network.tables[0]
    x = rng.standard_normal((6, input_width(3))).astype(np.float32)
    for kept in ([0, 1, 2, 3, 4, 5], [1, 2, 5], [4]):
        space, few = (np.zeros(network.num_outputs(BLOCK), np.float32) for _ in range(2))
        forward(parameters.flat[0], table, True, x, space)
        select_rows(table, 6, np.array(kept), space)
        forward(parameters.flat[0], table, True, x[kept], few)
        used = len(kept) * int(table[:, 1].sum())
        assert space[:used].tobytes() == few[:used].tobytes()


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 10, 10), (3, 40, 36), (2, 2, 2)])
def test_images_of_any_size_have_gradients(shape):
    network = ConvolutionalNetwork(shape, 32, 3)
    parameters = Parameters(network.shapes(), 2)
    network.initialize(parameters.weights, [1, 2])
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (2, 8, *shape), np.uint8)
    leaves = {k: torch.from_numpy(v).requires_grad_() for k, v in parameters.weights.items()}
    form = TorchCnn(network)
    features = form.features(leaves, torch.from_numpy(x))
    head, value = form.head(leaves, features), form.value(leaves, features)
    assert head.shape == (2, 8, 8) and value.shape == (2, 8)
    factors = torch.from_numpy(draw.standard_normal((2, 8, 3), np.float32))
    ((head[..., :3] * factors).sum() + (value * factors[..., 0]).sum()).backward()
    for leaf in leaves.values():
        assert torch.isfinite(leaf.grad).all() and (leaf.grad != 0).any()
