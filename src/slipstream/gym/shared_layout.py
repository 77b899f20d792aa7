"""Layout of observations, actions and state of sub-environments in shared arrays.

`FlatCodec` and `agent_layout` serve agents, which act on flat rows. `NativeCodec` and
`gymnasium_layout` serve other libraries and keep every space as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from slipstream.gym.infos import MAX_INFO_BYTES
from slipstream.gym.process.shared_memory import Layout, Shapes
from slipstream.kernels.space_codec import (
    Leaf,
    SpaceMismatchError,
    describe_value,
    make_action_codec,
    make_observation_codec,
    store_leaf,
)
from slipstream.kernels.spec import EnvSpec


class SpaceLeaf(NamedTuple):
    """One array within an observation or action, in its own shape and dtype."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class FlatCodec:
    """Observations as agents' rows are made from them: leaves of numbers and choices.

    Args:
        spec: of the environment.

    Attributes:
        fixed: they have places of fixed size.
        only: the single array of numbers that an observation is; None for any other.
        leaves: its arrays as they lie in the block: images with channels first, as rows have them.
    """

    fixed = True

    def __init__(self, spec: EnvSpec) -> None:
        form = make_observation_codec(spec)
        self._leaves, self._actions = form.leaves, make_action_codec(spec)
        self._image = form.layout == "image"
        self._tuple = form.description["kind"] == "tuple"
        alone = len(form.leaves) == 1 and not form.leaves[0].path
        self.only = form.leaves[0] if alone and form.leaves[0].sizes is None else None
        self.leaves: Sequence[Leaf] = form.leaves
        if self._image:
            self.leaves = (replace(form.leaves[0], shape=spec.observation_shape),)

    def places(self, arrays: Mapping[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
        """Arrays [E, *leaf.shape] of "obs" or "final", axes as environments have them."""
        found = [arrays[f"{name}.{i}"] for i in range(len(self.leaves))]
        return [np.moveaxis(own, 1, -1) for own in found] if self._image else found

    def store(self, value: Any, places: Sequence[NDArray[Any]], row: int) -> None:
        """Writes one observation into row `row` of its leaves' arrays.

        Raises:
            SpaceMismatchError: it is not of the space's form.
        """
        if self._tuple and isinstance(value, (list, np.ndarray)):
            value = tuple(value)  # as Gymnasium takes it
        for leaf, place in zip(self._leaves, places, strict=True):
            # One number has a place of its own only as an array without axes.
            store_leaf(leaf, value, place[row] if leaf.shape else place[row : row + 1].reshape(()))

    def natives(self, rows: NDArray[Any]) -> list[Any]:
        """Actions of rows [n, K] as the environment takes them."""
        return self._actions.decode_list(rows)

    def plain(self, value: Any) -> bool:
        """Return true if its place in the arrays is all that is asked for."""
        return True


class NativeCodec:
    """A space and its batch of E, as Gymnasium batches them: laid out without being changed.

    Args:
        space: of one copy.
        fixed: whether its values are to have a place of fixed size.

    Attributes:
        leaves: its arrays; none where it has no fixed size, or none was asked for.
        fixed: whether there are any.
    """

    def __init__(self, space: spaces.Space[Any], fixed: bool = True) -> None:
        self.space = space
        leaves = _leaves(space, ()) if fixed else None
        self.fixed = leaves is not None
        self.leaves: Sequence[SpaceLeaf] = leaves or ()
        self.only = self.leaves[0] if len(self.leaves) == 1 and not self.leaves[0].path else None

    def places(self, arrays: Mapping[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
        """The leaves' arrays [E, *leaf.shape] of "obs" or "final"."""
        return [arrays[f"{name}.{i}"] for i in range(len(self.leaves))]

    def natives(self, rows: NDArray[Any]) -> list[Any]:
        """Actions [n, ...] that lie in one array, each the environment's own."""
        return list(rows.copy())

    def plain(self, value: Any) -> bool:
        """Return true if its place in the arrays holds all of it: no ints, lists, other dtypes."""
        return self.fixed and _plain(self.space, value)

    def store(self, value: Any, places: Sequence[NDArray[Any]], row: int) -> None:
        """Writes one value into row `row` of its leaves' arrays.

        Raises:
            SpaceMismatchError: it is not of the space's form.
        """
        only = self.only
        if only is not None:
            _write(only, value, places[0], row)
            return
        for leaf, place in zip(self.leaves, places, strict=True):
            part = value
            try:
                for key in leaf.path:
                    part = part[key]
            except (KeyError, IndexError, TypeError):
                raise SpaceMismatchError(
                    f"{describe_value(value)} without the part {leaf.path}"
                ) from None
            _write(leaf, part, place, row)

    def nested(self, parts: Sequence[Any]) -> Any:
        """Leaves as the Dicts and Tuples that they came from."""
        return _nested(self.space, iter(parts))

    def batched(self, values: Sequence[Any]) -> Any:
        """A fresh batch of single values."""
        out: Any = create_empty_array(self.space, n=len(values), fn=np.zeros)
        return concatenate(self.space, values, out)

    def split(self, batch: Any, num_envs: int) -> list[Any]:
        """A batch of actions as one for each copy, in the way of Gymnasium's vector environments.

        Raises:
            ValueError: too few or too many.
            TypeError: it cannot be divided.
        """
        each = list(iterate(batch_space(self.space, num_envs), batch))
        if len(each) != num_envs:
            raise ValueError(f"{num_envs} copies take {num_envs} actions; {len(each)} were given.")
        return each

    def as_array(self, batch: Any, num_envs: int) -> NDArray[Any] | None:
        """A batch that can be copied whole into the only leaf; None for any other."""
        only = self.only
        if (
            only is not None
            and type(batch) is np.ndarray
            and batch.dtype == only.dtype
            and batch.shape == (num_envs, *only.shape)
        ):
            return batch
        return None


class Shaped(Protocol):
    """A leaf of an observation, of whichever form."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


def agent_layout(
    spec: EnvSpec, leaves: Sequence[Shaped], num_envs: int, *, log: tuple[int, Any] = (0, np.int64)
) -> Layout:
    """All that E copies share with who trains on them.

    Args:
        spec: of the environment.
        leaves: arrays of an observation: ``obs.i`` of the newest, ``final.i`` of the last one of
            an episode that ended at this step.
        num_envs: E.
        log: actions of an episode that are kept, and their dtype.
    """
    e, k = num_envs, spec.action_dim
    arrays: dict[str, tuple[Sequence[int], Any]] = {"actions": ((e, k), spec.action_dtype)}
    arrays |= observation_arrays(leaves, e)
    arrays["reward"] = ((e,), np.float64)
    if spec.has_action_mask:
        arrays["mask"] = ((e, spec.num_actions), np.bool_)
    arrays |= state_arrays(e)
    arrays["astray"] = ((e,), np.bool_)
    arrays |= dict.fromkeys(("seed", "index", "episode"), ((e,), np.uint64))
    arrays |= {"ret": ((e,), np.float64), "length": ((e,), np.int64)}
    arrays |= {"ended_ret": ((e,), np.float64), "ended_length": ((e,), np.int64)}
    arrays["metrics"] = ((e, len(spec.metrics)), np.float64)
    arrays["log"] = ((e, log[0], k), log[1])
    arrays["info"] = ((e, MAX_INFO_BYTES), np.uint8)
    return Layout.of(arrays, lazy=("log", "info"))


def observation_arrays(leaves: Sequence[Shaped], num_envs: int) -> Shapes:
    """``obs.i`` and ``final.i`` [E, *leaf.shape] of every leaf."""
    return {
        f"{name}.{i}": ((num_envs, *leaf.shape), leaf.dtype)
        for i, leaf in enumerate(leaves)
        for name in ("obs", "final")
    }


def state_arrays(num_envs: int) -> Shapes:
    """Flags and counts of each copy: how its step ended, its state, and what is wanted of it."""
    flags = ("terminated", "truncated", "valid", "ended", "kept", "lost", "down", "held")
    arrays: dict[str, tuple[Sequence[int], Any]] = {}
    arrays |= dict.fromkeys((*flags, "selected"), ((num_envs,), np.bool_))
    arrays["told"] = ((num_envs,), np.uint8)  # where its info is: see `gym/infos.py`
    arrays["tries"] = ((num_envs,), np.int64)  # of its episode, that failed
    # Steps that were asked for one by one, and those of them that are done: `send`, `recv`.
    return arrays | dict.fromkeys(("wanted", "served"), ((num_envs,), np.uint64))


def gymnasium_layout(observations: NativeCodec, actions: NativeCodec, num_envs: int) -> Layout:
    """All that E copies write and read that are stepped as Gymnasium does."""
    e = num_envs
    arrays: dict[str, tuple[Sequence[int], Any]] = {}
    if actions.only is not None:
        arrays["actions"] = ((e, *actions.only.shape), actions.only.dtype)
    arrays |= observation_arrays(observations.leaves, e)
    arrays |= {"reward": ((e,), np.float64), "seed": ((e,), np.int64)}
    arrays |= {"restarts": ((e,), np.uint64), **state_arrays(e)}
    # Of the newest info, and of the last one of an episode that ended at this step.
    arrays["told_last"] = ((e,), np.uint8)
    infos = ("info", "last_info")
    arrays |= dict.fromkeys(infos, ((e, MAX_INFO_BYTES), np.uint8))
    return Layout.of(arrays, lazy=infos)


def _leaves(space: spaces.Space[Any], path: tuple[Any, ...]) -> list[SpaceLeaf] | None:
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        dtype = space.dtype
        if dtype is None:
            return None
        return [SpaceLeaf(path, tuple(space.shape or ()), np.dtype(dtype))]
    parts: list[tuple[Any, spaces.Space[Any]]] = []
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        return None
    found: list[SpaceLeaf] = []
    for key, part in parts:
        own = _leaves(part, (*path, key))
        if own is None:
            return None
        found += own
    return found


def _nested(space: spaces.Space[Any], parts: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, parts) for part in space.spaces)
    return next(parts)


def _plain(space: spaces.Space[Any], value: Any) -> bool:
    if isinstance(space, spaces.Dict):
        parts = space.spaces
        return (
            type(value) is dict
            and value.keys() == parts.keys()
            and all(_plain(part, value[key]) for key, part in parts.items())
        )
    if isinstance(space, spaces.Tuple):
        return (
            type(value) is tuple
            and len(value) == len(space.spaces)
            and all(map(_plain, space.spaces, value))
        )
    dtype = np.dtype(space.dtype)
    return type(value) is (np.ndarray if space.shape else dtype.type) and value.dtype == dtype


def _write(leaf: SpaceLeaf, value: Any, place: NDArray[Any], row: int) -> None:
    if type(value) is np.ndarray and value.shape == leaf.shape and value.dtype == leaf.dtype:
        place[row] = value
        return
    try:
        array = np.asarray(value)
        if array.shape == leaf.shape and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            place[row] = array
            return
    except (ValueError, TypeError):
        pass
    raise SpaceMismatchError(
        f"{describe_value(value)} instead of {leaf.dtype} of shape {leaf.shape}"
    )
