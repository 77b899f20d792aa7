"""DQN's update as its papers have it, over the member axis: torch, autograd, any device.

This is the definition: deep Q-learning (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"), double (van Hasselt, Guez, Silver 2016, "Deep reinforcement learning with
double Q-learning"), dueling (Wang et al. 2016), with importance weights (Schaul et al. 2016). The
compiled form (`update.py`) does the same faster on a processor; whole iterations of both are
compared in `tests/agents/test_dqn_forms.py`.
"""

from __future__ import annotations

from collections.abc import Callable

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

Model = Callable[[Weights, Tensor], Tensor]
"""Values of all choices, [M, B, n], of observations as networks take them, [M, B, ...]."""


def dueling(outputs: Tensor, choices: int) -> Tensor:
    """Q = V + A - mean(A) of outputs [..., > n]: advantages, then the value."""
    advantage = outputs[..., :choices]
    return outputs[..., choices, None] + advantage - advantage.mean(-1, keepdim=True)


@torch.no_grad()
def goals(
    online: Weights, target: Weights, model: Model, rows: Transitions, double: bool
) -> Tensor:
    """r + discount Q_target(s', a'), [M, B].

    a' is the choice of greatest value: to the online network (double) or to the target network.
    Where nothing follows the discount is 0, and nothing need be allowed.
    """
    value = model(target, rows.x_next)
    judge = model(online, rows.x_next) if double else value
    if rows.mask_next is not None:
        judge = torch.where(rows.mask_next, judge, -torch.inf)
    following = value.gather(-1, judge.argmax(-1, keepdim=True))[..., 0]
    return rows.reward + torch.where(rows.discount > 0, rows.discount * following, 0.0)


def update(
    online: Group,
    target: Target,
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
    goal = goals(online.leaves, target[1], model, rows, double)
    value = model(online.leaves, rows.x).gather(-1, rows.action.long())[..., 0]
    error = value - goal
    size = error.abs()
    loss = (rows.weight * torch.where(size <= 1.0, 0.5 * error**2, size - 0.5)).mean(1)
    norm = move(online, loss, chosen, c)
    moving = online.moving
    due = chosen & ~moving.failed & (moving.steps % target_every == 0)
    follow(target[0], moving.weights, due, c)
    return torch.stack([loss.detach(), value.detach().mean(1), norm], 1), size.detach()
