"""Any Gymnasium environment, its copies stepped one after another in this process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError, ResourceError
from slipstream.core.random import stream
from slipstream.core.spec import Spec
from slipstream.vector.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv

_SEED_MASK = np.uint64(2**31 - 1)  # Gymnasium seeds are non-negative and fit an int32 everywhere


def make_gymnasium(
    env_id: str, kwargs: Mapping[str, Any] | None = None, render_mode: str | None = None
) -> Any:
    """Builds one Gymnasium environment.

    Args:
        env_id: ``"Acrobot-v1"``, or ``"module:ID"`` to import the module that registers it first.
        kwargs: keyword arguments of its constructor.
        render_mode: passed on where given.

    Raises:
        ConfigError: unknown id, module or keyword.
        ResourceError: it needs a package that is not installed.
    """
    module, _, name = env_id.rpartition(":")
    extra: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.make(name, **dict(kwargs or {}), **extra)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ResourceError(f"gym:{env_id} needs a package that is missing: {error}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"gym:{env_id}: {error}; install the package, or correct the module's name."
        ) from error
    except (gymnasium.error.Error, TypeError, AssertionError, ValueError) as error:
        given = f" with the arguments {dict(kwargs)}" if kwargs else ""
        raise ConfigError(f"gym:{env_id} cannot be made{given}: {error}") from error


def flat_spaces(
    env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]
) -> tuple[spaces.Box, spaces.Space[Any]]:
    """The one rule by which observations and actions become rows.

    A uint8 Box of three axes is an image and stays uint8 [channels, height, width]; every other
    observation is flattened by `gymnasium.spaces.flatten` to float32 [D].

    Raises:
        ConfigError: a space without a fixed flat form.
    """
    if not isinstance(
        action, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box
    ):
        raise ConfigError(
            f"gym:{env_id} has the action space {action}; agents act in Discrete, MultiDiscrete, "
            "MultiBinary and Box. Wrap the environment so that its actions are one of these."
        )
    if isinstance(action, spaces.MultiBinary):
        action = spaces.MultiDiscrete([2] * int(np.prod(action.shape)))
    elif isinstance(action, spaces.Discrete):
        action = spaces.Discrete(int(action.n))  # rows count from 0, whatever its `start`
    elif isinstance(action, spaces.MultiDiscrete):
        action = spaces.MultiDiscrete(action.nvec.reshape(-1))
    elif isinstance(action, spaces.Box):
        action = spaces.Box(
            action.low.reshape(-1).astype(np.float32),
            action.high.reshape(-1).astype(np.float32),
            dtype=np.float32,
        )
    if is_image(observation):
        shape = observation.shape
        assert shape is not None
        return spaces.Box(0, 255, (shape[2], shape[0], shape[1]), np.uint8), action
    if not observation.is_np_flattenable:
        raise ConfigError(
            f"gym:{env_id} has the observation space {observation}, which has no fixed flat size; "
            "wrap the environment so that it is a Box, Discrete, MultiDiscrete, MultiBinary, or a "
            "Dict or Tuple of these."
        )
    flat = spaces.flatten_space(observation)
    assert isinstance(flat, spaces.Box)
    return spaces.Box(
        flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32
    ), action


def is_image(space: spaces.Space[Any]) -> bool:
    """A uint8 Box [height, width, channels]."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _one_hot_scale(
    space: spaces.Space[Any],
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Mean 0 and deviation 1 for columns that say which of some choices holds, NaN for numbers.

    A choice that is seldom seen has a tiny deviation: divided by it, its 1 would outweigh all
    others, by another factor after every rollout.
    """
    if is_image(space):
        return None, None
    mean = np.concatenate(_one_hot_columns(space))
    return (mean, mean + 1) if (mean == 0).any() else (None, None)


def _one_hot_columns(space: spaces.Space[Any]) -> list[NDArray[np.float32]]:
    """0 for each column of `flatten` that is a choice, NaN for each that is a number."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [column for part in parts for column in _one_hot_columns(part)]
    choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return [np.full(spaces.flatdim(space), 0.0 if choice else np.nan, np.float32)]


