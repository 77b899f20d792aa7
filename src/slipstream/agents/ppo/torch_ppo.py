"""PPO that acts and learns in torch: for images, for GPUs, and to compare the compiled form with.

Environments, rollout and running statistics stay where environments are, on the processor. Weights
are carried to the device when a rollout begins and back when its update has ended, so that policy,
checkpoints and studies know no device. A row of observations is carried once: when the policy acts
on it; the update finds it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.base import BasePPO
from slipstream.agents.ppo.config import PPOConfig
from slipstream.agents.ppo.torch_group import PPOGroup
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.nets.torch_device import device_of, together
from slipstream.nets.torch_threads import one_thread


class TorchPPO(BasePPO):
    """As `PPO`, whose state it can go on from, and the other way round; its bits are other ones.

    On a processor members are handled one after another, since a batched product's bits would
    depend on their number; on a GPU all together.

    Args:
        config, specs, seeds, num_envs: as for `PPO`.
        device: where torch calculates.
    """

    def __init__(
        self,
        config: PPOConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, specs, seeds, num_envs)
        self.device = device_of(device)
        rows = config.rows(num_envs)
        self._groups = [
            PPOGroup(self.policy, self.settings, own, num_envs, rows, self.device)
            for own in together(self.members, self.device)
        ]

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        keys, to = self._noise_keys()[t], rollout
        with one_thread():
            for group in self._groups:
                e = group.environments
                mask = None if to.mask is None else to.mask[t, e]
                action, log_prob = group.act(to.obs[t, e], mask, keys[group.members], t)
                to.actions[t, e], to.log_prob[t, e] = action, log_prob
        self.policy.actions.to_environment(to.actions[t], self._env_actions)
        return self._env_actions

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        (reward, paid), rate = self._scaled_reward(rollout), self._learning_rate(progress)
        first_epochs = self.iterations * self.config.epochs
        results = []
        with one_thread():
            for group in self._groups:
                m = group.members
                own = rate[m], self.seeds[m], first_epochs[m]
                results.append(group.update(rollout, reward, paid[m], *own))
        return self._finished(rollout, results, learning_rate=rate)


Agent = TorchPPO
