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
    """One array of an observation or action space, with its shape and dtype."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class FlatCodec:
    """Convert observations to the leaves of flat rows, and rows of actions to native actions.

    Args:
        spec: Specification of the environment.

    Attributes:
        fixed_size: True: observations have fixed sizes.
        single_leaf: The leaf, if an observation is one array of numbers; otherwise None.
        leaves: Arrays of an observation as stored in shared memory. Images have channels first,
            as in rows.
    """

    fixed_size = True

    def __init__(self, spec: EnvSpec) -> None:
        codec = make_observation_codec(spec)
        self._leaves, self._actions = codec.leaves, make_action_codec(spec)
        self._image = codec.layout == "image"
        self._tuple = codec.description["kind"] == "tuple"
        is_single = len(codec.leaves) == 1 and not codec.leaves[0].path
        self.single_leaf = codec.leaves[0] if is_single and codec.leaves[0].sizes is None else None
        self.leaves: Sequence[Leaf] = codec.leaves
        if self._image:
            self.leaves = (replace(codec.leaves[0], shape=spec.observation_shape),)

    def views(self, arrays: Mapping[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
        """Return the arrays of "obs" or "final", [E, *leaf.shape], with native axis order."""
        views = [arrays[f"{name}.{i}"] for i in range(len(self.leaves))]
        return [np.moveaxis(view, 1, -1) for view in views] if self._image else views

    def store(self, value: Any, views: Sequence[NDArray[Any]], row: int) -> None:
        """Write one observation into row `row` of the leaves' arrays.

        Raises:
            SpaceMismatchError: The observation does not match the space.
        """
        if self._tuple and isinstance(value, (list, np.ndarray)):
            value = tuple(value)  # Gymnasium accepts both
        for leaf, place in zip(self._leaves, views, strict=True):
            # A scalar needs a destination without axes, as a view.
            store_leaf(leaf, value, place[row] if leaf.shape else place[row : row + 1].reshape(()))

    def native_actions(self, rows: NDArray[Any]) -> list[Any]:
        """Return actions of rows [n, K] in the format of the environment."""
        return self._actions.decode_list(rows)

    def is_exact(self, value: Any) -> bool:
        """Return true if the arrays preserve the value as far as agents need it."""
        return True


class NativeCodec:
    """Store values of a space unchanged and batch them as Gymnasium does.

    Args:
        space: Space of one sub-environment.
        fixed_size: Store values in arrays of fixed size if the space allows it.

    Attributes:
        leaves: Arrays of the space. Empty if it has no fixed size or `fixed_size` is false.
        fixed_size: True if there are leaves.
        single_leaf: The leaf, if the space is a single array; otherwise None.
    """

    def __init__(self, space: spaces.Space[Any], fixed_size: bool = True) -> None:
        self.space = space
        leaves = _leaves(space, ()) if fixed_size else None
        self.fixed_size = leaves is not None
        self.leaves: Sequence[SpaceLeaf] = leaves or ()
        self.single_leaf = (
            self.leaves[0] if len(self.leaves) == 1 and not self.leaves[0].path else None
        )

    def views(self, arrays: Mapping[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
        """Return the leaves' arrays [E, *leaf.shape] of "obs" or "final"."""
        return [arrays[f"{name}.{i}"] for i in range(len(self.leaves))]

    def native_actions(self, rows: NDArray[Any]) -> list[Any]:
        """Return the actions of one array [n, ...] as independent arrays."""
        return list(rows.copy())

    def is_exact(self, value: Any) -> bool:
        """Return true if the arrays preserve the value exactly, including types and dtypes."""
        return self.fixed_size and _plain(self.space, value)

    def store(self, value: Any, views: Sequence[NDArray[Any]], row: int) -> None:
        """Write one value into row `row` of the leaves' arrays.

        Raises:
            SpaceMismatchError: The value does not match the space.
        """
        single_leaf = self.single_leaf
        if single_leaf is not None:
            _write(single_leaf, value, views[0], row)
            return
        for leaf, view in zip(self.leaves, views, strict=True):
            part = value
            try:
                for key in leaf.path:
                    part = part[key]
            except (KeyError, IndexError, TypeError):
                raise SpaceMismatchError(
                    f"{describe_value(value)} without the part {leaf.path}"
                ) from None
            _write(leaf, part, view, row)

    def unflatten(self, parts: Sequence[Any]) -> Any:
        """Build the Dicts and Tuples of the space from its leaves."""
        return _nested(self.space, iter(parts))

    def stack(self, values: Sequence[Any]) -> Any:
        """Stack single values into a new batch."""
        out: Any = create_empty_array(self.space, n=len(values), fn=np.zeros)
        return concatenate(self.space, values, out)

    def split_actions(self, batch: Any, num_envs: int) -> list[Any]:
        """Split a batch of actions into one action per sub-environment, as Gymnasium does.

        Raises:
            ValueError: The number of actions differs from `num_envs`.
            TypeError: The batch cannot be iterated.
        """
        split = list(iterate(batch_space(self.space, num_envs), batch))
        if len(split) != num_envs:
            raise ValueError(f"{num_envs} environments need {num_envs} actions, got {len(split)}.")
        return split

    def as_batch_array(self, batch: Any, num_envs: int) -> NDArray[Any] | None:
        """Return the batch if it can be copied to the single leaf in one operation, else None."""
        single_leaf = self.single_leaf
        if (
            single_leaf is not None
            and type(batch) is np.ndarray
            and batch.dtype == single_leaf.dtype
            and batch.shape == (num_envs, *single_leaf.shape)
        ):
            return batch
        return None


