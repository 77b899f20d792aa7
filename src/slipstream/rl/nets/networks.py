"""Networks of a whole population: every weight has a leading member axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import word
from slipstream.jit import rng
from slipstream.jit.alignment import aligned_zeros
from slipstream.jit.gemm import COLUMNS
from slipstream.rl.nets.layers import BLOCK, INPUTS, OUTPUTS, WEIGHT, loops
from slipstream.rl.nets.optimizer import Views, tensor_offsets

_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_SKIP_INITIALIZATION: ContextVar[bool] = ContextVar("left out", default=False)


@contextmanager
def skip_initialization() -> Iterator[None]:
    """Leave weights at zero in this context, because a state with all weights is loaded afterwards.

    Random orthogonal weights take most of the time in which resumed members are built.
    """
    before = _SKIP_INITIALIZATION.set(True)
    try:
        yield
    finally:
        _SKIP_INITIALIZATION.reset(before)


def orthogonal(
    weight: NDArray[np.float32],
    shape: tuple[int, int],
    gain: float,
    seeds: Sequence[int],
    layer: int,
) -> None:
    """Fill weight [M, >= in, >= out] with orthogonal matrices of `shape`; padding stays 0.

    Uses Q of the QR decomposition of a normal matrix with the signs of R (Saxe, McClelland, Ganguli
    2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks").

    Args:
        weight: Written in place.
        shape: Unpadded (in, out) of one member's matrix.
        gain: Factor.
        seeds: [M]; a member's matrix depends only on its seed and `layer`.
        layer: Number of the matrix within the network.
    """
    if _SKIP_INITIALIZATION.get():
        return
    rows, columns = max(shape), min(shape)
    normal = np.zeros((len(seeds), rows * columns), np.float32)
    rng.fill_normal(rng.member_keys(seeds, rng.INIT, layer), 0, normal)
    for m in range(len(seeds)):
        q, r = np.linalg.qr(normal[m].reshape(rows, columns).astype(np.float64))
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        weight[m, : shape[0], : shape[1]] = gain * (q if shape[0] >= shape[1] else q.T)


def fan_in_uniform(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    shape: tuple[int, int],
    seeds: Sequence[int],
    layer: int,
) -> None:
    """Fill weight [M, >= in, >= out] and bias [M, >= out] from U(-1/sqrt(in), 1/sqrt(in)).

    This is the initialization of PyTorch's linear layers (LeCun, Bottou, Orr, Mueller 1998,
    "Efficient backprop", section 4.6, with a third of its variance), and of published value-based
    agents.

    Args:
        weight, bias: Written in place; padding stays 0.
        shape, seeds, layer: As for `orthogonal`.
    """
    if _SKIP_INITIALIZATION.get():
        return
    rows, columns = shape
    keys = rng.member_keys(seeds, rng.INIT, layer)
    with np.errstate(over="ignore"):
        bits = word(keys[:, None], np.arange((rows + 1) * columns, dtype=np.uint64)[None])
    unit = (bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT
    numbers = ((2.0 * unit - 1.0) / np.sqrt(rows)).reshape(len(keys), rows + 1, columns)
    weight[:, :rows, :columns] = numbers[:, :rows]
    bias[:, :columns] = numbers[:, rows]


_ZERO = np.float32(0.0)


def dueling_mask(shape: tuple[int, ...], stream: int, choices: int) -> NDArray[np.float32]:
    """Return 1 where the last matrix of a dueling network, padded to `shape`, may be non-zero."""
    allowed = np.zeros(shape, np.float32)
    allowed[:stream, choices] = 1.0
    allowed[stream : 2 * stream, :choices] = 1.0
    return allowed


def clear_cross_gradient(gradient: Any, table: Any, stream: int, choices: int) -> None:
    """Set the gradient of the last matrix to 0 between the two streams of a dueling network.

    Args:
        gradient: float32 [P] of one member.
        table: As in `layers.py`.
    """
    last = len(table) - 1
    inputs, outputs, at = table[last, INPUTS], table[last, OUTPUTS], table[last, WEIGHT]
    matrix = gradient[at : at + inputs * outputs].reshape(inputs, outputs)
    for i in range(inputs):
        if i < stream:
            for j in range(outputs):
                if j != choices:
                    matrix[i, j] = _ZERO
        else:
            matrix[i, choices] = _ZERO


def dueling_values(row: Any, choices: int, values: Any) -> None:
    """Compute Q from one row of outputs: advantages [choices], then the state value.

    Args:
        row: float32 [> choices].
        values: float64 [choices], written.
    """
    mean = 0.0
    for j in range(choices):
        mean += float(row[j])
    mean /= choices
    for j in range(choices):
        values[j] = float(row[choices]) + (float(row[j]) - mean)


Activation = Literal["tanh", "relu"]
Shapes = dict[str, tuple[int, ...]]
Array: TypeAlias = NDArray[np.float32]


def input_width(numbers: int) -> int:
    """Return the width of a network's input: features, a column of ones, and padding."""
    return padded(numbers + 1)


