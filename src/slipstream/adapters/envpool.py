"""EnvPool's interface over any sub-environments: `send`, `recv`, environment numbers."""

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
    UnreadyError,
    at,
    check_single_player,
    joined,
    make_batch,
)
from slipstream.core.bounds import check_count
from slipstream.core.errors import ConfigError
from slipstream.gym.infos import batch_infos


class PoolRows(NamedTuple):
    """Results of some envs, [n, ...] each; observations may be Dicts or Tuples of arrays."""

    ids: NDArray[np.int64]
    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    elapsed: NDArray[np.int32]
    said: NDArray[np.object_]  # a dict each

    def cut(self, n: int) -> tuple[PoolRows, PoolRows]:
        """The first n, and the rest."""
        first, rest = (
            PoolRows(*(at(part, own) for part in self)) for own in (slice(None, n), slice(n, None))
        )
        return first, rest


class EnvPoolAdapter(VectorEnv[Any, Any, Any], gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Sub-environments as EnvPool's ``env_type="gymnasium"`` shows them, of the same base classes.

    Spaces are those of one environment. Autoreset is NEXT_STEP. `recv` gives the next `batch_size`
    results: a kernel's in the order in which they were sent; of a Gymnasium environment in worker
    processes the first that are ready. Of an episode that is terminated and cut at once,
    EnvPool tells the cut; here it is terminated only, which is what bootstrapping needs.

    Args:
        target, num_envs: as for `make_batch`.
        batch_size: results of one `recv`; `num_envs` unless given.
        seed: of all environments; environment e has the stream of seed + e, as under Gymnasium.
        render_mode: None; no pictures are drawn.
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
            raise ConfigError(f"A pool of {target} draws no pictures; leave `render_mode` out.")
        size = num_envs if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= num_envs:
            raise ConfigError(
                f"`batch_size` must be from 1 to num_envs={num_envs}, it is {batch_size!r}."
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
        self._waiting: list[PoolRows] = []  # in the order in which they were ready

    def __len__(self) -> int:
        return self.num_envs

    @property
    def all_env_ids(self) -> NDArray[np.int32]:
        """Numbers of all sub-environments."""
        return np.arange(self.num_envs, dtype=np.int32)

    @property
    def is_async(self) -> bool:
        """Whether `recv` gives fewer than all."""
        return self.batch_size < self.num_envs

    def async_reset(self) -> None:
        """Begins all episodes; `recv` gives their first observations."""
        self.batch.check_open()
        self.batch.settle()
        self._waiting = []
        self._begin(self.all_env_ids.astype(np.int64))

    def reset(
        self,
        env_id: Any = None,
        *,
        seed: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins the episodes of some sub-environments; their rows.

        Args:
            env_id: which; all unless given, or `options["reset_mask"]`.
            seed: is not taken, as in EnvPool: seeds are fixed when the pool is made.
        """
        if seed is not None:
            warnings.warn("Seeds are fixed when a pool is made: pass `seed` there.", stacklevel=2)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"Unsupported reset options for a pool: {sorted(options)}")
        if mask is not None:
            mask = np.asarray(mask, np.bool_)
            if mask.shape != (self.num_envs,) or not mask.any():
                raise ValueError(
                    f"reset_mask must have shape ({self.num_envs},) and choose at least one"
                )
            env_id = np.flatnonzero(mask)
        if self._waiting or self.batch.in_flight.any():
            raise UnreadyError(
                f"{self.batch.name}: there are results that were not received; call `recv`, or "
                "`async_reset` to begin anew."
            )
        ids = self._ids(env_id)
        self._begin(ids)
        obs, _, _, _, info = self._take(len(ids))
        return obs, info

    def send(self, action: Any, env_id: Any = None) -> None:
        """Steps some sub-environments, each with its action; all unless `env_id` says which.

        Args:
            action: a batch of them, or EnvPool's ``{"action": ..., "env_id": ...}``.
            env_id: which sub-environments.

        Raises:
            ActionError: wrong number, shape or dtype; numbers of environments that do not exist.
            UnreadyError: a sub-environment's last result was not received yet.
        """
        if isinstance(action, Mapping) and not isinstance(self.action_space, spaces.Dict):
            named = dict(action)
            env_id = named.pop("env_id", env_id)
            (
                named.pop("players.env_id", None),
                named.pop("players", None),
            )  # one player a sub-environment
            if set(named) != {"action"}:
                raise ActionError(
                    f"{self.batch.name}: `send` takes a batch of actions, or a dict of `action` "
                    f"and `env_id`; it was given {sorted(action)}."
                )
            action = named["action"]
        ids = self._ids(env_id)
        for busy in [*(rows.ids for rows in self._waiting), np.flatnonzero(self.batch.in_flight)]:
            if len(twice := np.intersect1d(busy, ids)):
                raise UnreadyError(
                    f"{self.batch.name}: envs {twice[:8].tolist()} have results that were not "
                    "received; call `recv` before sending to them again."
                )
        if self.batch.apart and self.is_async:
            self.batch.send(action, ids)
        else:
            self._came(ids, self.batch.step(action, None if env_id is None else ids))

    def recv(self) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """The next `batch_size` results: obs, reward float32, terminated, truncated, info.

        Raises:
            UnreadyError: fewer were sent; it would wait for ever.
        """
        self.batch.check_open()
        ready = sum(len(rows.ids) for rows in self._waiting)
        in_flight = ready + int(self.batch.in_flight.sum())
        if in_flight < self.batch_size:
            raise UnreadyError(
                f"{self.batch.name}: `recv` waits for {self.batch_size} results, and {in_flight} "
                "are under way; call `send`, `reset` or `async_reset` first."
            )
        if ready < self.batch_size:
            self._came(*self.batch.recv(self.batch_size - ready))
        return self._take(self.batch_size)

    def step(self, action: Any, env_id: Any = None) -> tuple[Any, ...]:
        """`send`, then `recv`."""
        self.send(action, env_id)
        return self.recv()

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the sub-environments."""
        self.batch.close()

    def xla(self) -> NoReturn:
        """EnvPool's bridge to JAX, which there is not."""
        raise ConfigError(
            f"{self.batch.name}: there is no XLA here, environments are stepped by code that Numba "
            "compiled; call `step`, or `send` and `recv`, outside of jitted functions."
        )

    def _came(self, ids: NDArray[np.int64], came: BatchStep) -> None:
        """Keeps the results of these sub-environments."""
        elapsed = self._elapsed[ids] + 1  # of one that begins its next episode it was -1
        self._elapsed[ids] = elapsed
        self._elapsed[came.ended] = -1
        cut = came.truncated & ~came.terminated
        flags = came.terminated, cut
        self._waiting.append(PoolRows(ids, came.obs, came.reward, *flags, elapsed, self._said(ids)))

    def _begin(self, ids: NDArray[np.int64]) -> None:
        chosen = np.zeros(self.num_envs, np.bool_)
        chosen[ids] = True
        obs = self.batch.reset(self._seeds, chosen)
        for e in ids.tolist():
            self._seeds[e] = None  # the next episode of the same stream
        self._elapsed[ids] = 0
        over, cut = np.zeros((2, len(ids)), np.bool_)
        paid, elapsed = np.zeros(len(ids), np.float32), self._elapsed[ids]
        self._waiting.append(PoolRows(ids, at(obs, ids), paid, over, cut, elapsed, self._said(ids)))

    def _said(self, ids: NDArray[np.int64]) -> NDArray[np.object_]:
        said = np.empty(len(ids), object)
        said[:] = self.batch.said(ids)
        return said

    def _take(self, n: int) -> tuple[Any, ...]:
        """The next n results."""
        parts: list[PoolRows] = []
        while n:
            first, rest = self._waiting[0].cut(n)
            parts.append(first)
            n -= len(first.ids)
            self._waiting[:1] = [rest] if len(rest.ids) else []
        whole = parts[0]
        if len(parts) > 1:
            whole = PoolRows(*(joined(columns) for columns in zip(*parts, strict=True)))
        ids = whole.ids.astype(np.int32)
        info = batch_infos(list(enumerate(whole.said)), len(ids))
        info |= {"env_id": ids, "elapsed_step": whole.elapsed, "players": {"env_id": ids.copy()}}
        return whole.obs, whole.reward, whole.terminated, whole.truncated, info

    def _ids(self, env_id: Any) -> NDArray[np.int64]:
        if env_id is None:
            return np.arange(self.num_envs, dtype=np.int64)
        ids = np.atleast_1d(np.asarray(env_id))
        fits = ids.ndim == 1 and ids.dtype.kind in "iu" and len(set(ids.tolist())) == len(ids)
        if not fits or len(ids) == 0 or ids.min() < 0 or ids.max() >= self.num_envs:
            raise ActionError(
                f"{self.batch.name}: `env_id` must be different numbers from 0 to "
                f"{self.num_envs - 1}, got {env_id!r:.60}."
            )
        return ids.astype(np.int64)


def make_vec(target: str | Mapping[str, Any], num_envs: int = 1, **options: Any) -> EnvPoolAdapter:
    """`EnvPoolAdapter` by the name that all faces have."""
    return EnvPoolAdapter(target, num_envs, **options)
