"""Adapter for ElegantRL's vector protocols: releases (0.3.6) and repository (0.3.10)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import ActionError, make_batch
from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional
from slipstream.kernels.space_codec import make_observation_codec

# Imported by name, so that torch is only required on use.
torch = import_optional("torch", "The adapter for ElegantRL", "elegantrl")

_NO_LIMIT = 12345  # ElegantRL's `max_step` without a time limit


class ElegantEnv:
    """Vector environment for `env_class` of ElegantRL's `Config`.

    States are flat rows, also of Dict and Discrete observations. Continuous actions from -1 to 1,
    as ElegantRL's actors return them, are scaled to the bounds of the environment. Every step
    returns new tensors. One sub-environment is a single environment of ElegantRL: it exchanges
    NumPy arrays, and the caller resets it.

    Args:
        env_name: Kernel name or path, or ``gym:ID``.
        num_envs: Number of sub-environments.
        protocol: "new": ``reset() -> (state, info)``, ``step -> (state, reward, terminal, truncate,
            info)``; "old": ``reset() -> state``, ``step -> (state, reward, done, info)``.
        gpu_id: GPU of the tensors; -1 for the CPU.
        backend, split, workers: As for `make_batch`.
        seed: Seed of the random streams.
        settings: Fields of the environment's Config; ``kwargs`` of ``gym:ID``.

    Attributes:
        env_name, num_envs, max_step, state_dim, action_dim, if_discrete: Attributes of ElegantRL's
            interface.
    """

    def __init__(
        self,
        env_name: str | Mapping[str, Any],
        num_envs: int = 1,
        *,
        protocol: str = "new",
        gpu_id: int = -1,
        backend: str = "auto",
        split: str = "train",
        workers: int | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if protocol not in ("new", "old"):
            raise ConfigError(f"`protocol` must be 'new' or 'old', got {protocol!r}.")
        is_single = num_envs == 1
        self.batch = make_batch(
            env_name,
            num_envs,
            autoreset=AutoresetMode.DISABLED if is_single else AutoresetMode.SAME_STEP,
            backend=backend,
            split=split,
            workers=workers,
            seed=seed,
            **(settings or {}),
        )
        spec, action = self.batch.spec, self.batch.spec.action_space
        self._codec = make_observation_codec(spec)
        if (
            spec.players > 1
            or len(spec.observation_shape) != 1
            or not _is_supported_action_space(action)
        ):
            self.batch.close()
            raise ConfigError(
                f"{self.batch.name}: ElegantRL supports one player with flat observations and a "
                "Discrete or bounded Box action space. This environment has the observation space "
                f"{spec.observation_space} and the action space {action}."
            )
        envs_on_gpu = gpu_id >= 0 and torch.cuda.is_available()
        self.device = torch.device(f"cuda:{gpu_id}" if envs_on_gpu else "cpu")
        self.env_name, self.num_envs, self._old = self.batch.name, num_envs, protocol == "old"
        self.max_step = spec.max_episode_steps or _NO_LIMIT
        self.state_dim = spec.observation_shape[0]
        self.if_discrete = isinstance(action, spaces.Discrete)
        self.action_dim, self._box = spec.action_dim, None
        if isinstance(action, spaces.Discrete):
            self.action_dim = int(action.n)
        elif isinstance(action, spaces.Box):
            self._box = action.low, action.high
        self._action_start = getattr(self.batch.action_space, "start", 0)

    def reset(self) -> Any:
        """Reset all sub-environments and return states [num_envs, state_dim]."""
        states = self._states(self.batch.reset([None] * self.num_envs))
        state = states[0] if self.num_envs == 1 else self._tensor(states)
        return state if self._old else (state, self._get_info())

    def step(self, action: Any) -> tuple[Any, ...]:
        """Step every sub-environment.

        Args:
            action: Tensor or array: discrete actions, [num_envs] or [num_envs, 1], or numbers from
                -1 to 1, [num_envs, action_dim].

        Returns:
            Values of the protocol. `info` is the info of a ``gym:ID``, in Gymnasium's vector format
            for several sub-environments. If episodes of these ended, it has `ended` (their ids)
            and `final_state` [n, state_dim].
        """
        is_single = self.num_envs == 1
        array = np.asarray(action.detach().cpu() if hasattr(action, "detach") else action)
        result = self.batch.step(self._actions(array[None] if is_single else array))
        if is_single:
            state, reward = self._states(result.obs)[0], float(result.reward[0])
            flags: tuple[Any, ...] = (bool(result.terminated[0]), bool(result.truncated[0]))
        else:
            state, reward = self._tensor(self._states(result.obs)), self._tensor(result.reward)
            flags = (self._tensor(result.terminated), self._tensor(result.truncated))
        info = self._get_info()
        if len(result.ended) and not is_single:
            info["ended"] = self._tensor(result.ended)
            info["final_state"] = self._tensor(self._states(result.final_obs))
        if self._old:
            done = flags[0] or flags[1] if is_single else flags[0] | flags[1]
            return state, reward, done, info
        return state, reward, *flags, info

    def close(self) -> None:
        """Close all sub-environments. Safe to call again."""
        self.batch.close()

    def _actions(self, array: NDArray[Any]) -> NDArray[Any]:
        """Convert ElegantRL's actions to actions of the environment."""
        if self._box is None:
            return array if self._action_start == 0 else array + self._action_start
        if array.dtype.kind != "f" or (np.abs(array) > 1.0 + 1e-5).any():
            raise ActionError(
                f"{self.batch.name}: ElegantRL's actions must be floats from -1 to 1, got "
                f"{array.dtype} from {array.min()} to {array.max()}."
            )
        low, high = self._box
        return np.asarray(low + (np.clip(array, -1.0, 1.0) + 1.0) * 0.5 * (high - low), np.float32)

    def _get_info(self) -> dict[str, Any]:
        if self.num_envs == 1:
            return self.batch.info_dicts(np.zeros(1, np.int64))[0]
        return self.batch.infos()

    def _states(self, obs: Any) -> NDArray[np.float32]:
        """Flatten observations to rows."""
        return np.ascontiguousarray(self._codec.encode(obs)[0], np.float32)

    def _tensor(self, array: NDArray[Any]) -> Any:
        return torch.from_numpy(array).to(self.device)