def padded(width: int) -> int:
    """Round `width` up to a multiple that matrix products require.

    Padding weights start at 0 and have gradient 0, so they stay 0.
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
    """Fully connected layers, computed by `layers.py`.

    The bias of the first layer is the weight of the input's column of ones.

    Args:
        name: Prefix of parameter names.
        sizes: Unpadded layer widths (inputs, hidden..., outputs).
        activation: Activation between layers; the last layer is linear.
        output_gain: Gain of the last layer's orthogonal initialization; None initializes all layers
            with `fan_in_uniform`.
        stream: Width of each stream of a dueling network, see `dueling_values`; else 0.
    """

    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        activation: Activation,
        output_gain: float | None,
        stream: int = 0,
    ) -> None:
        self.stream, self._orthogonal = stream, output_gain is not None
        gain = 5.0 / 3.0 if activation == "tanh" else math.sqrt(2.0)
        last = len(sizes) - 2
        self.layers = [
            _Layer(
                f"{name}.{i}.weight",
                f"{name}.{i}.bias",
                a,
                b,
                output_gain if i == last and output_gain is not None else gain,
            )
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        ]

    def shapes(self) -> Shapes:
        """Return padded shapes of one member's tensors."""
        shapes: Shapes = {}
        for i, layer in enumerate(self.layers):
            inputs = padded(layer.inputs) if i else input_width(layer.inputs)
            shapes[layer.weight] = (inputs, padded(layer.outputs))
            if i:
                shapes[layer.bias] = (1, padded(layer.outputs))
        return shapes

    def initialize(self, weights: Mapping[str, Array], seeds: Sequence[int], first: int) -> None:
        """Initialize weights; `first` is the number of this network's first matrix.

        Weights are orthogonal with zero biases, or weights and biases are uniform in the fan-in.
        """
        for i, layer in enumerate(self.layers):
            shape, weight = (layer.inputs, layer.outputs), weights[layer.weight]
            if self._orthogonal:
                orthogonal(weight, shape, layer.gain, seeds, first + i)
                continue
            # the first layer's bias is the weight of the input's column of ones
            bias = weights[layer.bias][:, 0] if i else weight[:, layer.inputs]
            if self.stream and i == len(self.layers) - 1:
                shape = (self.stream, layer.outputs)
                both = np.zeros_like(weight)
                fan_in_uniform(both, bias, shape, seeds, first + i)
                both[:, self.stream : layer.inputs] = both[:, : self.stream]
                weight[:] = both * dueling_mask(weight.shape[1:], self.stream, layer.outputs - 1)
            else:
                fan_in_uniform(weight, bias, shape, seeds, first + i)

    def table(self, offsets: Mapping[str, int]) -> NDArray[np.int64]:
        """Return the table for `layers.py`, given the offsets of tensors in a member's row."""
        lines: list[tuple[int, ...]] = []
        place = 0
        for layer, (inputs, outputs) in zip(
            self.layers, (s for name, s in self.shapes().items() if "weight" in name), strict=True
        ):
            bias = offsets.get(layer.bias, -1)
            true = (
                layer.inputs + (not lines),
                layer.outputs,
            )  # the first layer has a column of ones
            lines.append((inputs, outputs, offsets[layer.weight], bias, place, *true))
            place += outputs
        return np.array(lines, np.int64)


