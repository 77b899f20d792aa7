"""Observations and actions of any space as rows of numbers, and back.

Numbers are flattened in order, a choice of n is n places with a 1, the parts of a Dict or Tuple
follow each other. A uint8 Box of three axes, alone or as the only part of a Dict, is an image: it
stays uint8, channels first.

`describe` turns a space into plain JSON, `leaves_of` lists the arrays (leaves) in it with their
columns of a row, and `ObservationForm` and `ActionForm` convert values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.safe_io import misfit
from slipstream.kernels.spec import EnvSpec

Description = Mapping[str, Any]
NUMBERS = "biuf"  # kinds of dtype
ENDLESS = (
    "the space contains itself, or is nested without end. Wrap the environment so that it is a "
    "Dict or Tuple of finite depth."
)
KEY = "action_mask"  # part of an observation that is a mask, as PettingZoo and RLlib name it
_BATCHES = 2  # axes before an observation's own at most: members, then rows


class MisfitError(ValueError):
    """An observation or action that does not have the form of its space, in words."""


def describe(space: spaces.Space[Any]) -> dict[str, Any]:
    """JSON-able form of a space, which rows are made by.

    Raises:
        ConfigError: it has no fixed size.
    """
    if isinstance(space, spaces.Box):
        return {"kind": "box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "binary", "shape": list(space.shape), "dtype": space.dtype.name}
    if isinstance(space, spaces.Discrete):
        return {"kind": "choice", "sizes": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start = space.nvec.tolist(), np.asarray(space.start).tolist()
        return {"kind": "choice", "sizes": sizes, "start": start}
    if isinstance(space, spaces.Dict):
        parts = [[name, describe(part)] for name, part in space.spaces.items()]
        return {"kind": "dict", "parts": parts}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [[i, describe(p)] for i, p in enumerate(space.spaces)]}
    raise ConfigError(
        f"the space {space} has no fixed flat size; wrap the environment so that it is a Box, "
        "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these."
    )


_ARRAY = {"kind": str, "shape": [int], "dtype": str}
_KINDS: dict[Any, Any] = {
    **dict.fromkeys(("box", "binary"), _ARRAY),
    "choice": dict.fromkeys(("sizes", "start"), (int, list)) | {"kind": str},
    **{key: {"kind": str, "parts": [list]} for key in ("dict", "tuple")},
}
_DEEPEST = 32  # Dicts within Dicts


def check_description(description: Any, depth: int = 0) -> None:
    """Refuses what `describe` would not have made, before anything of its size is.

    Raises:
        MisfitError: says what is wrong.
    """
    kind = description.get("kind") if isinstance(description, Mapping) else None
    shape = _KINDS.get(kind if isinstance(kind, str) else None, {"box": {}})
    problem = misfit(description, shape, exact=True)
    if problem is not None or depth > _DEEPEST:
        raise MisfitError(f"a space that is no space: {problem or 'nested too deeply'}")
    if kind in ("dict", "tuple"):
        keys = [part[0] if len(part) == 2 else None for part in description["parts"]]
        named = all(type(key) in (str, int) for key in keys) and len(set(keys)) == len(keys)
        if not named or (kind == "tuple" and keys != list(range(len(keys)))):
            raise MisfitError(f"a {kind} of the parts {keys}")
        for _, part in description["parts"]:
            check_description(part, depth + 1)
    elif kind == "choice":
        sizes, start = (np.asarray(description[key]) for key in ("sizes", "start"))
        texts = (json.dumps(description[key]) for key in ("sizes", "start"))
        truth = any("true" in text or "false" in text for text in texts)  # which NumPy reads as 1
        kinds = {sizes.dtype, start.dtype}
        if truth or kinds != {np.dtype(np.int64)} or sizes.shape != start.shape:
            raise MisfitError("choices without a whole number of them, or a first one")
        if sizes.size == 0 or sizes.min() < 1:
            raise MisfitError("a choice of nothing")
    else:
        dtype = np.dtype(description["dtype"])
        if dtype.kind not in NUMBERS or dtype.name != description["dtype"]:
            raise MisfitError(f"the dtype {description['dtype']!r}")
        if min(description["shape"], default=0) < 0:
            raise MisfitError(f"the shape {description['shape']}")


@dataclass(frozen=True)
class Leaf:
    """One array within an observation.

    Attributes:
        path: keys of Dicts and places in Tuples that lead to it.
        shape: its own; dtype: what it is natively.
        sizes, start: int64 [n] of a choice, flattened; None for numbers.
        lo, hi: its columns in the row.
        chosen: each column is 0 or 1.
        count: its own numbers or choices.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: NDArray[np.int64] | None
    start: NDArray[np.int64] | None
    lo: int
    hi: int
    chosen: bool = False

    @cached_property
    def kinds(self) -> str:
        """Of dtype that it may come in; bytes are not rounded."""
        return NUMBERS if self.sizes is None and self.dtype != np.uint8 else "biu"

    @property
    def name(self) -> str:
        return "".join(f"[{key!r}]" for key in self.path)

    @property
    def count(self) -> int:
        return self.hi - self.lo if self.sizes is None else len(self.sizes)


