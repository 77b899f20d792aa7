"""What the torch forms of all algorithms share: where and how their members are calculated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from slipstream.agents.torch_group import TorchGroup
from slipstream.nets.torch_device import device_of, one_thread, together
from slipstream.nets.torch_products import products_of, rounding

Told = TypeVar("Told")


class TorchAgent:
    """Its members are calculated in groups: on a processor one after another, since a batched
    product's bits would depend on their number; on a card all together.

    Attributes:
        device: where torch calculates; precision: see `TrainingConfig`.
        products: that follow from it.
    """

    members: int
    device: torch.device
    _groups: Sequence[TorchGroup]

    def begin(self, device: str, precision: str) -> None:
        """Makes the groups, when the agent's own arrays are there."""
        self.device, self.precision = device_of(device), precision
        self.products = products_of(precision)
        self._groups = [self.make_group(own) for own in together(self.members, self.device)]

    @abstractmethod
    def make_group(self, members: slice) -> TorchGroup:
        """These members, as the agent's arrays have them."""

    def each_group(self, work: Callable[[Any], Told]) -> list[Told]:
        """What work on each group gives, in the members' order."""
        with one_thread(), rounding(self.precision):
            return [work(group) for group in self._groups]
