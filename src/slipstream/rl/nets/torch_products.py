"""What hidden layers' products are made of, as `training.precision` says.

Weights, sums, losses and Adam are float32 whatever it says. Last layers have few products, and
bfloat16 leaves them float32: a value or logit would be rounded where it counts. With TF32 a card
rounds theirs, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Products(NamedTuple):
    """A hidden layer before its activation.

    Attributes:
        dense: bias + x W, [M, R, n], of bias [M, 1, n], x [M, R, k] and W [M, k, n].
        convolve: of one member's images [R, C, H, W], kernels, bias [C'] and stride.
    """

    dense: Callable[[Tensor, Tensor, Tensor], Tensor]
    convolve: Callable[[Tensor, Tensor, Tensor, int], Tensor]


def _factor(x: Tensor, own: bool) -> Tensor:
    """Rounded; on a processor again float32 numbers, whose products are the same and sums float32.

    torch's own of bfloat16 take a processor without such instructions 3 to 70 times as long, and
    sum gradients of kernels in bfloat16.

    Args:
        own: whether a processor has such instructions, and sums in float32.
    """
    rounded = x.bfloat16()
    return rounded if own or x.device.type != "cpu" else rounded.float()


@cache
def calculates_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    features: Any = importlib.import_module("llvmlite.binding").get_host_cpu_features()
    return any(features.get(name, False) for name in ("avx512bf16", "amx-bf16"))


def _rounded_dense(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    own = calculates_bfloat16()
    return bias + torch.bmm(_factor(x, own), _factor(weight, own)).bfloat16().float()


def _rounded_convolve(images: Tensor, kernels: Tensor, bias: Tensor, stride: int) -> Tensor:
    rounded = F.conv2d(_factor(images, own=False), _factor(kernels, own=False), stride=stride)
    return rounded.bfloat16().float() + bias[:, None, None]


FLOAT32 = Products(torch.baddbmm, F.conv2d)
BFLOAT16 = Products(_rounded_dense, _rounded_convolve)  # their gradients' products, too


def products_of(precision: str) -> Products:
    """Those of a `training.precision`; TF32's are float32's, which a card rounds itself."""
    return BFLOAT16 if precision == "bfloat16_products" else FLOAT32


@contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Whether a card may round float32 numbers to TF32 in the block; sums stay float32.

    Left alone, cuDNN would do so in convolutions and cuBLAS would not, and cuBLAS may round parts
    of a sum to bfloat16.
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
