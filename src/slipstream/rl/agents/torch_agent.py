"""What the torch forms of all algorithms share: where and how their members are calculated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from slipstream.core.errors import ResourceError
from slipstream.rl.agents.torch_group import TorchGroup
from slipstream.rl.nets.torch_device import device_of, one_thread, together
from slipstream.rl.nets.torch_products import products_of, rounding

Told = TypeVar("Told")


class TorchAgent:
    """Its members are calculated in groups: on a processor one after another, since a batched
    product's bits would depend on their number; on a card all together, or in as large groups as it
    has memory for.

    Attributes:
        device: where torch calculates; precision: see `TrainingConfig`.
        products: that follow from it.
    """

    members: int
    device: torch.device
    _groups: Sequence[TorchGroup]
    _halved = False  # since notes were drained

    def begin(self, device: str, precision: str) -> None:
        """Makes the groups, when the agent's own arrays are there.

        Raises:
            ResourceError: there is not enough memory for their weights.
        """
        self.device, self.precision = device_of(device), precision
        self.products = products_of(precision)
        with self.keeping(self.members):
            self._groups = [self.make_group(own) for own in together(self.members, self.device)]

    @abstractmethod
    def make_group(self, members: slice) -> TorchGroup:
        """These members, as the agent's arrays have them."""

    def each_group(
        self,
        work: Callable[[Any], Told],
        before: Callable[[TorchGroup], Sequence[Tensor]] = lambda group: (),
    ) -> list[Told]:
        """What work on each group gives, in the members' order.

        A group that the card lacks memory for is halved, now and for later; its halves do the work
        from where the members stood before it.

        Args:
            before: what a group holds that the agent's arrays do not: `TorchGroup.held`, or
                `TorchGroup.copied` where work changes it.

        Raises:
            ResourceError: there is not enough memory for one member.
        """
        results: list[Told] = []
        at = 0
        with one_thread(), rounding(self.precision):
            while at < len(self._groups):
                group = self._groups[at]
                state: Sequence[Tensor] | None = None
                try:
                    state = before(group) if group.count > 1 else ()
                    results.append(work(group))
                    at += 1
                    continue
                except torch.OutOfMemoryError as error:
                    if group.count == 1:
                        raise self._lacks(error, "to calculate a single member") from error
                # Only here the failed work's own tensors are gone, which the error held.
                group.put_back(group.held() if state is None else state)
                members = group.members
                del group, state
                self._halve(at, members)
        return results

    def _halve(self, at: int, members: slice) -> None:
        lower, upper = self._groups[:at], self._groups[at + 1 :]
        self._groups = [*lower, *upper]  # the whole group's memory is free for its halves
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        middle = (members.start + members.stop) // 2
        with self.keeping(members.stop - members.start):
            halves = [
                self.make_group(own)
                for own in (slice(members.start, middle), slice(middle, members.stop))
            ]
            for half in halves:
                half.fetch()
        self._groups, self._halved = [*lower, *halves, *upper], True

    @contextmanager
    def keeping(self, members: int) -> Iterator[None]:
        """Says in words where the device lacks memory for the weights of so many members."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise self._lacks(
                error, f"to keep the weights of {members} member{'s' * (members > 1)}"
            ) from error

    def _lacks(self, error: Exception, what: str) -> ResourceError:
        return ResourceError(
            f"{self.device} lacks memory {what} ({str(error).splitlines()[0]}). "
            "Narrower networks, smaller batches, shorter rollouts, fewer copies and fewer members "
            "need less; or give --device cpu."
        )

    def drain_notes(self) -> list[str]:
        """Says once that groups were halved."""
        if not self._halved:
            return []
        self._halved = False
        most = max(group.count for group in self._groups)
        return [
            f"{self.device} lacks memory for all {self.members} members at once: from here on they "
            f"are calculated in {len(self._groups)} groups of at most {most}. Nothing that was "
            "learned is lost; a card's groups of another size agree to rounding only."
        ]
