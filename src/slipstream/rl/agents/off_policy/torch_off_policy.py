"""Reference implementation (torch) of learning from a replay, shared by off-policy agents.

All tensors have a leading member axis. Clipping and failures apply to each member alone.
Environments, replay and running statistics stay on the CPU. Weights and update statistics are on
the device and copied back at the end of an iteration; until then only priorities need a transfer.
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
from slipstream.rl.nets.torch_adam import ParamGroup, Weights, adam, clip_grad_norm, differentiate

Target = tuple[Tensor, Weights]  # float32 [M, P], and views by name


class Transitions(NamedTuple):
    """A batch of each member.

    Attributes:
        x, x_next: [M, B, ...], network inputs of the current and the next observation.
        action: float32 [M, B, K], in [-1, 1]; discrete actions as whole numbers.
        reward: [M, B], discounted sum of up to `n_step` rewards.
        discount: [M, B], factor of the value of x_next; 0 after a termination.
        weight: [M, B], importance weights.
        mask_next: bool [M, B, n] of discrete actions allowed next, or None.
    """

    x: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    x_next: Tensor
    weight: Tensor
    mask_next: Tensor | None


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; infinity disables a limit."""

    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    tau: Tensor


def optimizer_step(group: ParamGroup, loss: Tensor, active: Tensor, c: Coefficients) -> Tensor:
    """Update the active members, bool [M], by Adam with the gradient of a loss [M].

    A member whose gradient is not finite fails and is not updated.

    Returns:
        Gradient norms [M] before clipping.
    """
    norm, state = differentiate(group, loss), group.state
    state.failed.logical_or_(active & ~norm.isfinite())
    active = active & ~state.failed
    adam(state, clip_grad_norm(group, norm, c.max_grad_norm), active, c.learning_rate, c.adam_eps)
    return norm.float()


def polyak_update(target: Tensor, weights: Tensor, due: Tensor, c: Coefficients) -> None:
    """Update the targets [M, P] of the members that are due, bool [M]."""
    near = target + c.tau[:, None] * (weights - target)
    target.copy_(torch.where(due[:, None], near, target))


class ReplayGroup(TorchGroup, ABC):
    """Members of an agent that learn together on a device; subclasses implement `update`.

    Args:
        agent: an OffPolicyAgent; its arrays hold the state between iterations.
        members: slice of members.
        device: device of torch.

    Attributes:
        acting: parameter group of the network that acts; a member fails if it fails there.
        coefficients: settings of this iteration.
    """

    acting: ParamGroup

    def __init__(self, agent: Any, members: slice, device: torch.device) -> None:
        super().__init__(agent.policy, agent.num_envs, members, device, agent.products)
        self._agent = agent

    @abstractmethod
    def update(self, rows: Transitions, num_updates: NDArray[np.int64], wanted: Tensor) -> Tensor:
        """Update and count the given members, bool [g], that have not failed.

        Args:
            rows: batch of each member.
            num_updates: int64 [g], updates of each member so far.
            wanted: members to update.

        Returns:
            Absolute TD errors, [g, B].
        """

    def target(self, target: NDArray[np.float32], parameters: Parameters) -> Target:
        """Return the group's part of a target network."""
        flat = self.mirror(target)
        return flat, self.tensor_views(parameters, flat)

    def fetch(self) -> None:
        super().fetch()
        agent = self._agent
        self.coefficients = Coefficients(
            *map(self.member_column, (*agent.step_settings, agent.tau))
        )
        self._factor = self.member_column(self._agent.reward_factor)[:, None]
        self._made = self._agent.num_updates[self.members].copy()
        self._failed = self._agent.policy.parameters.failed[self.members].copy()

    def learn(self, replay: Replay, wanted: NDArray[np.bool_]) -> None:
        """Update the given members, bool [g], that have not failed."""
        agent, config, members = self._agent, self._agent.config, self.members
        wanted = wanted & ~self._failed
        if not wanted.any():
            return
        num_updates = self._made  # counts on where a member fails, for it learns no more
        keys = rng.keys_at_steps(agent.seeds[members], rng.REPLAY, num_updates)
        sample = replay.sample(
            *(np.arange(members.start, members.stop), keys, config.batch_size, config.n_step),
            *(agent.gamma[members], agent.importance[members]),
        )
        batch = sample.batch
        rows = Transitions(
            x=self.inputs(self.to_device(batch.obs)),
            action=self.to_device(batch.action),
            reward=self.to_device(batch.reward) * self._factor,
            discount=self.to_device(batch.discount),
            x_next=self.inputs(self.to_device(batch.obs_next)),
            weight=self.to_device(sample.weight),
            mask_next=self.to_device(batch.mask_next) if batch.mask_next.size else None,
        )
        size = self.update(rows, num_updates, self.to_device(wanted))
        self._made = num_updates + wanted
        if replay.config.alpha == 0.0:
            return
        errors, self._failed = self.to_numpy(size, self.acting.state.failed)
        for i in np.flatnonzero(wanted).tolist():
            replay.update_priorities(members.start + i, sample.index[i], errors[i])


class TorchLearning(TorchAgent, OffPolicyAgent):
    """Torch implementation of an off-policy agent.

    States are interchangeable with the compiled implementation; results are not bit-identical.

    Args:
        args: As for the compiled implementation.
        device, precision: From the config section `training`.

    Attributes:
        group: Class of the groups of members.
    """

    group: ClassVar[type[ReplayGroup]]
    _groups: Sequence[ReplayGroup]

    def __init__(self, *args: Any, device: str = "cpu", precision: str = "float32") -> None:
        super().__init__(*args)
        self.make_groups(device, precision)
        self.refresh()

    def make_group(self, members: slice) -> ReplayGroup:
        return self.group(self, members, self.device)

    def refresh(self) -> None:
        with self.report_out_of_memory(self.members):
            for group in self._groups:
                group.fetch()

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run_tasks: RunTasks = in_sequence
    ) -> None:
        most = int(updates.max(initial=0))
        # What is drawn follows from priorities, which each update changes for good.
        in_a_row = 1 if replay.config.alpha > 0.0 else max(1, most)
        for first in range(0, most, in_a_row):

            def learn(group: ReplayGroup, first: int = first) -> None:
                for number in range(first, first + in_a_row):
                    group.learn(replay, number < updates[group.members])

            self.map_groups(learn, ReplayGroup.copy_state)

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run_tasks: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        for group in self._groups:
            group.write_back(group.device_state())
        return super().update(rollout, progress, run_tasks)
