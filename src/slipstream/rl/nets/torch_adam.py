"""Weights with their optimizer in torch, over the member axis: the definition of `optimizer.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.rl.nets.optimizer import BETA_1, BETA_2

Weights = Mapping[str, Tensor]


class Moving(NamedTuple):
    """What an update changes in place, of M members.

    Attributes:
        weights, first, second: float32 [M, P], with Adam's moments.
        steps: int64 [M], updates applied; failed: bool [M], whose gradient was not finite once.
    """

    weights: Tensor
    first: Tensor
    second: Tensor
    steps: Tensor
    failed: Tensor


class Group(NamedTuple):
    """Weights with an optimiser of their own.

    Attributes:
        moving: changed in place.
        leaves: views into its weights, by name, that gradients are taken with respect to.
        gradient: float32 [M, P], 0 between its tensors; gradients: its views by name.
    """

    moving: Moving
    leaves: Weights
    gradient: Tensor
    gradients: Weights


def differentiate(group: Group, loss: Tensor) -> Tensor:
    """Leaves the gradient of each member's loss, [M], in the group; its norms, float64 [M].

    Losses are summed, so that no gradient of one member reaches another.
    """
    parts = torch.autograd.grad(loss.sum(), list(group.leaves.values()))
    for name, tensor in zip(group.leaves, parts, strict=True):
        group.gradients[name].copy_(tensor)
    return group.gradient.double().square().sum(1).sqrt()


def shortened(group: Group, norm: Tensor, longest: Tensor) -> Tensor:
    """Gradients [M, P] whose norms [M] are at most `longest`, [M]."""
    return group.gradient * (longest / (norm + 1e-6)).clamp(max=1.0).float()[:, None]


def adam(
    moving: Moving, gradient: Tensor, chosen: Tensor, learning_rate: Tensor, epsilon: Tensor
) -> None:
    """One step of Adam (Kingma and Ba 2015) for the chosen members, bool [M].

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
    w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        gradient: float32 [M, P]; learning_rate, epsilon: float32 [M].
    """
    moving.steps.add_(chosen)
    t, keep = moving.steps.double()[:, None], ~chosen[:, None]
    first = BETA_1 * moving.first + (1.0 - BETA_1) * gradient
    second = BETA_2 * moving.second + (1.0 - BETA_2) * gradient**2
    mean, square = first / (1.0 - BETA_1**t).float(), second / (1.0 - BETA_2**t).float()
    step = learning_rate[:, None] * mean / (square.sqrt() + epsilon[:, None])
    for old, new in (
        (moving.first, first),
        (moving.second, second),
        (moving.weights, moving.weights - step),
    ):
        old.copy_(torch.where(keep, old, new))
