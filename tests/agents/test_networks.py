import numpy as np
import pytest
import torch

from slipstream.agents.convolution import ConvolutionalNetwork
from slipstream.agents.networks import MlpNetwork, input_width
from slipstream.agents.parameters import Parameters


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
@pytest.mark.parametrize("widths", [(64, 64), (9,), (300, 16, 8)])
def test_backward_by_hand_agrees_with_autograd(activation, widths):
    members, rows, inputs, outputs = 3, 40, 5, 3
    network = MlpNetwork(inputs, widths, outputs, activation)
    parameters = Parameters(network.shapes(), members)
    network.initialise(parameters.weights, [1, 2, 3])
    x = torch.zeros(members, rows, input_width(inputs))
    x[..., inputs] = 1
    x[..., :inputs] = torch.randn(members, rows, inputs)
    d_head, d_value = torch.randn(members, rows, outputs), torch.randn(members, rows)

    space = network.workspace(members, rows, gradients=True)
    head, value = network.forward(parameters, x, space)
    space.d_head[..., :outputs], space.d_value[..., 0] = d_head, d_value
    network.backward(parameters, 0, x, space)

    leaves = parameters.leaves()
    their_head = autograd_mlp(leaves, "actor", x, activation)
    their_value = autograd_mlp(leaves, "critic", x, activation)[..., 0]
    torch.testing.assert_close(head, their_head.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value[..., 0], their_value.detach(), rtol=1e-5, atol=1e-6)
    ((their_head[..., :outputs] * d_head).sum() + (their_value * d_value).sum()).backward()
    for name, leaf in leaves.items():
        ours = parameters.weight_gradients[0][name]
        scale = float(leaf.grad.abs().max())
        torch.testing.assert_close(ours / scale, leaf.grad / scale, rtol=1e-5, atol=1e-5)


def test_padding_stays_zero():
    network = MlpNetwork(5, (9,), 3, "tanh")
    parameters = Parameters(network.shapes(), 2)
    network.initialise(parameters.weights, [1, 2])
    x = torch.zeros(2, 16, 8)  # no column of ones: no bias
    x[..., :5] = torch.randn(2, 16, 5)
    space = network.workspace(2, 16, gradients=True)
    for _ in range(3):
        network.forward(parameters, x, space)
        space.d_head[..., :3], space.d_value[..., 0] = torch.randn(2, 16, 3), torch.randn(2, 16)
        network.backward(parameters, 0, x, space)
        parameters.adam_step(
            np.full(2, 0.1), np.full(2, np.inf), np.full(2, 1e-5), np.zeros(2, bool)
        )
    weight = parameters.weights["actor.0.weight"]
    assert (weight[:, 5:] == 0).all() and (weight[:, :, 9:] == 0).all()
    assert (parameters.weights["actor.1.weight"][:, :, 3:] == 0).all()
    assert (weight[:, :5, :9] != 0).all()


def test_first_weights_are_orthogonal_and_follow_from_the_seed():
    network = MlpNetwork(6, (32,), 4, "relu")
    parameters, alone = Parameters(network.shapes(), 3), Parameters(network.shapes(), 1)
    network.initialise(parameters.weights, [7, 8, 9])
    network.initialise(alone.weights, [8])
    assert torch.equal(parameters.flat[1], alone.flat[0])
    assert not torch.equal(parameters.flat[0], parameters.flat[1])
    first = parameters.weights["actor.0.weight"][0, :6, :32]
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(6), atol=1e-5, rtol=1e-5)
    last = parameters.weights["actor.1.weight"][0, :, :4]
    torch.testing.assert_close(last.T @ last, 1e-4 * torch.eye(4), atol=1e-8, rtol=1e-5)


def test_the_number_of_rows_changes_no_row():
    network = MlpNetwork(600, (300,), 3, "tanh")
    parameters = Parameters(network.shapes(), 2)
    network.initialise(parameters.weights, [1, 2])
    x = torch.randn(2, 100, input_width(600))
    full = network.act(parameters.weights, x, network.workspace(2, 100, gradients=False)).clone()
    for rows in (8, 9, 17, 64):
        part = x[:, 20 : 20 + rows].contiguous()
        out = network.act(parameters.weights, part, network.workspace(2, rows, gradients=False))
        assert torch.equal(out, full[:, 20 : 20 + rows])


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 10, 10), (3, 40, 36), (2, 2, 2)])
def test_images_of_any_size_have_gradients(shape):
    network = ConvolutionalNetwork(shape, 32, 3)
    parameters = Parameters(network.shapes(), 2)
    network.initialise(parameters.weights, [1, 2])
    x = torch.randint(0, 256, (2, 8, *shape), dtype=torch.uint8)
    space = network.workspace(2, 8, gradients=True)
    head, value = network.forward(parameters, x, space)
    assert head.shape == value.shape == (2, 8, 8)
    space.d_head[..., :3], space.d_value[..., 0] = torch.randn(2, 8, 3), torch.randn(2, 8)
    network.backward(parameters, 0, x, space)
    for gradient in parameters.weight_gradients[0].values():
        assert torch.isfinite(gradient).all() and (gradient != 0).any()
