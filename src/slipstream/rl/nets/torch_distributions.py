"""Action distributions of a batch: sampling from given noise, and densities.

These are the definitions. A rollout and an update evaluate them, and their derivatives, row by row
in compiled loops (`sampling.py`, `rl/agents/ppo/update.py`); tests hold those to these.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from slipstream.rl.nets.actions import ActionMap

_FORBIDDEN = -1e30  # logit of a masked choice: probability exactly 0, entropy term finite


class Distribution(Protocol):
    """What is asked of a batch of action distributions; leading axes [M, R]."""

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [M, R, K] from noise [M, R, noise width]."""

    def mode(self) -> Tensor:
        """Most likely actions [M, R, K]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log density [M, R] of actions [M, R, K]."""

    def entropy(self) -> Tensor:
        """[M, R], nats."""


class Categorical:
    """One choice of n; `logits` [M, R, n], `mask` bool [M, R, n] of allowed choices.

    Noise: Gumbel, n numbers an action (argmax of logits + Gumbel noise is a draw from p).
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            logits = logits.masked_fill(~mask, _FORBIDDEN)
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
    """Independent choices side by side; `logits` [M, R, sum of sizes], noise as for one choice."""

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
        total = self.parts[0].log_prob(action[..., :1])
        for k, part in enumerate(self.parts[1:], start=1):
            total = total + part.log_prob(action[..., k : k + 1])
        return total

    def entropy(self) -> Tensor:
        total = self.parts[0].entropy()
        for part in self.parts[1:]:
            total = total + part.entropy()
        return total


class DiagonalGaussian:
    """Independent normals; `mean` [M, R, K], `log_std` [M, K] the same in every state.

    With u = (a - mean) / std: log p = sum(-u^2/2 - log_std - log(2 pi)/2), whose derivatives are
    u / std with respect to the mean and u^2 - 1 with respect to log_std;
    H = sum(log_std + log(2 pi e)/2).
    Noise: standard normal, K numbers an action.
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


def distribution(
    actions: ActionMap, head: Tensor, log_std: Tensor | None, mask: Tensor | None
) -> Distribution:
    """What a head [M, R, >= head_width], padded beyond head_width, says of actions."""
    head = head[..., : actions.head_width]
    if log_std is not None:
        return DiagonalGaussian(head, log_std)
    if actions.kind == "discrete":
        return Categorical(head, mask)
    return MultiCategorical(head, actions.sizes, mask)