def _is_supported_action_space(action: Any) -> bool:
    return isinstance(action, spaces.Discrete) or (
        isinstance(action, spaces.Box) and action.is_bounded()
    )


def env_args(target: str | Mapping[str, Any], num_envs: int, **options: Any) -> dict[str, Any]:
    """Return `env_args` of ElegantRL's `Config(get_agent_class, ElegantEnv, env_args)`.

    ElegantRL only forwards arguments that `ElegantEnv` declares, so the fields of the environment's
    Config are passed in `settings`.

    Args:
        target, num_envs: As for `ElegantEnv`.
        **options: Its other arguments, and fields of the environment's Config.
    """
    options = _to_arguments(options)
    env = ElegantEnv(target, num_envs, **options)
    names = ("max_step", "state_dim", "action_dim", "if_discrete")
    attributes = {name: getattr(env, name) for name in names}
    env.close()
    return {"env_name": target, "num_envs": num_envs, **attributes, **options}


def make_vec(target: str | Mapping[str, Any], num_envs: int = 1, **options: Any) -> ElegantEnv:
    """Create an `ElegantEnv`; arguments as for `env_args`."""
    return ElegantEnv(target, num_envs, **_to_arguments(options))


def _to_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `ElegantEnv`; options that it does not declare go to `settings`."""
    parameters = inspect.signature(ElegantEnv).parameters
    arguments = {name: value for name, value in options.items() if name in parameters}
    fields = {name: value for name, value in options.items() if name not in parameters}
    return {**arguments, "settings": {**(arguments.get("settings") or {}), **fields}}
