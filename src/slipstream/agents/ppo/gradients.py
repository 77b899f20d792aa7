"""Gradients of minibatches of rows, in compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.inputs import RowInputs
from slipstream.agents.ppo.loops import loops
from slipstream.agents.ppo.member_gradient import Net, Rows, Space
from slipstream.agents.ppo.tally import Tally
from slipstream.core.lines import zeros
from slipstream.nets.layers import BLOCK
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.parameters import Parameters
from slipstream.nets.policy import Policy


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
        log_std = policy.parameters.offsets.get("log_std", 0)
        sizes = np.array(policy.actions.sizes, np.int64)
        relu, continuous = network.activation == "relu", policy.actions.continuous
        self._net = Net(network.tables, relu, continuous, log_std, sizes)
        self._spaces = [
            Space(
                zeros((BLOCK, self.x.shape[2])),
                zeros((2, network.block)),
                zeros((2, network.block)),
                zeros((parameters.flat.shape[1],)),
                np.zeros((3, policy.actions.head_width)),
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
