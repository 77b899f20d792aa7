"""Action distributions of a batch: sampling from given noise, densities, and their gradients by hand.

Gradients: where a loss depends on the network's output only through log_prob and entropy, its
derivative with respect to the output is d_log_prob * dlogp/dz + d_entropy * dH/dz. `gradient` writes
that, so the update needs no autograd graph. A test compares it with autograd.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

_FORBIDDEN = -1e30  # logit of a masked choice: probability exactly 0, entropy term finite


class Distribution(Protocol):
    """What the policy and the update ask of a batch of action distributions; leading axes [M, R]."""

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [M, R, K] from noise [M, R, noise width]."""

    def mode(self) -> Tensor:
        """Most likely actions [M, R, K]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log density [M, R] of actions [M, R, K]."""

    def entropy(self) -> Tensor:
        """[M, R], nats."""

    def gradient(
        self, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor, out: Tensor
    ) -> Tensor | None:
        """Writes d loss / d head into out [M, R, C]; returns d loss / d log_std [M, K] where there is one."""


class Categorical:
    """One choice of n; `logits` [M, R, n], `mask` bool [M, R, n] of allowed choices.

    p = softmax(z); log p(a) has derivative onehot(a) - p, and H = -sum p log p has -p (log p + H).
    Noise: Gumbel, n numbers an action (argmax of logits + Gumbel noise is a draw from p).
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            logits = logits.masked_fill(~mask, _FORBIDDEN)
        self.log_p = torch.log_softmax(logits, dim=-1)
        self._p: Tensor | None = None
        self._entropy: Tensor | None = None

    @property
    def p(self) -> Tensor:
        """Probabilities [M, R, n]."""
        if self._p is None:
            self._p = self.log_p.exp()
        return self._p

    def sample(self, noise: Tensor) -> Tensor:
        return (self.log_p + noise).argmax(dim=-1, keepdim=True)

    def mode(self) -> Tensor:
        return self.log_p.argmax(dim=-1, keepdim=True)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_p.gather(-1, action).squeeze(-1)

    def entropy(self) -> Tensor:
        if self._entropy is None:
            self._entropy = -(self.p * self.log_p).sum(dim=-1)
        return self._entropy

    def gradient(self, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor, out: Tensor) -> None:
        # -p (d_entropy (log p + H) + d_log_prob), then d_log_prob at the action taken
        d = d_log_prob[..., None]
        inner = (self.log_p + self.entropy()[..., None]).mul_(d_entropy[..., None]).add_(d)
        torch.mul(inner, self.p, out=inner).neg_()
        out.copy_(inner.scatter_add_(-1, action, d))


class MultiCategorical:
    """Several independent choices side by side; `logits` [M, R, sum of sizes]. Noise as for one choice."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...], mask: Tensor | None = None) -> None:
        masks = (None,) * len(sizes) if mask is None else torch.split_with_sizes(mask, sizes, dim=-1)
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

    def gradient(self, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor, out: Tensor) -> None:
        for k, (part, piece) in enumerate(
            zip(self.parts, torch.split_with_sizes(out, self.sizes, dim=-1), strict=True)
        ):
            part.gradient(action[..., k : k + 1], d_log_prob, d_entropy, piece)


class DiagonalGaussian:
    """Independent normals; `mean` [M, R, K], `log_std` [M, K] the same in every state.

    With u = (a - mean) / std: log p = sum(-u^2/2 - log_std - log(2 pi)/2), whose derivatives are
    u / std with respect to the mean and u^2 - 1 with respect to log_std; H = sum(log_std + log(2 pi e)/2).
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

    def gradient(
        self, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor, out: Tensor
    ) -> Tensor:
        u = self._standard(action)
        d = d_log_prob[..., None]
        out.copy_(d * u * (-self.log_std).exp())
        return (d * (u * u - 1.0)).sum(dim=1) + d_entropy.sum(dim=1)[:, None]
