"""Proximal policy optimisation of a whole population at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import Agent as Contract
from slipstream.agents.agent import Run, in_sequence
from slipstream.agents.ppo.config import PPOConfig
from slipstream.agents.ppo.inputs import make_inputs
from slipstream.agents.ppo.minibatches import Columns, Learner, Settings
from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.experience.compiled import loops
from slipstream.experience.rollout import Rollout
from slipstream.experience.scaling import RewardScale
from slipstream.nets.actor import Actor
from slipstream.nets.policy import Policy
from slipstream.vector import draws


class PPO(Contract):
    """M members that act, and learn from one rollout at a time. Members never mix.

    A member's numbers follow from its seed, its settings and its experience alone: on a CPU with
    one intra-op thread they are the same bits whoever is beside it.

    Args:
        config: its per-member lists have length M.
        specs: the environment's Spec, or one per member (they may differ in fixed scales).
        seeds: [M].
        num_envs: N, environments per member.

    Attributes:
        policy: weights, observation scaling, action mapping.
        parts: that a minibatch's gradient is summed from; for a lone member they are tasks that
            may run side by side, and as many ranges may act.
        iterations: int64 [M], rollouts that each member learned from.
    """

    def __init__(
        self, config: PPOConfig, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
    ) -> None:
        self.seeds = np.asarray([int(seed) % 2**64 for seed in seeds], np.uint64)
        members = len(self.seeds)
        specs = [specs] * members if isinstance(specs, Spec) else list(specs)
        self.config, self.members, self.num_envs = config, members, num_envs
        self.horizon = config.horizon
        parts = self.parts = config.parts(num_envs)
        self.policy = Policy(
            specs,
            [int(seed) for seed in seeds],
            widths=config.widths,
            activation=config.activation,
            observation_normalization=config.observation_normalization,
            initial_std=config.initial_std,
            parts=parts,
        )
        self.iterations = np.zeros(members, np.int64)
        self.settings = Settings.of(config, members)
        scaled = config.reward_scaling == "on" or (
            config.reward_scaling == "auto" and specs[0].scale_reward
        )
        self.reward_scale = RewardScale(members, num_envs) if scaled else None
        self._inputs = make_inputs(self.policy, self.horizon, num_envs)
        self._lanes = [
            self.policy.network.workspace(members, self._inputs.block) for _ in range(parts)
        ]
        self._learners = self._make_learners(config.rows(num_envs), parts)
        self._keys: NDArray[np.uint64] | None = None  # of this rollout's action noise
        self._actors: dict[tuple[int, int], Actor] = {}
        self._env_actions = np.zeros(
            (members * num_envs, self.policy.actions.width), self.policy.actions.dtype
        )

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
        if hi is None:
            hi = self.num_envs if self.members == 1 else len(self._env_actions)
        everything = hi - lo == len(self._env_actions)
        if not everything and self.members > 1:
            raise ConfigError("Only a lone member's environments can be acted for in ranges.")
        actor = self._actors.get((lo, hi))
        if actor is None:
            actor = self._actors[lo, hi] = self.policy.actor((hi - lo) // self.members)
        keys = self._noise_keys()[t]
        mask = None if rollout.mask is None else rollout.mask[t, lo:hi]
        first = lo if self.members == 1 else 0
        action, log_prob = rollout.actions[t, lo:hi], rollout.log_prob[t, lo:hi]
        actor.sample(rollout.obs[t, lo:hi], mask, keys, first, action, log_prob)
        out = self._env_actions[lo:hi]
        self.policy.actions.to_environment(action, out)
        return out

    def _noise_keys(self) -> NDArray[np.uint64]:
        """Streams of the action noise, [T, M], by each member's own count of steps."""
        if self._keys is None:
            steps = self.iterations * self.horizon + np.arange(self.horizon)[:, None]
            self._keys = draws.own_keys(self.seeds, draws.ACT, steps)
        return self._keys

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: Run = in_sequence,
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
        rate = self.settings.learning_rate.copy()
        if self.config.learning_rate_schedule == "linear":
            rate *= np.maximum(0.0, 1.0 - np.asarray(progress))
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
        metrics = {
            name: np.concatenate([result[name] for result in results]) for name in results[0]
        }
        if self.policy.scale is not None:
            self.policy.scale.learn(rollout)
        self.iterations += 1
        self._keys = None
        return {
            **metrics,
            "explained_variance": explained,
            "learning_rate": rate,
            "failed": self.policy.parameters.failed.copy(),
        }

    def _columns(self, rollout: Rollout, run: Run) -> tuple[Columns, NDArray[Any]]:
        """What the losses need beside observations, by member; and explained variance [M]."""
        gamma, lam = self._spread(self.settings.discount), self._spread(self.settings.gae_lambda)
        reward = rollout.reward
        if self.reward_scale is not None:
            ended = rollout.terminated | rollout.truncated
            reward = self.reward_scale.scale(reward, ended, rollout.valid, gamma)
        value = self._values(run)
        advantage, target = np.empty_like(reward), np.empty_like(reward)
        loops()["advantages"](
            *(reward, value, rollout.terminated, rollout.truncated, rollout.valid),
            *(self._final_values(rollout), rollout.final_index),
            *(gamma, lam, advantage, target),
        )
        columns = Columns.of(rollout, advantage, target, value)
        return columns, columns.explained_variance()

    def _spread(self, per_member: NDArray[np.float64]) -> NDArray[np.float32]:
        """[M] -> float32 [E]."""
        return np.repeat(per_member.astype(np.float32), self.num_envs)

    def _values(self, run: Run) -> NDArray[np.float32]:
        """Critic on every observation row, [T + 1, E]."""
        inputs, weights = self._inputs, self.policy.parameters.weights
        values = np.empty((self.members, inputs.blocks * inputs.block), np.float32)

        def lane(k: int) -> None:
            for number in range(k, inputs.blocks, len(self._lanes)):
                at = slice(number * inputs.block, (number + 1) * inputs.block)
                output = self.policy.network.value(weights, inputs.rows(number), self._lanes[k])
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
        weights, rows = self.policy.parameters.weights, x.shape[1]
        step = self._inputs.block if self.policy.is_image else rows
        values = np.empty((self.members, rows), np.float32)
        space = self.policy.network.workspace(self.members, step)
        for at in range(0, rows, step):
            output = self.policy.network.value(weights, x[:, at : at + step], space)
            values[:, at : at + step] = output[..., 0]
        return values.reshape(-1)[place]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from: named arrays whose first axis is the member.

        The state of some members is the same rows of each tensor: shards are joined by
        concatenation.
        """
        state = {f"parameters.{k}": v for k, v in self.policy.parameters.state_dict().items()}
        if self.policy.scale is not None:
            state |= {f"observation.{k}": v for k, v in self.policy.scale.state_dict().items()}
        if self.reward_scale is not None:
            state |= {f"reward.{k}": v for k, v in self.reward_scale.state_dict().items()}
        state["iteration"] = self.iterations.copy()
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""

        def under(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        self.policy.parameters.load_state_dict(under("parameters."))
        if self.policy.scale is not None:
            self.policy.scale.load_state_dict(under("observation."))
        if self.reward_scale is not None:
            self.reward_scale.load_state_dict(under("reward."))
        self.iterations = state["iteration"].astype(np.int64)
        self._keys = None


Agent = PPO

_ROWS_TOGETHER = 4096
