"""PPO's inner loop: epochs of minibatches over a few members' rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import RunTasks, in_sequence
from slipstream.agents.ppo.config import PPOConfig
from slipstream.agents.ppo.gradients import RowGradients
from slipstream.agents.ppo.inputs import RowInputs
from slipstream.agents.ppo.loops import loops
from slipstream.agents.ppo.member_gradient import Rows
from slipstream.agents.ppo.surrogate import ACTION, APPROX_KL, STATISTICS
from slipstream.agents.ppo.tally import Tally
from slipstream.experience.rollout import Rollout
from slipstream.nets.adam import LANES
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.policy import Policy
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
    def of(
        cls,
        rollout: Rollout,
        advantage: NDArray[np.float32],
        target: NDArray[np.float32],
        value: NDArray[np.float32],
    ) -> Columns:
        """Packs [T, E, ...] by member; value has a row more."""
        t, m, n = rollout.horizon, rollout.members, rollout.num_envs
        action = rollout.actions.astype(np.float32, copy=False)
        packed = np.empty((m, t * n, ACTION + action.shape[-1]), np.float32)
        loops()["pack_rows"](
            rollout.log_prob, advantage, target, value, rollout.valid, action, packed
        )
        mask = np.zeros((m, 0, 0), np.bool_)
        if rollout.mask is not None:
            by_member = rollout.mask[:-1].reshape(t, m, n, -1).swapaxes(0, 1)
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
        inputs: RowInputs,
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
        self._order = np.zeros((self._count, total), np.int64)
        self._moments = np.zeros((self._count, total // rows, 3))
        self._statistics = np.zeros((self._count, parts, len(STATISTICS)))
        network = policy.network
        assert isinstance(network, MlpNetwork)
        self._gradients = RowGradients(policy, network, self._parameters, inputs, members, parts)
        self._loops = loops()

    def learn(
        self,
        columns: Columns,
        seeds: NDArray[np.uint64],
        first_epochs: NDArray[np.int64],
        learning_rate: NDArray[np.float64],
        run: RunTasks,
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
        tally, members, settings = self._tally(learning_rate), self.members, self._settings
        packed = columns.packed[members]
        rows = Rows(
            *(self._gradients.x, packed, columns.mask[members]),
            *(self._order, self._moments, self._losses),
        )
        for epoch in range(settings.epochs):
            if tally.frozen.all():
                break
            draws.permute(draws.own_keys(seeds, draws.MINIBATCH, first_epochs + epoch), self._order)
            self._loops["advantage_moments"](
                packed, self._order, self._rows, settings.normalize_advantage, self._moments
            )
            self._epoch(rows, tally, run)
        means = tally.sums / np.maximum(tally.updates, 1)[:, None]
        return {
            **dict(zip((*STATISTICS, "gradient_norm"), means.T, strict=True)),
            "updates": tally.updates,
        }

    def _epoch(self, rows: Rows, tally: Tally, run: RunTasks) -> None:
        """All minibatches in the present order."""
        parts = self._statistics.shape[1]
        alone = parts == 1 or run is in_sequence
        if alone:
            self._gradients.epoch(rows, self._statistics, tally)
            return
        part = self._gradients.part
        for k in range(self._total // self._rows):
            run([partial(part, p, k, rows, self._statistics, tally) for p in range(parts)])
            self._loops["apply_gradients"](
                self._parameters.arrays, self._statistics, APPROX_KL, tally
            )
            if tally.frozen.all():
                break

    def _tally(self, learning_rate: NDArray[np.float64]) -> Tally:
        settings, members = self._settings, self.members
        return Tally(
            learning_rate=learning_rate,
            epsilon=settings.adam_eps[members],
            max_norm=settings.max_grad_norm[members],
            target_kl=1.5 * settings.target_kl[members],
            frozen=self._parameters.failed.copy(),
            sums=np.zeros((self._count, len(STATISTICS) + 1)),
            updates=np.zeros(self._count, np.int64),
            lanes=np.zeros(LANES),
        )
