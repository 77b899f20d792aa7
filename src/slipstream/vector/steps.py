"""What a step of E copies gives, and where it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError
from slipstream.core.spec import Spec


class StepOut(NamedTuple):
    """Where `VectorEnv.step` writes: usually one row of a rollout.

    Attributes:
        obs: float32 or uint8 [E, *shape], the observation to act on next (after a reset: the new
            episode's first).
        reward: float32 [E].
        terminated: bool [E], the future is worth nothing.
        truncated: bool [E], the future is worth the value of the final observation.
        valid: bool [E], written at every step; false where the transition is not real: the copy or
            its worker process failed, and the next observation belongs to another episode.
        mask: bool [E, n], the choices allowed next, where the environment has a mask (`mask_width`
            n > 0); None keeps it from being written.

    Where P > 1 players act, observations, rewards and masks are rows ``[E, P, ...]``.
    """

    obs: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    mask: NDArray[np.bool_] | None = None


class Finals(NamedTuple):
    """Observations before the reset, of rows that were truncated (or of all that ended).

    Attributes:
        obs: [n, *shape].
        index: int64 [n, 2], (t, e) of the step that ended the episode.
        records: STATE records [n] that they show, where a kernel's copies keep them.
    """

    obs: NDArray[Any]
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index
    records: NDArray[Any] | None = None


def finals_of(spec: Spec, kept: Sequence[tuple[NDArray[Any], int, int]]) -> Finals:
    """Of final observations [*shape] that were noted one by one, each with its t and e."""
    obs = np.zeros((len(kept), *spec.observation_shape), spec.observation_dtype)
    for i, (last, *_) in enumerate(kept):
        obs[i] = last
    return Finals(obs, np.array([place for _, *place in kept], np.int64).reshape(-1, 2))


def join_finals(slices: Sequence[Finals]) -> Finals:
    """One list of what several slices kept; the copies in `index` are numbered over all of them."""
    if len(slices) == 1:
        return slices[0]
    obs, index = (np.concatenate([one[column] for one in slices]) for column in range(2))
    records = [one.records for one in slices if one.records is not None]
    return Finals(obs, index, np.concatenate(records) if records else None)


class Episodes(NamedTuple):
    """Episodes that ended since they were last drained, in the order (t, e).

    Attributes:
        t, e: int64 [n], the step's row and the environment.
        ret: float64 [n], undiscounted and unscaled sum of rewards; [n, P] for P > 1 players.
        length: int64 [n], steps.
        metrics: float64 [n] by name of `Spec.metrics`.
        lost: bool [n], cut short by a fault of the environment or its process: no result; None
            where there are none such.
    """

    t: NDArray[np.int64]
    e: NDArray[np.int64]
    ret: NDArray[np.float64]
    length: NDArray[np.int64]
    metrics: dict[str, NDArray[np.float64]]
    lost: NDArray[np.bool_] | None = None


def episodes_of(spec: Spec, ended: Sequence[tuple[float, ...]]) -> Episodes:
    """Of episodes that were noted one by one: t, e, return, length, and the spec's metrics."""
    rows = np.array(ended, np.float64).reshape(-1, 4 + len(spec.metrics))
    t, e, length = rows[:, [0, 1, 3]].T.astype(np.int64)
    named = {metric.name: rows[:, 4 + k].copy() for k, metric in enumerate(spec.metrics)}
    return Episodes(t, e, rows[:, 2].copy(), length, named)


def join_episodes(slices: Sequence[Episodes]) -> Episodes:
    """One list in the order (t, e) of what ended in several slices; e counts over all of them."""
    if len(slices) == 1:
        return slices[0]
    t, e, ret, length = (np.concatenate([one[column] for one in slices]) for column in range(4))
    order = np.lexsort((e, t))
    metrics = {
        name: np.concatenate([one.metrics[name] for one in slices])[order]
        for name in slices[0].metrics
    }
    lost = None
    if any(one.lost is not None for one in slices):
        each = [np.zeros(len(one.t), np.bool_) if one.lost is None else one.lost for one in slices]
        lost = np.concatenate(each)[order]
    return Episodes(t[order], e[order], ret[order], length[order], metrics, lost)


class Stepped(NamedTuple):
    """What `VectorEnv.step(actions)` returns; the arrays are the caller's.

    Attributes:
        obs: [E, ...], the observation to act on next (after a reset: the new episode's first), as
            the environment itself shows it: an array, or a dict or tuple of arrays.
        reward: float32 [E].
        terminated: bool [E], the future is worth nothing.
        truncated: bool [E], the future is worth the value of the final observation.

    Where P > 1 players act, observations and rewards are ``[E, P, ...]``.
    """

    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class Received(NamedTuple):
    """What `VectorEnv.recv` returns: outcomes of the copies that were ready first, in that order.

    Attributes:
        copies: int64 [n], which.
        obs, reward, terminated, truncated: of each, as of `Stepped`.
        valid: bool [n], false where a fault ended the episode.
    """

    copies: NDArray[np.int64]
    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]


def refuse_misfits(
    arrays: Sequence[NDArray[Any] | None],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype[Any]],
) -> None:
    """Names the first of actions, obs, reward, terminated, truncated that does not fit; None does.

    Raises:
        ValueError: one has another shape or dtype, or lies apart.
    """
    names = ("actions", "obs", "reward", "terminated", "truncated")
    for name, array, shape, dtype in zip(names, arrays, shapes, dtypes, strict=False):
        if array is None:
            continue
        if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"`{name}` must be a C-contiguous {dtype} array of shape {shape}; it is "
                f"{array.dtype} of shape {array.shape} with strides {array.strides}."
            )


def refuse_missing(state: Mapping[str, NDArray[Any]], names: Iterable[str]) -> None:
    """Names what a saved state lacks, for a kernel may have got fields since; nothing is fine.

    Raises:
        CheckpointError: it lacks some.
    """
    missing = [f"`{name}`" for name in names if name not in state]
    if missing:
        raise CheckpointError(
            f"The saved state of the copies lacks {', '.join(missing)}: it was written when the "
            "kernel had other fields, and there is nothing to go on from. Begin anew into another "
            "directory (--out); `slipstream evaluate` still reads the run."
        )
