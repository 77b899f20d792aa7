"""Proximal policy optimisation, for choices and real actions where steps are cheap.

The compiled form: a whole population at once, from rows of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.base import BasePPO
from slipstream.agents.ppo.config import PPOConfig
from slipstream.agents.ppo.learner import Learner
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.nets.actor import Actor
from slipstream.nets.networks import MlpNetwork, input_width
from slipstream.vector.fused import Acting


def update_bytes(spec: Spec, horizon: int, members: int, num_envs: int) -> int:
    """Bytes that an update keeps beside the rollout.

    Scaled observations and the losses' rows are of one member at a time.
    """
    own = num_envs * (horizon + 1)
    image = spec.observation_dtype == np.uint8 and len(spec.observation_shape) == 3
    numbers = 0 if image else input_width(int(np.prod(spec.observation_shape)))
    # Packed columns and orders; the float copy of actions, reward, value, advantage, target and
    # their temporaries.
    return 4 * own * (numbers + spec.action_width + 9 + members * (spec.action_width + 6))


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
        rows = config.rows(num_envs)
        self._learner = Learner(
            *(self.policy, network, self.settings, self.horizon, num_envs, rows, parts)
        )
        self._actors: dict[tuple[int, int], Actor] = {}

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
        (reward, paid), rate = self._scaled_reward(rollout), self._learning_rate(progress)
        first_epochs = self.iterations * self.config.epochs
        learned = self._learner.learn(rollout, reward, paid, self.seeds, first_epochs, rate, run)
        return self._finished(rollout, [learned], learning_rate=rate)


Agent = PPO