class GymnasiumVectorEnv(VectorEnv):
    """Copies of a foreign environment.

    Every episode is reset with a seed made from (member's seed, index within the member, episode),
    so a trajectory does not depend on its neighbours. Such environments cannot be saved: they
    resume with a fresh episode.

    Args:
        env_id: as for `make_gymnasium`.
        seeds: uint64 [E], the seed of each copy's member.
        indices: uint64 [E], each copy's index within its member.
        kwargs: keyword arguments of the environment.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.
    """

    backend = "serial"

    def __init__(
        self,
        env_id: str,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        kwargs: Mapping[str, Any] | None = None,
        at_end: int = RESET,
    ) -> None:
        self.env_id = env_id
        self.num_envs = len(seeds)
        self.envs = [make_gymnasium(env_id, kwargs) for _ in range(self.num_envs)]
        first = self.envs[0]
        observation, action = flat_spaces(env_id, first.observation_space, first.action_space)
        self._space, self._action_space = first.observation_space, first.action_space
        self._image = is_image(self._space)
        mean, std = _one_hot_scale(self._space)
        self.spec = Spec(observation=observation, action=action, fixed_mean=mean, fixed_std=std)
        self._seeds, self._indices = seeds.copy(), indices.copy()
        self._episode = np.zeros(self.num_envs, np.uint64)
        self._ret = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int64)
        self._held = np.zeros(self.num_envs, np.bool_)
        self._at_end = at_end
        self._finals: list[tuple[NDArray[Any], int, int]] = []
        self._episodes: list[tuple[int, int, float, int]] = []

    def _row(self, observation: Any) -> NDArray[Any]:
        if self._image:
            return np.moveaxis(np.asarray(observation), -1, 0)
        return np.asarray(spaces.flatten(self._space, observation), dtype=np.float32)

    def _native(self, action: NDArray[Any]) -> Any:
        space = self._action_space
        if isinstance(space, spaces.Discrete):
            return int(action[0] + space.start)
        assert space.shape is not None
        native = action.reshape(space.shape).astype(space.dtype)
        return native + space.start if isinstance(space, spaces.MultiDiscrete) else native

    def _begin(self, e: int, obs: NDArray[Any]) -> None:
        with np.errstate(over="ignore"):
            word = stream(self._seeds[e], self._indices[e], self._episode[e])
        observation, _ = self.envs[e].reset(seed=int(word & _SEED_MASK))
        self._episode[e] += np.uint64(1)
        self._ret[e], self._length[e], self._held[e] = 0.0, 0, False
        obs[e] = self._row(observation)

    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._finals, self._episodes = [], []
        for e in range(self.num_envs):
            self._begin(e, obs)

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        for e, j in zip(copies.tolist(), episodes.tolist(), strict=True):
            self._seeds[e], self._indices[e], self._episode[e] = seed % 2**64, j, 0
            self._begin(e, obs)

    def step(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        for e, env in enumerate(self.envs):
            if self._held[e]:
                out.reward[e], out.terminated[e], out.truncated[e] = 0.0, False, False
                continue
            try:
                observation, reward, terminated, truncated, _ = env.step(self._native(actions[e]))
            except Exception as error:
                raise KernelError(
                    f"gym:{self.env_id} raised {type(error).__name__}: {error} (environment {e}, "
                    f"step {t}, episode {int(self._episode[e]) - 1}, last action "
                    f"{actions[e].tolist()})."
                ) from error
            reward = float(np.asarray(reward).reshape(()))  # some environments return shape (1,)
            if not np.isfinite(reward):
                raise KernelError(
                    f"gym:{self.env_id} returned the reward {reward} (environment {e}, step {t}, "
                    f"last action {actions[e].tolist()}); a reward must be finite."
                )
            self._ret[e] += reward
            self._length[e] += 1
            out.reward[e], out.terminated[e], out.truncated[e] = reward, terminated, truncated
            obs = self._row(observation)
            if terminated or truncated:
                if self._at_end == RESET_KEEP_ALL or (self._at_end == RESET and not terminated):
                    self._finals.append((obs.copy(), t, e))  # environments may reuse their buffer
                self._episodes.append((t, e, float(self._ret[e]), int(self._length[e])))
                if self._at_end != HOLD:
                    self._begin(e, out.obs)
                    continue
                self._held[e] = True
            out.obs[e] = obs

    def drain_finals(self) -> Finals:
        rows, self._finals = self._finals, []
        obs = np.zeros((len(rows), *self.spec.observation_shape), self.spec.observation_dtype)
        for i, row in enumerate(rows):
            obs[i] = row[0]
        return Finals(obs, np.array([row[1:] for row in rows], np.int64).reshape(-1, 2))

    def drain_episodes(self) -> Episodes:
        rows, self._episodes = np.array(self._episodes, np.float64).reshape(-1, 4), []
        places = rows[:, :2].astype(np.int64)
        return Episodes(
            places[:, 0], places[:, 1], rows[:, 2].copy(), rows[:, 3].astype(np.int64), {}
        )

    def get_state(self) -> dict[str, NDArray[Any]]:
        # The number of the next episode is all that can be kept: a resumed copy starts a fresh one.
        return {"episode": self._episode.copy()}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self._episode[:] = state["episode"]
        for e in range(self.num_envs):
            self._begin(e, obs)

    def close(self) -> None:
        for env in self.envs:
            env.close()
