"""How each library's vector environments are reset and stepped, and what they tell of ends."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from slipstream.adapters.gymnasium_vector import VectorFace
from slipstream.core.errors import ConfigError

_MOVING = {
    "VecNormalize": "training",
    "NormalizeObservation": "update_running_mean",
    "NormalizeReward": "update_running_mean",
}
"""Wrappers of SB3 and Gymnasium, each with what says that its statistics go on changing."""


class Came(NamedTuple):
    """One step: `finals` are last observations by copy where the next episode has begun already;
    `fresh` [E] says which copies began an episode instead of stepping."""

    obs: Any
    reward: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    finals: Mapping[int, Any]
    fresh: NDArray[np.bool_]


class _Gymnasium:
    """Any of its `VectorEnv`, in any autoreset mode."""

    def __init__(self, env: Any) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.shown, self.acted = env.single_observation_space, env.single_action_space
        self._mode = env.metadata.get("autoreset_mode")
        if not isinstance(self._mode, AutoresetMode):
            raise ConfigError(
                f"{env} does not say what follows an episode's end: its metadata need "
                "`autoreset_mode`, one of gymnasium.vector.AutoresetMode."
            )
        self._over = np.zeros(self.num_envs, np.bool_)
        self._masks = self._mode is AutoresetMode.DISABLED or _takes_masks(env.unwrapped)

    def reset(self, seeds: list[int]) -> Any:
        self._over[:] = False
        try:
            return self.env.reset(seed=seeds)[0]
        except (gymnasium.error.Error, TypeError):  # some have one stream for all copies
            return self.env.reset(seed=seeds[0])[0]

    def reset_some(self, mask: NDArray[np.bool_], seeds: list[int | None]) -> Any:
        if not self._masks:
            return None
        self._over[mask] = False
        return self.env.reset(seed=seeds, options={"reset_mask": mask.copy()})[0]

    def step(self, actions: Any) -> Came:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        over = np.asarray(terminated | truncated, np.bool_)
        fresh, finals = np.zeros(self.num_envs, np.bool_), {}
        if self._mode is AutoresetMode.NEXT_STEP:
            fresh = self._over
        elif over.any():
            at = np.flatnonzero(over).tolist()
            if self._mode is AutoresetMode.SAME_STEP:
                finals = {e: infos["final_obs"][e] for e in at}
            else:
                finals = {e: _row(obs, e) for e in at}
                obs = self.env.reset(options={"reset_mask": over.copy()})[0]
        self._over = over
        return Came(obs, reward, terminated, truncated, finals, fresh)


class _Pool:
    """EnvPool's, in synchronous mode: NEXT_STEP, seeds fixed when it is made."""

    def __init__(self, env: Any) -> None:
        if env.is_async:
            raise ConfigError("An EnvPool pool must be synchronous here: leave `batch_size` out.")
        self.env, self.num_envs = env, len(env)
        self.shown, self.acted = env.observation_space, env.action_space
        self._over = np.zeros(self.num_envs, np.bool_)
        self._last: Any = None

    def reset(self, seeds: list[int]) -> Any:
        self._over[:] = False
        self._last = self.env.reset()[0].copy()
        return self._last

    def reset_some(self, mask: NDArray[np.bool_], seeds: list[int | None]) -> Any:
        self._over[mask] = False
        self._last[mask] = self.env.reset(np.flatnonzero(mask).astype(np.int32))[0]
        return self._last

    def step(self, actions: Any) -> Came:
        obs, reward, terminated, truncated, _ = self.env.step(actions)
        fresh, self._over = self._over, terminated | truncated
        self._last = obs.copy()
        return Came(self._last, reward, terminated, truncated, {}, fresh)


class _VecEnv:
    """SB3's: resets within the step; some copies cannot be reset alone."""

    def __init__(self, env: Any) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.shown, self.acted = env.observation_space, env.action_space

    def reset(self, seeds: list[int]) -> Any:
        self.env.seed(seeds[0])
        return self.env.reset()

    def reset_some(self, mask: NDArray[np.bool_], seeds: list[int | None]) -> None:
        return None

    def step(self, actions: Any) -> Came:
        obs, reward, dones, infos = self.env.step(actions)
        dones = np.asarray(dones, np.bool_)
        cut = np.array([bool(info.get("TimeLimit.truncated")) for info in infos]) & dones
        finals = {e: infos[e]["terminal_observation"] for e in np.flatnonzero(dones).tolist()}
        return Came(obs, reward, dones & ~cut, cut, finals, np.zeros(self.num_envs, np.bool_))


def _row(batch: Any, e: int) -> Any:
    """One observation of a batch, its own."""
    if isinstance(batch, Mapping):
        return {key: _row(part, e) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(part, e) for part in batch)
    return np.array(batch[e])


def _takes_masks(env: Any) -> bool:
    """Whether its `reset` knows ``reset_mask``: others would begin all copies, and say nothing."""
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv, VectorFace)):
        return True
    try:
        return "reset_mask" in inspect.getsource(type(env))
    except (OSError, TypeError):
        return False


def check_still(env: Any, name: str) -> None:
    """Refuses numbers that mean something else from step to step."""
    inner = env
    while inner is not None:
        kind = type(inner).__name__
        if getattr(inner, _MOVING.get(kind, ""), False) is True:
            raise ConfigError(
                f"{name}: `{kind}` changes its statistics while it is stepped. Copies that are "
                "made for evaluations would have others, and a saved policy has none. Leave it "
                "out: "
                "slipstream's own scaling travels inside the policy. Or load statistics that are "
                f"finished and set its `{_MOVING[kind]}` to False."
            )
        wrapped = isinstance(inner, VectorWrapper)
        inner = inner.env if wrapped else getattr(inner, "venv", None)


def door_of(env: Any) -> Any:
    """By what the environment offers; a pool calls itself a `VectorEnv`, too."""
    if hasattr(env, "all_env_ids"):
        return _Pool(env)
    if hasattr(env, "env_is_wrapped"):
        return _VecEnv(env)
    if isinstance(env, VectorEnv):
        return _Gymnasium(env)
    raise ConfigError(
        f"{type(env).__name__} is no vector environment that is known here: give Gymnasium's "
        "VectorEnv, an EnvPool pool, or an SB3 VecEnv."
    )
