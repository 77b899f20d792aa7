"""Soft actor-critic's update as its papers have it, over the member axis: torch, autograd.

This is the definition (Haarnoja et al. 2018, "Soft actor-critic: off-policy maximum entropy deep
reinforcement learning with a stochastic actor" and "Soft actor-critic algorithms and
applications"). The compiled form (`gradients.py`, `steps.py`) does the same faster on a processor;
whole iterations of both are compared in `tests/agents/test_sac_forms.py`.

Everything has a leading member axis. Losses are summed over members, so that no gradient of one
reaches another; what limits or ends an update (norm, NaN) does so for each member alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from slipstream.nets.squashed import LOG_STD_HIGH, LOG_STD_LOW
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
    """Settings of each member, float32 [M] (automatic: bool); infinity where a limit is off."""

    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    target_rate: Tensor
    target_entropy: Tensor
    automatic: Tensor


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
    """What the networks say: an actor's head [M, B, 2 K], a critic's values [M, B]."""

    head: Callable[[Weights, Tensor], Tensor]
    value: Callable[[Weights, Tensor, Tensor], Tensor]


class Members(NamedTuple):
    """What M members learn.

    Attributes:
        actor, critics, temperature: groups; the last one's only tensor is log_alpha, [M, 1].
        targets: float32 [M, P] of each critic, and views by name.
    """

    actor: Group
    critics: Sequence[Group]
    temperature: Group
    targets: Sequence[tuple[Tensor, Weights]]


def draw(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions tanh(mean + std noise), [M, B, K], and their log density [M, B].

    log p(a) = sum(-noise^2/2 - log std - log(2 pi)/2 - log(1 - tanh^2 u)) (appendix C), whose last
    logarithm is 2 (log 2 - u - softplus(-2 u)).
    """
    mean, log_std = head.chunk(2, -1)
    log_std = log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)
    u = mean + log_std.exp() * noise
    slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    density = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi) - slope
    return u.tanh(), density.sum(-1)


# Long: the update of the papers, in their order, is read as one.
def learn(
    members: Members,
    networks: Networks,
    rows: Rows,
    noise: tuple[Tensor, Tensor],
    chosen: Tensor,
    target_every: int,
    c: Coefficients,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """One update of critics, targets, actor and temperature.

    Args:
        noise: standard normal [M, B, K], for the actions at x_next and at x.
        chosen: bool [M], who learns.
        target_every: updates between two of the targets.

    Returns:
        Statistics [M] by name, bool [M] of the members that were updated, and the mean absolute
        error of both critics [M, B].
    """
    actor, temperature = members.actor, members.temperature
    chosen = chosen & ~actor.moving.failed
    alpha = temperature.leaves["log_alpha"].detach().exp()

    with torch.no_grad():
        action, log_prob = draw(networks.head(actor.leaves, rows.x_next), noise[0])
        values = (networks.value(target, rows.x_next, action) for _, target in members.targets)
        soft = torch.minimum(*values) - alpha * log_prob
        future = torch.where(rows.discount > 0, rows.discount * soft, 0.0)
        target = rows.reward + future

    said = [networks.value(critic.leaves, rows.x, rows.action) for critic in members.critics]
    errors = [value - target for value in said]
    losses = [(0.5 * rows.weight * error**2).mean(1) for error in errors]
    for critic, (follower, _), loss in zip(members.critics, members.targets, losses, strict=True):
        move(critic, loss, chosen, c)
        due = chosen & ~critic.moving.failed & (critic.moving.steps % target_every == 0)
        moved = follower + c.target_rate[:, None] * (critic.moving.weights.detach() - follower)
        follower.copy_(torch.where(due[:, None], moved, follower))
        actor.moving.failed.logical_or_(critic.moving.failed)
    chosen = chosen & ~actor.moving.failed

    action, log_prob = draw(networks.head(actor.leaves, rows.x), noise[1])
    least = torch.minimum(*(networks.value(q.leaves, rows.x, action) for q in members.critics))
    actor_loss = (alpha * log_prob - least).mean(1)
    norm = move(actor, actor_loss, chosen, c)
    chosen, entropy = chosen & ~actor.moving.failed, -log_prob.detach().mean(1)
    log_alpha = temperature.leaves["log_alpha"][:, 0]
    move(temperature, log_alpha * (entropy - c.target_entropy), chosen & c.automatic, c)

    statistics = {
        "critic_loss": sum(losses, torch.zeros_like(norm)),
        "value": torch.stack(said).mean((0, 2)),
        "actor_loss": actor_loss,
        "entropy": entropy,
        "gradient_norm": norm,
    }
    error = torch.stack(errors).detach().abs().mean(0)
    return {k: v.detach() for k, v in statistics.items()}, chosen, error


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
