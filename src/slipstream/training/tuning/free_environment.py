"""An environment that costs nothing: what remains of a training is acting and learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec
from slipstream.environments.environment import Environment
from slipstream.environments.gymnasium_environment import GymnasiumEnvironment
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv


class FreeVectorEnv(VectorEnv):
    """Copies that show the same drawn observations at every step, and whose episodes never end."""

    backend = "serial"

    def __init__(self, spec: Spec, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        draw, shape = np.random.default_rng(0), (num_envs, *spec.observation_shape)
        pictures = spec.observation_dtype == np.uint8
        rows = draw.integers(0, 256, shape) if pictures else draw.standard_normal(shape)
        self._rows = rows.astype(spec.observation_dtype)
        self._reward = draw.standard_normal(num_envs).astype(np.float32)

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        obs[...] = self._rows

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        out.obs[...], out.reward[...] = self._rows, self._reward
        out.terminated[...] = out.truncated[...] = False
        out.valid[...] = True

    def drain_finals(self) -> Finals:
        none = np.zeros((0, *self.spec.observation_shape), self.spec.observation_dtype)
        return Finals(none, np.zeros((0, 2), np.int64))

    def drain_episodes(self) -> Episodes:
        whole = np.zeros(0, np.int64)
        none = {metric.name: np.zeros(0) for metric in self.spec.metrics}
        return Episodes(whole, whole, np.zeros(0), whole, none)

    def begin(self, *arguments: Any) -> None:
        raise NotImplementedError("nothing is evaluated here")

    def get_state(self) -> dict[str, NDArray[Any]]:
        return {}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.reset_rows(obs)


@dataclass(frozen=True)
class FreeEnvironment(GymnasiumEnvironment):
    """In place of a foreign environment, whatever it shows and takes."""

    @classmethod
    def like(cls, environment: Environment) -> FreeEnvironment:
        """One with the same spaces."""
        return cls(environment.name, environment.spec)

    def _stepped(
        self, backend: str, seeds: NDArray[np.uint64], *how: Any, **more: Any
    ) -> VectorEnv:
        return FreeVectorEnv(self.spec, len(seeds))
