"""The counter-based streams of `core/random.py` and `jit/draws.py` in torch, on any device.

torch has no unsigned 64-bit arithmetic, but multiplication, addition and exclusive or of int64 wrap
to the same bits; only a shift to the right must drop the sign's copies.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.rl.nets.torch_device import carried


def _signed(bits: int) -> int:
    """The int64 of the same bits."""
    return bits - 2**64 if bits >= 2**63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MUL_1 = _signed(0xBF58476D1CE4E5B9)
_MUL_2 = _signed(0x94D049BB133111EB)


def keys_of(keys: NDArray[np.uint64], device: torch.device) -> Tensor:
    """Keys of `jit/draws.py` as int64 of the same bits."""
    return carried(keys.view(np.int64), device)


def words(keys: Tensor, first: int, count: int) -> Tensor:
    """The 64 random bits at places first, first + 1, ... of each stream: int64 [M, count]."""
    places = torch.arange(first + 1, first + count + 1, device=keys.device)
    return _mix(keys[:, None] ^ _mix(places * _GOLDEN))


def gumbel(keys: Tensor, first: int, count: int) -> Tensor:
    """Standard Gumbel numbers, float32 [M, count], as `draws.fill_gumbel` writes them."""
    return (-torch.log(-torch.log(_open(words(keys, first, count))))).float()


def normal(keys: Tensor, first: int, count: int) -> Tensor:
    """Standard normal numbers, float32 [M, count], as `draws.fill_normal` writes them."""
    pairs = words(keys, 2 * first, 2 * count).view(len(keys), count, 2)
    u, v = _open(pairs[..., 0]), _right(pairs[..., 1], 11).double() * 2.0**-53
    return (torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * math.pi * v)).float()


def _open(bits: Tensor) -> Tensor:
    """float64 in (0, 1): finite logarithms."""
    return (_right(bits, 12).double() + 0.5) * 2.0**-52


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _right(x, 30)) * _MUL_1
    x = (x ^ _right(x, 27)) * _MUL_2
    return x ^ _right(x, 31)


def _right(x: Tensor, places: int) -> Tensor:
    return (x >> places) & ((1 << (64 - places)) - 1)
