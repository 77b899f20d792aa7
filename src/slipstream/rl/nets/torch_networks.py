"""Networks in torch, over the member axis, and the precision of their matrix products.

Weights are tensors [M, ...] by name, laid out as in `networks.py` and `ConvolutionalNetwork`.
Padding is multiplied by zeros and has gradient 0.

`training.precision` rounds the factors of hidden layers. Weights, sums, losses and Adam are always
float32. Output layers have few products and stay float32 with bfloat16, since rounding would affect
values and logits directly. With TF32 a GPU rounds output layers as well.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from slipstream.rl.nets.networks import (
    Activation,
    Array,
    MlpNetwork,
    Network,
    NetworkWorkspace,
    Shapes,
    orthogonal,
    padded,
)
from slipstream.rl.nets.optimizer import Views
from slipstream.rl.nets.torch_adam import Weights
from slipstream.rl.nets.torch_device import single_thread


class Products(NamedTuple):
    """Matrix products of a hidden layer before its activation.

    Attributes:
        dense: bias + x W, [M, R, n], of bias [M, 1, n], x [M, R, k] and W [M, k, n].
        convolve: Convolution of one member's images [R, C, H, W] with kernels, bias [C'] and
            stride.
    """

    dense: Callable[[Tensor, Tensor, Tensor], Tensor]
    convolve: Callable[[Tensor, Tensor, Tensor, int], Tensor]


def _factor(x: Tensor, native: bool) -> Tensor:
    """Round to bfloat16, and on the CPU back to float32: products are identical, sums are float32.

    torch's bfloat16 products are 3 to 70 times slower on CPUs without bfloat16 instructions, and
    sum kernel gradients in bfloat16.

    Args:
        native: Whether the CPU has bfloat16 instructions, which sum in float32.
    """
    rounded = x.bfloat16()
    return rounded if native or x.device.type != "cpu" else rounded.float()


@cache
def has_bfloat16_instructions() -> bool:
    """Return whether the CPU has instructions for bfloat16 products."""
    features: Any = importlib.import_module("llvmlite.binding").get_host_cpu_features()
    return any(features.get(name, False) for name in ("avx512bf16", "amx-bf16"))


def _rounded_dense(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    native = has_bfloat16_instructions()
    return bias + torch.bmm(_factor(x, native), _factor(weight, native)).bfloat16().float()


def _rounded_convolve(images: Tensor, kernels: Tensor, bias: Tensor, stride: int) -> Tensor:
    rounded = F.conv2d(_factor(images, native=False), _factor(kernels, native=False), stride=stride)
    return rounded.bfloat16().float() + bias[:, None, None]


FLOAT32 = Products(torch.baddbmm, F.conv2d)
BFLOAT16 = Products(_rounded_dense, _rounded_convolve)  # gradients included


def get_products(precision: str) -> Products:
    """Return the products of a `training.precision`; a GPU rounds TF32 itself."""
    return BFLOAT16 if precision == "bfloat16_products" else FLOAT32


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set whether a GPU may round float32 factors to TF32 inside the context; sums stay float32.

    By default cuDNN uses TF32 in convolutions and cuBLAS does not, and cuBLAS may round partial
    sums to bfloat16.
    """
    matmul = torch.backends.cuda.matmul
    sums = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    places = matmul, convolutions
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was
        matmul.allow_bf16_reduced_precision_reduction = sums


_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)
_SMALL = ((16, 3, 2), (32, 3, 2))


