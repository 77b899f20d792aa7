"""Codec between values of any space and rows of numbers.

Numbers are flattened in order, a discrete value of n is one-hot encoded in n columns, and the parts
of a Dict or Tuple are concatenated. A uint8 Box of three axes, alone or as the only part of a Dict,
is an image: it stays uint8, channels first.

`describe_space` returns a space as plain JSON, `iter_leaves` yields its arrays (leaves) with their
columns in a row, and `ObservationCodec` and `ActionCodec` convert values.
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
from slipstream.core.safe_io import schema_mismatch
from slipstream.kernels.spec import EnvSpec

Description = Mapping[str, Any]
NUMBERS = "biuf"  # kinds of dtype
RECURSIVE_SPACE = (
    "the space contains itself, or is nested without end. Wrap the environment so that it is a "
    "Dict or Tuple of finite depth."
)
ACTION_MASK_KEY = (
    "action_mask"  # part of an observation that is a mask, as PettingZoo and RLlib name it
)
_BATCHES = 2  # maximum number of batch axes: members, then rows


class SpaceMismatchError(ValueError):
    """An observation or action does not match its space."""


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a JSON-compatible description of a space.

    Raises:
        ConfigError: the space has no fixed size.
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
        parts = [[name, describe_space(part)] for name, part in space.spaces.items()]
        return {"kind": "dict", "parts": parts}
    if isinstance(space, spaces.Tuple):
        return {
            "kind": "tuple",
            "parts": [[i, describe_space(p)] for i, p in enumerate(space.spaces)],
        }
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
    """Validate a description before anything of its size is allocated.

    Raises:
        SpaceMismatchError: it is not a result of `describe_space`.
    """
    kind = description.get("kind") if isinstance(description, Mapping) else None
    shape = _KINDS.get(kind if isinstance(kind, str) else None, {"box": {}})
    problem = schema_mismatch(description, shape, exact=True)
    if problem is not None or depth > _DEEPEST:
        raise SpaceMismatchError(f"a space that is no space: {problem or 'nested too deeply'}")
    if kind in ("dict", "tuple"):
        keys = [part[0] if len(part) == 2 else None for part in description["parts"]]
        named = all(type(key) in (str, int) for key in keys) and len(set(keys)) == len(keys)
        if not named or (kind == "tuple" and keys != list(range(len(keys)))):
            raise SpaceMismatchError(f"a {kind} of the parts {keys}")
        for _, part in description["parts"]:
            check_description(part, depth + 1)
    elif kind == "choice":
        sizes, start = (np.asarray(description[key]) for key in ("sizes", "start"))
        texts = (json.dumps(description[key]) for key in ("sizes", "start"))
        truth = any("true" in text or "false" in text for text in texts)  # which NumPy reads as 1
        kinds = {sizes.dtype, start.dtype}
        if truth or kinds != {np.dtype(np.int64)} or sizes.shape != start.shape:
            raise SpaceMismatchError("choices without a whole number of them, or a first one")
        if sizes.size == 0 or sizes.min() < 1:
            raise SpaceMismatchError("a choice of nothing")
    else:
        dtype = np.dtype(description["dtype"])
        if dtype.kind not in NUMBERS or dtype.name != description["dtype"]:
            raise SpaceMismatchError(f"the dtype {description['dtype']!r}")
        if min(description["shape"], default=0) < 0:
            raise SpaceMismatchError(f"the shape {description['shape']}")


@dataclass(frozen=True)
class Leaf:
    """One array within an observation.

    Attributes:
        path: keys of Dicts and indices of Tuples that lead to it.
        shape, dtype: in the environment's own space.
        sizes, start: int64 [n] of a discrete space, flattened; None for numbers.
        lo, hi: its columns in the row.
        is_categorical: every column is 0 or 1.
        count: number of values.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: NDArray[np.int64] | None
    start: NDArray[np.int64] | None
    lo: int
    hi: int
    is_categorical: bool = False

    @cached_property
    def dtype_kinds(self) -> str:
        """Accepted dtype kinds; values of uint8 are not rounded."""
        return NUMBERS if self.sizes is None and self.dtype != np.uint8 else "biu"

    @property
    def name(self) -> str:
        return "".join(f"[{key!r}]" for key in self.path)

    @property
    def count(self) -> int:
        return self.hi - self.lo if self.sizes is None else len(self.sizes)


