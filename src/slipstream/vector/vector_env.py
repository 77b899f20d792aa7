"""E copies of one environment stepped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec


class StepOut(NamedTuple):
    """Where `VectorEnv.step` writes: usually one row of a rollout.

    Attributes:
        obs: float32 or uint8 [E, *shape], the observation to act on next (after a reset: the new
            episode's first).
        reward: float32 [E].
        terminated: bool [E], the future is worth nothing.
        truncated: bool [E], the future is worth the value of the final observation.
        valid: bool [E], false where the transition is not real (only Gymnasium's NEXT_STEP mode
            has such).
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
    """

    obs: NDArray[Any]
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index


class Episodes(NamedTuple):
    """Episodes that ended since they were last drained, in the order (t, e).

    Attributes:
        t, e: int64 [n], the step's row and the environment.
        ret: float64 [n], undiscounted and unscaled sum of rewards; [n, P] for P > 1 players.
        length: int64 [n], steps.
        metrics: float64 [n] by name of `Spec.metrics`.
    """

    t: NDArray[np.int64]
    e: NDArray[np.int64]
    ret: NDArray[np.float64]
    length: NDArray[np.int64]
    metrics: dict[str, NDArray[np.float64]]


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
    return Episodes(t[order], e[order], ret[order], length[order], metrics)


class VectorEnv(ABC):
    """E copies of one environment; auto-reset happens within the step that ends an episode.

    The arrays handed to `reset` and `step` belong to the caller and are written once. All rows are
    C-contiguous: actions int64 or float32 [E, K], observations [E, *shape].
    """

    num_envs: int
    spec: Spec
    backend: str
    mask_width: int = 0  # choices that the action mask covers, 0 where all are always allowed

    @abstractmethod
    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        """Begins a new episode everywhere and writes its first observation into obs [E, *shape]."""

    @abstractmethod
    def step(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        """Steps every copy; `t` is recorded with what ends here."""

    @abstractmethod
    def drain_finals(self) -> Finals:
        """Final observations since the last call; the arrays belong to the caller."""

    @abstractmethod
    def drain_episodes(self) -> Episodes:
        """Episodes ended since the last call."""

    @abstractmethod
    def get_state(self) -> dict[str, NDArray[Any]]:
        """Everything needed to go on later, as plain arrays; empty where copies cannot be saved."""

    @abstractmethod
    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Goes on from `get_state()`; writes the current observation into obs."""

    @abstractmethod
    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Starts evaluation episode j on a copy: random stream (seed, j, 0), Params record j % P.

        Args:
            copies: int64 [n], which copies.
            episodes: int64 [n], the number j of the episode that each begins.
            seed: evaluation seed.
            obs, mask: [E, ...]; the rows of `copies` are written.
        """

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Copies of STATE fields, [E, ...] by name; what has no STATE has none to read."""
        return {}

    def close(self) -> None:  # noqa: B027  (most environments hold nothing)
        """Releases what the copies hold."""


def member_indices(
    seeds: Sequence[int], num_envs: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Seed, and index within the member, of E = M x N copies, member after member: uint64 [E]."""
    members = np.asarray([seed % 2**64 for seed in seeds], dtype=np.uint64)
    return np.repeat(members, num_envs), np.tile(np.arange(num_envs, dtype=np.uint64), len(members))
