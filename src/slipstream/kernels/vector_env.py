"""Interface of a batch of E sub-environments that are stepped together.

Each kind of batch is one class. `KernelVectorEnv` steps a kernel's states by one compiled loop,
which can also be fused with a policy. `ForeignEnv` (`gym/foreign_env.py`) steps Gymnasium
environments in this process or in workers. `WrappedVectorEnv` (`gym/vector_environment.py`) wraps
another library's vector environment. All of them write results into arrays of the caller
(`StepBuffers`), usually the rollout's own row, and store ended episodes until they are drained
(`Episodes`, `FinalObs`). `slipstream.adapters` exposes them to other libraries;
`gym/gymnasium_semantics.py` steps foreign environments exactly as Gymnasium does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.text import SummaryRepr
from slipstream.kernels.space_codec import (
    ActionCodec,
    ObservationCodec,
    SpaceMismatchError,
    make_action_codec,
    make_observation_codec,
)
from slipstream.kernels.spec import EnvSpec


class StepBuffers(NamedTuple):
    """Output arrays of `VectorEnv.step`: usually one row of a rollout.

    Attributes:
        obs: float32 or uint8 [E, *shape], the observation to act on next (after a reset: the new
            episode's first).
        reward: float32 [E].
        terminated: bool [E], the future is worth nothing.
        truncated: bool [E], the future is worth the value of the final observation.
        valid: bool [E], written at every step; false if the transition is not real because the
            environment or its worker process failed. The next observation is then of another
            episode.
        mask: bool [E, n], the discrete actions allowed next, if the environment has a mask
            (`mask_size` n > 0). None: masks are not written.

    With P > 1 players, observations, rewards and masks are rows ``[E, P, ...]``.
    """

    obs: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    mask: NDArray[np.bool_] | None = None


class FinalObs(NamedTuple):
    """Observations before the reset, of truncated episodes (or of all ended ones).

    Attributes:
        obs: [n, *shape].
        index: int64 [n, 2], (t, e) of the step that ended the episode.
        states: STATE records [n] of these observations, if a kernel's environments store them.
    """

    obs: NDArray[Any]
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index
    states: NDArray[Any] | None = None


def collect_final_obs(spec: EnvSpec, kept: Sequence[tuple[NDArray[Any], int, int]]) -> FinalObs:
    """Build FinalObs from observations [*shape] stored one by one, each with its t and e."""
    obs = np.zeros((len(kept), *spec.observation_shape), spec.observation_dtype)
    for i, (last, *_) in enumerate(kept):
        obs[i] = last
    return FinalObs(obs, np.array([place for _, *place in kept], np.int64).reshape(-1, 2))


def concat_final_obs(slices: Sequence[FinalObs]) -> FinalObs:
    """Concatenate the final observations of several slices; `index` counts over all of them."""
    if len(slices) == 1:
        return slices[0]
    obs, index = (np.concatenate([part[column] for part in slices]) for column in range(2))
    records = [part.states for part in slices if part.states is not None]
    return FinalObs(obs, index, np.concatenate(records) if records else None)


class Episodes(NamedTuple):
    """Episodes that ended since the last drain, in the order (t, e).

    Attributes:
        t, e: int64 [n], the step's row and the environment.
        returns: float64 [n], undiscounted and unscaled sums of rewards; [n, P] for P > 1 players.
        length: int64 [n], steps.
        metrics: float64 [n] by name of `EnvSpec.metrics`.
        lost: bool [n], true if a fault of the environment or its process ended the episode, which
            then has no result. None if there are no such episodes.
    """

    t: NDArray[np.int64]
    e: NDArray[np.int64]
    returns: NDArray[np.float64]
    length: NDArray[np.int64]
    metrics: dict[str, NDArray[np.float64]]
    lost: NDArray[np.bool_] | None = None


def collect_episodes(spec: EnvSpec, ended: Sequence[tuple[float, ...]]) -> Episodes:
    """Build Episodes from rows stored one by one: t, e, return, length, and the spec's metrics."""
    rows = np.array(ended, np.float64).reshape(-1, 4 + len(spec.metrics))
    t, e, length = rows[:, [0, 1, 3]].T.astype(np.int64)
    named = {metric.name: rows[:, 4 + k].copy() for k, metric in enumerate(spec.metrics)}
    return Episodes(t, e, rows[:, 2].copy(), length, named)


def concat_episodes(slices: Sequence[Episodes]) -> Episodes:
    """Concatenate the episodes of several slices in the order (t, e); e counts over all of them."""
    if len(slices) == 1:
        return slices[0]
    t, e, ret, length = (np.concatenate([part[column] for part in slices]) for column in range(4))
    order = np.lexsort((e, t))
    metrics = {
        name: np.concatenate([part.metrics[name] for part in slices])[order]
        for name in slices[0].metrics
    }
    lost = None
    if any(part.lost is not None for part in slices):
        lost_parts = [
            np.zeros(len(part.t), np.bool_) if part.lost is None else part.lost for part in slices
        ]
        lost = np.concatenate(lost_parts)[order]
    return Episodes(t[order], e[order], ret[order], length[order], metrics, lost)


class StepResult(NamedTuple):
    """Result of `VectorEnv.step(actions)`; the arrays belong to the caller.

    Attributes:
        obs: [E, ...], the observation to act on next (after a reset: the new episode's first), in
            the environment's own space: an array, or a dict or tuple of arrays.
        reward: float32 [E].
        terminated: bool [E], the future is worth nothing.
        truncated: bool [E], the future is worth the value of the final observation.

    With P > 1 players, observations and rewards are ``[E, P, ...]``.
    """

    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class AsyncStepResult(NamedTuple):
    """Result of `VectorEnv.recv`: outcomes of the environments that were ready first.

    Attributes:
        env_ids: int64 [n].
        obs, reward, terminated, truncated: as in `StepResult`.
        valid: bool [n], false if a fault ended the episode.
    """

    env_ids: NDArray[np.int64]
    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]


