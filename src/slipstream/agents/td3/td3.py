"""TD3, like soft actor-critic, with one action for each state and exploration of a set size.

The compiled form.
"""

from __future__ import annotations

from typing import ClassVar

from slipstream.agents.actor_critic.compiled import CompiledActorCritic
from slipstream.agents.actor_critic.learned import Space
from slipstream.agents.td3.base import BaseTD3
from slipstream.agents.td3.gradients import TD3Own, actor_gradient, explore, move_rest, prepare


class TD3(CompiledActorCritic, BaseTD3):
    """M members; see `CompiledActorCritic`."""

    name = "td3"
    explore_loop = staticmethod(explore)
    given: ClassVar = {
        "prepare": prepare,
        "actor_gradient": actor_gradient,
        "move_rest": move_rest,
    }

    def make_own(self, space: Space) -> TD3Own:
        return TD3Own(self.targets["actor"], self.smoothing)


Agent = TD3
