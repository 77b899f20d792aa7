"""What agents that learn from a replay share in torch: the update's parts, and who learns where.

Everything has a leading member axis. What limits or ends an update (norm, NaN) does so for each
member alone. Environments, replay and running statistics stay where environments are, on the
processor. Weights and what updates count lie on the device, and are carried back when an iteration
ends; until then only priorities need anything of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.jit import rng
from slipstream.jit.work_sharing import RunTasks, in_sequence
from slipstream.rl.agents.off_policy.learning import OffPolicyAgent
from slipstream.rl.agents.torch_agent import TorchAgent, TorchGroup
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.optimizer import Parameters
from slipstream.rl.nets.torch_adam import Group, Weights, adam, differentiate, shortened

Target = tuple[Tensor, Weights]  # float32 [M, P], and views by name


class Transitions(NamedTuple):
    """A batch of each member.

    Attributes:
        x, x_next: [M, B, ...], observations as the networks take them.
        action: float32 [M, B, K], in [-1, 1]; choices as whole numbers.
        reward: [M, B], the discounted sum of up to n.
        discount: [M, B], what the value of x_next counts, 0 after a termination.
        weight: [M, B], importance.
        mask_next: bool [M, B, n] of choices allowed next, or None.
    """

    x: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    x_next: Tensor
    weight: Tensor
    mask_next: Tensor | None


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; infinity where a limit is off."""

    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    tau: Tensor


def move(group: Group, loss: Tensor, chosen: Tensor, c: Coefficients) -> Tensor:
    """A step of Adam along the gradient of a loss [M], for the chosen members; its norms [M].

    A member whose gradient is not finite has failed, and is not moved.
    """
    norm, moving = differentiate(group, loss), group.moving
    moving.failed.logical_or_(chosen & ~norm.isfinite())
    chosen = chosen & ~moving.failed
    adam(moving, shortened(group, norm, c.max_grad_norm), chosen, c.learning_rate, c.adam_eps)
    return norm.float()


def follow(target: Tensor, weights: Tensor, due: Tensor, c: Coefficients) -> None:
    """Moves the targets [M, P] of the members that are due, bool [M]."""
    near = target + c.tau[:, None] * (weights - target)
    target.copy_(torch.where(due[:, None], near, target))


class ReplayGroup(TorchGroup, ABC):
    """Members `members` of an agent, which says by `update` what they learn.

    Args:
        agent: an OffPolicyAgent; its arrays are what counts between iterations.

    Attributes:
        acting: group of the network that acts: its failures are the members'.
        coefficients: of this iteration.
    """

    acting: Group

    def __init__(self, agent: Any, members: slice, device: torch.device) -> None:
        super().__init__(agent.policy, agent.num_envs, members, device, agent.products)
        self._agent = agent

    @abstractmethod
    def update(self, rows: Transitions, made: NDArray[np.int64], wanted: Tensor) -> Tensor:
        """One update of those that want one, bool [g], and have not failed; counted.

        Args:
            made: updates that each has made.

        Returns:
            Sizes of the errors, [g, B].
        """

    def target(self, target: NDArray[np.float32], parameters: Parameters) -> Target:
        """Their part of a target that follows these parameters."""
        flat = self.ours(target)
        return flat, self.named(parameters, flat)

    def fetch(self) -> None:
        super().fetch()
        agent = self._agent
        self.coefficients = Coefficients(*map(self.column, (*agent.step_settings, agent.tau)))
        self._factor = self.column(self._agent.reward_factor)[:, None]
        self._made = self._agent.made[self.members].copy()
        self._failed = self._agent.policy.parameters.failed[self.members].copy()

    def learn(self, replay: Replay, wanted: NDArray[np.bool_]) -> None:
        """One update of those members that want one, bool [g], and have not failed."""
        agent, config, own = self._agent, self._agent.config, self.members
        wanted = wanted & ~self._failed
        if not wanted.any():
            return
        made = self._made  # counts on where a member fails, for it learns no more
        keys = rng.keys_at_steps(agent.seeds[own], rng.REPLAY, made)
        sample = replay.sample(
            *(np.arange(own.start, own.stop), keys, config.batch_size, config.n_step),
            *(agent.discount[own], agent.importance[own]),
        )
        batch = sample.batch
        rows = Transitions(
            x=self.inputs(self.carried(batch.obs)),
            action=self.carried(batch.action),
            reward=self.carried(batch.reward) * self._factor,
            discount=self.carried(batch.discount),
            x_next=self.inputs(self.carried(batch.obs_next)),
            weight=self.carried(sample.weight),
            mask_next=self.carried(batch.mask_next) if batch.mask_next.size else None,
        )
        size = self.update(rows, made, self.carried(wanted))
        self._made = made + wanted
        if replay.plan.alpha == 0.0:
            return
        errors, self._failed = self.told(size, self.acting.moving.failed)
        for i in np.flatnonzero(wanted).tolist():
            replay.reprioritise(own.start + i, sample.index[i], errors[i])


class TorchLearning(TorchAgent, OffPolicyAgent):
    """As the compiled form, whose state it can go on from, and the other way round; its bits are
    other ones.

    Args:
        args: as for the compiled form.
        device, precision: of the config's section `training`.

    Attributes:
        group: what members that are handled together are.
    """

    group: ClassVar[type[ReplayGroup]]
    _groups: Sequence[ReplayGroup]

    def __init__(self, *args: Any, device: str = "cpu", precision: str = "float32") -> None:
        super().__init__(*args)
        self.begin(device, precision)
        self.refresh()

    def make_group(self, members: slice) -> ReplayGroup:
        return self.group(self, members, self.device)

    def refresh(self) -> None:
        with self.keeping(self.members):
            for group in self._groups:
                group.fetch()

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run_tasks: RunTasks = in_sequence
    ) -> None:
        most = int(updates.max(initial=0))
        # What is drawn follows from priorities, which each update changes for good.
        in_a_row = 1 if replay.plan.alpha > 0.0 else max(1, most)
        for first in range(0, most, in_a_row):

            def learn(group: ReplayGroup, first: int = first) -> None:
                for number in range(first, first + in_a_row):
                    group.learn(replay, number < updates[group.members])

            self.each_group(learn, ReplayGroup.copied)

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run_tasks: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        for group in self._groups:
            group.put_back(group.held())
        return super().update(rollout, progress, run_tasks)
