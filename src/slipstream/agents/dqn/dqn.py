"""Deep Q-learning from a replay, for one choice of a few where steps should not be wasted.

The compiled form: members one after another, each from its own replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.dqn.act import Explorer
from slipstream.agents.dqn.base import BaseDQN
from slipstream.agents.dqn.config import DQNConfig
from slipstream.agents.dqn.loops import loops
from slipstream.agents.dqn.update import Learner, update
from slipstream.agents.off_policy.learning import CompiledLearning
from slipstream.core.errors import ConfigError
from slipstream.core.memory import zeros
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.nets.adam import LANES
from slipstream.nets.layers import BLOCK
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.observations import LIMIT
from slipstream.vector.fused import Acting

_NO_MASK = np.zeros((0, 0), np.bool_)


class DQN(CompiledLearning, BaseDQN):
    """M members that act epsilon-greedily, and learn from what they kept. Members never mix.

    A member's numbers follow from its seed, its settings and its experience alone: they are the
    same bits whoever is beside it.
    """

    name = "dqn"
    update_loop = staticmethod(update)

    def __init__(
        self, config: DQNConfig, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
    ) -> None:
        super().__init__(config, specs, seeds, num_envs)
        network = self.policy.network
        if not isinstance(network, MlpNetwork):
            raise ConfigError(
                "The compiled form of DQN learns from rows of numbers; images learn in the torch "
                "form: leave training.learner at auto."
            )
        self._network, self._actor = network, self.policy.actor(num_envs)
        inputs = int(np.prod(self.policy.observation_shape))
        self._x = zeros((BLOCK, self.policy.input_width))
        self._x[:, inputs] = 1.0
        self._space = [zeros((network.block,)) for _ in range(3)]
        self._turned = zeros(self.policy.parameters.flat.shape[1:])
        self._bootstrap, self._values = np.zeros(BLOCK), np.zeros((2, self.choices))
        self._sums = np.zeros(LANES)
        self._explore = loops()["explore_rows"]
        self.refresh()

    def refresh(self) -> None:
        """Hands the loops this iteration's settings and scales."""
        policy, config, network = self.policy, self.config, self._network
        scale, decider = policy.scale, self._actor.decider
        assert scale is not None
        self.explorer = Explorer(
            decider._replace(start=np.zeros_like(decider.start)),
            self.seeds,
            self.steps,
            self.exploration,
            config.learning_starts,
            self.num_envs,
            int(decider.start[0]),
        )
        outputs, others, d_outputs = self._space
        self.learner = Learner(
            weights=policy.parameters.arrays,
            target=self.targets["values"],
            table=network.tables[0],
            relu=config.activation == "relu",
            choices=self.choices,
            stream=network.stream,
            double=config.double,
            target_every=config.target_every,
            mean=scale.mean,
            inverse_std=scale.inverse_std,
            limit=LIMIT,
            settings=np.stack([*self.step_settings, self.reward_factor], 1),
            sums=self.sums,
            updates=self.updates,
            x=self._x,
            outputs=outputs,
            others=others,
            d_outputs=d_outputs,
            bootstrap=self._bootstrap,
            turned=self._turned,
            values=self._values,
            lanes=self._sums,
        )

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        obs = rollout.obs[t].reshape(len(rollout.obs[t]), -1)
        mask = _NO_MASK if rollout.mask is None else rollout.mask[t]
        self._explore(
            *(self.explorer, t, obs, mask),
            *(rollout.actions[t], rollout.log_prob[t], self._env_actions),
        )
        return self._env_actions

    def acting(self, lo: int = 0, hi: int | None = None) -> Acting:
        return Acting(self._explore, self.explorer)


Agent = DQN
