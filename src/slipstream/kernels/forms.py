"""The one rule by which observations and actions of any space become rows, and back.

Numbers are flattened in order, a choice of n is n places with a 1, the parts of a Dict or Tuple
follow each other. A uint8 Box of three axes, alone or as the only part of a Dict, is an image: it
stays uint8, channels first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.kernels.leaves import (
    NUMBERS,
    Description,
    Leaf,
    MisfitError,
    as_array,
    checked_part,
    describe,
    fill,
    leaves_of,
    nested,
    part_at,
    words,
    words_of,
)
from slipstream.kernels.spec import Spec

_SMALLEST_IMAGE = 64  # pixels: the flat form of smaller grids is usual


class ObservationForm:
    """Native observations as rows.

    Args:
        description: what `describe` made of the space.
        layout: of a row: "flat" float32 [D], "image" (uint8 [channels, height, width]), or "same"
            as the observation, which is how kernels write theirs.

    Attributes:
        leaves: the arrays within an observation, in the order of a row.
        width: numbers of a row; a Python int, for spaces may be larger than any memory.
    """

    def __init__(self, description: Description, layout: str = "flat") -> None:
        self.description, self.layout = description, layout
        self.leaves = tuple(leaves_of(description, (), 0))
        self.width = self.leaves[-1].hi if self.leaves else 0
        alone = len(self.leaves) == 1 and not self.leaves[0].path
        self._only = self.leaves[0] if alone else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        if self.layout == "flat":
            return (self.width,)
        own = self.leaves[0].shape
        return (own[2], own[0], own[1]) if self.layout == "image" else own

    @property
    def words(self) -> str:
        """What one observation must be."""
        if self._only is not None:
            return words(self._only)
        return "; ".join(f"{leaf.name}: {words(leaf)}" for leaf in self.leaves)

    def scale(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Fixed mean and deviation of columns that say what was chosen, NaN for numbers, each [D].

        Mean 0, so that what was not chosen stays 0, and the deviation of a column when all n
        choices are as likely: sqrt(n - 1) / n. With many choices a plain 1 would hardly move a
        network, and a running deviation would be tiny for a choice that is seldom seen, whose 1
        would then outweigh all others, by another factor after every rollout. None where there
        are only numbers.
        """
        if self.layout != "flat" or not any(leaf.chosen for leaf in self.leaves):
            return None, None
        mean, std = np.full((2, self.width), np.nan, np.float32)
        for leaf in self.leaves:
            if leaf.chosen:
                mean[leaf.lo : leaf.hi] = 0.0
                n = np.full(leaf.count, 2.0) if leaf.sizes is None else leaf.sizes.astype(float)
                deviation = np.where(n > 1, np.sqrt(n - 1) / n, 1.0)
                std[leaf.lo : leaf.hi] = np.repeat(
                    deviation, 1 if leaf.sizes is None else leaf.sizes
                )
        return mean, std

    def write(self, observation: Any, row: NDArray[Any]) -> None:
        """Writes one observation into its row.

        Raises:
            MisfitError: it is not of the space's form, or holds NaN or infinity.
        """
        if self.description["kind"] == "tuple" and isinstance(observation, (list, np.ndarray)):
            observation = tuple(observation)  # as Gymnasium takes it
        if self.layout == "flat" and all(fill(leaf, observation, row) for leaf in self.leaves):
            return
        rows, lead = self.rows(observation)  # says what does not fit
        if lead:
            raise MisfitError(f"{words_of(observation)} instead of {self.words}")
        if not np.isfinite(rows).all():
            raise MisfitError("that holds NaN or infinity")
        row[...] = rows

    def rows(self, observations: Any) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Rows [*lead, *shape] of one observation (lead is ()) or of a batch (lead is (n,)).

        The axes before an observation's own are the same in all parts of a Dict or Tuple; a list of
        such observations is a batch, too.

        Raises:
            MisfitError: they are not of the space's form.
        """
        if self._only is None and isinstance(observations, list) and observations:
            each = [self.rows(observation) for observation in observations]
            if any(lead for _, lead in each):
                raise MisfitError("a list of batches")
            return np.stack([row for row, _ in each]), (len(each),)
        parts = [checked_part(leaf, part_at(observations, leaf)) for leaf in self.leaves]
        leads = {part.shape[: part.ndim - len(leaf.shape)] for part, leaf in self._paired(parts)}
        if len(leads) != 1:
            raise MisfitError(f"parts of different batch sizes {sorted(leads)}")
        (lead,) = leads
        return self.join(parts, lead), lead

    def join(self, parts: Sequence[NDArray[Any]], lead: tuple[int, ...]) -> NDArray[Any]:
        """Rows [*lead, *shape] of the leaves' arrays [*lead, *leaf.shape], which fit."""
        if self.layout != "flat":
            return np.moveaxis(parts[0], -1, len(lead)) if self.layout == "image" else parts[0]
        out = np.zeros((*lead, self.width), np.float32)
        for part, leaf in self._paired(parts):
            here = part.reshape(*lead, leaf.count)
            if leaf.sizes is None:
                out[..., leaf.lo : leaf.hi] = here
                continue
            assert leaf.start is not None
            firsts = leaf.lo + np.cumsum(leaf.sizes) - leaf.sizes
            places = here.astype(np.int64) - leaf.start + firsts
            np.put_along_axis(out, places, 1.0, axis=-1)
        return out

    def native(self, rows: NDArray[Any]) -> Any:
        """What the environment would have shown, with the batch axes of `rows` [*lead, *shape]."""
        if self.layout == "image":
            return nested(self.description, iter([np.moveaxis(rows, -3, -1)]))
        if self.layout == "same":
            return rows
        lead = rows.shape[:-1]
        parts: list[Any] = []
        for leaf in self.leaves:
            own = rows[..., leaf.lo : leaf.hi]
            if leaf.sizes is not None:
                assert leaf.start is not None
                pieces = np.split(own, np.cumsum(leaf.sizes)[:-1], axis=-1)
                chosen = np.stack([piece.argmax(axis=-1) for piece in pieces], axis=-1)
                own = chosen + leaf.start
            parts.append(own.astype(leaf.dtype).reshape((*lead, *leaf.shape)))
        return nested(self.description, iter(parts))

    def _paired(self, parts: Sequence[NDArray[Any]]) -> Iterator[tuple[NDArray[Any], Leaf]]:
        return zip(parts, self.leaves, strict=True)


