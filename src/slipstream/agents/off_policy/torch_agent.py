"""Agents that learn from a replay in torch: for GPUs, and to compare the compiled form with.

Environments, replay and running statistics stay where environments are, on the processor. Weights
lie on the device, and are carried back when an iteration ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.off_policy.base import OffPolicyAgent
from slipstream.agents.off_policy.torch_group import ReplayGroup
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.nets.torch_device import device_of, together
from slipstream.nets.torch_threads import one_thread


class TorchLearning(OffPolicyAgent):
    """As the compiled form, whose state it can go on from, and the other way round; its bits are
    other ones.

    On a processor members are handled one after another, since a batched product's bits would
    depend on their number; on a GPU all together.

    Args:
        args: as for the compiled form.
        device: where torch calculates.

    Attributes:
        group: what members that are handled together are.
    """

    group: ClassVar[type[ReplayGroup]]
    _groups: Sequence[ReplayGroup]

    def __init__(self, *args: Any, device: str = "cpu") -> None:
        super().__init__(*args)
        self.device = device_of(device)
        self._groups = [
            self.group(self, own, self.device) for own in together(self.members, self.device)
        ]
        self.refresh()

    def refresh(self) -> None:
        for group in self._groups:
            group.fetch()

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run: RunTasks = in_sequence
    ) -> None:
        with one_thread():
            for group in self._groups:
                own = updates[group.members]
                for number in range(int(own.max(initial=0))):
                    group.learn(replay, number < own)

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        for group in self._groups:
            group.put_back()
        return super().update(rollout, progress, run)
