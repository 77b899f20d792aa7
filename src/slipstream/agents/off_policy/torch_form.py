"""What the updates of agents with a replay share, over the member axis: torch, autograd.

Everything has a leading member axis. What limits or ends an update (norm, NaN) does so for each
member alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.nets.torch_adam import Group, Weights, adam, differentiate, shortened

Target = tuple[Tensor, Weights]  # float32 [M, P], and views by name


class Transitions(NamedTuple):
    """A batch of each member.

    Attributes:
        x, x_next: [M, B, ...], observations as the networks take them.
        action: float32 [M, B, K], in [-1, 1]; choices as whole numbers.
        reward: [M, B], the discounted sum of up to n.
        discount: [M, B], what the value of x_next counts, 0 after a termination.
        weight: [M, B], importance.
        mask_next: bool [M, B, n] of choices allowed next, or None.
    """

    x: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    x_next: Tensor
    weight: Tensor
    mask_next: Tensor | None


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; infinity where a limit is off."""

    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    target_rate: Tensor


def move(group: Group, loss: Tensor, chosen: Tensor, c: Coefficients) -> Tensor:
    """A step of Adam along the gradient of a loss [M], for the chosen members; its norms [M].

    A member whose gradient is not finite has failed, and is not moved.
    """
    norm, moving = differentiate(group, loss), group.moving
    moving.failed.logical_or_(chosen & ~norm.isfinite())
    chosen = chosen & ~moving.failed
    adam(moving, shortened(group, norm, c.max_grad_norm), chosen, c.learning_rate, c.adam_eps)
    return norm.float()


def follow(target: Tensor, weights: Tensor, due: Tensor, c: Coefficients) -> None:
    """Moves the targets [M, P] of the members that are due, bool [M]."""
    near = target + c.target_rate[:, None] * (weights - target)
    target.copy_(torch.where(due[:, None], near, target))
