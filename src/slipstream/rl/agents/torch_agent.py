"""Shared base of torch implementations: groups of members on a device.

A `TorchGroup` holds weights, moments and scales of some members on the device. A `TorchAgent`
divides its members into groups, and divides them further if the device runs out of memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.errors import ResourceError
from slipstream.rl.nets.optimizer import Parameters
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.torch_adam import OptimizerState, ParamGroup
from slipstream.rl.nets.torch_device import (
    get_device,
    member_batches,
    single_thread,
    start_transfer,
    to_device,
)
from slipstream.rl.nets.torch_networks import (
    FLOAT32,
    Products,
    get_products,
    make_torch_network,
    matmul_precision,
    tensor_views,
)


class TorchGroup:
    """Members that act and learn together in torch.

    Between iterations the agent's own arrays hold the state, so that policy, checkpoints and
    studies are independent of the device.

    Args:
        policy: Policy of all members.
        num_envs: N per member.
        members: Slice of members.
        device: Device of torch.
        products: Matrix products of hidden layers.

    Attributes:
        environments: Slice of the members' environments.
        network: The policy's network.
    """

    def __init__(
        self,
        policy: Policy,
        num_envs: int,
        members: slice,
        device: torch.device,
        products: Products = FLOAT32,
    ) -> None:
        self.members, self.device, self.num_envs = members, device, num_envs
        self.environments = slice(members.start * num_envs, members.stop * num_envs)
        self.count = members.stop - members.start
        self.network = make_torch_network(policy.network, products)
        self._policy = policy
        self._shared: list[tuple[NDArray[Any], Tensor]] = []  # array of the agent, device tensor

    def mirror(self, array: NDArray[Any]) -> Tensor:
        """Return a device copy of an array [M, ...], kept in sync by `fetch` and `write_back`."""
        part = array[self.members]
        mirror = self.to_device(part).clone()
        self._shared.append((part, mirror))
        return mirror

    def tensor_views(self, parameters: Parameters, flat: Tensor) -> dict[str, Tensor]:
        """Return views into rows [g, P] by tensor name."""
        return tensor_views(flat.detach(), parameters.shapes, parameters.offsets)

    def group(self, parameters: Parameters) -> ParamGroup:
        """Return the group's part of an agent's parameters."""
        part = parameters
        arrays = (part.flat, part.first, part.second, part.steps, part.failed)
        state = OptimizerState(*(self.mirror(array) for array in arrays))
        weights = self.tensor_views(part, state.weights)
        leaves = {name: view.requires_grad_() for name, view in weights.items()}
        gradient = torch.zeros_like(state.weights)
        return ParamGroup(state, leaves, gradient, self.tensor_views(part, gradient))

    @torch.no_grad()
    def fetch(self) -> None:
        """Fetch the current weights, moments and scales of the agent."""
        for source, mirror in self._shared:
            mirror.copy_(self.to_device(source))
        scale = self._policy.scale
        if scale is not None:
            self._mean, self._inverse_std, self._limit = (
                self.to_device(x[self.members].copy())[:, None]
                for x in (scale.mean, scale.inverse_std, scale.limit)
            )

    def device_state(self) -> list[Tensor]:
        """Weights and moments on the device."""
        return [mirror for _, mirror in self._shared]

    def copy_state(self) -> list[Tensor]:
        """Return a copy of `device_state`."""
        return [mirror.clone() for mirror in self.device_state()]

    def write_back(self, state: Sequence[Tensor], *others: Tensor) -> list[NDArray[Any]]:
        """Write weights and moments into the agent's arrays, with one wait for the device.

        Args:
            state: tensors of `device_state` or `copy_state`, or an empty sequence.
            others: further tensors.

        Returns:
            The further tensors as arrays.
        """
        arrays = self.to_numpy(*state, *others)
        for (target, _), array in zip(self._shared[: len(state)], arrays, strict=False):
            target[...] = array
        return arrays[len(state) :]

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """Return an array on the device."""
        return to_device(np.ascontiguousarray(array), self.device)

    def to_numpy(self, *tensors: Tensor) -> list[NDArray[Any]]:
        """Return tensors as arrays."""
        return self.to_numpy_async(*tensors)()

    def to_numpy_async(self, *tensors: Tensor) -> Callable[[], list[NDArray[Any]]]:
        """Return a function that returns tensors as arrays: the only wait for the device."""
        return start_transfer(tensors, self.device)

    def member_column(self, array: NDArray[Any]) -> Tensor:
        """Return the group's part of a setting [M], float32 or bool."""
        column = array[self.members]
        return self.to_device(column if column.dtype == np.bool_ else column.astype(np.float32))

    def inputs(self, obs: Tensor, members: slice = slice(None)) -> Tensor:
        """Return network inputs of observations [g, R, ...] of these members of the group."""
        if self._policy.scale is None:
            return obs
        mean, inverse = self._mean[members], self._inverse_std[members]
        limit = self._limit[members]
        return ((obs.flatten(2) - mean) * inverse).clamp(-limit, limit)


