"""Soft actor-critic from a replay, for real actions where steps should not be wasted.

The compiled form.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from slipstream.agents.actor_critic.compiled import CompiledActorCritic
from slipstream.agents.actor_critic.learned import CRITICS, Space
from slipstream.agents.sac.base import BaseSAC
from slipstream.agents.sac.gradients import SACOwn, actor_gradient, explore, move_rest, prepare


class SAC(CompiledActorCritic, BaseSAC):
    """M members; see `CompiledActorCritic`. Metrics have entropy (of actions in [-1, 1], nats) and
    temperature, too."""

    name = "sac"
    explore_loop = staticmethod(explore)
    given: ClassVar = {"prepare": prepare, "actor_gradient": actor_gradient, "move_rest": move_rest}

    def make_own(self, space: Space) -> SACOwn:
        batch, parts = self.config.batch, self.gradient_parts
        return SACOwn(
            *(self.temperature.arrays, self.entropy),
            drawn=np.zeros((2, batch, self.policy.actions.width)),
            log_prob=np.zeros(batch),
            value=np.zeros((CRITICS, batch)),
            d_action=np.zeros((batch, self.policy.actions.width), np.float32),
            kept=np.zeros((parts, space.block), np.int64),
        )


Agent = SAC
