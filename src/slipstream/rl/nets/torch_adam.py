"""Parameter groups and Adam in torch, over the member axis; the reference for `optimizer.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.rl.nets.optimizer import BETA_1, BETA_2

Weights = Mapping[str, Tensor]


class OptimizerState(NamedTuple):
    """Tensors that an update changes in place, of M members.

    Attributes:
        weights, first, second: float32 [M, P], weights and Adam's moments.
        steps: int64 [M], applied updates.
        failed: bool [M], members that had a non-finite gradient.
    """

    weights: Tensor
    first: Tensor
    second: Tensor
    steps: Tensor
    failed: Tensor


class ParamGroup(NamedTuple):
    """Weights with an optimizer of their own.

    Attributes:
        state: Changed in place.
        leaves: Views into its weights by name, differentiated by autograd.
        gradient: float32 [M, P], 0 between tensors.
        gradients: Views into `gradient` by name.
    """

    state: OptimizerState
    leaves: Weights
    gradient: Tensor
    gradients: Weights


def differentiate(group: ParamGroup, loss: Tensor) -> Tensor:
    """Store the gradients of each member's loss, [M], in the group; return norms, float64 [M].

    Losses are summed over members, so members do not share gradients.
    """
    parts = torch.autograd.grad(loss.sum(), list(group.leaves.values()))
    for name, tensor in zip(group.leaves, parts, strict=True):
        group.gradients[name].copy_(tensor)
    return group.gradient.double().square().sum(1).sqrt()


def clip_grad_norm(group: ParamGroup, norm: Tensor, max_norm: Tensor) -> Tensor:
    """Return gradients [M, P] clipped to the norms `max_norm`, [M]."""
    return group.gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0).float()[:, None]


def adam(
    state: OptimizerState, gradient: Tensor, active: Tensor, learning_rate: Tensor, epsilon: Tensor
) -> None:
    """Apply one step of Adam (Kingma and Ba 2015) to the active members, bool [M].

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
    w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        gradient: float32 [M, P].
        learning_rate, epsilon: float32 [M].
    """
    state.steps.add_(active)
    t, keep = state.steps.double()[:, None], ~active[:, None]
    first = BETA_1 * state.first + (1.0 - BETA_1) * gradient
    second = BETA_2 * state.second + (1.0 - BETA_2) * gradient**2
    mean, square = first / (1.0 - BETA_1**t).float(), second / (1.0 - BETA_2**t).float()
    step = learning_rate[:, None] * mean / (square.sqrt() + epsilon[:, None])
    for old, new in (
        (state.first, first),
        (state.second, second),
        (state.weights, state.weights - step),
    ):
        old.copy_(torch.where(keep, old, new))
