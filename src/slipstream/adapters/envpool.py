"""Adapter with EnvPool's interface: `send`, `recv` and environment ids."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from slipstream.adapters.batch import (
    ActionError,
    BatchStep,
    ResetNeededError,
    check_single_player,
    concat_batches,
    make_batch,
    take_rows,
)
from slipstream.core.bounds import check_count
from slipstream.core.errors import ConfigError
from slipstream.gym.infos import batch_infos


class PoolRows(NamedTuple):
    """Results of n sub-environments, [n, ...] each; observations may be Dicts or Tuples."""

    ids: NDArray[np.int64]
    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    elapsed: NDArray[np.int32]
    infos: NDArray[np.object_]  # dicts

    def split(self, n: int) -> tuple[PoolRows, PoolRows]:
        """Split into the first n rows and the rest."""
        first, rest = (
            PoolRows(*(take_rows(part, rows) for part in self))
            for rows in (slice(None, n), slice(n, None))
        )
        return first, rest


class EnvPoolAdapter(VectorEnv[Any, Any, Any], gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Vector environment with the interface and base classes of EnvPool's ``env_type="gymnasium"``.

    Spaces are those of one environment. The autoreset mode is NEXT_STEP. `recv` returns the next
    `batch_size` results: of kernels in the order of `send`, of Gymnasium environments in worker
    processes in the order of completion. An episode that is terminated and truncated at the same
    step is truncated in EnvPool. Here it is terminated only, as bootstrapping requires.

    Args:
        target, num_envs: As for `make_batch`.
        batch_size: Number of results of one `recv`; None for `num_envs`.
        seed: Seed. Environment e uses seed + e, as in Gymnasium.
        render_mode: Must be None; pools cannot be rendered.
        **options: `backend`, `split` and `workers` as for `make_batch`; fields of the environment's
            Config; ``kwargs`` of ``gym:ID``.
    """

    def __init__(
        self,
        target: str | Mapping[str, Any],
        num_envs: int = 1,
        *,
        batch_size: int | None = None,
        seed: int = 42,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        num_envs = check_count("num_envs", num_envs)
        if render_mode is not None:
            raise ConfigError(f"A pool of {target} cannot be rendered. Omit `render_mode`.")
        size = num_envs if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= num_envs:
            raise ConfigError(
                f"`batch_size` must be from 1 to num_envs={num_envs}, got {batch_size!r}."
            )
        next_step = AutoresetMode.NEXT_STEP
        self.batch = make_batch(target, num_envs, autoreset=next_step, **options)
        check_single_player(self.batch, "a pool has")
        self.num_envs, self.batch_size = num_envs, size
        self.observation_space = self.single_observation_space = self.batch.observation_space
        self.action_space = self.single_action_space = self.batch.action_space
        self.metadata = {"autoreset_mode": next_step}
        self.config = {"num_envs": num_envs, "batch_size": self.batch_size, "seed": seed}
        self.spec: Any = self.batch.spec
        self._seeds: list[int | None] = [seed + e for e in range(num_envs)]
        self._elapsed = np.zeros(num_envs, np.int32)
        self._ready: list[PoolRows] = []  # in the order of completion

    def __len__(self) -> int:
        return self.num_envs

    @property
    def all_env_ids(self) -> NDArray[np.int32]:
        """Ids of all sub-environments."""
        return np.arange(self.num_envs, dtype=np.int32)

    @property
    def is_async(self) -> bool:
        """True if `recv` returns fewer results than `num_envs`."""
        return self.batch_size < self.num_envs

    def async_reset(self) -> None:
        """Reset all sub-environments; `recv` returns their first observations."""
        self.batch.check_open()
        self.batch.settle()
        self._ready = []
        self._reset_rows(self.all_env_ids.astype(np.int64))

    def reset(
        self,
        env_id: Any = None,
        *,
        seed: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some sub-environments and return their observations and infos.

        Args:
            env_id: Ids; None for all, or for those of `options["reset_mask"]`.
            seed: Ignored with a warning, as in EnvPool: seeds are fixed at construction.
            options: Only `reset_mask` is supported, bool [num_envs].
        """
        if seed is not None:
            warnings.warn("`seed` is ignored: pass it when the pool is created.", stacklevel=2)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"Unsupported reset options for a pool: {sorted(options)}")
        if mask is not None:
            mask = np.asarray(mask, np.bool_)
            if mask.shape != (self.num_envs,) or not mask.any():
                raise ValueError(
                    f"reset_mask must have shape ({self.num_envs},) and select at least one"
                )
            env_id = np.flatnonzero(mask)
        if self._ready or self.batch.in_flight.any():
            raise ResetNeededError(
                f"{self.batch.name}: some results were not received. Call `recv`, or "
                "`async_reset` to discard them."
            )
        ids = self._check_ids(env_id)
        self._reset_rows(ids)
        obs, _, _, _, info = self._take(len(ids))
        return obs, info

    def send(self, action: Any, env_id: Any = None) -> None:
        """Step some sub-environments, each with its action.

        Args:
            action: Batch of actions, or EnvPool's ``{"action": ..., "env_id": ...}``.
            env_id: Ids of the sub-environments; None for all.

        Raises:
            ActionError: Wrong number, shape or dtype, or unknown ids.
            ResetNeededError: The last result of a sub-environment was not received.
        """
        if isinstance(action, Mapping) and not isinstance(self.action_space, spaces.Dict):
            fields = dict(action)
            env_id = fields.pop("env_id", env_id)
            (
                fields.pop("players.env_id", None),
                fields.pop("players", None),
            )  # one player per sub-environment
            if set(fields) != {"action"}:
                raise ActionError(
                    f"{self.batch.name}: `send` takes a batch of actions, or a dict with `action` "
                    f"and `env_id`, got {sorted(action)}."
                )
            action = fields["action"]
        ids = self._check_ids(env_id)
        for busy in [*(rows.ids for rows in self._ready), np.flatnonzero(self.batch.in_flight)]:
            if len(pending_ids := np.intersect1d(busy, ids)):
                raise ResetNeededError(
                    f"{self.batch.name}: envs {pending_ids[:8].tolist()} have results that were "
                    "not received. Call `recv` before the next `send` to them."
                )
        if self.batch.apart and self.is_async:
            self.batch.send(action, ids)
        else:
            self._store_step(ids, self.batch.step(action, None if env_id is None else ids))

    def recv(self) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Return the next `batch_size` results: obs, reward float32, terminated, truncated, info.

        Raises:
            ResetNeededError: Fewer steps are in flight.
        """
        self.batch.check_open()
        ready = sum(len(rows.ids) for rows in self._ready)
        in_flight = ready + int(self.batch.in_flight.sum())
        if in_flight < self.batch_size:
            raise ResetNeededError(
                f"{self.batch.name}: `recv` needs {self.batch_size} results, but {in_flight} are "
                "in flight. Call `send`, `reset` or `async_reset` first."
            )
        if ready < self.batch_size:
            self._store_step(*self.batch.recv(self.batch_size - ready))
        return self._take(self.batch_size)

    def step(self, action: Any, env_id: Any = None) -> tuple[Any, ...]:
        """Call `send`, then `recv`."""
        self.send(action, env_id)
        return self.recv()

    def close_extras(self, **kwargs: Any) -> None:
        """Close all sub-environments."""
        self.batch.close()

    def xla(self) -> NoReturn:
        """Raise ConfigError: EnvPool's bridge to JAX is not supported."""
        raise ConfigError(
            f"{self.batch.name} has no XLA interface. Call `step`, or `send` and `recv`, outside "
            "of jitted functions."
        )

    def _store_step(self, ids: NDArray[np.int64], step: BatchStep) -> None:
        """Store the results of a step for `recv`."""
        elapsed = self._elapsed[ids] + 1  # -1 before the first step of an episode
        self._elapsed[ids] = elapsed
        self._elapsed[step.ended] = -1
        cut = step.truncated & ~step.terminated
        flags = step.terminated, cut
        self._ready.append(
            PoolRows(ids, step.obs, step.reward, *flags, elapsed, self._get_infos(ids))
        )

    def _reset_rows(self, ids: NDArray[np.int64]) -> None:
        selected = np.zeros(self.num_envs, np.bool_)
        selected[ids] = True
        obs = self.batch.reset(self._seeds, selected)
        for e in ids.tolist():
            self._seeds[e] = None  # the next episode of the same stream
        self._elapsed[ids] = 0
        terminated, truncated = np.zeros((2, len(ids)), np.bool_)
        reward, elapsed = np.zeros(len(ids), np.float32), self._elapsed[ids]
        self._ready.append(
            PoolRows(
                ids,
                take_rows(obs, ids),
                reward,
                terminated,
                truncated,
                elapsed,
                self._get_infos(ids),
            )
        )

    def _get_infos(self, ids: NDArray[np.int64]) -> NDArray[np.object_]:
        infos = np.empty(len(ids), object)
        infos[:] = self.batch.info_dicts(ids)
        return infos

    def _take(self, n: int) -> tuple[Any, ...]:
        """Return the next n results."""
        parts: list[PoolRows] = []
        while n:
            first, rest = self._ready[0].split(n)
            parts.append(first)
            n -= len(first.ids)
            self._ready[:1] = [rest] if len(rest.ids) else []
        rows = parts[0]
        if len(parts) > 1:
            rows = PoolRows(*(concat_batches(columns) for columns in zip(*parts, strict=True)))
        ids = rows.ids.astype(np.int32)
        info = batch_infos(list(enumerate(rows.infos)), len(ids))
        info |= {"env_id": ids, "elapsed_step": rows.elapsed, "players": {"env_id": ids.copy()}}
        return rows.obs, rows.reward, rows.terminated, rows.truncated, info

    def _check_ids(self, env_id: Any) -> NDArray[np.int64]:
        if env_id is None:
            return np.arange(self.num_envs, dtype=np.int64)
        ids = np.atleast_1d(np.asarray(env_id))
        is_valid = ids.ndim == 1 and ids.dtype.kind in "iu" and len(set(ids.tolist())) == len(ids)
        if not is_valid or len(ids) == 0 or ids.min() < 0 or ids.max() >= self.num_envs:
            raise ActionError(
                f"{self.batch.name}: `env_id` must be distinct ids from 0 to "
                f"{self.num_envs - 1}, got {env_id!r:.60}."
            )
        return ids.astype(np.int64)


def make_vec(target: str | Mapping[str, Any], num_envs: int = 1, **options: Any) -> EnvPoolAdapter:
    """Create an `EnvPoolAdapter`."""
    return EnvPoolAdapter(target, num_envs, **options)
