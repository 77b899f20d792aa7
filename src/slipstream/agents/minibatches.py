"""PPO's inner loop: epochs of minibatches over a few members' rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.inputs import Inputs
from slipstream.agents.losses import clipped_surrogate, value_error
from slipstream.agents.policy import Policy
from slipstream.agents.ppo_config import PPOConfig
from slipstream.experience.rollout import Rollout
from slipstream.vector import draws

_LOG_PROB, _ADVANTAGE, _TARGET, _VALUE, _VALID, _ACTION = range(6)
_STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


@dataclass(frozen=True)
class Settings:
    """Per-member numbers of the config, float64 [M]; infinity where a limit is off."""

    learning_rate: NDArray[np.float64]
    clip_range: NDArray[np.float64]
    value_clip_range: NDArray[np.float64]
    entropy_coef: NDArray[np.float64]
    value_coef: NDArray[np.float64]
    discount: NDArray[np.float64]
    gae_lambda: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]
    target_kl: NDArray[np.float64]
    epochs: int
    normalize_advantage: bool

    @classmethod
    def of(cls, config: PPOConfig, members: int) -> Settings:
        """Settings of M members."""
        return cls(
            learning_rate=config.per_member("learning_rate", members),
            clip_range=config.per_member("clip_range", members),
            value_clip_range=config.per_member("value_clip_range", members),
            entropy_coef=config.per_member("entropy_coef", members),
            value_coef=config.per_member("value_coef", members),
            discount=config.per_member("discount", members),
            gae_lambda=config.per_member("gae_lambda", members),
            max_grad_norm=config.per_member("max_grad_norm", members),
            target_kl=config.per_member("target_kl", members),
            epochs=config.epochs,
            normalize_advantage=config.normalize_advantage,
        )


@dataclass(frozen=True)
class Columns:
    """What the losses need of each row r = t * N + n beside its observation.

    Attributes:
        packed: float32 [M, R, 5 + K]: log_prob, advantage, target, value, valid, and the action (exact
            for choices below 2^24): one record, so that a row is one piece of memory.
        mask: bool [M, R, choices] or None.
        continuous: whether actions are real numbers.
        all_valid: no row is masked out.
    """

    packed: Tensor
    mask: Tensor | None
    continuous: bool
    all_valid: bool

    @classmethod
    def of(
        cls, rollout: Rollout, advantage: Tensor, target: Tensor, value: Tensor, continuous: bool
    ) -> Columns:
        """Packs [T, E, ...] by member."""
        t, m, n = rollout.horizon, rollout.members, rollout.num_envs
        packed = torch.empty((m, t, n, _ACTION + rollout.actions.shape[-1]))

        def by_member(x: Tensor) -> Tensor:
            return x.view(t, m, n, *x.shape[2:]).transpose(0, 1)

        columns = (rollout.log_prob, advantage, target, value, rollout.valid)
        for i, column in enumerate(columns):
            packed[..., i] = by_member(column)
        packed[..., _ACTION:] = by_member(rollout.actions)
        mask = None if rollout.mask is None else by_member(rollout.mask[:-1]).reshape(m, t * n, -1)
        return cls(packed.view(m, t * n, -1), mask, continuous, bool(rollout.valid.all()))

    def explained_variance(self) -> NDArray[np.float32]:
        """1 - Var(target - value) / Var(target) of each member's valid rows, [M]; 0 where targets are constant."""
        weight = self.packed[..., _VALID]
        count = weight.sum(dim=1, keepdim=True).clamp_(min=1.0)
        target = self.packed[..., _TARGET]

        def variance(x: Tensor) -> Tensor:
            centred = x - (x * weight).sum(dim=1, keepdim=True) / count
            return (centred * centred * weight).sum(dim=1) / count[:, 0]

        spread = variance(target)
        explained = 1.0 - variance(target - self.packed[..., _VALUE]) / spread
        result: NDArray[np.float32] = torch.where(spread > 0, explained, 0.0).numpy()
        return result


