"""The compiled form of PPO: a whole population at once, from rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import RunTasks, in_sequence
from slipstream.agents.ppo.base import BasePPO
from slipstream.agents.ppo.config import PPOConfig
from slipstream.agents.ppo.inputs import RowInputs
from slipstream.agents.ppo.minibatches import Columns, Learner
from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.experience.compiled import loops
from slipstream.experience.rollout import Rollout
from slipstream.nets.actor import Actor
from slipstream.nets.networks import MlpNetwork
from slipstream.vector.fused import Acting


class PPO(BasePPO):
    """M members that act, and learn from one rollout at a time. Members never mix.

    A member's numbers follow from its seed, its settings and its experience alone: they are the
    same bits whoever is beside it.

    Attributes:
        parts: that a minibatch's gradient is summed from; for a lone member they are tasks that
            may run side by side, and as many ranges may act.
    """

    def __init__(
        self, config: PPOConfig, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
    ) -> None:
        parts = config.parts(num_envs)
        super().__init__(config, specs, seeds, num_envs, parts)
        network = self.policy.network
        if self.policy.scale is None or not isinstance(network, MlpNetwork):
            raise ConfigError(
                "The compiled form of PPO learns from rows of numbers; images learn in the torch "
                "form: leave training.learner at auto."
            )
        self._network = network
        self._inputs = RowInputs(self.policy, self.policy.scale, self.horizon, num_envs)
        self._lanes = [network.workspace(self.members, self._inputs.block) for _ in range(parts)]
        self._learners = self._make_learners(config.rows(num_envs), parts)
        self._actors: dict[tuple[int, int], Actor] = {}

    def _make_learners(self, rows: int, parts: int) -> list[Learner]:
        """Members are updated a few at a time, so that what they touch stays in the cache."""
        together = max(1, _ROWS_TOGETHER // rows)
        groups = [
            slice(m, min(m + together, self.members)) for m in range(0, self.members, together)
        ]
        return [
            Learner(
                self.policy,
                self._inputs,
                self.settings,
                group,
                self.horizon * self.num_envs,
                rows,
                parts,
            )
            for group in groups
        ]

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        """Chooses the actions of step t and writes them and their log_prob into the rollout.

        Different threads may act at once for different ranges.

        Args:
            rollout: its obs[t] is read.
            t: row.
            lo, hi: environments lo..hi of the one member (M = 1); by default all of every member.

        Returns:
            What the environments receive: [hi - lo, K], valid until the next call for this range.
        """
        actor, first, out = self._acts_for(lo, hi)
        rows = slice(lo, lo + len(out))
        mask = None if rollout.mask is None else rollout.mask[t, rows]
        action, log_prob = rollout.actions[t, rows], rollout.log_prob[t, rows]
        actor.sample(
            rollout.obs[t, rows], mask, self._noise_keys()[t], first, action, log_prob, out
        )
        return out

    def acting(self, lo: int = 0, hi: int | None = None) -> Acting:
        actor, first, _ = self._acts_for(lo, hi)
        return Acting(actor.draw, actor.sampler(self._noise_keys(), first))

    def _acts_for(self, lo: int, hi: int | None) -> tuple[Actor, int, NDArray[Any]]:
        """Buffers for environments lo..hi-1, the first one's number, and what they receive."""
        if hi is None:
            hi = self.num_envs if self.members == 1 else len(self._env_actions)
        everything = hi - lo == len(self._env_actions)
        if not everything and self.members > 1:
            raise ConfigError("Only a lone member's environments can be acted for in ranges.")
        actor = self._actors.get((lo, hi))
        if actor is None:
            actor = self._actors[lo, hi] = self.policy.actor((hi - lo) // self.members)
        return actor, lo if self.members == 1 else 0, self._env_actions[lo:hi]

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        """Improves every member on its part of the rollout.

        Args:
            rollout: filled, with its final observations set.
            progress: share of the budget used, for the learning-rate schedule; one, or [M].
            run: runs independent tasks of a lone member, in any order or at once.

        Returns:
            One number per member, [M], by name: policy_loss, value_loss, entropy, approx_kl,
            clip_fraction, explained_variance, gradient_norm, learning_rate, updates (minibatches
            that changed the member), failed.
        """
        if self.members > 1:
            run = in_sequence  # whole members are what may run side by side: see shards
        lanes = len(self._lanes)
        run([partial(self._inputs.load, rollout, k, lanes) for k in range(lanes)])
        columns, explained = self._columns(rollout, run)
        rate = self._learning_rate(progress)
        first_epochs = self.iterations * self.config.epochs
        results = [
            learner.learn(
                columns,
                self.seeds[learner.members],
                first_epochs[learner.members],
                rate[learner.members],
                run,
            )
            for learner in self._learners
        ]
        return self._finished(rollout, results, explained_variance=explained, learning_rate=rate)

    def _columns(self, rollout: Rollout, run: RunTasks) -> tuple[Columns, NDArray[Any]]:
        """What the losses need beside observations, by member; and explained variance [M]."""
        gamma, lam = self._spread(self.settings.discount), self._spread(self.settings.gae_lambda)
        reward, value = self._scaled_reward(rollout), self._values(run)
        advantage, target = np.empty_like(reward), np.empty_like(reward)
        loops()["advantages"](
            *(reward, value, rollout.terminated, rollout.truncated, rollout.valid),
            *(self._final_values(rollout), rollout.final_index),
            *(gamma, lam, advantage, target),
        )
        columns = Columns.of(rollout, advantage, target, value)
        return columns, columns.explained_variance()

    def _values(self, run: RunTasks) -> NDArray[np.float32]:
        """Critic on every observation row, [T + 1, E]."""
        inputs, weights = self._inputs, self.policy.parameters.weights
        values = np.empty((self.members, inputs.blocks * inputs.block), np.float32)

        def lane(k: int) -> None:
            for number in range(k, inputs.blocks, len(self._lanes)):
                at = slice(number * inputs.block, (number + 1) * inputs.block)
                output = self._network.value(weights, inputs.rows(number), self._lanes[k])
                values[:, at] = output[..., 0]

        run([partial(lane, k) for k in range(len(self._lanes))])
        rows = (self.horizon + 1) * self.num_envs
        by_member = values[:, :rows].reshape(self.members, self.horizon + 1, self.num_envs)
        # With one environment per member the reshape is a view that compiled loops do not take.
        return np.ascontiguousarray(by_member.swapaxes(0, 1).reshape(self.horizon + 1, -1))

    def _final_values(self, rollout: Rollout) -> NDArray[np.float32]:
        """Critic on the final observations of truncated rows, [n]."""
        if not len(rollout.final_index):
            return np.zeros(0, np.float32)
        x, place = self._inputs.finals(rollout)
        space = self._network.workspace(self.members, x.shape[1])
        values = self._network.value(self.policy.parameters.weights, x, space)[..., 0]
        return values.reshape(-1)[place]


Agent = PPO

_ROWS_TOGETHER = 4096
