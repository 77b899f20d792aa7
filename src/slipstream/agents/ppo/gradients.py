"""Gradients of minibatches of rows, in compiled loops."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.inputs import Inputs, RowInputs
from slipstream.agents.ppo.loops import loops
from slipstream.agents.ppo.member_gradient import Net, Rows, Space
from slipstream.agents.ppo.tally import Tally
from slipstream.core.lines import zeros
from slipstream.nets.layers import BLOCK
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.parameters import Parameters
from slipstream.nets.policy import Policy


class Gradients(Protocol):
    """Of a few members' rows.

    Attributes:
        x: float32 [g, >= R, inputs], observations of these members; empty for images.
    """

    x: NDArray[np.float32]

    def part(
        self, p: int, k: int, rows: Rows, statistics: NDArray[np.float64], tally: Tally
    ) -> None:
        """Writes gradient buffer p, and statistics[:, p], from its rows of minibatch k."""


class RowGradients:
    """From observations that are rows of numbers, in compiled loops alone.

    Args:
        policy: whose gradients.
        parameters: of members `members` of it.
        inputs: observations of all members.
        parts: equal parts of a minibatch, which may be calculated side by side.

    Attributes:
        x: float32 [g, >= R, inputs], observations of these members.
    """

    def __init__(
        self,
        policy: Policy,
        network: MlpNetwork,
        parameters: Parameters,
        inputs: RowInputs,
        members: slice,
        parts: int,
    ) -> None:
        self.x = inputs.array[members]
        self._parameters = parameters
        self._net = net_of(policy, network.tables, network.activation == "relu")
        self._spaces = [
            Space(
                zeros((BLOCK, self.x.shape[2])),
                zeros((2, network.block)),
                zeros((2, network.block)),
                zeros((parameters.flat.shape[1],)),
                scratch_for(policy),
            )
            for _ in range(parts)
        ]
        self._loop = loops()["minibatch_gradients"]

    def part(
        self, p: int, k: int, rows: Rows, statistics: NDArray[np.float64], tally: Tally
    ) -> None:
        """Writes gradient buffer p, and statistics[:, p], from its rows of minibatch k."""
        arrays, space = self._parameters.arrays, self._spaces[p]
        self._loop(self._net, arrays, rows, p, p + 1, k, k + 1, False, statistics, tally, space)

    def epoch(self, rows: Rows, statistics: NDArray[np.float64], tally: Tally) -> None:
        """All parts of all minibatches and their updates: one member after another."""
        arrays, space, last = self._parameters.arrays, self._spaces[0], rows.moments.shape[1]
        parts = len(self._spaces)
        self._loop(self._net, arrays, rows, 0, parts, 0, last, True, statistics, tally, space)


def make_gradients(
    policy: Policy, parameters: Parameters, inputs: Inputs, members: slice, parts: int, width: int
) -> Gradients:
    """What fits a policy's network; `width` rows are a part of a minibatch."""
    network = policy.network
    if isinstance(network, MlpNetwork) and isinstance(inputs, RowInputs):
        return RowGradients(policy, network, parameters, inputs, members, parts)
    from slipstream.agents.ppo.image_gradients import ImageGradients

    return ImageGradients(policy, parameters, inputs, members, parts, width)


def net_of(policy: Policy, tables: NDArray[np.int64], relu: bool) -> Net:
    """Its networks, as compiled loops know them."""
    log_std = policy.parameters.offsets.get("log_std", 0)
    sizes = np.array(policy.actions.sizes, np.int64)
    return Net(tables, relu, policy.actions.continuous, log_std, sizes)


def scratch_for(policy: Policy) -> NDArray[np.float64]:
    """Of a block of rows."""
    return np.zeros((3, policy.actions.head_width))
