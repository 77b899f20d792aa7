"""Weights of a population in one block of memory, and Adam.

`Parameters` is a group of weights with an optimizer of its own. The functions below it are plain
loops that each agent compiles with its own. A step of one member is three calls; the first and last
can run in parallel, each for a part of the weights:

    sum_gradient   sums the gradient buffers, and the squares of the sum
    begin_step     counts the step, or a failure if the gradient is not finite
    move_weights   clips the gradient and applies it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.alignment import LINE, aligned_zeros
from slipstream.rl.compiled_loops import b1, f4, f8, i8, split_range

BETA_1 = 0.9
BETA_2 = 0.999
# Smaller moments change no weight and would become denormal numbers.
TINY = np.float32(1e-30)
TINY_SQUARE = np.float32(1e-36)
LANES = 64  # parallel sums; the length of a member's row is a multiple of it
_LINE = LINE // 4  # float32 numbers per cache line; every tensor is aligned to one
_ZERO = np.float32(0.0)


class TrainState(NamedTuple):
    """Arrays that an optimizer step changes, of M members.

    Attributes:
        params, first, second: float32 [M, P], weights, first and second moments. P is a multiple of
            LANES.
        gradients: float32 [M, parts, P]; their sum is stored in the first part.
        steps: int64 [M], applied updates.
        failed: bool [M], members that had a non-finite gradient.
        norm: float64 [M], norm of each member's last gradient before clipping.
    """

    params: NDArray[np.float32]
    gradients: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    steps: NDArray[np.int64]
    failed: NDArray[np.bool_]
    norm: NDArray[np.float64]


class StepSettings(NamedTuple):
    """Settings of a step, float64 [M]; `max_grad_norm` is infinity if clipping is disabled."""

    learning_rate: NDArray[np.float64]
    adam_eps: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]


STATE = TrainState(f4(2), f4(3), f4(2), f4(2), i8(1), b1(1), f8(1))  # examples of types
STEP_SETTINGS = StepSettings(f8(1), f8(1), f8(1))


class Views(dict[str, NDArray[np.float32]]):
    """Tensors by name, views into the block `flat` [M, P]."""

    flat: NDArray[np.float32]


class Parameters:
    """Weights, gradients and Adam moments of M members, each as one float32 array [M, P].

    This is one parameter group with its own step counts, norms and failures. An agent has a group
    per optimizer (PPO one; SAC one each for actor, critics and entropy coefficient), and stores the
    `state_dict` of each under its own name.

    A named tensor is a view [M, *shape] into these blocks. Every operation works on one row at a
    time, so results of a member do not depend on other members, bit for bit.

    Args:
        shapes: name -> shape of one member's tensor, in memory order.
        members: M.
        parts: Gradient buffers, one for each part of a minibatch.

    Attributes:
        flat: [M, P].
        gradients: [M, parts, P].
        first, second: Adam's moments [M, P].
        steps: int64 [M], updates applied to each member.
        failed: bool [M], members that had a non-finite gradient. They are never updated again.
        arrays: All of these for compiled loops.
        offsets: Offset of each tensor in a row.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], members: int, parts: int = 1) -> None:
        self.shapes = dict(shapes)
        self.offsets, width = tensor_offsets(shapes)
        self.flat: NDArray[np.float32] = aligned_zeros((members, width))
        self.gradients: NDArray[np.float32] = aligned_zeros((members, parts, width))
        self.first: NDArray[np.float32] = aligned_zeros((members, width))
        self.second: NDArray[np.float32] = aligned_zeros((members, width))
        self.steps: NDArray[np.int64] = np.zeros(members, np.int64)
        self.failed: NDArray[np.bool_] = np.zeros(members, np.bool_)
        self.weights = self.split(self.flat)
        self.arrays = TrainState(
            params=self.flat,
            gradients=self.gradients,
            first=self.first,
            second=self.second,
            steps=self.steps,
            failed=self.failed,
            norm=np.zeros(members),
        )
        self._stored: dict[str, NDArray[Any]] = {
            "weights": self.flat,
            "first_moment": self.first,
            "second_moment": self.second,
            "steps": self.steps,
            "failed": self.failed,
        }

    @property
    def members(self) -> int:
        """Number of members, M."""
        return len(self.flat)

    def split(self, flat: NDArray[np.float32]) -> Views:
        """Return named views [M, *shape] into a block [M, P]."""
        views = Views()
        views.flat = flat
        for name, shape in self.shapes.items():
            at = self.offsets[name]
            views[name] = flat[:, at : at + math.prod(shape)].reshape(len(flat), *shape)
        return views

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything required to resume training, member axis first."""
        return {name: array.copy() for name, array in self._stored.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`."""
        for name, array in self._stored.items():
            array[:] = state[name]


