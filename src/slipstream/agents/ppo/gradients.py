"""Gradients of minibatches: of row networks in compiled loops, of image networks by autograd."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.inputs import ImageInputs, Inputs, RowInputs
from slipstream.agents.ppo.loops import loops
from slipstream.agents.ppo.member_gradient import Net, Rows, Space
from slipstream.agents.ppo.tally import Tally
from slipstream.nets.convolution import ConvolutionalNetwork
from slipstream.nets.layers import BLOCK
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.parameters import Parameters
from slipstream.nets.policy import Policy

_NO_TABLES = np.zeros((2, 0, 5), np.int64)
_NO_ROWS = np.zeros((0, 0, 0), np.float32)


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
        self._net = _net(policy, network.tables, network.activation == "relu")
        self._spaces = [
            Space(
                np.zeros((BLOCK, self.x.shape[2]), np.float32),
                np.zeros((2, network.block), np.float32),
                np.zeros((2, network.block), np.float32),
                np.zeros(parameters.flat.shape[1], np.float32),
                _scratch(policy),
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


class ImageGradients:
    """From images, by torch's autograd; arguments as above, and the rows of a part."""

    x = _NO_ROWS

    def __init__(
        self,
        policy: Policy,
        network: ConvolutionalNetwork,
        parameters: Parameters,
        inputs: ImageInputs,
        members: slice,
        parts: int,
        width: int,
    ) -> None:
        self._network, self._parameters, self._inputs = network, parameters, inputs
        self._members, self._width = members, width
        self._net = _net(policy, _NO_TABLES, True)
        g = members.stop - members.start
        self._images = [inputs.batch(g, width) for _ in range(parts)]
        self._spaces = [network.workspace(g, width, gradients=True) for _ in range(parts)]
        self._scratches = [_scratch(policy) for _ in range(parts)]
        self._loop = loops()["output_gradients"]

    def part(
        self, p: int, k: int, rows: Rows, statistics: NDArray[np.float64], tally: Tally
    ) -> None:
        """Writes gradient buffer p, and statistics[:, p], from its rows of minibatch k."""
        x, space = self._images[p], self._spaces[p]
        at = (k * len(self._images) + p) * self._width
        self._inputs.gather(self._members, rows.order, at, x)
        head, value = self._network.forward(self._parameters, x, space)
        self._loop(
            *(self._net, self._parameters.arrays, rows, p, k, at, head.numpy(), value.numpy()),
            *(space.d_head.numpy(), space.d_value.numpy(), statistics, self._scratches[p]),
        )
        self._network.backward(self._parameters, p, x, space)


def make_gradients(
    policy: Policy, parameters: Parameters, inputs: Inputs, members: slice, parts: int, width: int
) -> RowGradients | ImageGradients:
    """What fits a policy's network."""
    network = policy.network
    if isinstance(network, MlpNetwork) and isinstance(inputs, RowInputs):
        return RowGradients(policy, network, parameters, inputs, members, parts)
    assert isinstance(network, ConvolutionalNetwork) and isinstance(inputs, ImageInputs)
    return ImageGradients(policy, network, parameters, inputs, members, parts, width)


def _net(policy: Policy, tables: NDArray[np.int64], relu: bool) -> Net:
    log_std = policy.parameters.offsets.get("log_std", 0)
    sizes = np.array(policy.actions.sizes, np.int64)
    return Net(tables, relu, policy.actions.continuous, log_std, sizes)


def _scratch(policy: Policy) -> NDArray[np.float64]:
    return np.zeros((3, policy.actions.head_width))
