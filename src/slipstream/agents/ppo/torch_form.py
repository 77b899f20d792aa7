"""PPO's update as its paper has it, over the member axis: torch, autograd, any device.

This is the definition (Schulman et al. 2017, "Proximal policy optimization algorithms"). The
compiled form (`minibatches.py` and what it calls) does the same faster on a processor; whole
iterations of both are compared in `tests/agents/test_two_forms.py`.

Everything has a leading member axis. Losses are summed over members, so that no gradient of one
reaches another; what limits or ends an update (norm, KL, NaN) does so for each member alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.agents.ppo.update import STATISTICS
from slipstream.nets.torch_adam import Group, Weights, adam, differentiate, shortened
from slipstream.nets.torch_distributions import Distribution


class Rows(NamedTuple):
    """A rollout by member: row t N + n is environment n's at step t; or rows picked from it.

    Attributes:
        x: [M, R, ...], observations as the networks take them.
        mask: bool [M, R, choices] of allowed choices, or None.
        action: [M, R, K]; log_prob: [M, R], of it when it was taken.
        advantage, target, value: [M, R]; the last from before the update.
        valid: bool [M, R], whether the transition is real.
    """

    x: Tensor
    mask: Tensor | None
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    valid: Tensor

    def pick(self, order: Tensor) -> Rows:
        """Rows order [M, B] of each member."""
        member = torch.arange(len(order), device=order.device)[:, None]
        mask = None if self.mask is None else self.mask[member, order]
        rest = (column[member, order] for column in self[2:] if column is not None)
        return Rows(self.x[member, order], mask, *rest)

    def mean(self, numbers: Tensor) -> Tensor:
        """[M] of [M, R]: over a member's valid rows."""
        valid = self.valid.to(numbers.dtype)
        return (numbers * valid).sum(1) / valid.sum(1).clamp(min=1.0)


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; infinity where a limit is off."""

    clip_range: Tensor
    entropy_coef: Tensor
    value_coef: Tensor
    discount: Tensor
    gae_lambda: Tensor
    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    target_kl: Tensor


Model = Callable[[Weights, Rows], tuple[Distribution, Tensor]]
"""What the networks say of rows: the actions' distribution, and values [M, R]."""


def advantages(
    reward: Tensor, value: Tensor, following: Tensor, ended: Tensor, valid: Tensor, c: Coefficients
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and value targets (Schulman et al. 2016, equation 16).

        delta_t = r_t + gamma V'_t - V(s_t)
        A_t     = delta_t + gamma lambda [episode goes on] A_{t+1}
        target  = A_t + V(s_t)

    Args:
        reward, value: [M, T, N]; ended, valid: bool [M, T, N].
        following: V', [M, T, N]: of the next observation inside an episode, of the final one where
            a time limit cut it short, 0 after a termination.
        c: of the members.
    """
    gamma = c.discount[:, None, None]
    delta = torch.where(valid, reward + gamma * following - value, 0.0)
    carried = gamma * c.gae_lambda[:, None, None] * (valid & ~ended)
    estimates = [delta[:, -1]]
    for t in range(delta.shape[1] - 2, -1, -1):
        estimates.append(delta[:, t] + carried[:, t] * estimates[-1])
    advantage = torch.stack(estimates[::-1], 1)
    return advantage, advantage + value


def explained_variance(rows: Rows) -> Tensor:
    """Share of the targets' variance that the critic knew, [M]; 0 for constant targets."""

    def variance(x: Tensor) -> Tensor:
        return rows.mean((x - rows.mean(x)[:, None]) ** 2)

    spread = variance(rows.target)
    known = 1.0 - variance(rows.target - rows.value) / spread
    return torch.where(spread > 0, known, 0.0)


def loss_of(
    rows: Rows, distribution: Distribution, value: Tensor, c: Coefficients, normalise: bool
) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch, [M], and its STATISTICS, [M, 5] (equation 9).

        L = mean(-min(r A, clamp(r, 1 - c, 1 + c) A) + c_v (v - R)^2 - c_e H)

    with r = exp(log p - log p_old). The KL estimate is (r - 1) - log r (Schulman 2020,
    "Approximating KL divergence").
    """
    advantage = rows.advantage
    if normalise:
        advantage = advantage - rows.mean(advantage)[:, None]
        advantage = advantage / (rows.mean(advantage**2).sqrt() + 1e-8)[:, None]
    clip = c.clip_range[:, None]

    log_ratio = distribution.log_prob(rows.action) - rows.log_prob
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    policy = -torch.minimum(ratio * advantage, bounded * advantage)

    critic = (value - rows.target) ** 2
    entropy = distribution.entropy()
    loss = policy + c.value_coef[:, None] * critic - c.entropy_coef[:, None] * entropy
    each = (policy, critic, entropy, log_ratio.expm1() - log_ratio, (bounded != ratio).float())
    return rows.mean(loss), torch.stack([rows.mean(x.detach()) for x in each], 1)


def learn(
    group: Group,
    model: Model,
    rows: Rows,
    orders: Iterable[Tensor],
    size: int,
    c: Coefficients,
    normalise: bool,
) -> dict[str, Tensor]:
    """All epochs of minibatches.

    Args:
        group: weights, changed in place; model: the networks.
        rows: of the rollout.
        orders: a permutation [M, R] for each epoch.
        size: B rows of a minibatch, per member.
        c: settings; normalise: whether advantages get mean 0 and deviation 1 in each minibatch.

    Returns:
        STATISTICS and gradient_norm, [M], means over the minibatches that changed the member; and
        updates, their number.
    """
    moving = group.moving
    frozen = moving.failed.clone()
    sums = torch.zeros((len(frozen), len(STATISTICS) + 1), device=frozen.device)
    updates = torch.zeros_like(moving.steps)
    for order in orders:
        for part in torch.split(order, size, 1):
            batch = rows.pick(part)
            loss, statistics = loss_of(batch, *model(group.leaves, batch), c, normalise)
            norm = differentiate(group, loss)
            frozen |= statistics[:, STATISTICS.index("approx_kl")] > 1.5 * c.target_kl
            moving.failed.logical_or_(~frozen & ~norm.isfinite())
            frozen |= moving.failed
            gradient = shortened(group, norm, c.max_grad_norm)
            adam(moving, gradient, ~frozen, c.learning_rate, c.adam_eps)
            updates += ~frozen
            counted = torch.cat([statistics, norm[:, None].float()], 1)
            sums += torch.where(frozen[:, None], 0.0, counted)
        if bool(frozen.all()):
            break
    means = sums / updates.clamp(min=1)[:, None]
    names = (*STATISTICS, "gradient_norm")
    return {**dict(zip(names, means.unbind(1), strict=True)), "updates": updates}