class NetworkWorkspace:
    """Buffers of one thread for one shape [M, R].

    Attributes:
        head, value: Outputs [M, R, padded].
        block: Intermediate outputs of one block of one member.
    """

    def __init__(self, members: int, rows: int, head_width: int, block: int) -> None:
        self.head: Array = aligned_zeros((members, rows, padded(head_width)))
        self.value: Array = aligned_zeros((members, rows, padded(1)))
        self.block: Array = aligned_zeros((block,))


class Network(Protocol):
    """An actor and a critic for one kind of observation."""

    def shapes(self) -> Shapes:
        """Return shapes of one member's tensors by name."""

    def initialize(self, weights: Mapping[str, Array], seeds: Sequence[int]) -> None:
        """Initialize weights; those of member m depend on seeds[m] only."""

    def workspace(self, members: int, rows: int) -> NetworkWorkspace:
        """Allocate buffers for M members with R rows each."""

    def act(self, weights: Views, x: NDArray[Any], workspace: NetworkWorkspace) -> Array:
        """Compute the actor's head [M, R, padded head width] of x [M, R, ...]."""

    def value(self, weights: Views, x: NDArray[Any], workspace: NetworkWorkspace) -> Array:
        """Compute the critic's output [M, R, padded]; the value is in column 0."""


class MlpNetwork:
    """A fully connected actor, and a critic if the policy has one.

    Args:
        inputs: D, numbers of an observation.
        net_arch: Hidden layer widths of each network.
        head_width: Outputs of the actor.
        activation: Activation between layers.
        critic: Whether the policy has a critic. Heads of value-based agents have none and use
            `fan_in_uniform`, as in those agents' papers and libraries.
        dueling: The actor's outputs are advantages, then the state value; see `dueling_values`.

    Attributes:
        mlps: Actor, and critic.
        tables: int64 [1 or 2, L, 7], actor and critic, as `layers.py` reads them.
        stream: Width of each stream of a dueling network, else 0.
    """

    def __init__(
        self,
        inputs: int,
        net_arch: Sequence[int],
        head_width: int,
        activation: Activation,
        *,
        critic: bool = True,
        dueling: bool = False,
    ) -> None:
        self.activation = activation
        self.stream, hidden = 0, tuple(net_arch)
        if dueling:
            self.stream, hidden = net_arch[-1], (*net_arch[:-1], 2 * net_arch[-1])
        self.head_width = head_width + dueling
        sizes, gain = (inputs, *hidden, self.head_width), 0.01 if critic else None
        self.mlps = [Mlp("actor", sizes, activation, gain, self.stream)]
        if critic:
            self.mlps.append(Mlp("critic", (inputs, *net_arch, 1), activation, 1.0))
        offsets, _ = tensor_offsets(self.shapes())
        self.tables = np.stack([mlp.table(offsets) for mlp in self.mlps])

    def shapes(self) -> Shapes:
        return {name: shape for mlp in self.mlps for name, shape in mlp.shapes().items()}

    def initialize(self, weights: Mapping[str, Array], seeds: Sequence[int]) -> None:
        first = 0
        for mlp in self.mlps:
            mlp.initialize(weights, seeds, first)
            first += len(mlp.layers)

    def workspace(self, members: int, rows: int) -> NetworkWorkspace:
        return NetworkWorkspace(members, rows, self.head_width, self.num_outputs(BLOCK))

    def num_outputs(self, rows: int) -> int:
        """Return the total size of all layers' outputs of one network for this number of rows."""
        return rows * int(self.tables[:, :, OUTPUTS].sum(1).max())

    def act(self, weights: Views, x: NDArray[Any], workspace: NetworkWorkspace) -> Array:
        return self._outputs(weights, 0, x, workspace.block, workspace.head)

    def value(self, weights: Views, x: NDArray[Any], workspace: NetworkWorkspace) -> Array:
        assert len(self.mlps) > 1, "this policy has no critic"
        return self._outputs(weights, 1, x, workspace.block, workspace.value)

    def _outputs(
        self, weights: Views, which: int, x: NDArray[Any], block: Array, out: Array
    ) -> Array:
        relu = self.activation == "relu"
        loops()["forward_members"](weights.flat, self.tables[which], relu, x, block, out)
        return out
