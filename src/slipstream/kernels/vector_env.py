"""E copies of one environment, stepped together: the interface of every kind, what a step gives.

A kind of copies is one class. `KernelVectorEnv` steps a kernel's records by one
compiled loop, and hands that loop out to whoever fuses it with a policy. `ForeignEnv`
(`gym/foreign_env.py`) has Gymnasium environments stepped in this process or in workers.
`WrappedVectorEnv` (`gym/vector_environment.py`) is around another library's vector environment. All
write what a step gives into arrays that they are handed (`StepOut`), usually the rollout's own row,
and keep what ended until it is drained (`Episodes`, `Finals`). Other libraries see the same through
`slipstream.adapters`; foreign environments as Gymnasium itself steps them are
`gym/gymnasium_semantics.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.text import Summarised
from slipstream.kernels.space_codec import (
    ActionForm,
    MisfitError,
    ObservationForm,
    action_form,
    observation_form,
)
from slipstream.kernels.spec import EnvSpec


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


def finals_of(spec: EnvSpec, kept: Sequence[tuple[NDArray[Any], int, int]]) -> Finals:
    """Finals made of observations [*shape] that were noted one by one, each with its t and e."""
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
        metrics: float64 [n] by name of `EnvSpec.metrics`.
        lost: bool [n], cut short by a fault of the environment or its process: no result; None
            where there are none such.
    """

    t: NDArray[np.int64]
    e: NDArray[np.int64]
    ret: NDArray[np.float64]
    length: NDArray[np.int64]
    metrics: dict[str, NDArray[np.float64]]
    lost: NDArray[np.bool_] | None = None


def episodes_of(spec: EnvSpec, ended: Sequence[tuple[float, ...]]) -> Episodes:
    """Episodes, of rows noted one by one: t, e, return, length, and the spec's metrics."""
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