class Learner:
    """Updates members `members` of a policy, together, on their rows of a rollout.

    Args:
        policy: whose parameters change.
        inputs: observations of the rollout.
        settings: of all M members.
        members: which of them.
        total: R rows of a member's rollout.
        rows: B rows of a minibatch, per member.
        parts: equal parts that a minibatch's gradient is summed from.
    """

    def __init__(
        self,
        policy: Policy,
        inputs: Inputs,
        settings: Settings,
        members: slice,
        total: int,
        rows: int,
        parts: int,
    ) -> None:
        self.members, self._policy, self._inputs = members, policy, inputs
        self._parameters = policy.parameters.rows(members)
        self._count, self._total, self._rows = members.stop - members.start, total, rows
        self._settings = settings
        self._clip = _column(settings.clip_range[members])
        limits = settings.value_clip_range[members]
        self._value_clip = _column(limits) if np.isfinite(limits).any() else None
        self._entropy_coef = _column(settings.entropy_coef[members])
        self._value_coef = _column(settings.value_coef[members])
        self._target_kl = 1.5 * settings.target_kl[members]
        self._order = np.zeros((self._count, total), np.int64)
        self._parts = [_Part(policy, inputs, self._count, rows // parts) for _ in range(parts)]

    def learn(
        self,
        columns: Columns,
        seeds: NDArray[np.uint64],
        first_epoch: int,
        learning_rate: NDArray[np.float64],
        run: Callable[[Sequence[Callable[[], None]]], None],
    ) -> dict[str, NDArray[Any]]:
        """All epochs.

        Args:
            columns: of all members.
            seeds: of these members, [g]; with the epoch's number they name its permutation.
            first_epoch: number of the first epoch since training began.
            learning_rate: [g].
            run: runs the parts of a minibatch.

        Returns:
            Statistics [g] by name, means over the minibatches that changed the member.
        """
        sums = np.zeros((len(_STATISTICS) + 1, self._count))
        updates = np.zeros(self._count, np.int64)
        frozen = self._parameters.failed.copy()
        for epoch in range(self._settings.epochs):
            draws.permute(
                draws.member_keys(seeds, draws.MINIBATCH, first_epoch + epoch), self._order
            )
            shuffled = self._shuffle(columns)
            for at in range(0, self._total, self._rows):
                if frozen.all():
                    break
                statistics = self._gradient(shuffled, at, run)
                frozen |= statistics[_STATISTICS.index("approx_kl")] > self._target_kl
                norm = self._parameters.adam_step(
                    learning_rate, self._settings.max_grad_norm[self.members], frozen
                )
                frozen |= self._parameters.failed
                moved = ~frozen
                updates += moved
                sums += np.where(moved, np.concatenate([statistics, norm[None]]), 0.0)
        means = sums / np.maximum(updates, 1)
        return {
            **dict(zip((*_STATISTICS, "gradient_norm"), means, strict=True)),
            "updates": updates,
        }

    def _shuffle(self, columns: Columns) -> _Shuffled:
        """An epoch's rows in the order of `self._order`, advantages normalised minibatch by minibatch."""
        g, r = self._count, self._total
        order = torch.from_numpy(self._order)
        packed = columns.packed[self.members]
        flat = (order + (torch.arange(g) * r)[:, None]).view(-1)
        rows = packed.reshape(g * r, -1).index_select(0, flat).view(g, r, -1)
        column = rows[..., :_ACTION].permute(2, 0, 1).contiguous()
        batches = column.view(_ACTION, g, r // self._rows, self._rows)
        valid, advantage = batches[_VALID], batches[_ADVANTAGE]
        count = valid.sum(dim=-1, keepdim=True).clamp_(min=1.0)
        if self._settings.normalize_advantage:
            centred = advantage - (advantage * valid).sum(dim=-1, keepdim=True) / count
            variance = (centred * centred * valid).sum(dim=-1, keepdim=True) / count
            advantage.copy_(centred / (variance.sqrt() + 1e-8))
        valid.div_(count)  # from here on: each row's weight in its minibatch's mean
        action = rows[..., _ACTION:]
        mask = columns.mask
        return _Shuffled(
            places=self._inputs.offsets(order, self.members.start),
            columns=column,
            action=action.contiguous() if columns.continuous else action.to(torch.int64),
            mask=None
            if mask is None
            else mask[self.members].reshape(g * r, -1)[flat].view(g, r, -1),
        )

    def _gradient(
        self, shuffled: _Shuffled, at: int, run: Callable[[Sequence[Callable[[], None]]], None]
    ) -> NDArray[np.float32]:
        """Fills the gradient parts of the minibatch that begins at row `at`; statistics [5, g]."""
        size = self._rows // len(self._parts)
        tasks = [
            lambda k=k: self._part(k, shuffled, slice(at + k * size, at + (k + 1) * size))
            for k in range(len(self._parts))
        ]
        run(tasks)
        statistics = self._parts[0].statistics
        for part in self._parts[1:]:
            statistics = statistics + part.statistics
        return statistics.numpy()

    def _part(self, k: int, shuffled: _Shuffled, rows: slice) -> None:
        part, parameters, network = self._parts[k], self._parameters, self._policy.network
        with torch.no_grad():
            self._inputs.gather(shuffled.places[:, rows].reshape(-1), part.x)
            head, value = network.forward(parameters, k, part.x, part.space)
            mask = None if shuffled.mask is None else shuffled.mask[:, rows]
            distribution = self._policy.actions.distribution(
                head, parameters.weights.get("log_std"), mask
            )
            old_log_prob, advantage, target, old_value, weight = shuffled.columns[
                :, :, rows
            ].unbind(0)
            action = shuffled.action[:, rows]
            log_ratio = distribution.log_prob(action) - old_log_prob
            entropy = distribution.entropy()
            policy_loss, d_log_prob, kl, outside = clipped_surrogate(
                log_ratio, advantage, weight, self._clip
            )
            value_loss, d_value = value_error(value, target, old_value, weight, self._value_clip)
            d_entropy = weight * -self._entropy_coef
            d_log_std = distribution.gradient(action, d_log_prob, d_entropy, part.d_head)
            network.backward(
                parameters, k, part.x, part.space, part.d_head, d_value.mul_(self._value_coef)
            )
            if d_log_std is not None:
                parameters.weight_gradients[k]["log_std"].copy_(d_log_std)
            each = torch.stack((policy_loss, value_loss, entropy, kl, outside))
            part.statistics = each.mul_(weight).sum(dim=-1)


@dataclass(frozen=True)
class _Shuffled:
    places: Tensor
    columns: Tensor
    action: Tensor
    mask: Tensor | None


class _Part:
    """Memory of one part of a minibatch: [g, b, ...]."""

    def __init__(self, policy: Policy, inputs: Inputs, members: int, rows: int) -> None:
        self.x = inputs.batch(members, rows)
        self.space = policy.network.workspace(members, rows, gradients=True)
        self.d_head = torch.zeros((members, rows, policy.actions.head_width))
        self.statistics = torch.zeros((len(_STATISTICS), members))


def _column(per_member: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(per_member.astype(np.float32))[:, None]