class HasShape(Protocol):
    """A leaf of an observation."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


def agent_layout(
    spec: EnvSpec,
    leaves: Sequence[HasShape],
    num_envs: int,
    *,
    log: tuple[int, Any] = (0, np.int64),
) -> Layout:
    """Return the layout of the arrays that E sub-environments share with a trainer.

    Args:
        spec: Specification of the environment.
        leaves: Leaves of an observation. ``obs.i`` is the newest one, ``final.i`` the last one of
            an episode that ended at this step.
        num_envs: Number of sub-environments, E.
        log: Number of actions stored per episode, and their dtype.
    """
    e, k = num_envs, spec.action_dim
    arrays: dict[str, tuple[Sequence[int], Any]] = {"actions": ((e, k), spec.action_dtype)}
    arrays |= observation_arrays(leaves, e)
    arrays["reward"] = ((e,), np.float64)
    if spec.has_action_mask:
        arrays["mask"] = ((e, spec.num_actions), np.bool_)
    arrays |= state_arrays(e)
    arrays["diverged"] = ((e,), np.bool_)
    arrays |= dict.fromkeys(("seed", "index", "episode"), ((e,), np.uint64))
    arrays |= {"ret": ((e,), np.float64), "length": ((e,), np.int64)}
    arrays |= {"ended_ret": ((e,), np.float64), "ended_length": ((e,), np.int64)}
    arrays["metrics"] = ((e, len(spec.metrics)), np.float64)
    arrays["log"] = ((e, log[0], k), log[1])
    arrays["info"] = ((e, MAX_INFO_BYTES), np.uint8)
    return Layout.of(arrays, lazy=("log", "info"))


def observation_arrays(leaves: Sequence[HasShape], num_envs: int) -> Shapes:
    """Return the shapes of ``obs.i`` and ``final.i``, [E, *leaf.shape] for every leaf."""
    return {
        f"{name}.{i}": ((num_envs, *leaf.shape), leaf.dtype)
        for i, leaf in enumerate(leaves)
        for name in ("obs", "final")
    }


def state_arrays(num_envs: int) -> Shapes:
    """Return the shapes of the flags and counters of each sub-environment.

    They describe the outcome of its step, its state and the requests to it.
    """
    flags = ("terminated", "truncated", "valid", "ended", "has_final", "lost", "down", "held")
    arrays: dict[str, tuple[Sequence[int], Any]] = {}
    arrays |= dict.fromkeys((*flags, "selected"), ((num_envs,), np.bool_))
    arrays["info_code"] = ((num_envs,), np.uint8)  # where the info is stored, see `gym/infos.py`
    arrays["failed_attempts"] = ((num_envs,), np.int64)  # of the current episode
    # Number of single steps requested by `send`, and completed for `recv`.
    return arrays | dict.fromkeys(("requested", "completed"), ((num_envs,), np.uint64))


def gymnasium_layout(observations: NativeCodec, actions: NativeCodec, num_envs: int) -> Layout:
    """Return the layout of the arrays of E sub-environments with Gymnasium's semantics."""
    e = num_envs
    arrays: dict[str, tuple[Sequence[int], Any]] = {}
    if actions.single_leaf is not None:
        arrays["actions"] = ((e, *actions.single_leaf.shape), actions.single_leaf.dtype)
    arrays |= observation_arrays(observations.leaves, e)
    arrays |= {"reward": ((e,), np.float64), "seed": ((e,), np.int64)}
    arrays |= {"restarts": ((e,), np.uint64), **state_arrays(e)}
    # Codes of the newest info and of the final info of an episode that ended at this step.
    arrays["last_info_code"] = ((e,), np.uint8)
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
    leaves: list[SpaceLeaf] = []
    for key, part in parts:
        part_leaves = _leaves(part, (*path, key))
        if part_leaves is None:
            return None
        leaves += part_leaves
    return leaves


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


def _write(leaf: SpaceLeaf, value: Any, view: NDArray[Any], row: int) -> None:
    if type(value) is np.ndarray and value.shape == leaf.shape and value.dtype == leaf.dtype:
        view[row] = value
        return
    try:
        array = np.asarray(value)
        if array.shape == leaf.shape and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            view[row] = array
            return
    except (ValueError, TypeError):
        pass
    raise SpaceMismatchError(
        f"{describe_value(value)} instead of {leaf.dtype} of shape {leaf.shape}"
    )