class ActionForm:
    """Action rows as the environment takes them: numbers K of a row, and back.

    Args:
        description: what `describe` made of the environment's own space.
        start: int64 [K], the number of a row's first choice; None for a Box.
    """

    def __init__(self, description: Description, start: NDArray[np.int64] | None) -> None:
        self.description = description
        (self.leaf,) = leaves_of(description, (), 0)
        self._binary = description["kind"] == "binary"
        self.start = start
        own = self.leaf.start if self.leaf.start is not None else np.zeros(1, np.int64)
        self._offset = None if start is None else own - start
        # What is added to a row's one number to make the action; None for any other action.
        alone = self.leaf.shape == () and self._offset is not None
        self._single = int(self._offset[0]) if alone and self._offset is not None else None

    def native(self, rows: NDArray[Any]) -> Any:
        """Actions [*lead, *shape] for rows [*lead, K]; a plain int for one choice."""
        lead, leaf = rows.shape[:-1], self.leaf
        if not lead and self._single is not None:
            return int(rows[0]) + self._single
        own = rows if self._offset is None else rows + self._offset
        own = own.reshape((*lead, *leaf.shape))
        return own.astype(leaf.dtype)

    def natives(self, rows: NDArray[Any]) -> list[Any]:
        """The actions of rows [n, K], each as Gymnasium hands it over: one choice as np.int64."""
        single = self._single
        if single is None:
            return [self.native(row) for row in rows]
        return list((rows + single if single else rows).flat)

    def places(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Where rows of choices [..., K] lie in a mask of all components' choices."""
        sizes = self.leaf.sizes
        assert sizes is not None and self.start is not None
        return np.asarray(rows - self.start + np.cumsum(sizes) - sizes, np.int64)

    def rows(self, actions: Any, lead: tuple[int, ...], width: int) -> NDArray[Any]:
        """Rows [*lead, K] of a batch of actions [*lead, *shape], or of rows.

        Raises:
            MisfitError: a wrong shape or dtype, or a choice that does not exist.
        """
        leaf = self.leaf
        array = as_array(actions)
        numbers = leaf.sizes is None and not self._binary
        if array.dtype.kind not in (NUMBERS if numbers else "biu"):
            raise MisfitError(f"{words_of(actions)} instead of {words(leaf)}")
        if array.shape not in ((*lead, *leaf.shape), (*lead, width)):
            axes = ", ".join(["one for each copy", "one for each player"][: len(lead)])
            raise MisfitError(
                f"shape {array.shape} instead of {(*lead, *leaf.shape)}: the batch axis comes "
                f"first ({axes}), then an action, {words(leaf)}"
            )
        rows = array.reshape(*lead, width)
        if numbers:
            if not np.isfinite(rows).all():
                raise MisfitError("NaN or infinity")
            return np.ascontiguousarray(rows, np.float32)
        sizes = np.full(width, 2) if leaf.sizes is None else leaf.sizes
        first = np.zeros(1, np.int64) if leaf.start is None else leaf.start
        bad = (rows < first) | (rows >= first + sizes)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise MisfitError(f"{rows[place]} at {place}, which is no {words(leaf)}")
        assert self._offset is not None
        return np.ascontiguousarray(rows - self._offset, np.int64)


def observation_form(spec: Spec) -> ObservationForm:
    """Of an environment."""
    space = spec.native_observation
    if space is None:
        return ObservationForm(describe(spec.observation), "same")
    return ObservationForm(describe(space), "image" if is_image(space) else "flat")


def action_form(spec: Spec) -> ActionForm:
    """Of an environment."""
    start = None
    if not isinstance(spec.action, spaces.Box):
        start = np.asarray(getattr(spec.action, "start", 0), np.int64).ravel()
    own = spec.action if spec.native_action is None else spec.native_action
    return ActionForm(describe(own), start)


def image_of(space: spaces.Space[Any]) -> spaces.Box | None:
    """Return the uint8 Box [height, width, channels] that a space, or a Dict's only part, is."""
    if isinstance(space, spaces.Dict) and len(space.spaces) == 1:
        (part,) = space.spaces.values()
        image = image_of(part) if isinstance(part, spaces.Box) else None
        return image if image is not None and is_large(image) else None
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        return space
    return None


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether agents see an image."""
    return image_of(space) is not None


def is_large(space: spaces.Box) -> bool:
    """Whether an image in a Dict or Tuple is more than a grid of a few cells."""
    return space.shape[0] * space.shape[1] >= _SMALLEST_IMAGE
