"""A small convolutional network for uint8 images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from slipstream.nets.initial import orthogonal
from slipstream.nets.networks import Graph, Shapes, Workspace, padded
from slipstream.nets.parameters import Parameters, Views

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)
_SMALL = ((16, 3, 2), (32, 3, 2))


class ConvolutionalNetwork:
    """Convolutions and one dense layer shared by actor and critic, with a linear head for each.

    Images of at least 36 x 36 use the layers of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning"; smaller ones two 3 x 3 layers of stride 2. Members are looped over: a
    grouped convolution would choose its algorithm by the number of members, and so their bits.
    Gradients come from autograd.

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

    def initialise(self, weights: Mapping[str, Tensor], seeds: Sequence[int]) -> None:
        for i, (name, inputs, outputs, kernel, _) in enumerate(self.layers):
            shape = (outputs, inputs * kernel * kernel)
            view = weights[f"{name}.weight"].view(len(seeds), *shape)
            orthogonal(view, shape, math.sqrt(2.0), seeds, i)
        gains = (math.sqrt(2.0), 0.01, 1.0)
        for i, ((name, a, b), gain) in enumerate(zip(self._dense_layers(), gains, strict=True)):
            orthogonal(weights[f"{name}.weight"], (a, b), gain, seeds, len(self.layers) + i)

    def workspace(self, members: int, rows: int, *, gradients: bool) -> Workspace:
        return Workspace(members, rows, self.head_width, gradients)

    def _features(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """[M, R, dense] of uint8 images x [M, R, C, H, W]."""
        features = []
        for m in range(len(x)):
            y = x[m].to(torch.float32).div_(255.0)
            for name, _, _, _, stride in self.layers:
                y = F.relu(
                    F.conv2d(y, weights[f"{name}.weight"][m], weights[f"{name}.bias"][m], stride)
                )
            features.append(y.flatten(1))
        dense = torch.baddbmm(weights["dense.bias"], torch.stack(features), weights["dense.weight"])
        return F.relu(dense)

    def act(self, weights: Views, x: Tensor, space: Workspace) -> Tensor:
        return _head(weights, "actor", self._features(weights, x))

    def value(self, weights: Views, x: Tensor, space: Workspace) -> Tensor:
        return _head(weights, "critic", self._features(weights, x))

    def forward(self, parameters: Parameters, x: Tensor, space: Workspace) -> tuple[Tensor, Tensor]:
        """Head and value [g, b, padded] of images, remembering what `backward` needs."""
        with torch.enable_grad():
            leaves = parameters.leaves()
            features = self._features(leaves, x)
            head, value = _head(leaves, "actor", features), _head(leaves, "critic", features)
        space.graph = Graph(leaves, head, value)
        return head.detach(), value.detach()

    def backward(self, parameters: Parameters, part: int, x: Tensor, space: Workspace) -> None:
        """Writes gradients (not of log_std) into buffer `part`, from space's d_head, d_value."""
        graph = space.graph
        assert graph is not None, "forward comes before backward"
        names = list(self.shapes())
        gradients = torch.autograd.grad(
            [graph.head, graph.value],
            [graph.leaves[name] for name in names],
            [space.d_head, space.d_value],
        )
        for name, gradient in zip(names, gradients, strict=True):
            parameters.weight_gradients[part][name].copy_(gradient)
        space.graph = None


def _head(weights: Mapping[str, Tensor], name: str, features: Tensor) -> Tensor:
    return torch.baddbmm(weights[f"{name}.bias"], features, weights[f"{name}.weight"])
