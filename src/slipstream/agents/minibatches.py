"""PPO's inner loop: epochs of minibatches over a few members' rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.compiled import loops
from slipstream.agents.inputs import Inputs
from slipstream.agents.policy import Policy
from slipstream.agents.ppo_config import PPOConfig
from slipstream.agents.surrogate import ACTION, STATISTICS
from slipstream.experience.rollout import Rollout
from slipstream.vector import draws


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
    adam_eps: NDArray[np.float64]
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
            adam_eps=config.per_member("adam_eps", members),
            target_kl=config.per_member("target_kl", members),
            epochs=config.epochs,
            normalize_advantage=config.normalize_advantage,
        )


@dataclass(frozen=True)
class Columns:
    """What the losses need of each row r = t * N + n beside its observation.

    Attributes:
        packed: float32 [M, R, 5 + K], columns as in `surrogate.py`.
        mask: bool [M, R, choices] of allowed choices; [M, 0, 0] for none.
    """

    packed: NDArray[np.float32]
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, rollout: Rollout, advantage: Tensor, target: Tensor, value: Tensor) -> Columns:
        """Packs [T, E, ...] by member; value has a row more."""
        t, m, n = rollout.horizon, rollout.members, rollout.num_envs
        to = rollout.numpy
        action = to.actions.astype(np.float32, copy=False)
        packed = np.empty((m, t * n, ACTION + action.shape[-1]), np.float32)
        loops()["pack_rows"](
            to.log_prob, advantage.numpy(), target.numpy(), value.numpy(), to.valid, action, packed
        )
        mask = np.zeros((m, 0, 0), np.bool_)
        if to.mask is not None:
            by_member = to.mask[:-1].reshape(t, m, n, -1).swapaxes(0, 1)
            mask = np.ascontiguousarray(by_member.reshape(m, t * n, -1))
        return cls(packed, mask)

    def explained_variance(self) -> NDArray[np.float64]:
        """Share of the targets' variance that the critic knew, [M]."""
        out = np.zeros(len(self.packed))
        loops()["explained_variances"](self.packed, out)
        return out


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
        self._losses = np.stack(
            [
                settings.clip_range[members],
                settings.value_clip_range[members],
                settings.entropy_coef[members],
                settings.value_coef[members],
            ],
            axis=1,
        )
        self._target_kl = 1.5 * settings.target_kl[members]
        self._max_norm = settings.max_grad_norm[members]
        self._epsilon = settings.adam_eps[members]
        self._order = np.zeros((self._count, total), np.int64)
        self._moments = np.zeros((self._count, total // rows, 3))
        self._sizes = np.array(policy.actions.sizes, np.int64)
        self._parts = [_Part(policy, inputs, self._count, rows // parts) for _ in range(parts)]
        self._loops = loops()

    def learn(
        self,
        columns: Columns,
        seeds: NDArray[np.uint64],
        first_epochs: NDArray[np.int64],
        learning_rate: NDArray[np.float64],
        run: Callable[[Sequence[Callable[[], None]]], None],
    ) -> dict[str, NDArray[Any]]:
        """All epochs.

        Args:
            columns: of all members.
            seeds: of these members, [g]; with the epoch's number they name its permutation.
            first_epochs: [g], number of each member's first epoch since its training began.
            learning_rate: [g].
            run: runs the parts of a minibatch.

        Returns:
            Statistics [g] by name, means over the minibatches that changed the member.
        """
        sums = np.zeros((self._count, len(STATISTICS) + 1))
        updates = np.zeros(self._count, np.int64)
        frozen = self._parameters.failed.copy()
        packed, mask = columns.packed[self.members], columns.mask[self.members]
        for epoch in range(self._settings.epochs):
            if frozen.all():
                break
            draws.permute(draws.own_keys(seeds, draws.MINIBATCH, first_epochs + epoch), self._order)
            normalise = self._settings.normalize_advantage
            self._loops["advantage_moments"](
                packed, self._order, self._rows, normalise, self._moments
            )
            for k in range(self._total // self._rows):
                run([partial(self._part, p, packed, mask, k) for p in range(len(self._parts))])
                statistics = np.sum([part.statistics for part in self._parts], axis=0)
                frozen |= statistics[:, STATISTICS.index("approx_kl")] > self._target_kl
                norm = self._parameters.adam_step(
                    learning_rate, self._max_norm, self._epsilon, frozen
                )
                frozen |= self._parameters.failed
                updates += ~frozen
                sums[~frozen] += np.column_stack([statistics, norm])[~frozen]
                if frozen.all():
                    break
        means = sums / np.maximum(updates, 1)[:, None]
        return {
            **dict(zip((*STATISTICS, "gradient_norm"), means.T, strict=True)),
            "updates": updates,
        }

    def _part(self, p: int, packed: NDArray[np.float32], mask: NDArray[np.bool_], k: int) -> None:
        """Gradient buffer p, and its statistics, from its rows of minibatch k."""
        part, parameters, network = self._parts[p], self._parameters, self._policy.network
        space = part.space
        at = k * self._rows + p * part.x.shape[1]
        self._inputs.gather(self.members, self._order, at, part.x)
        head, value = (y.numpy() for y in network.forward(parameters, part.x, space))
        d_head, d_value = space.d_head.numpy(), space.d_value.numpy()
        if self._policy.actions.continuous:
            log_std = np.ascontiguousarray(parameters.weights["log_std"].numpy())
            d_log_std = np.zeros(log_std.shape)
            self._loops["gaussian_gradient"](
                *(head, value, log_std, packed, self._order, at, self._moments, k),
                *(self._losses, d_head, d_value, d_log_std, part.statistics),
            )
            parameters.weight_gradients[p]["log_std"].copy_(torch.from_numpy(d_log_std))
        else:
            self._loops["choices_gradient"](
                *(head, value, packed, self._order, at, mask, self._sizes, self._moments, k),
                *(self._losses, d_head, d_value, part.statistics, part.scratch),
            )
        network.backward(parameters, p, part.x, space)


class _Part:
    """Memory of one part of a minibatch: [g, b, ...]."""

    def __init__(self, policy: Policy, inputs: Inputs, members: int, rows: int) -> None:
        self.x = inputs.batch(members, rows)
        self.space = policy.network.workspace(members, rows, gradients=True)
        self.statistics = np.zeros((members, len(STATISTICS)))
        self.scratch = np.zeros((2, policy.actions.head_width))