Result = TypeVar("Result")


class TorchAgent:
    """Agent that computes its members in groups.

    On the CPU members are computed one by one, since the bits of a batched product depend on its
    batch size. On a GPU all members are one group, or as large groups as memory allows.

    Attributes:
        device: Device of torch.
        precision: See `TrainingConfig`.
        products: Matrix products of this precision.
    """

    members: int
    device: torch.device
    _groups: Sequence[TorchGroup]
    _halved = False  # True if groups were halved since the last `drain_warnings`

    def make_groups(self, device: str, precision: str) -> None:
        """Create the groups; the agent's arrays must exist.

        Raises:
            ResourceError: the device lacks memory for the weights.
        """
        self.device, self.precision = get_device(device), precision
        self.products = get_products(precision)
        with self.report_out_of_memory(self.members):
            self._groups = [
                self.make_group(batch) for batch in member_batches(self.members, self.device)
            ]

    @abstractmethod
    def make_group(self, members: slice) -> TorchGroup:
        """Create a group of these members from the agent's arrays."""

    def map_groups(
        self,
        work: Callable[[Any], Result],
        before: Callable[[TorchGroup], Sequence[Tensor]] = lambda group: (),
    ) -> list[Result]:
        """Call `work` with each group and return the results in the members' order.

        A group that exceeds GPU memory is halved permanently. Its halves repeat the work from the
        state before it.

        Args:
            work: Function of a group.
            before: Returns state that only the group holds: `TorchGroup.device_state`, or
                `TorchGroup.copy_state` if `work` changes it.

        Raises:
            ResourceError: There is not enough memory for one member.
        """
        results: list[Result] = []
        at = 0
        with single_thread(), matmul_precision(self.precision):
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
                        raise self._out_of_memory(error, "to calculate a single member") from error
                # After the `except` block the tensors of the failed work are freed.
                group.write_back(group.device_state() if state is None else state)
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
        with self.report_out_of_memory(members.stop - members.start):
            double_buffered_ranges = [
                self.make_group(part)
                for part in (slice(members.start, middle), slice(middle, members.stop))
            ]
            for half in double_buffered_ranges:
                half.fetch()
        self._groups, self._halved = [*lower, *double_buffered_ranges, *upper], True

    @contextmanager
    def report_out_of_memory(self, members: int) -> Iterator[None]:
        """Raise a ResourceError if the device lacks memory for the weights of this many members."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise self._out_of_memory(
                error, f"to keep the weights of {members} member{'s' * (members > 1)}"
            ) from error

    def _out_of_memory(self, error: Exception, what: str) -> ResourceError:
        return ResourceError(
            f"{self.device} lacks memory {what} ({str(error).splitlines()[0]}). "
            "Reduce network widths, batch size, rollout length, environments or members, "
            "or give --device cpu."
        )

    def drain_warnings(self) -> list[str]:
        """Return a warning, once, if groups were halved."""
        if not self._halved:
            return []
        self._halved = False
        most = max(group.count for group in self._groups)
        return [
            f"{self.device} lacks memory for all {self.members} members at once. From here on they "
            f"are computed in {len(self._groups)} groups of at most {most}. No progress is lost; "
            "results differ from other group sizes only by rounding."
        ]
