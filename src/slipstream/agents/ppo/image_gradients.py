"""Gradients of minibatches of images, by torch's autograd."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.gradients import net_of, scratch_for
from slipstream.agents.ppo.image_inputs import ImageInputs
from slipstream.agents.ppo.inputs import Inputs
from slipstream.agents.ppo.loops import loops
from slipstream.agents.ppo.member_gradient import Rows
from slipstream.agents.ppo.tally import Tally
from slipstream.nets.convolution import ConvolutionalNetwork
from slipstream.nets.parameters import Parameters
from slipstream.nets.policy import Policy

_NO_TABLES = np.zeros((2, 0, 5), np.int64)
_NO_ROWS = np.zeros((0, 0, 0), np.float32)


class ImageGradients:
    """From images, by torch's autograd; arguments as of `RowGradients`, and the rows of a part."""

    x = _NO_ROWS

    def __init__(
        self,
        policy: Policy,
        parameters: Parameters,
        inputs: Inputs,
        members: slice,
        parts: int,
        width: int,
    ) -> None:
        network = policy.network
        assert isinstance(network, ConvolutionalNetwork) and isinstance(inputs, ImageInputs)
        self._network, self._parameters, self._inputs = network, parameters, inputs
        self._members, self._width = members, width
        self._net = net_of(policy, _NO_TABLES, True)
        g = members.stop - members.start
        self._spaces = [network.workspace(g, width) for _ in range(parts)]
        self._scratches = [scratch_for(policy) for _ in range(parts)]
        self._loop = loops()["output_gradients"]

    def part(
        self, p: int, k: int, rows: Rows, statistics: NDArray[np.float64], tally: Tally
    ) -> None:
        """Writes gradient buffer p, and statistics[:, p], from its rows of minibatch k."""
        space = self._spaces[p]
        at = (k * len(self._spaces) + p) * self._width
        x = self._inputs.gather(self._members, rows.order, at, self._width)
        head, value = self._network.forward(self._parameters, x, space)
        self._loop(
            *(self._net, self._parameters.arrays, rows, p, k, at, head, value),
            *(space.d_head, space.d_value, statistics, self._scratches[p]),
        )
        self._network.backward(self._parameters, p, space)