def tensor_offsets(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """Return the offset of each tensor in a member's row, and P, the row's length."""
    offsets, width = {}, 0
    for name, shape in shapes.items():
        offsets[name] = width
        width += _round_up(math.prod(shape), _LINE)
    return offsets, _round_up(width, LANES)


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def sum_gradient(state: Any, m: int, block: int, squares: Any) -> None:
    """Sum member m's gradient buffers into the first one, for a block of weights.

    Squares are summed per block, in LANES parallel sums; a single sum would wait for its previous
    addition at every element. The norm therefore depends, in its last bits, on the number of
    blocks, which an agent never changes.

    Args:
        state: TrainState.
        block: Number of the block.
        squares: float64 [blocks, LANES]; row `block` is written.
    """
    gradients, lanes = state.gradients[m], squares[block]
    lo, hi = weight_range(state, block, len(squares))
    total = gradients[0, lo:hi]
    for part in range(1, len(gradients)):  # always in this order
        more = gradients[part, lo:hi]
        for i in range(len(total)):
            total[i] += more[i]
    lanes[:] = 0.0
    for i in range(0, len(total), LANES):
        line = total[i : i + LANES]
        for j in range(LANES):
            lanes[j] += float(line[j]) * float(line[j])


def weight_range(state: Any, part: int, parts: int) -> tuple[int, int]:
    """Return lo, hi: part `part` of `parts` covers weights lo..hi-1, multiples of LANES."""
    lo, hi = split_range(state.params.shape[1] // LANES, part, parts)
    return lo * LANES, hi * LANES


def begin_step(state: Any, m: int, squares: Any) -> bool:
    """Count a step of member m if its gradient is finite; otherwise mark the member as failed.

    A failed member's weights, moments and step count never change again.

    Args:
        state: TrainState.
        squares: From `sum_gradient`, after all of its tasks.

    Returns:
        Whether to call `move_weights`.
    """
    square = 0.0
    for block in range(len(squares)):
        total = 0.0
        for j in range(LANES):
            total += squares[block, j]
        square += total
    state.norm[m] = math.sqrt(square)
    if not state.norm[m] < math.inf:
        state.failed[m] = True
        return False
    state.steps[m] += 1
    return True


def move_weights(state: Any, m: int, lo: int, hi: int, settings: Any) -> None:
    """Apply member m's gradient, clipped to `max_grad_norm`, to weights lo..hi-1.

    Args:
        state: TrainState.
        settings: StepSettings.
    """
    clip = min(1.0, settings.max_grad_norm[m] / (state.norm[m] + 1e-6))
    adam(state, m, lo, hi, clip, settings.learning_rate[m], settings.adam_eps[m])


def adam_step(state: Any, m: int, squares: Any, settings: Any) -> None:
    """Run a whole step of member m in this thread; squares: float64 [1, LANES], overwritten."""
    sum_gradient(state, m, 0, squares)
    if begin_step(state, m, squares):
        move_weights(state, m, 0, state.params.shape[1], settings)


def adam(
    state: Any, m: int, lo: int, hi: int, clip: float, learning_rate: float, epsilon: float
) -> None:
    """Update weights lo..hi-1 of member m with their gradient times `clip`.

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    (Kingma and Ba 2015, "Adam: a method for stochastic optimization".)
    """
    shorten, eps = np.float32(clip), np.float32(epsilon)
    rate = np.float32(learning_rate / (1.0 - math.pow(BETA_1, state.steps[m])))
    root = np.float32(1.0 / math.sqrt(1.0 - math.pow(BETA_2, state.steps[m])))
    keep_1, add_1 = np.float32(BETA_1), np.float32(1.0 - BETA_1)
    keep_2, add_2 = np.float32(BETA_2), np.float32(1.0 - BETA_2)
    gradient, weight = state.gradients[m, 0, lo:hi], state.params[m, lo:hi]
    mean, square = state.first[m, lo:hi], state.second[m, lo:hi]
    for i in range(len(gradient)):
        g = gradient[i] * shorten
        moved = keep_1 * mean[i] + add_1 * g
        spread = keep_2 * square[i] + add_2 * g * g
        # Moments of a dead unit would stay denormal, and denormal arithmetic is about a hundred
        # times slower.
        mean[i] = _ZERO if abs(moved) < TINY else moved
        square[i] = _ZERO if spread < TINY_SQUARE else spread
        weight[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + eps)


def polyak_update(target: Any, weight: Any, rate: float) -> None:
    """Compute target = target + rate (weight - target); a rate of 1 copies the weights.

    Args:
        target, weight: float32 [P] of one member (Lillicrap et al. 2016, algorithm 1).
    """
    if rate == 1.0:
        for i in range(len(target)):
            target[i] = weight[i]
        return
    part = np.float32(rate)
    for i in range(len(target)):
        target[i] = target[i] + part * (weight[i] - target[i])