def leaves_of(description: Description, path: tuple[Any, ...], lo: int) -> Iterator[Leaf]:
    kind = description["kind"]
    if kind in ("dict", "tuple"):
        for key, part in description["parts"]:
            for leaf in leaves_of(part, (*path, key), lo):
                yield leaf
                lo = leaf.hi
        return
    if kind == "choice":
        sizes = np.asarray(description["sizes"], np.int64)
        start = np.broadcast_to(np.asarray(description["start"], np.int64), sizes.shape)
        width = sum(int(size) for size in sizes.ravel().tolist())
        flat = (sizes.ravel(), start.ravel())
        yield Leaf(path, sizes.shape, np.dtype(np.int64), *flat, lo, lo + width, True)
        return
    shape = tuple(description["shape"])
    width = 1
    for n in shape:
        width *= int(n)
    dtype = np.dtype(description["dtype"])
    yield Leaf(path, shape, dtype, None, None, lo, lo + width, kind == "binary")


def store(leaf: Leaf, observation: Any, place: NDArray[Any]) -> None:
    """Writes a leaf as the environment shows it into its place, of the leaf's shape and dtype.

    Raises:
        MisfitError: it is not of the leaf's form, or the dtype cannot hold its numbers.
    """
    value = part_at(observation, leaf)
    array = checked_part(leaf, value)
    if array.shape != leaf.shape:
        raise MisfitError(f"{words_of(value)} instead of {words(leaf)}")
    with np.errstate(invalid="ignore", over="ignore"):
        place[...] = array
    # Rows are float32: only a narrower dtype would round what the environment returned.
    narrow = leaf.dtype not in (np.float32, np.float64, array.dtype)
    if narrow and not np.array_equal(place, array):
        raise MisfitError(f"{words_of(value)} with numbers that {leaf.dtype} cannot hold")


def part_at(observations: Any, leaf: Leaf) -> Any:
    for depth, key in enumerate(leaf.path):
        where = "".join(f"[{k!r}]" for k in leaf.path[: depth + 1])
        try:
            if depth == 0 and isinstance(key, int) and not isinstance(observations, tuple):
                raise TypeError  # a list is a batch
            observations = observations[key]
        except (KeyError, IndexError, TypeError):
            raise MisfitError(f"{words_of(observations)} without the part {where}") from None
    return observations


def as_array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError):
        raise MisfitError("rows of different lengths") from None


def checked_part(leaf: Leaf, value: Any) -> NDArray[Any]:
    """The array of a leaf with the batch axes it came with."""
    array = as_array(value)
    lead = array.ndim - len(leaf.shape)
    of = f" in {leaf.name}" if leaf.path else ""
    if (
        array.dtype.kind not in leaf.kinds
        or not 0 <= lead <= _BATCHES
        or array.shape[lead:] != leaf.shape
    ):
        raise MisfitError(f"{words_of(value)}{of} instead of {words(leaf)}")
    if leaf.sizes is not None:
        assert leaf.start is not None
        flat = array.reshape(*array.shape[:lead], leaf.count)
        bad = (flat < leaf.start) | (flat >= leaf.start + leaf.sizes)
        if bad.any():
            raise MisfitError(f"{flat[bad][0]}{of}, which is no {words(leaf)}")
    return array


def words(leaf: Leaf) -> str:
    """What a leaf must be."""
    if leaf.sizes is None:
        if leaf.shape == ():
            return f"one number ({leaf.dtype})"
        return f"{leaf.dtype} of shape {leaf.shape}"
    assert leaf.start is not None
    last = (leaf.start + leaf.sizes - 1).tolist()
    if leaf.shape == ():
        return f"integer from {leaf.start[0]} to {last[0]}"
    return f"integers of shape {leaf.shape} from {leaf.start.tolist()} to {last}"


def words_of(value: Any) -> str:
    """What came."""
    if value is None or isinstance(value, (str, bytes)):
        return repr(value)[:60]
    if isinstance(value, (Mapping, tuple, list)) and not _is_numbers(value):
        return f"a {type(value).__name__} of {len(value)}"
    array = np.asarray(value)
    if array.dtype.kind not in NUMBERS:
        return f"a {type(value).__name__}"
    return f"{array.dtype} of shape {array.shape}"


def _is_numbers(value: Any) -> bool:
    try:
        return not isinstance(value, Mapping) and np.asarray(value).dtype.kind in NUMBERS
    except (ValueError, TypeError):
        return False


def nested(description: Description, parts: Iterator[Any]) -> Any:
    """Leaves as the Dicts and Tuples that they came from."""
    kind = description["kind"]
    if kind == "dict":
        return {key: nested(part, parts) for key, part in description["parts"]}
    if kind == "tuple":
        return tuple(nested(part, parts) for _, part in description["parts"])
    return next(parts)


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


def observation_form(spec: EnvSpec) -> ObservationForm:
    """Of an environment."""
    space = spec.native_observation
    if space is None:
        return ObservationForm(describe(spec.observation), "same")
    return ObservationForm(describe(space), "image" if is_image(space) else "flat")


def action_form(spec: EnvSpec) -> ActionForm:
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
    """Return true if agents see an image."""
    return image_of(space) is not None


def is_large(space: spaces.Box) -> bool:
    """Return true if an image in a Dict or Tuple is more than a grid of a few cells."""
    return space.shape[0] * space.shape[1] >= _SMALLEST_IMAGE
