"""What the updates of actors with two critics share, over the member axis: torch, autograd.

Everything has a leading member axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream.agents.off_policy.torch_form import (
    Coefficients,
    Target,
    Transitions,
    follow,
    move,
)
from slipstream.nets.torch_adam import Group, Weights


class Networks(NamedTuple):
    """What the networks say: an actor's head [M, B, outputs], a critic's values [M, B]."""

    head: Callable[[Weights, Tensor], Tensor]
    value: Callable[[Weights, Tensor, Tensor], Tensor]


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
    members: Members, networks: Networks, rows: Transitions, action: Tensor, cost: Tensor | float
) -> Tensor:
    """What both critics' values are to become, [M, B]: y = r + discount (min_c Q'_c(s', a') - cost)

    (Fujimoto et al. 2018, equation 10), and nothing behind a termination.
    """
    values = (networks.value(target, rows.x_next, action) for _, target in members.targets)
    worth = torch.minimum(*values) - cost
    return rows.reward + torch.where(rows.discount > 0, rows.discount * worth, 0.0)


def learn_values(
    members: Members, networks: Networks, rows: Transitions, goal: Tensor, chosen: Tensor,
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
