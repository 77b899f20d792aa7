"""The compiled form of soft actor-critic: members one after another, each from its own replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import Learning, RunTasks, in_sequence
from slipstream.agents.off_policy.learning import CompiledLearning, Feed
from slipstream.agents.sac.act import Explorer
from slipstream.agents.sac.base import BaseSAC
from slipstream.agents.sac.config import SACConfig
from slipstream.agents.sac.learned import (
    CRITICS,
    STATISTICS,
    Learned,
    Learner,
    Nets,
    Scale,
    Space,
)
from slipstream.agents.sac.loops import loops, part_loops
from slipstream.agents.sac.steps import update
from slipstream.core.lines import zeros
from slipstream.core.spec import Spec
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.nets.adam import LANES
from slipstream.nets.layers import BLOCK, OUTPUTS
from slipstream.nets.networks import MlpNetwork, input_width, padded
from slipstream.nets.observations import LIMIT
from slipstream.vector.fused import Acting

_NO_MASK = np.zeros((0, 0), np.bool_)
_WIDE = 128  # outputs of a layer, from which on its weights are read once for more rows


class SAC(CompiledLearning, BaseSAC):
    """M members that act, and learn from what they kept. Members never mix.

    A member's numbers follow from its seed, its settings and its experience alone: they are the
    same bits whoever is beside it.
    """

    name = "sac"
    update_loop = staticmethod(update)

    def __init__(
        self, config: SACConfig, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
    ) -> None:
        self._gradient_parts = config.parts(num_envs)
        super().__init__(config, specs, seeds, num_envs, self._gradient_parts)
        network = self.policy.network
        assert isinstance(network, MlpNetwork)
        width = self.policy.actions.width
        relu = config.activation == "relu"
        self._net = Nets(network.tables[0], self.critics.table, relu, width, padded(width))
        one, two = self.critics.groups
        turned = [zeros(group.flat.shape) for group in (self.policy.parameters, one, two)]
        self._learned = Learned(
            *(self.policy.parameters.arrays, self.temperature.arrays, (one.arrays, two.arrays)),
            *(
                (self.critics.targets[0], self.critics.targets[1]),
                turned[0],
                (turned[1], turned[2]),
            ),
        )
        self._statistics = np.zeros((self._gradient_parts, len(STATISTICS)))
        self._spaces = [self._space() for _ in range(max(self._gradient_parts, CRITICS))]
        self._actor = self.policy.actor(num_envs)
        self._env_actions = np.zeros((self.members * num_envs, width), np.float32)
        self._loops = loops()
        self.refresh()

    def _space(self) -> Space:
        rows, net = -(-self.config.batch // self._gradient_parts), self._net
        if max(self.config.widths) < _WIDE:
            rows = min(rows, BLOCK)
        actor, critic = (rows * int(table[:, OUTPUTS].sum()) for table in (net.actor, net.critic))
        numbers, k = self.numbers, net.width
        actor_x = zeros((rows, input_width(numbers)))
        critic_x = zeros((rows, input_width(numbers + k)))
        actor_x[:, numbers], critic_x[:, k + numbers] = 1.0, 1.0
        return Space(
            *(actor_x, critic_x, zeros((actor,)), zeros((actor,))),
            *(zeros((CRITICS, critic)), zeros((critic,)), zeros((CRITICS, rows, net.columns))),
            *(np.zeros((2, rows, k)), np.zeros((2, rows)), np.zeros(LANES)),
        )

    def refresh(self) -> None:
        """Hands the loops this iteration's weights, settings and scales."""
        scale = self.policy.scale
        assert scale is not None
        self._explorer = Explorer(
            *(self._actor.decider, self.seeds, self.steps),
            *(self.config.learning_starts, self.num_envs),
        )
        self.learner = Learner(
            *(self._net, self._learned, self.settings, Scale(scale.mean, scale.inverse_std, LIMIT)),
            *(self.seeds, self._statistics, self.tally, self._spaces[0]),
        )
        self._loops["turn_all"](self.learner)

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        obs = rollout.obs[t].reshape(len(self._env_actions), -1)
        self._loops["explore_rows"](
            *(self._explorer, t, obs, _NO_MASK),
            *(rollout.actions[t], rollout.log_prob[t], self._env_actions),
        )
        return self._env_actions

    def acting(self, lo: int = 0, hi: int | None = None) -> Acting:
        return Acting(self._loops["explore_rows"], self._explorer)

    def learning(self, replay: Replay) -> Learning | None:
        """None for a lone member whose updates have parts: `learn` has them run side by side."""
        alone = self.members == 1 and self._gradient_parts > 1
        return None if alone else super().learning(replay)

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run: RunTasks = in_sequence
    ) -> None:
        if run is in_sequence or self.members > 1 or self._gradient_parts == 1:
            super().learn(replay, updates, run)
            return
        feed = self._feed = self._make_feed(replay)
        for _ in range(int(updates[0])):
            if feed.failed[0]:
                return
            drawn = feed.drawn, feed.weight, feed.batch
            discount, beta = float(feed.discount[0]), float(feed.importance[0])
            replay.fill(0, self.replay_key(0), feed.n_step, discount, beta, *drawn)
            self._update_side_by_side(feed, run)
            replay.reprioritise(0, feed.drawn, feed.error)

    def _update_side_by_side(self, feed: Feed, run: RunTasks) -> None:
        """`update` of `steps.py` for the one member, its parts as tasks."""
        loops, parts = part_loops(), range(self._gradient_parts)
        of = [self.learner._replace(space=space) for space in self._spaces]
        given = (feed.batch, feed.weight, feed.error)
        run([partial(loops["critic_gradient"], of[part], 0, part, *given) for part in parts])
        run([partial(loops["step_critic"], of[c], 0, c) for c in range(CRITICS)])
        run([partial(loops["actor_gradient"], of[part], 0, part, feed.batch) for part in parts])
        loops["step_actor"](self.learner, 0)

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        """Ends an iteration.

        Returns:
            One number per member, [M], by name: critic_loss, value (of what was chosen),
            actor_loss, entropy (of actions in [-1, 1], nats), gradient_norm (the actor's, before it
            was shortened), temperature, learning_rate, updates, failed.
        """
        return self.finished(rollout, progress)


Agent = SAC
