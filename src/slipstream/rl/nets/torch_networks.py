"""Actor and critic in torch, over the member axis: what the compiled layers calculate.

Weights are tensors [M, ...] by name, the same that `networks.py` and `convolution.py` lay out.
Their padding meets zeros only and has gradient 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from slipstream.rl.nets.convolution import ConvolutionalNetwork, head_of
from slipstream.rl.nets.networks import Activation
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.torch_adam import Weights
from slipstream.rl.nets.torch_products import FLOAT32, Products


class TorchNetwork(Protocol):
    """From observations [M, R, ...] to what actor and critic say of them."""

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        """What actor and critic share, [M, R, ...]."""

    def head(self, weights: Weights, features: Tensor) -> Tensor:
        """The actor's numbers, [M, R, >= head width]."""

    def value(self, weights: Weights, features: Tensor) -> Tensor:
        """The critic's, [M, R]."""


class TorchMlp:
    """Separate fully connected actor and critic of scaled rows."""

    def __init__(self, activation: Activation, products: Products = FLOAT32) -> None:
        self._products = products
        self._activation = torch.tanh if activation == "tanh" else torch.relu

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        return x

    def head(self, weights: Weights, features: Tensor) -> Tensor:
        return self._layers(weights, "actor", features)

    def value(self, weights: Weights, features: Tensor) -> Tensor:
        return self._layers(weights, "critic", features)[..., 0]

    def _layers(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        first, inputs = weights[f"{name}.0.weight"], x.shape[-1]
        # The first layer's bias is the row below its inputs' rows.
        bias, weight = first[:, inputs : inputs + 1], first[:, :inputs]
        i = 1
        while f"{name}.{i}.weight" in weights:
            x = self._activation(self._products.dense(bias, x, weight))
            weight, bias = weights[f"{name}.{i}.weight"], weights[f"{name}.{i}.bias"]
            i += 1
        return torch.baddbmm(bias, x, weight)


class TorchImages:
    """Convolutions that actor and critic share."""

    def __init__(self, network: ConvolutionalNetwork, products: Products = FLOAT32) -> None:
        self._network, self._products = network, products

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        return self._network.features(weights, x, self._products)

    def head(self, weights: Weights, features: Tensor) -> Tensor:
        return head_of(weights, "actor", features)

    def value(self, weights: Weights, features: Tensor) -> Tensor:
        return head_of(weights, "critic", features)[..., 0]


def named(
    flat: Tensor, shapes: Mapping[str, tuple[int, ...]], offsets: Mapping[str, int]
) -> dict[str, Tensor]:
    """Tensors [M, *shape] by name, views into rows [M, P] of `Parameters`."""
    return {
        name: flat[:, offsets[name] : offsets[name] + math.prod(shape)].view(len(flat), *shape)
        for name, shape in shapes.items()
    }


def make_network(policy: Policy, products: Products = FLOAT32) -> TorchNetwork:
    """The torch form of a policy's network."""
    if isinstance(policy.network, ConvolutionalNetwork):
        return TorchImages(policy.network, products)
    return TorchMlp(policy.activation, products)
