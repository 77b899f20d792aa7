"""PPO for discrete, multi-discrete and Box actions; on-policy, for environments with fast steps.

Compiled implementation: one call updates the whole population (`update.py`). Observations are
vectors; images use `torch_ppo.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.jit import alignment, rng
from slipstream.jit.struct_pointer import StructPointer
from slipstream.jit.work_sharing import RunTasks, in_sequence, make_gate, run_with_helpers
from slipstream.kernels.fused import CompiledActor
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.population import PopulationAgent
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.losses import ACTION, STATISTICS
from slipstream.rl.agents.ppo.update import (
    Experience,
    Net,
    PPOUpdateStats,
    PPOWorkspace,
    Rows,
    UpdateJob,
    loops,
)
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.layers import BLOCK, block_rows
from slipstream.rl.nets.networks import MlpNetwork
from slipstream.rl.nets.optimizer import LANES, StepSettings
from slipstream.rl.nets.policy import Actor, Policy

_NO_MASK = np.zeros((0, 0, 0), np.bool_)


class Learner:
    """Updates the members of a policy on their rows of a rollout.

    Args:
        policy: policy to update.
        network: network of the policy.
        config: config of all M members.
        num_envs: N of the rollout.
    """

    def __init__(
        self,
        policy: Policy,
        network: MlpNetwork,
        config: PPOConfig,
        num_envs: int,
    ) -> None:
        self._policy, self._config = policy, config
        self._parts = parts = config.parts(num_envs)
        n_steps, rows = config.n_steps, config.rows(num_envs)
        names = ("clip_range", "ent_coef", "vf_coef")  # columns of the losses' coefficients
        self._coefficients = np.stack([self._per_member(name) for name in names], axis=1)  # [M, 3]
        total, together = n_steps * num_envs, min(parts, config.n_epochs)
        self._order = np.zeros((together, total), np.int64)
        self._normalisation = np.zeros((together, total // rows, 3))
        self._statistics = alignment.aligned_zeros(
            (parts, _whole_lines(len(STATISTICS))), np.float64
        )
        block = max(BLOCK, block_rows(config.net_arch, rows // parts))
        self._net, self._workspace = (
            _make_net(policy, network),
            _make_workspace(policy, network, parts, block),
        )
        self._rows = _make_rows(policy, n_steps, num_envs, block)
        self._gamma = np.repeat(self._per_member("gamma").astype(np.float32), num_envs)
        self._lam = np.repeat(self._per_member("gae_lambda").astype(np.float32), num_envs)
        self._gate = make_gate()
        self._update = loops()["update_members"]
        self._packed: StructPointer | None = None

    def learn(
        self,
        rollout: Rollout,
        reward: NDArray[np.float32],
        rewarded: NDArray[np.bool_],
        seeds: NDArray[np.uint64],
        first_epochs: NDArray[np.int64],
        learning_rate: NDArray[np.float64],
        run_tasks: RunTasks,
    ) -> dict[str, NDArray[Any]]:
        """Update all members on a rollout: every epoch, or until a member is frozen.

        Args:
            rollout: filled rollout with its final observations.
            reward: float32 [T, E], its scaled rewards.
            rewarded: bool [M], members whose policies are updated; of the others only the critic.
            seeds: [M]; seed and number of an epoch select its permutation.
            first_epochs: [M], number of each member's first epoch since its training began.
            learning_rate: [M].
            run_tasks: runs tasks of a single member in parallel.

        Returns:
            Statistics [M] by name, means over the minibatches that changed the member.
        """
        stats, config = self._make_stats(learning_rate), self._config
        numbers = first_epochs + np.arange(config.n_epochs)[:, None]
        if rollout.mask is not None and not len(self._rows.mask):
            choices = rollout.mask.shape[-1]
            self._rows = self._rows._replace(mask=np.zeros((len(self._rows.packed), choices), bool))
        rows = self._rows._replace(final_value=np.zeros(len(rollout.final_index), np.float32))
        helpers = 0 if run_tasks is in_sequence else self._parts - 1
        some = len(self._order) if helpers else 1
        job = UpdateJob(
            net=self._net,
            weights=self._policy.parameters.arrays,
            coefficients=self._coefficients,
            experience=self._experience(rollout, reward, rewarded),
            rows=rows,
            keys=np.ascontiguousarray(rng.keys_at_steps(seeds, rng.MINIBATCH, numbers).T),
            order=self._order[:some],
            normalisation=self._normalisation[:some],
            normalise=config.normalize_advantage,
            statistics=self._statistics,
            stats=stats,
            workspace=self._workspace,
            gate=self._gate,
        )
        packed = self._packed = self._packed.update(job) if self._packed else StructPointer(job)
        lead, help_out = partial(self._update, packed, False), partial(self._update, packed, True)
        run_with_helpers(self._gate, lead, help_out, helpers, run_tasks)
        means = stats.sums / np.maximum(stats.updates, 1)[:, None]
        return {
            **dict(zip((*STATISTICS, "gradient_norm"), means.T, strict=True)),
            "updates": stats.updates,
            "explained_variance": rows.explained_variance.copy(),
        }

    def _per_member(self, name: str) -> NDArray[np.float64]:
        """Return a setting of all members, [M]; infinity disables a limit."""
        return self._config.per_member(name, self._policy.members)

    def _experience(
        self, rollout: Rollout, reward: NDArray[np.float32], rewarded: NDArray[np.bool_]
    ) -> Experience:
        scale = self._policy.scale
        assert scale is not None  # of rows of numbers
        numbers = scale.mean.shape[1]
        return Experience(
            obs=rollout.obs.reshape(*rollout.obs.shape[:2], numbers),
            scale=scale.arrays,
            mask=_NO_MASK if rollout.mask is None else rollout.mask,
            action=rollout.actions.astype(np.float32, copy=False),
            log_prob=rollout.log_prob,
            reward=reward,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            valid=rollout.valid,
            final_obs=rollout.final_obs.reshape(len(rollout.final_index), numbers),
            final_index=rollout.final_index,
            gamma=self._gamma,
            lam=self._lam,
            rewarded=rewarded,
        )

    def _make_stats(self, learning_rate: NDArray[np.float64]) -> PPOUpdateStats:
        failed = self._policy.parameters.failed
        return PPOUpdateStats(
            settings=StepSettings(
                learning_rate, self._per_member("adam_eps"), self._per_member("max_grad_norm")
            ),
            target_kl=1.5 * self._per_member("target_kl"),
            frozen=failed.copy(),
            sums=np.zeros((len(failed), len(STATISTICS) + 1)),
            updates=np.zeros(len(failed), np.int64),
            squares=np.zeros((1, LANES)),
        )


def _make_net(policy: Policy, network: MlpNetwork) -> Net:
    log_std = policy.parameters.offsets.get("log_std", 0)
    sizes, relu = np.array(policy.actions.sizes, np.int64), network.activation == "relu"
    return Net(network.tables, relu, policy.actions.continuous, log_std, sizes)


def _make_workspace(policy: Policy, network: MlpNetwork, parts: int, block: int) -> PPOWorkspace:
    numbers = network.num_outputs(block)
    return PPOWorkspace(
        x=_inputs(policy, (parts + 1, block)),
        outputs=alignment.aligned_zeros((parts + 1, 2, numbers)),
        d_outputs=alignment.aligned_zeros((parts, 2, numbers)),
        transposed=alignment.aligned_zeros((parts, policy.parameters.flat.shape[1])),
        scratch=alignment.aligned_zeros(
            (parts, 3, _whole_lines(policy.actions.head_width)), np.float64
        ),
    )


def _make_rows(policy: Policy, n_steps: int, num_envs: int, block: int) -> Rows:
    e = policy.members * num_envs
    return Rows(
        x=_inputs(policy, ((n_steps + 1) * num_envs,)),
        packed=alignment.aligned_zeros((n_steps * num_envs, ACTION + policy.actions.width)),
        mask=np.zeros((0, 0), np.bool_),
        value=alignment.aligned_zeros((n_steps + 1, e)),
        final_value=np.zeros(0, np.float32),
        advantage=alignment.aligned_zeros((n_steps, e)),
        target=alignment.aligned_zeros((n_steps, e)),
        indices=np.zeros(block, np.int64),
        explained_variance=np.zeros(policy.members),
    )


def _inputs(policy: Policy, rows: tuple[int, ...]) -> NDArray[np.float32]:
    """Allocate network inputs [*rows, input width] with the column of ones."""
    x: NDArray[np.float32] = alignment.aligned_zeros((*rows, policy.input_width))
    x[..., int(np.prod(policy.observation_shape))] = 1.0
    return x


def _whole_lines(numbers: int) -> int:
    """Round a number of float64 values up to whole cache lines.

    Two threads that write into the same cache line slow each other down.
    """
    per_line = alignment.LINE // 8
    return -(-numbers // per_line) * per_line


class BasePPO(PopulationAgent):
    """Base of the compiled and the torch implementation, which add acting and learning.

    Args:
        config, specs, seeds, num_envs, parts: As for `PopulationAgent`.

    Attributes:
        iterations: Rollouts that each member has learned from, int64 [M].
    """

    experience_type: ClassVar[Literal["rollout", "replay"]] = "rollout"

    def __init__(
        self,
        config: PPOConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts, init_std=config.init_std)
        self.n_steps, self.parts = config.n_steps, parts
        self.iterations = np.zeros(self.members, np.int64)
        self.counts["iteration"] = self.iterations
        self._keys: NDArray[np.uint64] | None = None  # of this rollout's action noise

    def refresh(self) -> None:
        self._keys = None

    def _noise_keys(self) -> NDArray[np.uint64]:
        """Return the random streams of the action noise, [T, M], by each member's step count."""
        if self._keys is None:
            steps = self.iterations * self.n_steps + np.arange(self.n_steps)[:, None]
            self._keys = rng.keys_at_steps(self.seeds, rng.ACT, steps)
        return self._keys

    def _rewarded(self) -> NDArray[np.bool_]:
        """Return members whose policies learn from rewards, bool [M]; others train the critic only.

        Before a member's first non-zero reward its advantages are noise of the critic's initial
        weights. Normalized to deviation 1, they would move the policy as much as rewards do.
        """
        if self.reward_scale is None:
            return np.ones(self.members, np.bool_)
        return np.asarray(self.reward_scale.largest != 0.0)

    def _finish_iteration(
        self, rollout: Rollout, results: Sequence[Mapping[str, NDArray[Any]]], **known: NDArray[Any]
    ) -> dict[str, NDArray[Any]]:
        """End an iteration: update scales and counters, and return metrics [M] by name.

        Args:
            rollout: rollout of the iteration.
            results: metrics [g] of each group of members, in order.
            known: further metrics [M].
        """
        if self.policy.scale is not None:
            self.policy.scale.learn(rollout)
        self.iterations += 1
        self._keys = None
        metrics = {
            name: np.concatenate([result[name] for result in results]) for name in results[0]
        }
        return {**metrics, **known, "failed": self.policy.parameters.failed.copy()}


