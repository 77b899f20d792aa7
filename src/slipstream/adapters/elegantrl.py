"""ElegantRL's vector protocols, of its releases (0.3.6) and of its repository (0.3.10)."""

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

# By name, so that this file needs torch only where it is used.
torch = import_optional("torch", "The face for ElegantRL", "elegantrl")

_NO_LIMIT = 12345  # steps of an episode without a time limit, as ElegantRL writes it


class ElegantEnv:
    """Sub-environments of an environment; `env_class` of ElegantRL's `Config`.

    States are rows of numbers; a Gymnasium environment's Dict or choice becomes one. Continuous
    actions run from -1 to 1, as ElegantRL's actors give them, and are stretched to the
    environment's bounds. Tensors are fresh at every step. With one env it is what ElegantRL calls
    a single environment: NumPy in and out, and the caller resets it.

    Args:
        env_name: a kernel's name or path, or ``gym:ID``.
        num_envs: sub-environments.
        protocol: "new": ``reset() -> (state, info)``, ``step -> (state, reward, terminal, truncate,
            info)``; "old": ``reset() -> state``, ``step -> (state, reward, done, info)``.
        gpu_id: where tensors are; -1 for the processor.
        backend, split, workers: as for `make_batch`.
        seed: random streams.
        settings: fields of the environment's Config; ``kwargs`` of ``gym:ID``.

    Attributes:
        env_name, num_envs, max_step, state_dim, action_dim, if_discrete: what ElegantRL reads.
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
            raise ConfigError(f"`protocol` must be new or old, it is {protocol!r}.")
        alone = num_envs == 1
        self.batch = make_batch(
            env_name,
            num_envs,
            autoreset=AutoresetMode.DISABLED if alone else AutoresetMode.SAME_STEP,
            backend=backend,
            split=split,
            workers=workers,
            seed=seed,
            **(settings or {}),
        )
        spec, action = self.batch.spec, self.batch.spec.action_space
        self._form = make_observation_codec(spec)
        if spec.players > 1 or len(spec.observation_shape) != 1 or not _fits(action):
            self.batch.close()
            raise ConfigError(
                f"{self.batch.name}: ElegantRL steps one player that sees a row of numbers and "
                "takes one choice, or numbers within bounds; this environment shows "
                f"{spec.observation_space} and takes {action}."
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
        self._first = getattr(self.batch.action_space, "start", 0)

    def reset(self) -> Any:
        """Begins new episodes: states [num_envs, state_dim]."""
        states = self._states(self.batch.reset([None] * self.num_envs))
        state = states[0] if self.num_envs == 1 else self._tensor(states)
        return state if self._old else (state, self._said())

    def step(self, action: Any) -> tuple[Any, ...]:
        """Steps every sub-environment.

        Args:
            action: tensor or array, [num_envs] or [num_envs, 1] choices, or [num_envs, action_dim]
                numbers from -1 to 1.

        Returns:
            As the protocol says; `info` is what a ``gym:ID`` said, in Gymnasium's vector form where
            there are several envs, and has, where episodes of these ended, `ended` (numbers of
            the sub-environments) and `final_state` [n, state_dim].
        """
        alone = self.num_envs == 1
        array = np.asarray(action.detach().cpu() if hasattr(action, "detach") else action)
        came = self.batch.step(self._actions(array[None] if alone else array))
        if alone:
            state, reward = self._states(came.obs)[0], float(came.reward[0])
            ends: tuple[Any, ...] = (bool(came.terminated[0]), bool(came.truncated[0]))
        else:
            state, reward = self._tensor(self._states(came.obs)), self._tensor(came.reward)
            ends = (self._tensor(came.terminated), self._tensor(came.truncated))
        info = self._said()
        if len(came.ended) and not alone:
            info["ended"] = self._tensor(came.ended)
            info["final_state"] = self._tensor(self._states(came.finals))
        if self._old:
            done = ends[0] or ends[1] if alone else ends[0] | ends[1]
            return state, reward, done, info
        return state, reward, *ends, info

    def close(self) -> None:
        """Ends the sub-environments. Safe to call again."""
        self.batch.close()

    def _actions(self, array: NDArray[Any]) -> NDArray[Any]:
        """As the environment takes them."""
        if self._box is None:
            return array if self._first == 0 else array + self._first
        if array.dtype.kind != "f" or (np.abs(array) > 1.0 + 1e-5).any():
            raise ActionError(
                f"{self.batch.name}: ElegantRL's actions are numbers from -1 to 1, got "
                f"{array.dtype} from {array.min()} to {array.max()}."
            )
        low, high = self._box
        return np.asarray(low + (np.clip(array, -1.0, 1.0) + 1.0) * 0.5 * (high - low), np.float32)

    def _said(self) -> dict[str, Any]:
        if self.num_envs == 1:
            return self.batch.said(np.zeros(1, np.int64))[0]
        return self.batch.infos()

    def _states(self, obs: Any) -> NDArray[np.float32]:
        """Observations as rows."""
        return np.ascontiguousarray(self._form.encode(obs)[0], np.float32)

    def _tensor(self, array: NDArray[Any]) -> Any:
        return torch.from_numpy(array).to(self.device)


def _fits(action: Any) -> bool:
    return isinstance(action, spaces.Discrete) or (
        isinstance(action, spaces.Box) and action.is_bounded()
    )


def env_args(target: str | Mapping[str, Any], num_envs: int, **options: Any) -> dict[str, Any]:
    """What ElegantRL's `Config(get_agent_class, ElegantEnv, env_args)` needs.

    ElegantRL hands on what `ElegantEnv` has arguments for and drops all else, so the environment's
    own settings travel in one of them.

    Args:
        target, num_envs: of `ElegantEnv`.
        **options: its other arguments, and fields of the environment's Config.
    """
    options = _as_arguments(options)
    env = ElegantEnv(target, num_envs, **options)
    names = ("max_step", "state_dim", "action_dim", "if_discrete")
    found = {name: getattr(env, name) for name in names}
    env.close()
    return {"env_name": target, "num_envs": num_envs, **found, **options}


def make_vec(target: str | Mapping[str, Any], num_envs: int = 1, **options: Any) -> ElegantEnv:
    """`ElegantEnv` by the name that all faces have; arguments as for `env_args`."""
    return ElegantEnv(target, num_envs, **_as_arguments(options))


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `ElegantEnv`, those that it does not have in its `settings`."""
    known = inspect.signature(ElegantEnv).parameters
    own = {name: value for name, value in options.items() if name in known}
    fields = {name: value for name, value in options.items() if name not in known}
    return {**own, "settings": {**(own.get("settings") or {}), **fields}}
