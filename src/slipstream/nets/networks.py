"""Networks of a whole population: every weight has a leading member axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.lines import zeros
from slipstream.nets.compiled import loops
from slipstream.nets.initial import orthogonal
from slipstream.nets.layers import BLOCK, OUTPUTS
from slipstream.nets.parameters import Views, places
from slipstream.vector.products import COLUMNS

Activation = Literal["tanh", "relu"]
Shapes = dict[str, tuple[int, ...]]
Array: TypeAlias = NDArray[np.float32]


def input_width(numbers: int) -> int:
    """Columns of a network's input: the numbers, a column of ones for the bias, padding with 0."""
    return padded(numbers + 1)


def padded(width: int) -> int:
    """`width` rounded up to a multiple of what products of matrices take.

    Padding weights start at 0 and have gradient 0: they stay 0.
    """
    return -(-width // COLUMNS) * COLUMNS


@dataclass(frozen=True)
class _Layer:
    weight: str
    bias: str
    inputs: int
    outputs: int
    gain: float


class Mlp:
    """Fully connected layers; `layers.py` calculates them.

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

    def initialise(self, weights: Mapping[str, Array], seeds: Sequence[int], first: int) -> None:
        """Orthogonal weights and zero biases; `first` numbers this network's first matrix."""
        for i, layer in enumerate(self.layers):
            shape = (layer.inputs, layer.outputs)
            orthogonal(weights[layer.weight], shape, layer.gain, seeds, first + i)

    def table(self, offsets: Mapping[str, int]) -> NDArray[np.int64]:
        """The table that `layers.py` reads, given where the tensors begin in a member's row."""
        lines, place = [], 0
        for layer, (inputs, outputs) in zip(
            self.layers, (s for name, s in self.shapes().items() if "weight" in name), strict=True
        ):
            bias = offsets.get(layer.bias, -1)
            lines.append((inputs, outputs, offsets[layer.weight], bias, place))
            place += outputs
        return np.array(lines, np.int64)


class Workspace:
    """Buffers of one thread for one shape [M, R].

    Attributes:
        head, value: outputs [M, R, padded].
        block: what passes through an `Mlp` at once, of one member.
    """

    def __init__(self, members: int, rows: int, head_width: int, block: int) -> None:
        self.head: Array = zeros((members, rows, padded(head_width)))
        self.value: Array = zeros((members, rows, padded(1)))
        self.block: Array = zeros((block,))


class Network(Protocol):
    """An actor and a critic for one kind of observation."""

    def shapes(self) -> Shapes:
        """Shapes of one member's tensors by name."""

    def initialise(self, weights: Mapping[str, Array], seeds: Sequence[int]) -> None:
        """First weights, member m's from seeds[m] alone."""

    def workspace(self, members: int, rows: int) -> Workspace:
        """Buffers for M members and R rows each."""

    def act(self, weights: Views, x: NDArray[Any], space: Workspace) -> Array:
        """Actor's head [M, R, padded head width] of x [M, R, ...]."""

    def value(self, weights: Views, x: NDArray[Any], space: Workspace) -> Array:
        """Critic's output [M, R, padded]: the value in column 0."""


class MlpNetwork:
    """Separate fully connected actor and critic.

    Args:
        inputs: D numbers of an observation.
        widths: hidden layers of each.
        head_width: outputs of the actor.
        activation: between layers.

    Attributes:
        tables: int64 [2, L, 5], of actor and critic, as `layers.py` reads them.
    """

    def __init__(
        self, inputs: int, widths: Sequence[int], head_width: int, activation: Activation
    ) -> None:
        self.head_width, self.activation = head_width, activation
        self.actor = Mlp("actor", (inputs, *widths, head_width), activation, 0.01)
        self.critic = Mlp("critic", (inputs, *widths, 1), activation, 1.0)
        offsets, _ = places(self.shapes())
        self.tables = np.stack([self.actor.table(offsets), self.critic.table(offsets)])
        self._forward = loops()["forward_members"]

    def shapes(self) -> Shapes:
        return {**self.actor.shapes(), **self.critic.shapes()}

    def initialise(self, weights: Mapping[str, Array], seeds: Sequence[int]) -> None:
        self.actor.initialise(weights, seeds, 0)
        self.critic.initialise(weights, seeds, len(self.actor.layers))

    def workspace(self, members: int, rows: int) -> Workspace:
        return Workspace(members, rows, self.head_width, self.block)

    @property
    def block(self) -> int:
        """Numbers that the outputs of all layers of one network take, for one block of rows."""
        return BLOCK * int(self.tables[:, :, OUTPUTS].sum(1).max())

    def act(self, weights: Views, x: NDArray[Any], space: Workspace) -> Array:
        return self._outputs(weights, 0, x, space.block, space.head)

    def value(self, weights: Views, x: NDArray[Any], space: Workspace) -> Array:
        return self._outputs(weights, 1, x, space.block, space.value)

    def _outputs(
        self, weights: Views, which: int, x: NDArray[Any], block: Array, out: Array
    ) -> Array:
        relu = self.activation == "relu"
        self._forward(weights.flat, self.tables[which], relu, x, block, out)
        return out
