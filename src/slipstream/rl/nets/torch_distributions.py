"""Action distributions of a batch in torch, and the noise they are sampled from, on any device.

These are reference implementations. Rollouts and updates evaluate distributions and their
derivatives row by row in compiled loops (`action_selection.py`, `rl/agents/ppo/losses.py`); tests
compare both.

Noise is from the counter-based streams of `core/random.py` and `jit/rng.py`. torch has no unsigned
64-bit arithmetic, but multiplication, addition and exclusive or of int64 wrap to the same bits.
Only right shifts must clear the sign bits.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.torch_device import to_device

_MASKED_LOGIT = -1e30  # logit of a masked action: probability exactly 0, finite entropy term


class Categorical:
    """One discrete action of n; `logits` [M, R, n], `mask` bool [M, R, n] of allowed actions.

    Noise: Gumbel, n numbers per action (argmax of logits + Gumbel noise is a sample of p).
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            logits = logits.masked_fill(~mask, _MASKED_LOGIT)
        self.log_p = torch.log_softmax(logits, dim=-1)

    def sample(self, noise: Tensor) -> Tensor:
        return (self.log_p + noise).argmax(dim=-1, keepdim=True)

    def mode(self) -> Tensor:
        return self.log_p.argmax(dim=-1, keepdim=True)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_p.gather(-1, action).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_p.exp() * self.log_p).sum(dim=-1)


class MultiCategorical:
    """Independent discrete components; `logits` [M, R, sum of sizes]; Gumbel noise."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...], mask: Tensor | None = None) -> None:
        masks = (
            (None,) * len(sizes) if mask is None else torch.split_with_sizes(mask, sizes, dim=-1)
        )
        pieces = torch.split_with_sizes(logits, sizes, dim=-1)
        self.parts = [Categorical(piece, part) for piece, part in zip(pieces, masks, strict=True)]
        self.sizes = sizes

    def sample(self, noise: Tensor) -> Tensor:
        pieces = torch.split_with_sizes(noise, self.sizes, dim=-1)
        return torch.cat([p.sample(n) for p, n in zip(self.parts, pieces, strict=True)], dim=-1)

    def mode(self) -> Tensor:
        return torch.cat([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        parts = (part.log_prob(action[..., k : k + 1]) for k, part in enumerate(self.parts))
        return functools.reduce(torch.add, parts)

    def entropy(self) -> Tensor:
        return functools.reduce(torch.add, (part.entropy() for part in self.parts))


class DiagonalGaussian:
    """Independent normals; `mean` [M, R, K], state-independent `log_std` [M, K].

    With u = (a - mean) / std: log p = sum(-u^2/2 - log_std - log(2 pi)/2), whose derivatives are
    u / std with respect to the mean and u^2 - 1 with respect to log_std;
    H = sum(log_std + log(2 pi e)/2).
    Noise: standard normal, K numbers per action.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std[:, None, :]

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + noise * self.log_std.exp()

    def mode(self) -> Tensor:
        return self.mean.clone()

    def _standard(self, action: Tensor) -> Tensor:
        return (action - self.mean) * (-self.log_std).exp()

    def log_prob(self, action: Tensor) -> Tensor:
        u = self._standard(action)
        return (-0.5 * u * u - (self.log_std + 0.5 * math.log(2.0 * math.pi))).sum(dim=-1)

    def entropy(self) -> Tensor:
        h = (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(dim=-1)
        return h.expand(self.mean.shape[:2])


Distribution = Categorical | MultiCategorical | DiagonalGaussian
"""Distribution of a batch with leading axes [M, R].

`sample(noise)` and `mode()` return actions [M, R, K]; `log_prob(action)` and `entropy()` [M, R].
"""


def make_distribution(
    actions: ActionMap, head: Tensor, log_std: Tensor | None, mask: Tensor | None
) -> Distribution:
    """Return the distribution of a head [M, R, >= head_width], padded beyond head_width."""
    head = head[..., : actions.head_width]
    if log_std is not None:
        return DiagonalGaussian(head, log_std)
    if actions.kind == "discrete":
        return Categorical(head, mask)
    return MultiCategorical(head, actions.sizes, mask)


def _signed(bits: int) -> int:
    """Return the int64 with the same bits."""
    return bits - 2**64 if bits >= 2**63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MUL_1 = _signed(0xBF58476D1CE4E5B9)
_MUL_2 = _signed(0x94D049BB133111EB)


def keys_to_tensor(keys: NDArray[np.uint64], device: torch.device) -> Tensor:
    """Return keys of `jit/rng.py` as int64 with the same bits."""
    return to_device(keys.view(np.int64), device)


def random_bits(keys: Tensor, first: int, count: int) -> Tensor:
    """Return 64 random bits at places first, first + 1, ... of each stream: int64 [M, count]."""
    places = torch.arange(first + 1, first + count + 1, device=keys.device)
    return _mix(keys[:, None] ^ _mix(places * _GOLDEN))


def gumbel(keys: Tensor, first: int, count: int) -> Tensor:
    """Return standard Gumbel numbers, float32 [M, count], equal to `rng.fill_gumbel`."""
    return (-torch.log(-torch.log(_open_unit(random_bits(keys, first, count))))).float()


def normal(keys: Tensor, first: int, count: int) -> Tensor:
    """Return standard normal numbers, float32 [M, count], equal to `rng.fill_normal`."""
    pairs = random_bits(keys, 2 * first, 2 * count).view(len(keys), count, 2)
    u, v = _open_unit(pairs[..., 0]), _logical_shift_right(pairs[..., 1], 11).double() * 2.0**-53
    return (torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * math.pi * v)).float()


def _open_unit(bits: Tensor) -> Tensor:
    """Map bits to float64 in (0, 1), so that logarithms are finite."""
    return (_logical_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _logical_shift_right(x, 30)) * _MUL_1
    x = (x ^ _logical_shift_right(x, 27)) * _MUL_2
    return x ^ _logical_shift_right(x, 31)


def _logical_shift_right(x: Tensor, places: int) -> Tensor:
    return (x >> places) & ((1 << (64 - places)) - 1)