class PPO(BasePPO):
    """M members that act and learn from one rollout at a time.

    A member's weights depend only on its own seed, settings and experience, bit for bit.

    Attributes:
        parts: number of parts of a minibatch's gradient. For a single member they are tasks that
            may run in parallel, and as many ranges of environments may act in parallel.
    """

    def __init__(
        self,
        config: PPOConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, config.parts(num_envs))
        network = self.policy.network
        if self.policy.scale is None or not isinstance(network, MlpNetwork):
            raise ConfigError(
                "The compiled implementation of PPO does not support image observations. Set "
                "training.learner to auto or torch."
            )
        self._learner = Learner(self.policy, network, config, num_envs)
        self._actors: dict[tuple[int, int], Actor] = {}

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        """Choose the actions of step t and write them and their log_prob into the rollout.

        Several threads may act for different ranges at the same time.

        Args:
            rollout: rollout with observations in obs[t].
            t: row.
            lo, hi: environments lo..hi-1 of a single member (M = 1); by default all environments.

        Returns:
            Actions for the environments, [hi - lo, K], valid until the next call for this range.
        """
        actor, first, out = self._get_actor(lo, hi)
        rows = slice(lo, lo + len(out))
        mask = None if rollout.mask is None else rollout.mask[t, rows]
        action, log_prob = rollout.actions[t, rows], rollout.log_prob[t, rows]
        actor.sample(
            rollout.obs[t, rows], mask, self._noise_keys()[t], first, action, log_prob, out
        )
        return out

    def compiled_actor(self, lo: int = 0, hi: int | None = None) -> CompiledActor:
        actor, first, _ = self._get_actor(lo, hi)
        return CompiledActor(actor.draw, actor.sampler(self._noise_keys(), first))

    def _get_actor(self, lo: int, hi: int | None) -> tuple[Actor, int, NDArray[Any]]:
        """Return buffers for environments lo..hi-1, the first index, and the action array."""
        if hi is None:
            hi = self.num_envs if self.members == 1 else len(self._env_actions)
        if self.members > 1 and hi - lo != len(self._env_actions):
            raise ConfigError(
                f"`lo` and `hi` must span all environments of {self.members} members, got {lo} and "
                f"{hi}. Leave them out."
            )
        actor = self._actors.get((lo, hi))
        if actor is None:
            actor = self._actors[lo, hi] = self.policy.actor((hi - lo) // self.members)
        return actor, lo if self.members == 1 else 0, self._env_actions[lo:hi]

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run_tasks: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        """Update every member on its part of the rollout.

        Args:
            rollout: filled rollout with its final observations.
            progress: share of the budget spent, for the learning-rate schedule; a number or [M].
            run_tasks: runs independent tasks of a single member, in any order or in parallel.

        Returns:
            Metrics [M] by name: policy_loss, value_loss, entropy, approx_kl, clip_fraction,
            explained_variance, gradient_norm, learning_rate, updates (minibatches that changed the
            member), failed.
        """
        if self.members > 1:
            run_tasks = in_sequence  # members of a population run in parallel as shards
        reward, rate = self.scaled_reward(rollout), self.learning_rate_at(progress)
        first_epochs = self.iterations * self.config.n_epochs
        learned = self._learner.learn(
            rollout, reward, self._rewarded(), self.seeds, first_epochs, rate, run_tasks
        )
        return self._finish_iteration(rollout, [learned], learning_rate=rate)


Agent = PPO
