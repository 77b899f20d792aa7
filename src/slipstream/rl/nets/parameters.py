"""Weights of a population in one block of memory, and their optimiser: a group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.memory import zeros
from slipstream.rl.nets.adam import LANES, TrainState

_LINE = 16  # float32 numbers in a cache line: every tensor of every member begins on one


class Views(dict[str, NDArray[np.float32]]):
    """Tensors by name, views into the block [M, P] that is `flat`."""

    flat: NDArray[np.float32]


class Parameters:
    """Weights, gradients and Adam moments of M members, each as one float32 array [M, P].

    This is one group: its step counts, norms and failures are its own. An agent has a group for
    each optimiser (PPO one, its policy's; actor, critics and temperature would be three), and keeps
    the `state_dict` of each under a name of its own.

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
        self.offsets, width = places(shapes)
        self.flat: NDArray[np.float32] = zeros((members, width))
        self.gradients: NDArray[np.float32] = zeros((members, parts, width))
        self.first: NDArray[np.float32] = zeros((members, width))
        self.second: NDArray[np.float32] = zeros((members, width))
        self.steps: NDArray[np.int64] = np.zeros(members, np.int64)
        self.failed: NDArray[np.bool_] = np.zeros(members, np.bool_)
        self.weights = self.split(self.flat)
        self.arrays = TrainState(
            self.flat, self.gradients, self.first, self.second, self.steps, self.failed
        )

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
        return {
            "weights": self.flat.copy(),
            "first_moment": self.first.copy(),
            "second_moment": self.second.copy(),
            "steps": self.steps.copy(),
            "failed": self.failed.copy(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        self.flat[:] = state["weights"]
        self.first[:] = state["first_moment"]
        self.second[:] = state["second_moment"]
        self.steps[:] = state["steps"]
        self.failed[:] = state["failed"]


def places(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """Where each tensor begins in a member's row, and P, the row's length."""
    offsets, width = {}, 0
    for name, shape in shapes.items():
        offsets[name] = width
        width += _rounded(math.prod(shape), _LINE)
    return offsets, _rounded(width, LANES)


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to
