"""What of some members lies on the device: weights with their moments, and scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.rl.nets.parameters import Parameters
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.torch_adam import Group, Moving
from slipstream.rl.nets.torch_device import carried, telling
from slipstream.rl.nets.torch_networks import make_network, named
from slipstream.rl.nets.torch_products import FLOAT32, Products


class TorchGroup:
    """Members that act and learn together in torch.

    The agent's own arrays are what counts between iterations, so that policy, checkpoints and
    studies know no device.

    Args:
        policy: of all members; num_envs: N, of each.
        members: which of them; device: where torch calculates; products: of hidden layers.

    Attributes:
        environments: theirs, a slice of all.
        network: the policy's.
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
        self.network = make_network(policy, products)
        self._policy = policy
        self._shared: list[tuple[NDArray[Any], Tensor]] = []  # the agent's, ours

    def ours(self, array: NDArray[Any]) -> Tensor:
        """The device's form of an agent's array [M, ...], which `fetch` and `put_back` copy."""
        own = array[self.members]
        ours = self.carried(own).clone()
        self._shared.append((own, ours))
        return ours

    def named(self, parameters: Parameters, flat: Tensor) -> dict[str, Tensor]:
        """Views into rows [g, P], by name."""
        return named(flat.detach(), parameters.shapes, parameters.offsets)

    def group(self, parameters: Parameters) -> Group:
        """Their part of an agent's parameters."""
        own = parameters
        arrays = (own.flat, own.first, own.second, own.steps, own.failed)
        moving = Moving(*(self.ours(array) for array in arrays))
        weights = self.named(own, moving.weights)
        leaves = {name: view.requires_grad_() for name, view in weights.items()}
        gradient = torch.zeros_like(moving.weights)
        return Group(moving, leaves, gradient, self.named(own, gradient))

    @torch.no_grad()
    def fetch(self) -> None:
        """Weights, moments and scales as the agent has them now."""
        for own, ours in self._shared:
            ours.copy_(self.carried(own))
        scale = self._policy.scale
        if scale is not None:
            self._mean, self._inverse_std, self._limit = (
                self.carried(x[self.members].copy())[:, None]
                for x in (scale.mean, scale.inverse_std, scale.limit)
            )

    def held(self) -> list[Tensor]:
        """Weights and moments as they are here."""
        return [ours for _, ours in self._shared]

    def copied(self) -> list[Tensor]:
        """As `held`, whatever becomes of them."""
        return [ours.clone() for ours in self.held()]

    def put_back(self, state: Sequence[Tensor], *others: Tensor) -> list[NDArray[Any]]:
        """Weights and moments for everybody else; arrays of other tensors, in the same wait.

        Args:
            state: `held`, `copied`, or nothing.
        """
        arrays = self.told(*state, *others)
        for (own, _), array in zip(self._shared[: len(state)], arrays, strict=False):
            own[...] = array
        return arrays[len(state) :]

    def carried(self, array: NDArray[Any]) -> Tensor:
        """An array on the device."""
        return carried(np.ascontiguousarray(array), self.device)

    def told(self, *tensors: Tensor) -> list[NDArray[Any]]:
        """Arrays of tensors."""
        return self.telling(*tensors)()

    def telling(self, *tensors: Tensor) -> Callable[[], list[NDArray[Any]]]:
        """What gives arrays of tensors: the one place where the processor waits for the device."""
        return telling(tensors, self.device)

    def column(self, array: NDArray[Any]) -> Tensor:
        """Their part of a setting [M], float32 or bool."""
        own = array[self.members]
        return self.carried(own if own.dtype == np.bool_ else own.astype(np.float32))

    def inputs(self, obs: Tensor, members: slice = slice(None)) -> Tensor:
        """What the networks take of observations [g, R, ...] of these among the members."""
        if self._policy.scale is None:
            return obs
        mean, inverse = self._mean[members], self._inverse_std[members]
        limit = self._limit[members]
        return ((obs.flatten(2) - mean) * inverse).clamp(-limit, limit)
