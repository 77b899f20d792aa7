"""A small convolutional network for uint8 images, in torch; NumPy arrays go in and come out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from slipstream.rl.nets.networks import Array, Shapes, Workspace, orthogonal, padded
from slipstream.rl.nets.parameters import Views
from slipstream.rl.nets.torch_device import one_thread
from slipstream.rl.nets.torch_products import FLOAT32, Products

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)
_SMALL = ((16, 3, 2), (32, 3, 2))


class ConvolutionalNetwork:
    """Convolutions and one dense layer shared by actor and critic, with a linear head for each.

    Images of at least 36 x 36 use the layers of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning"; smaller ones two 3 x 3 layers of stride 2. Members are looped over: a
    grouped convolution would choose its algorithm by the number of members, and so their bits.

    Args:
        shape: (C, H, W) of an image.
        dense: width of the dense layer.
        head_width: outputs of the actor.
    """

    def __init__(self, shape: tuple[int, int, int], dense: int, head_width: int) -> None:
        self.shape, self.dense, self.head_width = shape, dense, head_width
        channels, height, width = shape
        self.layers: list[tuple[str, int, int, int, int]] = []
        for i, (outputs, kernel, stride) in enumerate(
            _LARGE if min(height, width) >= 36 else _SMALL
        ):
            kernel = min(kernel, height, width)
            self.layers.append((f"convolution.{i}", channels, outputs, kernel, stride))
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            channels = outputs
        self.flat = channels * height * width

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for name, inputs, outputs, kernel, _ in self.layers:
            shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
            shapes[f"{name}.bias"] = (outputs,)
        for name, a, b in self._dense_layers():
            shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (a, padded(b)), (1, padded(b))
        return shapes

    def _dense_layers(self) -> list[tuple[str, int, int]]:
        dense = padded(self.dense)
        return [
            ("dense", self.flat, dense),
            ("actor", dense, self.head_width),
            ("critic", dense, 1),
        ]

    def initialise(self, weights: Mapping[str, Array], seeds: Sequence[int]) -> None:
        for i, (name, inputs, outputs, kernel, _) in enumerate(self.layers):
            shape = (outputs, inputs * kernel * kernel)
            view = weights[f"{name}.weight"].reshape(len(seeds), *shape)
            orthogonal(view, shape, math.sqrt(2.0), seeds, i)
        gains = (math.sqrt(2.0), 0.01, 1.0)
        for i, ((name, a, b), gain) in enumerate(zip(self._dense_layers(), gains, strict=True)):
            orthogonal(weights[f"{name}.weight"], (a, b), gain, seeds, len(self.layers) + i)

    def workspace(self, members: int, rows: int) -> Workspace:
        return Workspace(members, rows, self.head_width, 0)

    def features(
        self, weights: Mapping[str, Tensor], x: Tensor, products: Products = FLOAT32
    ) -> Tensor:
        """[M, R, dense] of uint8 images x [M, R, C, H, W]."""
        features = []
        for m in range(len(x)):
            y = x[m].to(torch.float32).div_(255.0)
            for name, _, _, _, stride in self.layers:
                kernels, bias = weights[f"{name}.weight"][m], weights[f"{name}.bias"][m]
                y = F.relu(products.convolve(y, kernels, bias, stride))
            features.append(y.flatten(1))
        bias, weight = weights["dense.bias"], weights["dense.weight"]
        return F.relu(products.dense(bias, torch.stack(features), weight))

    def act(self, weights: Views, x: NDArray[Any], space: Workspace) -> Array:
        return self._output("actor", weights, x)

    def value(self, weights: Views, x: NDArray[Any], space: Workspace) -> Array:
        return self._output("critic", weights, x)

    def _output(self, name: str, weights: Views, x: NDArray[Any]) -> Array:
        with one_thread(), torch.no_grad():
            tensors = _tensors(weights)
            out: Array = head_of(tensors, name, self.features(tensors, torch.from_numpy(x))).numpy()
        return out


def _tensors(weights: Views) -> dict[str, Tensor]:
    """Tensors that share the memory of arrays, by name."""
    return {name: torch.from_numpy(values) for name, values in weights.items()}


def head_of(weights: Mapping[str, Tensor], name: str, features: Tensor) -> Tensor:
    """Outputs [M, R, padded] of the linear layer `name`."""
    return torch.baddbmm(weights[f"{name}.bias"], features, weights[f"{name}.weight"])