def check_buffers(
    arrays: Sequence[NDArray[Any] | None],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype[Any]],
) -> None:
    """Check shape, dtype and layout of actions, obs, reward, terminated, truncated.

    Raises:
        ValueError: the first array that has another shape or dtype, or is not contiguous.
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


def check_state_fields(state: Mapping[str, NDArray[Any]], names: Iterable[str]) -> None:
    """Check that a saved state has all fields of the kernel, which may have been edited since.

    Raises:
        CheckpointError: fields are missing.
    """
    missing = [f"`{name}`" for name in names if name not in state]
    if missing:
        raise CheckpointError(
            f"The saved environment state lacks {', '.join(missing)}: it was written when the "
            "kernel had other fields, so training cannot resume. Train into another directory "
            "(--out); `slipstream evaluate` still reads the run."
        )


class VectorEnv(SummaryRepr, ABC):
    """Batch of E sub-environments. Autoreset happens within the step that ends an episode.

    ::

        obs = env.reset(seed=3)
        obs, reward, terminated, truncated = env.step(policy.act(obs, mask=env.mask))

    If arrays are passed, `reset` and `step` write into them instead. They belong to the caller and
    are written once. Their rows are C-contiguous: actions int64 or float32 [E, K], observations [E,
    *shape]. Only shapes are checked, and ended episodes are stored until they are drained.

    Attributes:
        mask: bool [E, n], the discrete actions allowed now; None if all always are. Updated by the
            calls that return values.
        valid: bool [E], true for real rows of the last `step(actions)`; false if an environment or
            its process failed. Such a row has reward 0 and shows zeros or the environment's current
            observation.
        episodes, final_obs: episodes that the last `step(actions)` ended, and final observations of
            the truncated ones.
        num_restarted: environments that `set_state` could not restore; they started new episodes.
        adapter_factory: makes an adapter from the name of a library and options; set by
            `slipstream.make_vec`.
    """

    num_envs: int
    spec: EnvSpec
    backend: str
    mask_size: int = 0  # discrete actions that the mask covers; 0 if all are always allowed
    mask: NDArray[np.bool_] | None = None
    valid: NDArray[np.bool_] | None = None
    episodes: Episodes | None = None
    final_obs: FinalObs | None = None
    num_restarted: int = 0
    adapter_factory: Callable[[str, Mapping[str, Any]], Any] | None = None

    def summary(self) -> dict[str, object]:
        """Return number and kind of the environments, for `repr`."""
        players = f"{self.spec.players} players" if self.spec.players > 1 else None
        return {
            "num_envs": self.num_envs,
            "backend": self.backend,
            "observations": self.spec.observation_space,
            "actions": self.spec.action_space,
            "game": players,
        }

    def to_gymnasium(self, **options: Any) -> Any:
        """Return the same environments as a `gymnasium.vector.VectorEnv`.

        They are new sub-environments with these settings, seed and backend, and start new episodes;
        this object does not change.

        Args:
            **options: options of ``slipstream.make_adapter("gymnasium", ...)``, such as
                `autoreset_mode`.

        Raises:
            SlipstreamError: the adapter does not support these environments.
        """
        return self._make_adapter("gymnasium", options)

    def to_sb3(self, **options: Any) -> Any:
        """Return the same environments as a Stable-Baselines3 `VecEnv`; see `to_gymnasium`.

        ::

            stable_baselines3.PPO("MlpPolicy", env.to_sb3()).learn(100_000)

        Args:
            **options: options of ``slipstream.make_adapter("sb3", ...)``, such as `info_keywords`.

        Raises:
            SlipstreamError: the adapter does not support these environments, or Stable-Baselines3
                is not installed.
        """
        return self._make_adapter("sb3", options)

    def _make_adapter(self, library: str, options: Mapping[str, Any]) -> Any:
        if self.adapter_factory is None:
            raise ConfigError(
                "`slipstream.make_vec` did not make these environments, so their settings are not "
                f"known. Call `slipstream.make_adapter({library!r}, ENV, {self.num_envs})`."
            )
        return self.adapter_factory(library, options)

    @cached_property
    def observation_codec(self) -> ObservationCodec:
        """Codec between the environment's observations and their rows."""
        return make_observation_codec(self.spec)

    @cached_property
    def action_codec(self) -> ActionCodec:
        """Codec between the environment's actions and their rows."""
        return make_action_codec(self.spec)

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
        """Start a new episode in every environment.

        Args:
            obs, mask: output rows [E, *shape] and [E, n].
            seed: environment e restarts its stream (seed, e). By default each starts its next
                episode.

        Returns:
            The first observations [E, ...] in the environment's space; None if `obs` is passed.
        """
        if obs is not None:
            self.reset_rows(obs, mask)
            return None
        rows = allocate_buffers(self)
        if seed is None:
            self.reset_rows(rows.obs, rows.mask)
        else:
            every = np.arange(self.num_envs)
            self.begin(every, every, as_seed(seed), rows.obs, rows.mask)
        self._take(rows.mask)
        self.valid = np.ones(self.num_envs, np.bool_)
        return self.observation_codec.decode(rows.obs)

    @overload
    def step(self, actions: Any) -> StepResult: ...

    @overload
    def step(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None: ...

    def step(self, actions: Any, out: StepBuffers | None = None, t: int = 0) -> StepResult | None:
        """Step every environment. One whose episode ends starts its next episode in the same call.

        Args:
            actions: one per environment, batch axis first, as `Policy.act` returns them; rows [E,
                K] if `out` is passed.
            out: output arrays.
            t: recorded with episodes that end here.

        Returns:
            The results in new arrays; None if `out` is passed.

        Raises:
            ConfigError: actions of the wrong shape, out of range, or forbidden by `mask`.
        """
        if out is not None:
            self.step_rows(actions, out, t)
            return None
        if self.episodes is None:
            raise ConfigError("Call `reset()` before the first `step(actions)`.")
        lead: tuple[int, ...] = (self.num_envs,)
        if self.spec.players > 1:
            lead = (self.num_envs, self.spec.players)
        try:
            rows = self.action_codec.encode(actions, lead, self.spec.action_dim)
        except SpaceMismatchError as error:
            raise ConfigError(f"`step` of {self.num_envs} environments got {error}.") from None
        self._check_allowed(rows)
        made = allocate_buffers(self)
        self.step_rows(rows, made, t)
        self._take(made.mask)
        self.valid = made.valid
        obs = self.observation_codec.decode(made.obs)
        return StepResult(obs, made.reward, made.terminated, made.truncated)

    def _check_allowed(self, rows: NDArray[Any], env_ids: Any = slice(None)) -> None:
        """Raise a ConfigError for an action that the mask forbids: its effect is undefined."""
        if self.mask is None:
            return
        allowed = np.take_along_axis(
            self.mask[env_ids], self.action_codec.mask_columns(rows), axis=-1
        )
        if not allowed.all():
            env_id = int(np.arange(self.num_envs)[env_ids][np.argwhere(~allowed)[0][0]])
            raise ConfigError(
                f"The mask forbids some of the actions, the first in environment {env_id}: choose "
                "among those that `env.mask` allows, as policy.act(obs, mask=env.mask) does."
            )

    def _take(self, mask: NDArray[np.bool_] | None) -> None:
        self.mask = mask
        self.episodes, self.final_obs = self.drain_episodes(), self.drain_final_obs()

    @abstractmethod
    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in every environment; write observations into obs [E, *shape]."""

    @abstractmethod
    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        """Step every environment with rows [E, K]; `t` is recorded with episodes that end here."""

    @abstractmethod
    def drain_final_obs(self) -> FinalObs:
        """Return final observations since the last call; the arrays belong to the caller."""

    @abstractmethod
    def drain_episodes(self) -> Episodes:
        """Return the episodes that ended since the last call."""

    @abstractmethod
    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return everything needed to resume, as plain arrays; empty if it cannot be saved."""

    @abstractmethod
    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Resume from `get_state()`; write the current observation into obs."""

    @abstractmethod
    def begin(
        self,
        env_ids: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Start evaluation episode j in an environment: stream (seed, j, 0), Params record j % P.

        Args:
            env_ids: int64 [n], indices of the environments.
            episodes: int64 [n], the index j of the episode that each starts.
            seed: evaluation seed.
            obs, mask: [E, ...]; only the rows of these environments are written.
        """

    def restart(
        self,
        env_ids: NDArray[np.int64],
        seeds: NDArray[np.uint64] | None,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Start new episodes in some environments, int64 [n]; the others are unchanged.

        `seeds`, uint64 [n]: environment i starts the first episode of the stream (seeds[i], 0).
        None: its own next episode. Only the rows of these environments are written.
        """
        raise NotImplementedError

    def hold(self, held: NDArray[np.bool_]) -> None:
        """Set which environments the next steps skip, bool [E]: reward 0, no new observation."""
        raise NotImplementedError

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Return STATE fields, [E, ...] by name; empty for environments without STATE."""
        return {}

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Start a step of some environments, each at its own pace; `recv` returns the outcomes.

        Args:
            actions: one per environment.
            env_ids: [n] indices of the environments; all by default.

        Raises:
            ConfigError: the backend has no worker processes, or a step is already pending.
        """
        raise ConfigError(_TOGETHER.format(self.backend))

    def recv(self, count: int | None = None, timeout: float | None = None) -> AsyncStepResult:
        """Return the outcomes of the first environments that are ready, in that order.

        For learning from transitions in any order, and for evaluation. Ended episodes are in
        `episodes`.

        Args:
            count: number of outcomes; all pending ones by default.
            timeout: seconds until TimeoutError is raised; no outcome is lost.
        """
        raise ConfigError(_TOGETHER.format(self.backend))

    def infos(self) -> dict[str, Any]:
        """Return the latest infos of foreign environments in Gymnasium's vector format.

        Numbers are arrays [E], zero if absent, each with a mask ``_key``; other values are object
        arrays. ``{}`` if no environment returned infos; kernels never do. They are fetched on
        request only: a step transfers no infos between processes.
        """
        return {}

    def resize(self, num_envs: int) -> Any:
        """Add or remove environments: those of the highest rows are closed, the others continue.

        New ones belong to the first environment's member and have the next indices.

        Returns:
            The latest observations of all [E, ...]; new environments return their first.
        """
        raise ConfigError(
            f"Environments on backend `{self.backend}` cannot be resized while they run; make new "
            "ones."
        )

    def drain_faults(self) -> list[Any]:
        """Return faults of environments or their processes since the last call, to be printed."""
        return []

    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def allocate_buffers(env: VectorEnv) -> StepBuffers:
    """Return zeroed output arrays for a step of `env`."""
    shape = (env.num_envs,) if env.spec.players == 1 else (env.num_envs, env.spec.players)
    obs = np.zeros((*shape, *env.spec.observation_shape), env.spec.observation_dtype)
    mask = np.ones((*shape, env.mask_size), np.bool_) if env.mask_size else None
    terminated, truncated, valid = np.zeros((3, env.num_envs), np.bool_)
    return StepBuffers(obs, np.zeros(shape, np.float32), terminated, truncated, valid, mask)


def member_indices(
    seeds: Sequence[int], num_envs: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return member seed and index within the member of E = M x N environments: uint64 [E]."""
    members = np.asarray([seed % 2**64 for seed in seeds], dtype=np.uint64)
    return np.repeat(members, num_envs), np.tile(np.arange(num_envs, dtype=np.uint64), len(members))


def as_seed(value: Any) -> int:
    """Return a seed modulo 2**64.

    Raises:
        ConfigError: the value is not an integer.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ConfigError(f"`seed` must be a whole number (got {value!r}).")
    return int(value) % 2**64


_TOGETHER = (
    "Environments on backend `{}` are stepped together: use `step`, or make foreign environments "
    'with `backend="process"`, which steps them one by one (docs/guides/worker-processes.md).'
)
