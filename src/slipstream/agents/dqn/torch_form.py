"""DQN's update as its papers have it, over the member axis: torch, autograd, any device.

This is the definition: deep Q-learning (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"), double (van Hasselt, Guez, Silver 2016, "Deep reinforcement learning with
double Q-learning"), dueling (Wang et al. 2016), with importance weights (Schaul et al. 2016). The
compiled form (`update.py`) does the same faster on a processor; whole iterations of both are
compared in `tests/agents/test_dqn_forms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.nets.torch_adam import Moving, adam

Weights = Mapping[str, Tensor]
Model = Callable[[Weights, Tensor], Tensor]
"""Values of all choices, [M, B, n], of observations as networks take them, [M, B, ...]."""


class Transitions(NamedTuple):
    """A batch of each member.

    Attributes:
        x, x_next: [M, B, ...], observations as the networks take them.
        mask_next: bool [M, B, n] of choices allowed next, or None.
        action: int64 [M, B]; reward, discount: [M, B], of n steps.
        weight: [M, B], importance.
    """

    x: Tensor
    x_next: Tensor
    mask_next: Tensor | None
    action: Tensor
    reward: Tensor
    discount: Tensor
    weight: Tensor


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; `max_grad_norm` is infinity where it is off."""

    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    target_rate: Tensor


class Online(NamedTuple):
    """The network that learns, and the one that follows it.

    Attributes:
        moving: changed in place; target: float32 [M, P], too.
        leaves: views into the weights, by name, that gradients are taken with respect to.
        targets: views into the target.
        gradient: float32 [M, P], 0 between its tensors, and its views by name.
    """

    moving: Moving
    target: Tensor
    leaves: Weights
    targets: Weights
    gradient: tuple[Tensor, Weights]


def dueling(outputs: Tensor, choices: int) -> Tensor:
    """Q = V + A - mean(A) of outputs [..., > n]: advantages, then the value."""
    advantage = outputs[..., :choices]
    return outputs[..., choices, None] + advantage - advantage.mean(-1, keepdim=True)


@torch.no_grad()
def goals(online: Online, model: Model, rows: Transitions, double: bool) -> Tensor:
    """r + discount Q_target(s', a'), [M, B].

    a' is the choice of greatest value: to the online network (double) or to the target network.
    Where nothing follows the discount is 0, and nothing need be allowed.
    """
    value = model(online.targets, rows.x_next)
    judge = model(online.leaves, rows.x_next) if double else value
    if rows.mask_next is not None:
        judge = torch.where(rows.mask_next, judge, -torch.inf)
    following = value.gather(-1, judge.argmax(-1, keepdim=True))[..., 0]
    return rows.reward + torch.where(rows.discount > 0, rows.discount * following, 0.0)


def update(
    online: Online,
    model: Model,
    rows: Transitions,
    chosen: Tensor,
    c: Coefficients,
    double: bool,
    target_every: int,
) -> tuple[Tensor, Tensor]:
    """One update of the chosen members, bool [M], that have not failed.

        e = Q(s, a) - goal,  L = mean(w h(e)),  h(e) = e^2 / 2 within 1, |e| - 1/2 beyond

    Returns:
        loss, mean value of what was chosen, and the gradient's norm, [M, 3]; |e|, [M, B].
    """
    moving, goal = online.moving, goals(online, model, rows, double)
    value = model(online.leaves, rows.x).gather(-1, rows.action[..., None])[..., 0]
    error = value - goal
    size = error.abs()
    loss = (rows.weight * torch.where(size <= 1.0, 0.5 * error**2, size - 0.5)).mean(1)
    parts = torch.autograd.grad(loss.sum(), list(online.leaves.values()))
    for name, tensor in zip(online.leaves, parts, strict=True):
        online.gradient[1][name].copy_(tensor)
    norm = online.gradient[0].double().square().sum(1).sqrt()
    moving.failed.logical_or_(chosen & ~norm.isfinite())
    learns = chosen & ~moving.failed
    shorten = (c.max_grad_norm / (norm + 1e-6)).clamp(max=1.0).float()
    adam(moving, online.gradient[0] * shorten[:, None], learns, c.learning_rate, c.adam_eps)
    follows = learns & (moving.steps % target_every == 0)
    near = online.target + c.target_rate[:, None] * (moving.weights - online.target)
    online.target.copy_(torch.where(follows[:, None], near, online.target))
    statistics = torch.stack([loss.detach(), value.detach().mean(1), norm.float()], 1)
    return statistics, size.detach()
