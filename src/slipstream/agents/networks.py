"""Networks of a whole population: every weight has a leading member axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from slipstream.agents.initial import orthogonal
from slipstream.agents.parameters import Parameters

Activation = Literal["tanh", "relu"]
Shapes = dict[str, tuple[int, ...]]

PAD = 8  # widths are padded to a multiple: below it, matrix products take other paths for M = 1
_MANY_ROWS = 1024
_DEEP = 256  # longest inner sum in one product: beyond, its order depends on the number of rows


def input_width(numbers: int) -> int:
    """Columns of a network's input: the numbers, a column of ones for the bias, padding with 0."""
    return padded(numbers + 1)


def padded(width: int) -> int:
    """`width` rounded up to a multiple of PAD.

    Padding weights start at 0 and have gradient 0: they stay 0.
    """
    return -(-width // PAD) * PAD


@dataclass(frozen=True)
class _Layer:
    weight: str
    bias: str
    inputs: int
    outputs: int
    gain: float


class Mlp:
    """Fully connected layers, forward and backward by hand into preallocated buffers.

    The first layer has no bias of its own: it is the weight of the input's column of ones.

    Args:
        name: prefix of the parameters' names.
        sizes: true widths (inputs, hidden..., outputs).
        activation: between layers; the last one is linear.
        output_gain: gain of the last layer's orthogonal start.
    """

    def __init__(
        self, name: str, sizes: Sequence[int], activation: Activation, output_gain: float
    ) -> None:
        self.activation = activation
        gain = 5.0 / 3.0 if activation == "tanh" else math.sqrt(2.0)
        last = len(sizes) - 2
        self.layers = [
            _Layer(
                f"{name}.{i}.weight", f"{name}.{i}.bias", a, b, output_gain if i == last else gain
            )
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        ]

    def shapes(self) -> Shapes:
        """Padded shapes of one member's tensors."""
        shapes: Shapes = {}
        for i, layer in enumerate(self.layers):
            inputs = padded(layer.inputs) if i else input_width(layer.inputs)
            shapes[layer.weight] = (inputs, padded(layer.outputs))
            if i:
                shapes[layer.bias] = (1, padded(layer.outputs))
        return shapes

    def initialise(self, weights: Mapping[str, Tensor], seeds: Sequence[int], first: int) -> None:
        """Orthogonal weights and zero biases; `first` numbers this network's first matrix."""
        for i, layer in enumerate(self.layers):
            shape = (layer.inputs, layer.outputs)
            orthogonal(weights[layer.weight], shape, layer.gain, seeds, first + i)

    def buffers(self, members: int, rows: int) -> list[Tensor]:
        """Memory for the outputs of every layer, [M, R, width]."""
        return [torch.zeros((members, rows, padded(layer.outputs))) for layer in self.layers]

    def forward(self, weights: Mapping[str, Tensor], x: Tensor, outputs: list[Tensor]) -> Tensor:
        """Fills `outputs` for x [M, R, input width] and returns the last of them."""
        last = len(self.layers) - 1
        for i, (layer, y) in enumerate(zip(self.layers, outputs, strict=True)):
            _affine(x, weights[layer.weight], weights.get(layer.bias), y)
            if i < last:
                if self.activation == "tanh":
                    y.tanh_()
                else:
                    y.relu_()
            x = y
        return x

    def backward(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        x: Tensor,
        outputs: list[Tensor],
        d_outputs: list[Tensor],
    ) -> None:
        """Writes the gradients of all layers, given d loss / d output in d_outputs[-1].

        Args:
            weights: as in `forward`.
            gradients: written, same shapes.
            x, outputs: of the `forward` before.
            d_outputs: buffers like `outputs`; all but the last are overwritten.
        """
        for i in range(len(self.layers) - 1, -1, -1):
            layer, d = self.layers[i], d_outputs[i]
            below = outputs[i - 1] if i else x
            _outer(below, d, gradients[layer.weight])
            if i:
                torch.sum(d, dim=1, keepdim=True, out=gradients[layer.bias])
                d_below = d_outputs[i - 1]
                torch.bmm(d, weights[layer.weight].mT, out=d_below)
                if self.activation == "tanh":
                    _tanh_backward(d_below, below, grad_input=d_below)
                else:
                    d_below.mul_(below > 0)


_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = x @ weight + bias, all [M, ., .]; long inner sums in blocks of a fixed length."""
    deep = x.shape[-1] > _DEEP
    first, factor = (x[..., :_DEEP], weight[:, :_DEEP]) if deep else (x, weight)
    if bias is None:
        torch.bmm(first, factor, out=out)
    else:
        torch.baddbmm(bias, first, factor, out=out)
    for at in range(_DEEP, x.shape[-1], _DEEP):
        out.baddbmm_(x[..., at : at + _DEEP], weight[:, at : at + _DEEP])


def _outer(x: Tensor, d: Tensor, out: Tensor) -> None:
    """out = x^T @ d, [M, in, out]; with many rows a narrow d is quicker the other way round."""
    if d.shape[1] >= _MANY_ROWS and 2 * d.shape[2] <= x.shape[2]:
        out.copy_(torch.bmm(d.mT, x).mT)
    else:
        torch.bmm(x.mT, d, out=out)


@dataclass(frozen=True)
class Graph:
    """What autograd needs from `forward` to `backward`: leaves, and outputs with their padding."""

    leaves: dict[str, Tensor]
    head: Tensor
    value: Tensor


class Workspace:
    """Buffers of one thread for one shape [M, R]; what `forward` leaves there `backward` reads.

    Attributes:
        d_head, d_value: d loss / d output, float32 [M, R, padded], for the loss to write;
            their padding is 0.
    """

    def __init__(self, members: int, rows: int, head_width: int) -> None:
        self.d_head = torch.zeros((members, rows, padded(head_width)))
        self.d_value = torch.zeros((members, rows, padded(1)))
        self.outputs: dict[str, list[Tensor]] = {}
        self.d_outputs: dict[str, list[Tensor]] = {}
        self.graph: Graph | None = None


class Network(Protocol):
    """An actor and a critic for one kind of observation."""

    def shapes(self) -> Shapes:
        """Shapes of one member's tensors by name."""

    def initialise(self, weights: Mapping[str, Tensor], seeds: Sequence[int]) -> None:
        """First weights, member m's from seeds[m] alone."""

    def workspace(self, members: int, rows: int, *, gradients: bool) -> Workspace:
        """Buffers for M members and R rows each."""

    def act(self, weights: Mapping[str, Tensor], x: Tensor, space: Workspace) -> Tensor:
        """Actor's head [M, R, padded head width] of x [M, R, ...]."""

    def value(self, weights: Mapping[str, Tensor], x: Tensor, space: Workspace) -> Tensor:
        """Critic's output [M, R, padded]: the value in column 0."""

    def forward(self, parameters: Parameters, x: Tensor, space: Workspace) -> tuple[Tensor, Tensor]:
        """Both outputs, remembering what `backward` needs."""

    def backward(self, parameters: Parameters, part: int, x: Tensor, space: Workspace) -> None:
        """Writes gradients (not of log_std) into buffer `part`, from space's d_head, d_value."""


class MlpNetwork:
    """Separate fully connected actor and critic.

    Args:
        inputs: D numbers of an observation.
        widths: hidden layers of each.
        head_width: outputs of the actor.
        activation: between layers.
    """

    def __init__(
        self, inputs: int, widths: Sequence[int], head_width: int, activation: Activation
    ) -> None:
        self.head_width = head_width
        self.actor = Mlp("actor", (inputs, *widths, head_width), activation, 0.01)
        self.critic = Mlp("critic", (inputs, *widths, 1), activation, 1.0)

    def shapes(self) -> Shapes:
        return {**self.actor.shapes(), **self.critic.shapes()}

    def initialise(self, weights: Mapping[str, Tensor], seeds: Sequence[int]) -> None:
        self.actor.initialise(weights, seeds, 0)
        self.critic.initialise(weights, seeds, len(self.actor.layers))

    def workspace(self, members: int, rows: int, *, gradients: bool) -> Workspace:
        space = Workspace(members, rows, self.head_width)
        for name, net in (("actor", self.actor), ("critic", self.critic)):
            space.outputs[name] = net.buffers(members, rows)
            if gradients:
                space.d_outputs[name] = net.buffers(members, rows)[:-1]
        if gradients:
            space.d_outputs["actor"].append(space.d_head)
            space.d_outputs["critic"].append(space.d_value)
        return space

    def act(self, weights: Mapping[str, Tensor], x: Tensor, space: Workspace) -> Tensor:
        return self.actor.forward(weights, x, space.outputs["actor"])

    def value(self, weights: Mapping[str, Tensor], x: Tensor, space: Workspace) -> Tensor:
        return self.critic.forward(weights, x, space.outputs["critic"])

    def forward(self, parameters: Parameters, x: Tensor, space: Workspace) -> tuple[Tensor, Tensor]:
        weights = parameters.weights
        return self.act(weights, x, space), self.value(weights, x, space)

    def backward(self, parameters: Parameters, part: int, x: Tensor, space: Workspace) -> None:
        weights, gradients = parameters.weights, parameters.weight_gradients[part]
        for name, net in (("actor", self.actor), ("critic", self.critic)):
            net.backward(weights, gradients, x, space.outputs[name], space.d_outputs[name])
