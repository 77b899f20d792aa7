"""What the updates of actors with two critics share, over the member axis: torch, autograd.

Everything has a leading member axis. Losses are summed over members, so that no gradient of one
reaches another; what limits or ends an update (norm, NaN) does so for each member alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream.nets.torch_adam import Moving, adam

Weights = Mapping[str, Tensor]


class Rows(NamedTuple):
    """A batch of transitions of each member.

    Attributes:
        x, x_next: [M, B, D], observations as the networks take them.
        action: [M, B, K], in [-1, 1]; reward: [M, B], the discounted sum of up to n.
        discount: [M, B], what the value of x_next counts, 0 after a termination.
        weight: [M, B], of each transition in the critics' loss.
    """

    x: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    x_next: Tensor
    weight: Tensor


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; infinity where a limit is off."""

    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    target_rate: Tensor


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


class Networks(NamedTuple):
    """What the networks say: an actor's head [M, B, outputs], a critic's values [M, B]."""

    head: Callable[[Weights, Tensor], Tensor]
    value: Callable[[Weights, Tensor, Tensor], Tensor]


Target = tuple[Tensor, Weights]  # float32 [M, P], and views by name


class Members(NamedTuple):
    """What M members learn.

    Attributes:
        actor, critics: groups; targets: of each critic.
        others: groups and targets of one agent, by name.
    """

    actor: Group
    critics: Sequence[Group]
    targets: Sequence[Target]
    others: Mapping[str, Any]


def goals(
    members: Members, networks: Networks, rows: Rows, action: Tensor, cost: Tensor | float
) -> Tensor:
    """What both critics' values are to become, [M, B]: y = r + discount (min_c Q'_c(s', a') - cost)

    (Fujimoto et al. 2018, equation 10), and nothing behind a termination.
    """
    values = (networks.value(target, rows.x_next, action) for _, target in members.targets)
    worth = torch.minimum(*values) - cost
    return rows.reward + torch.where(rows.discount > 0, rows.discount * worth, 0.0)


def learn_values(
    members: Members, networks: Networks, rows: Rows, goal: Tensor, chosen: Tensor,
    target_every: int, c: Coefficients,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:  # fmt: skip
    """Moves both critics towards their goal [M, B], and their targets after them.

    Args:
        chosen: bool [M], who learns; target_every: updates between two of the targets.

    Returns:
        Statistics [M] by name, bool [M] of the chosen members that are well, and the mean absolute
        error of both critics [M, B].
    """
    said = [networks.value(critic.leaves, rows.x, rows.action) for critic in members.critics]
    errors = [value - goal for value in said]
    losses = [(0.5 * rows.weight * error**2).mean(1) for error in errors]
    for critic, (follower, _), loss in zip(members.critics, members.targets, losses, strict=True):
        move(critic, loss, chosen, c)
        due = chosen & ~critic.moving.failed & (critic.moving.steps % target_every == 0)
        follow(follower, critic.moving.weights.detach(), due, c)
        members.actor.moving.failed.logical_or_(critic.moving.failed)
    loss, value = torch.stack(losses).sum(0).detach(), torch.stack(said).mean((0, 2)).detach()
    error = torch.stack(errors).detach().abs().mean(0)
    well = chosen & ~members.actor.moving.failed
    return {"critic_loss": loss, "value": value}, well, error


def follow(target: Tensor, weights: Tensor, due: Tensor, c: Coefficients) -> None:
    """Moves the targets [M, P] of the members that are due, bool [M]."""
    near = target + c.target_rate[:, None] * (weights - target)
    target.copy_(torch.where(due[:, None], near, target))


def move(group: Group, loss: Tensor, chosen: Tensor, c: Coefficients) -> Tensor:
    """A step of Adam along the gradient of a loss [M], for the chosen members; its norms [M].

    A member whose gradient is not finite has failed, and is not moved.
    """
    parts = torch.autograd.grad(loss.sum(), list(group.leaves.values()))
    for name, tensor in zip(group.leaves, parts, strict=True):
        group.gradients[name].copy_(tensor)
    norm = group.gradient.double().square().sum(1).sqrt()
    group.moving.failed.logical_or_(chosen & ~norm.isfinite())
    shorten = (c.max_grad_norm / (norm + 1e-6)).clamp(max=1.0).float()
    chosen = chosen & ~group.moving.failed
    gradient = group.gradient * shorten[:, None]
    adam(group.moving, gradient, chosen, c.learning_rate, c.adam_eps)
    return norm.float()