class VectorEnv(Summarised, ABC):
    """E copies of one environment; auto-reset happens within the step that ends an episode.

    ::

        obs = env.reset(seed=3)
        obs, reward, terminated, truncated = env.step(policy.act(obs, mask=env.mask))

    Given arrays, `reset` and `step` write into them instead: they belong to the caller and are
    written once. Their rows are C-contiguous: actions int64 or float32 [E, K], observations
    [E, *shape]; nothing is checked but shapes, and what ends is kept until it is drained.

    Attributes:
        mask: bool [E, n], the choices allowed now; None where all always are. Kept up to date by
            the calls that return values.
        valid: bool [E], which rows of the last `step(actions)` are real: false where a copy or its
            process failed; such a row pays 0, and shows zeros or where the copy stands now.
        ended, finals: episodes that the last `step(actions)` ended, and final observations of those
            that it truncated.
        fresh: copies that `set_state` could not bring back; they began new episodes.
    """

    num_envs: int
    spec: EnvSpec
    backend: str
    mask_width: int = 0  # choices that the action mask covers, 0 where all are always allowed
    mask: NDArray[np.bool_] | None = None
    valid: NDArray[np.bool_] | None = None
    ended: Episodes | None = None
    finals: Finals | None = None
    fresh: int = 0

    def summary(self) -> dict[str, object]:
        """How many copies of what are stepped, and how."""
        players = f"{self.spec.players} players" if self.spec.players > 1 else None
        return {
            "copies": self.num_envs,
            "backend": self.backend,
            "observations": self.spec.observation,
            "actions": self.spec.action,
            "game": players,
        }

    @cached_property
    def observations(self) -> ObservationForm:
        """Between what the environment shows and its rows."""
        return observation_form(self.spec)

    @cached_property
    def actions(self) -> ActionForm:
        """Between the environment's own actions and their rows."""
        return action_form(self.spec)

    @overload
    def reset(self, *, seed: int | None = None) -> Any: ...

    @overload
    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None: ...

    def reset(
        self,
        obs: NDArray[Any] | None = None,
        mask: NDArray[np.bool_] | None = None,
        *,
        seed: int | None = None,
    ) -> Any:
        """Begins a new episode everywhere.

        Args:
            obs, mask: written where given: [E, *shape] and [E, n] rows.
            seed: copy e begins its stream (seed, e) anew; otherwise each begins its next episode.

        Returns:
            The first observations [E, ...] as the environment shows them; None where `obs` is
            given.
        """
        if obs is not None:
            self.reset_rows(obs, mask)
            return None
        rows = blank(self)
        if seed is None:
            self.reset_rows(rows.obs, rows.mask)
        else:
            every = np.arange(self.num_envs)
            self.begin(every, every, whole(seed), rows.obs, rows.mask)
        self._take(rows.mask)
        self.valid = np.ones(self.num_envs, np.bool_)
        return self.observations.native(rows.obs)

    @overload
    def step(self, actions: Any) -> Stepped: ...

    @overload
    def step(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None: ...

    def step(self, actions: Any, out: StepOut | None = None, t: int = 0) -> Stepped | None:
        """Steps every copy; one that ends begins its next episode at once.

        Args:
            actions: one for each copy, the batch axis first, as `Policy.act` returns them; rows
                [E, K] where `out` is given.
            out: where the results are written.
            t: recorded with what ends here.

        Returns:
            The results in fresh arrays; None where `out` is given.

        Raises:
            ConfigError: actions of another shape, that do not exist, or that `mask` forbids.
        """
        if out is not None:
            self.step_rows(actions, out, t)
            return None
        if self.ended is None:
            raise ConfigError("Call `reset()` before the first `step(actions)`.")
        lead: tuple[int, ...] = (self.num_envs,)
        if self.spec.players > 1:
            lead = (self.num_envs, self.spec.players)
        try:
            rows = self.actions.rows(actions, lead, self.spec.action_width)
        except MisfitError as error:
            raise ConfigError(f"`step` of {self.num_envs} copies was given {error}.") from None
        self._check_allowed(rows)
        made = blank(self)
        self.step_rows(rows, made, t)
        self._take(made.mask)
        self.valid = made.valid
        obs = self.observations.native(made.obs)
        return Stepped(obs, made.reward, made.terminated, made.truncated)

    def _check_allowed(self, rows: NDArray[Any], copies: Any = slice(None)) -> None:
        """Refuses a choice that the mask forbids: what rules do with it is undefined."""
        if self.mask is None:
            return
        allowed = np.take_along_axis(self.mask[copies], self.actions.places(rows), axis=-1)
        if not allowed.all():
            copy = int(np.arange(self.num_envs)[copies][np.argwhere(~allowed)[0][0]])
            raise ConfigError(
                f"There are choices among the actions that are not allowed now, the first in copy "
                f"{copy}: choose among those that `env.mask` allows, as policy.act(obs, "
                "mask=env.mask) does."
            )

    def _take(self, mask: NDArray[np.bool_] | None) -> None:
        self.mask = mask
        self.ended, self.finals = self.drain_episodes(), self.drain_finals()

    @abstractmethod
    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        """Begins a new episode everywhere and writes its first observation into obs [E, *shape]."""

    @abstractmethod
    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        """Steps every copy with rows [E, K]; `t` is recorded with what ends here."""

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

    def restart(
        self,
        copies: NDArray[np.int64],
        seeds: NDArray[np.uint64] | None,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Begins new episodes of some copies, int64 [n]; the others stay as they are.

        `seeds`, uint64 [n]: copy i begins the first episode of the stream (seeds[i], 0); None: the
        next one of its own. The rows of `copies` are written.
        """
        raise NotImplementedError

    def hold(self, held: NDArray[np.bool_]) -> None:
        """Which copies the next steps pass by, bool [E]: they pay 0 and show nothing new."""
        raise NotImplementedError

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Copies of STATE fields, [E, ...] by name; what has no STATE has none to read."""
        return {}

    def send(self, actions: Any, copies: Any = None) -> None:
        """Asks for a step of some copies, each at its own pace; `recv` brings what comes of it.

        Args:
            actions: one for each of these copies.
            copies: [n] which; all unless given.

        Raises:
            ConfigError: only worker processes can do so, or a copy's step is under way.
        """
        raise ConfigError(_TOGETHER.format(self.backend))

    def recv(self, count: int | None = None, timeout: float | None = None) -> Received:
        """The outcomes of the first copies that are ready, whose order depends on timing.

        For learning from transitions in any order, and for evaluation. What ended is in `ended`.

        Args:
            count: how many; all that are under way unless given.
            timeout: seconds, after which TimeoutError is raised and nothing is lost.
        """
        raise ConfigError(_TOGETHER.format(self.backend))

    def infos(self) -> dict[str, Any]:
        """What foreign copies said besides at their last call, in Gymnasium's form.

        Numbers are arrays [E], zero where absent, each with a mask ``_key``; other things arrays of
        objects. ``{}`` where nobody said anything; kernels never do. On request only: a step
        carries none of it between processes.
        """
        return {}

    def resize(self, num_envs: int) -> Any:
        """More copies, or fewer: those of the highest rows are closed, the others go on.

        New ones are of the first copy's member, with the next indices.

        Returns:
            The newest observations of all [E, ...], those of new copies their first.
        """
        raise ConfigError(
            f"Copies on backend `{self.backend}` cannot be resized while they run; make others."
        )

    def drain_faults(self) -> list[Any]:
        """What failed in copies or their processes since the last call, to be printed."""
        return []

    def close(self) -> None:
        """Releases what the copies hold."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def blank(env: VectorEnv) -> StepOut:
    """Rows for a step of `env`."""
    shape = (env.num_envs,) if env.spec.players == 1 else (env.num_envs, env.spec.players)
    obs = np.zeros((*shape, *env.spec.observation_shape), env.spec.observation_dtype)
    mask = np.ones((*shape, env.mask_width), np.bool_) if env.mask_width else None
    terminated, truncated, valid = np.zeros((3, env.num_envs), np.bool_)
    return StepOut(obs, np.zeros(shape, np.float32), terminated, truncated, valid, mask)


def member_indices(
    seeds: Sequence[int], num_envs: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Seed, and index within the member, of E = M x N copies, member after member: uint64 [E]."""
    members = np.asarray([seed % 2**64 for seed in seeds], dtype=np.uint64)
    return np.repeat(members, num_envs), np.tile(np.arange(num_envs, dtype=np.uint64), len(members))


def whole(value: Any) -> int:
    """A seed that somebody gave, modulo 2**64.

    Raises:
        ConfigError: it is no whole number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ConfigError(f"`seed` must be a whole number (got {value!r}).")
    return int(value) % 2**64


_TOGETHER = (
    "Copies on backend `{}` are stepped together: use `step`, or make foreign environments with "
    '`backend="process"`, whose copies can be asked for one by one (docs/workers.md).'
)