class ConvolutionalNetwork:
    """Convolutions and one dense layer shared by actor and critic, with a linear head for each.

    Images of at least 36 x 36 use the layers of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning"; smaller images use two 3 x 3 layers of stride 2. Members are processed
    one by one, because a grouped convolution would select its algorithm by the number of members.

    Args:
        shape: (C, H, W) of an image.
        dense: Width of the dense layer.
        head_width: Outputs of the actor.
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

    def initialize(self, weights: Mapping[str, Array], seeds: Sequence[int]) -> None:
        for i, (name, inputs, outputs, kernel, _) in enumerate(self.layers):
            shape = (outputs, inputs * kernel * kernel)
            view = weights[f"{name}.weight"].reshape(len(seeds), *shape)
            orthogonal(view, shape, math.sqrt(2.0), seeds, i)
        gains = (math.sqrt(2.0), 0.01, 1.0)
        for i, ((name, a, b), gain) in enumerate(zip(self._dense_layers(), gains, strict=True)):
            orthogonal(weights[f"{name}.weight"], (a, b), gain, seeds, len(self.layers) + i)

    def workspace(self, members: int, rows: int) -> NetworkWorkspace:
        return NetworkWorkspace(members, rows, self.head_width, 0)

    def features(
        self, weights: Mapping[str, Tensor], x: Tensor, products: Products = FLOAT32
    ) -> Tensor:
        """Compute features [M, R, dense] of uint8 images x [M, R, C, H, W]."""
        features = []
        for m in range(len(x)):
            y = x[m].to(torch.float32).div_(255.0)
            for name, _, _, _, stride in self.layers:
                kernels, bias = weights[f"{name}.weight"][m], weights[f"{name}.bias"][m]
                y = F.relu(products.convolve(y, kernels, bias, stride))
            features.append(y.flatten(1))
        bias, weight = weights["dense.bias"], weights["dense.weight"]
        return F.relu(products.dense(bias, torch.stack(features), weight))

    def act(self, weights: Views, x: NDArray[Any], space: NetworkWorkspace) -> Array:
        return self._output("actor", weights, x)

    def value(self, weights: Views, x: NDArray[Any], space: NetworkWorkspace) -> Array:
        return self._output("critic", weights, x)

    def _output(self, name: str, weights: Views, x: NDArray[Any]) -> Array:
        with single_thread(), torch.no_grad():
            tensors = _tensors(weights)
            out: Array = linear_layer(
                tensors, name, self.features(tensors, torch.from_numpy(x))
            ).numpy()
        return out


def _tensors(weights: Views) -> dict[str, Tensor]:
    """Return tensors that share memory with arrays, by name."""
    return {name: torch.from_numpy(values) for name, values in weights.items()}


def linear_layer(weights: Mapping[str, Tensor], name: str, features: Tensor) -> Tensor:
    """Compute outputs [M, R, padded] of the linear layer `name`."""
    return torch.baddbmm(weights[f"{name}.bias"], features, weights[f"{name}.weight"])


class TorchMlp:
    """Separate fully connected actor and critic for scaled rows.

    `features` are shared by both, [M, R, ...], for observations [M, R, ...]. `head` is the actor's
    output, [M, R, >= head width], and `value` the critic's, [M, R].
    """

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
        # The bias of the first layer is the row after its input rows.
        bias, weight = first[:, inputs : inputs + 1], first[:, :inputs]
        i = 1
        while f"{name}.{i}.weight" in weights:
            x = self._activation(self._products.dense(bias, x, weight))
            weight, bias = weights[f"{name}.{i}.weight"], weights[f"{name}.{i}.bias"]
            i += 1
        return torch.baddbmm(bias, x, weight)


class TorchCnn:
    """Convolutions shared by actor and critic; see `TorchMlp`."""

    def __init__(self, network: ConvolutionalNetwork, products: Products = FLOAT32) -> None:
        self._network, self._products = network, products

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        return self._network.features(weights, x, self._products)

    def head(self, weights: Weights, features: Tensor) -> Tensor:
        return linear_layer(weights, "actor", features)

    def value(self, weights: Weights, features: Tensor) -> Tensor:
        return linear_layer(weights, "critic", features)[..., 0]


def tensor_views(
    flat: Tensor, shapes: Mapping[str, tuple[int, ...]], offsets: Mapping[str, int]
) -> dict[str, Tensor]:
    """Return tensors [M, *shape] by name, views into rows [M, P] of `Parameters`."""
    return {
        name: flat[:, offsets[name] : offsets[name] + math.prod(shape)].view(len(flat), *shape)
        for name, shape in shapes.items()
    }


def make_torch_network(network: Network, products: Products = FLOAT32) -> TorchMlp | TorchCnn:
    """Return the torch implementation of a network."""
    if isinstance(network, ConvolutionalNetwork):
        return TorchCnn(network, products)
    assert isinstance(network, MlpNetwork)
    return TorchMlp(network.activation, products)