def iter_leaves(description: Description, path: tuple[Any, ...], lo: int) -> Iterator[Leaf]:
    kind = description["kind"]
    if kind in ("dict", "tuple"):
        for key, part in description["parts"]:
            for leaf in iter_leaves(part, (*path, key), lo):
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


def store_leaf(leaf: Leaf, observation: Any, place: NDArray[Any]) -> None:
    """Write a leaf of an observation into `place`, which has the leaf's shape and dtype.

    Raises:
        SpaceMismatchError: it does not match the leaf, or the dtype cannot hold its numbers.
    """
    value = get_part(observation, leaf)
    array = validate_part(leaf, value)
    if array.shape != leaf.shape:
        raise SpaceMismatchError(f"{describe_value(value)} instead of {describe_leaf(leaf)}")
    with np.errstate(invalid="ignore", over="ignore"):
        place[...] = array
    # Rows are float32: only a narrower dtype would round the environment's values.
    narrow = leaf.dtype not in (np.float32, np.float64, array.dtype)
    if narrow and not np.array_equal(place, array):
        raise SpaceMismatchError(
            f"{describe_value(value)} with numbers that {leaf.dtype} cannot hold"
        )


def get_part(observations: Any, leaf: Leaf) -> Any:
    for depth, key in enumerate(leaf.path):
        where = "".join(f"[{k!r}]" for k in leaf.path[: depth + 1])
        try:
            if depth == 0 and isinstance(key, int) and not isinstance(observations, tuple):
                raise TypeError  # a list is a batch
            observations = observations[key]
        except (KeyError, IndexError, TypeError):
            raise SpaceMismatchError(
                f"{describe_value(observations)} without the part {where}"
            ) from None
    return observations


def as_array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError):
        raise SpaceMismatchError("rows of different lengths") from None


def validate_part(leaf: Leaf, value: Any) -> NDArray[Any]:
    """Return the array of a leaf with its batch axes."""
    array = as_array(value)
    lead = array.ndim - len(leaf.shape)
    of = f" in {leaf.name}" if leaf.path else ""
    if (
        array.dtype.kind not in leaf.dtype_kinds
        or not 0 <= lead <= _BATCHES
        or array.shape[lead:] != leaf.shape
    ):
        raise SpaceMismatchError(f"{describe_value(value)}{of} instead of {describe_leaf(leaf)}")
    if leaf.sizes is not None:
        assert leaf.start is not None
        flat = array.reshape(*array.shape[:lead], leaf.count)
        bad = (flat < leaf.start) | (flat >= leaf.start + leaf.sizes)
        if bad.any():
            raise SpaceMismatchError(f"{flat[bad][0]}{of}, which is no {describe_leaf(leaf)}")
    return array


def describe_leaf(leaf: Leaf) -> str:
    """Describe what a leaf must be, for messages."""
    if leaf.sizes is None:
        if leaf.shape == ():
            return f"one number ({leaf.dtype})"
        return f"{leaf.dtype} of shape {leaf.shape}"
    assert leaf.start is not None
    last = (leaf.start + leaf.sizes - 1).tolist()
    if leaf.shape == ():
        return f"integer from {leaf.start[0]} to {last[0]}"
    return f"integers of shape {leaf.shape} from {leaf.start.tolist()} to {last}"


def describe_value(value: Any) -> str:
    """Describe a value that was received, for messages."""
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


def nest_leaves(description: Description, parts: Iterator[Any]) -> Any:
    """Return leaves as the nested dicts and tuples of their space."""
    kind = description["kind"]
    if kind == "dict":
        return {key: nest_leaves(part, parts) for key, part in description["parts"]}
    if kind == "tuple":
        return tuple(nest_leaves(part, parts) for _, part in description["parts"])
    return next(parts)


_SMALLEST_IMAGE = 64  # pixels: the flat form of smaller grids is usual


