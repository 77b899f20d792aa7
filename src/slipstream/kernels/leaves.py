"""The arrays within an observation or action: where they lie in a row, and what fits them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.reader import misfit

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


def fill(leaf: Leaf, observation: Any, row: NDArray[Any]) -> bool:
    """Writes a leaf's columns the short way; False where something does not fit."""
    array = as_array(part_at(observation, leaf))
    if array.shape != leaf.shape:
        return False
    if leaf.sizes is None:
        if array.dtype.kind not in leaf.kinds:
            return False
        numbers = row[leaf.lo : leaf.hi]
        numbers[...] = array.reshape(-1)
        # One product is a tenth of the time of looking at each number; only it may overflow.
        return math.isfinite(numbers.dot(numbers)) or bool(np.isfinite(numbers).all())
    if array.ndim or array.dtype.kind not in leaf.kinds:
        return False
    assert leaf.start is not None
    place = leaf.lo + int(array) - int(leaf.start[0])
    if not leaf.lo <= place < leaf.hi:
        return False
    row[leaf.lo : leaf.hi] = 0.0
    row[place] = 1.0
    return True


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
