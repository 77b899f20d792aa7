"""All weights of a population in one block of memory, and their optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.nets.adam import LANES, Weights

_LINE = 16  # float32 numbers in a cache line: every tensor of every member begins on one


class Views(dict[str, Tensor]):
    """Tensors by name, views into the block [M, P] that is `flat`."""

    flat: Tensor


class Parameters:
    """Weights, gradients and Adam moments of M members, each as one float32 tensor [M, P].

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
        self.flat = torch.zeros((members, width))
        self.gradients = torch.zeros((members, parts, width))
        self.first = torch.zeros((members, width))
        self.second = torch.zeros((members, width))
        self.steps: NDArray[np.int64] = np.zeros(members, np.int64)
        self.failed: NDArray[np.bool_] = np.zeros(members, np.bool_)
        self._name_views()

    def _name_views(self) -> None:
        self.weights = self.split(self.flat)
        self.weight_gradients = tuple(self.split(part) for part in self.gradients.unbind(1))
        self.arrays = Weights(
            *(self.flat.numpy(), self.gradients.numpy(), self.first.numpy(), self.second.numpy()),
            *(self.steps, self.failed),
        )

    @property
    def members(self) -> int:
        """M."""
        return len(self.flat)

    def split(self, flat: Tensor) -> Views:
        """Named views [M, *shape] into a block [M, P]."""
        views = Views()
        views.flat = flat
        for name, shape in self.shapes.items():
            at = self.offsets[name]
            views[name] = flat[:, at : at + math.prod(shape)].view(len(flat), *shape)
        return views

    def rows(self, members: slice) -> Parameters:
        """The same memory, restricted to consecutive members."""
        view = object.__new__(Parameters)
        view.shapes, view.offsets = self.shapes, self.offsets
        view.flat, view.gradients = self.flat[members], self.gradients[members]
        view.first, view.second = self.first[members], self.second[members]
        view.steps, view.failed = self.steps[members], self.failed[members]
        view._name_views()
        return view

    def leaves(self) -> dict[str, Tensor]:
        """Leaf tensors for autograd that share the weights' memory."""
        return {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that training goes on from, member axis first."""
        return {
            "weights": self.flat.clone(),
            "first_moment": self.first.clone(),
            "second_moment": self.second.clone(),
            "steps": torch.from_numpy(self.steps.copy()),
            "failed": torch.from_numpy(self.failed.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from `state_dict()`."""
        self.flat.copy_(state["weights"])
        self.first.copy_(state["first_moment"])
        self.second.copy_(state["second_moment"])
        self.steps[:] = state["steps"].numpy()
        self.failed[:] = state["failed"].numpy()


def places(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """Where each tensor begins in a member's row, and P, the row's length."""
    offsets, width = {}, 0
    for name, shape in shapes.items():
        offsets[name] = width
        width += _rounded(math.prod(shape), _LINE)
    return offsets, _rounded(width, LANES)


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to
