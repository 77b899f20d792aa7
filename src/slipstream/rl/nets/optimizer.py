"""Weights of a population in one block of memory, and the step of Adam that moves them.

`Parameters` is a group of weights with an optimizer of its own. The functions after it are plain
loops that each agent compiles with its own. A step of one member is three calls; the first and the
last may run side by side, each for a part of the weights:

    sum_gradient   adds up the gradient's buffers, and the squares of the sum
    begin_step     counts the step; or a failure, if the gradient is not finite
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
# Moments below these move no weight, and soon would be denormal numbers.
TINY = np.float32(1e-30)
TINY_SQUARE = np.float32(1e-36)
LANES = 64  # sums side by side; a member's row of weights is a multiple of it
_LINE = LINE // 4  # float32 numbers in a cache line: every tensor of every member begins on one
_ZERO = np.float32(0.0)


class TrainState(NamedTuple):
    """What a step changes, of M members.

    Attributes:
        weights, first, second: float32 [M, P], first and second moment; P is a multiple of LANES.
        gradients: float32 [M, parts, P], their sum is left in the first part.
        steps: int64 [M], updates applied.
        failed: bool [M], members whose gradient was not finite once.
        norm: float64 [M], of each member's last gradient before clipping.
    """

    params: NDArray[np.float32]
    gradients: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    steps: NDArray[np.int64]
    failed: NDArray[np.bool_]
    norm: NDArray[np.float64]


class StepSettings(NamedTuple):
    """Settings of a step, float64 [M]; `max_grad_norm` is infinity where it is off."""

    learning_rate: NDArray[np.float64]
    adam_eps: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]


STATE = TrainState(f4(2), f4(3), f4(2), f4(2), i8(1), b1(1), f8(1))  # examples of types
STEP_SETTINGS = StepSettings(f8(1), f8(1), f8(1))


class Views(dict[str, NDArray[np.float32]]):
    """Tensors by name, views into the block [M, P] that is `flat`."""

    flat: NDArray[np.float32]


class Parameters:
    """Weights, gradients and Adam moments of M members, each as one float32 array [M, P].

    This is one group: its step counts, norms and failures are its own. An agent has a group for
    each optimizer (PPO one, its policy's; SAC one each for actor, critics and temperature), and
    stores the `state_dict` of each under a name of its own.

    A named tensor is a view [M, *shape] into these blocks. Members never mix: every operation works
    on a row by itself, so a row's bits do not depend on the rows beside it.

    Args:
        shapes: name -> shape of one member's tensor, in the order they are laid out.
        members: M.
        parts: gradient buffers; a minibatch computed in several parts needs one for each.

    Attributes:
        flat: [M, P]; gradients: [M, parts, P]; first, second: Adam's moments [M, P].
        steps: int64 [M], updates applied to each member; failed: bool [M], members whose gradient
            was not finite once: they are never updated again.
        arrays: all of these as compiled loops take them; offsets: where a tensor begins in a row.
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
        """M."""
        return len(self.flat)

    def split(self, flat: NDArray[np.float32]) -> Views:
        """Named views [M, *shape] into a block [M, P]."""
        views = Views()
        views.flat = flat
        for name, shape in self.shapes.items():
            at = self.offsets[name]
            views[name] = flat[:, at : at + math.prod(shape)].reshape(len(flat), *shape)
        return views

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from, member axis first."""
        return {name: array.copy() for name, array in self._stored.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state_dict()`."""
        for name, array in self._stored.items():
            array[:] = state[name]


def tensor_offsets(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """Return where each tensor begins in a member's row, and P, the row's length."""
    offsets, width = {}, 0
    for name, shape in shapes.items():
        offsets[name] = width
        width += _round_up(math.prod(shape), _LINE)
    return offsets, _round_up(width, LANES)


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def sum_gradient(state: Any, m: int, block: int, squares: Any) -> None:
    """Leave the sum of member m's gradient buffers in the first one, for a block of weights.

    The sum's squares are added up block by block, and in a block in LANES sums side by side: one
    sum alone would wait for itself at every element. So the bits of the norm depend on the number
    of blocks, which an agent never changes.

    Args:
        state: TrainState; block: number of the block; squares: float64 [blocks, LANES], the
            block's own are written.
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
    """Return lo, hi: one of so many parts has weights lo..hi-1, whole LANES."""
    lo, hi = split_range(state.params.shape[1] // LANES, part, parts)
    return lo * LANES, hi * LANES


def begin_step(state: Any, m: int, squares: Any) -> bool:
    """Count a step of member m if its gradient is finite; otherwise note that it failed.

    A member that failed keeps weights, moments and step count bit for bit.

    Args:
        state: TrainState; squares: of `sum_gradient`, when all of its tasks are done.

    Returns:
        Whether `move_weights` is to follow.
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
    """Apply member m's gradient to weights lo..hi-1, clipped to a norm of `max_grad_norm`.

    Args:
        state: TrainState; settings: StepSettings.
    """
    clip = min(1.0, settings.max_grad_norm[m] / (state.norm[m] + 1e-6))
    adam(state, m, lo, hi, clip, settings.learning_rate[m], settings.adam_eps[m])


def adam_step(state: Any, m: int, squares: Any, settings: Any) -> None:
    """Make a whole step of member m in this thread; squares: float64 [1, LANES], overwritten."""
    sum_gradient(state, m, 0, squares)
    if begin_step(state, m, squares):
        move_weights(state, m, 0, state.params.shape[1], settings)


def adam(
    state: Any, m: int, lo: int, hi: int, clip: float, learning_rate: float, epsilon: float
) -> None:
    """Move weights lo..hi-1 of member m by their gradient times `clip`.

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
        # The moments of a unit that has died would stay denormal numbers for ever, and a processor
        # takes a hundred times as long for those.
        mean[i] = _ZERO if abs(moved) < TINY else moved
        square[i] = _ZERO if spread < TINY_SQUARE else spread
        weight[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + eps)


def polyak_update(target: Any, weight: Any, rate: float) -> None:
    """target = target + rate (weight - target); a rate of 1 copies.

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