class ObservationCodec:
    """Codec between observations and rows.

    Args:
        description: result of `describe_space`.
        layout: of a row: "flat" float32 [D], "image" (uint8 [channels, height, width]), or "same"
            as the observation, which is the format of kernels.

    Attributes:
        leaves: the arrays within an observation, in the order of a row.
        width: numbers in a row; a Python int, because spaces may exceed any memory.
    """

    def __init__(self, description: Description, layout: str = "flat") -> None:
        self.description, self.layout = description, layout
        self.leaves = tuple(iter_leaves(description, (), 0))
        self.width = self.leaves[-1].hi if self.leaves else 0
        alone = len(self.leaves) == 1 and not self.leaves[0].path
        self._only = self.leaves[0] if alone else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        if self.layout == "flat":
            return (self.width,)
        leaf_shape = self.leaves[0].shape
        return (
            (leaf_shape[2], leaf_shape[0], leaf_shape[1]) if self.layout == "image" else leaf_shape
        )

    @property
    def requirement(self) -> str:
        """Description of a valid observation, for messages."""
        if self._only is not None:
            return describe_leaf(self._only)
        return "; ".join(f"{leaf.name}: {describe_leaf(leaf)}" for leaf in self.leaves)

    def scale(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Return fixed mean and deviation of one-hot columns, NaN for numbers, each [D].

        The mean is 0, so that inactive columns stay 0. The deviation is that of a column if all n
        values are equally likely: sqrt(n - 1) / n. With large n, no scaling would hardly affect a
        network, and a running deviation would be tiny for rare values, whose 1 would then dominate
        with a factor that changes after every rollout. Returns None if there are only numbers.
        """
        if self.layout != "flat" or not any(leaf.is_categorical for leaf in self.leaves):
            return None, None
        mean, std = np.full((2, self.width), np.nan, np.float32)
        for leaf in self.leaves:
            if leaf.is_categorical:
                mean[leaf.lo : leaf.hi] = 0.0
                n = np.full(leaf.count, 2.0) if leaf.sizes is None else leaf.sizes.astype(float)
                deviation = np.where(n > 1, np.sqrt(n - 1) / n, 1.0)
                std[leaf.lo : leaf.hi] = np.repeat(
                    deviation, 1 if leaf.sizes is None else leaf.sizes
                )
        return mean, std

    def encode(self, observations: Any) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Return rows [*lead, *shape] of one observation (lead is ()) or of a batch (lead is (n,)).

        All parts of a Dict or Tuple have the same batch axes. A list of such observations is a
        batch.

        Raises:
            SpaceMismatchError: they do not match the space.
        """
        if self._only is None and isinstance(observations, list) and observations:
            rows = [self.encode(observation) for observation in observations]
            if any(lead for _, lead in rows):
                raise SpaceMismatchError("a list of batches")
            return np.stack([row for row, _ in rows]), (len(rows),)
        parts = [validate_part(leaf, get_part(observations, leaf)) for leaf in self.leaves]
        leads = {part.shape[: part.ndim - len(leaf.shape)] for part, leaf in self._paired(parts)}
        if len(leads) != 1:
            raise SpaceMismatchError(f"parts of different batch sizes {sorted(leads)}")
        (lead,) = leads
        return self.concat_leaves(parts, lead), lead

    def concat_leaves(self, parts: Sequence[NDArray[Any]], lead: tuple[int, ...]) -> NDArray[Any]:
        """Return rows [*lead, *shape] from valid arrays of the leaves [*lead, *leaf.shape]."""
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

    def decode(self, rows: NDArray[Any]) -> Any:
        """Return observations in the environment's space for `rows` [*lead, *shape]."""
        if self.layout == "image":
            return nest_leaves(self.description, iter([np.moveaxis(rows, -3, -1)]))
        if self.layout == "same":
            return rows
        lead = rows.shape[:-1]
        parts: list[Any] = []
        for leaf in self.leaves:
            columns = rows[..., leaf.lo : leaf.hi]
            if leaf.sizes is not None:
                assert leaf.start is not None
                pieces = np.split(columns, np.cumsum(leaf.sizes)[:-1], axis=-1)
                chosen = np.stack([piece.argmax(axis=-1) for piece in pieces], axis=-1)
                columns = chosen + leaf.start
            parts.append(columns.astype(leaf.dtype).reshape((*lead, *leaf.shape)))
        return nest_leaves(self.description, iter(parts))

    def _paired(self, parts: Sequence[NDArray[Any]]) -> Iterator[tuple[NDArray[Any], Leaf]]:
        return zip(parts, self.leaves, strict=True)


class ActionCodec:
    """Codec between action rows of K numbers and the environment's actions.

    Args:
        description: result of `describe_space` for the environment's own space.
        start: int64 [K], the first value of each discrete component; None for a Box.
    """

    def __init__(self, description: Description, start: NDArray[np.int64] | None) -> None:
        self.description = description
        (self.leaf,) = iter_leaves(description, (), 0)
        self._binary = description["kind"] == "binary"
        self.start = start
        starts = self.leaf.start if self.leaf.start is not None else np.zeros(1, np.int64)
        self._offset = None if start is None else starts - start
        # Offset from a row's only number to the action; None for other spaces.
        alone = self.leaf.shape == () and self._offset is not None
        self._single = int(self._offset[0]) if alone and self._offset is not None else None

    def decode(self, rows: NDArray[Any]) -> Any:
        """Return actions [*lead, *shape] for rows [*lead, K]; a plain int for a Discrete action."""
        lead, leaf = rows.shape[:-1], self.leaf
        if not lead and self._single is not None:
            return int(rows[0]) + self._single
        columns = rows if self._offset is None else rows + self._offset
        columns = columns.reshape((*lead, *leaf.shape))
        return columns.astype(leaf.dtype)

    def decode_list(self, rows: NDArray[Any]) -> list[Any]:
        """Return the actions of rows [n, K] as Gymnasium passes them: np.int64 for Discrete."""
        single = self._single
        if single is None:
            return [self.decode(row) for row in rows]
        return list((rows + single if single else rows).flat)

    def mask_columns(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the mask columns of rows of discrete actions [..., K]."""
        sizes = self.leaf.sizes
        assert sizes is not None and self.start is not None
        return np.asarray(rows - self.start + np.cumsum(sizes) - sizes, np.int64)

    def encode(self, actions: Any, lead: tuple[int, ...], width: int) -> NDArray[Any]:
        """Return rows [*lead, K] of a batch of actions [*lead, *shape], or of rows.

        Raises:
            SpaceMismatchError: wrong shape or dtype, or an action out of range.
        """
        leaf = self.leaf
        array = as_array(actions)
        numbers = leaf.sizes is None and not self._binary
        if array.dtype.kind not in (NUMBERS if numbers else "biu"):
            raise SpaceMismatchError(f"{describe_value(actions)} instead of {describe_leaf(leaf)}")
        if array.shape not in ((*lead, *leaf.shape), (*lead, width)):
            axes = ", ".join(["one per environment", "one per player"][: len(lead)])
            raise SpaceMismatchError(
                f"shape {array.shape} instead of {(*lead, *leaf.shape)}: the batch axis comes "
                f"first ({axes}), then an action, {describe_leaf(leaf)}"
            )
        rows = array.reshape(*lead, width)
        if numbers:
            if not np.isfinite(rows).all():
                raise SpaceMismatchError("NaN or infinity")
            return np.ascontiguousarray(rows, np.float32)
        sizes = np.full(width, 2) if leaf.sizes is None else leaf.sizes
        first = np.zeros(1, np.int64) if leaf.start is None else leaf.start
        bad = (rows < first) | (rows >= first + sizes)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise SpaceMismatchError(f"{rows[place]} at {place}, which is no {describe_leaf(leaf)}")
        assert self._offset is not None
        return np.ascontiguousarray(rows - self._offset, np.int64)


def make_observation_codec(spec: EnvSpec) -> ObservationCodec:
    """Return the observation codec of an environment."""
    space = spec.native_observation_space
    if space is None:
        return ObservationCodec(describe_space(spec.observation_space), "same")
    return ObservationCodec(describe_space(space), "image" if is_image(space) else "flat")


def make_action_codec(spec: EnvSpec) -> ActionCodec:
    """Return the action codec of an environment."""
    start = None
    if not isinstance(spec.action_space, spaces.Box):
        start = np.asarray(getattr(spec.action_space, "start", 0), np.int64).ravel()
    space = spec.action_space if spec.native_action_space is None else spec.native_action_space
    return ActionCodec(describe_space(space), start)


def as_image_space(space: spaces.Space[Any]) -> spaces.Box | None:
    """Return the image Box [height, width, channels] of a space or a Dict's only part, or None."""
    if isinstance(space, spaces.Dict) and len(space.spaces) == 1:
        (part,) = space.spaces.values()
        image = as_image_space(part) if isinstance(part, spaces.Box) else None
        return image if image is not None and is_large(image) else None
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        return space
    return None


def is_image(space: spaces.Space[Any]) -> bool:
    """Return true if agents receive image observations."""
    return as_image_space(space) is not None


def is_large(space: spaces.Box) -> bool:
    """Return true if an image in a Dict or Tuple is larger than a grid of a few cells."""
    return space.shape[0] * space.shape[1] >= _SMALLEST_IMAGE
