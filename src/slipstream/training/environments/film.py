"""A kernel's game as something to be filmed: Gymnasium's `reset`, `step` and `render`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.kernels.interpreted import Records
from slipstream.kernels.vector_env import blank
from slipstream.training.environments.environment import Environment


class Film:
    """One copy of a kernel whose module has `picture(s, p, d)`, uint8 [H, W, 3] of a record.

    Args:
        environment: of one player.

    Raises:
        ConfigError: the kernel draws no pictures, or more than one player acts.
    """

    def __init__(self, environment: Environment) -> None:
        kernel = getattr(environment, "kernel", None)
        if kernel is None or not hasattr(kernel.module, "picture"):
            raise ConfigError(
                f"{environment.name} is a kernel and draws no pictures; --video is for gym:ID "
                "environments and for kernels with a function `picture`, such as hockey."
            )
        if environment.spec.players > 1:
            raise ConfigError(
                f"{environment.name} has two players here: name one's opponent for --video, such "
                "as `--opponent strong`."
            )
        env = environment.evaluation("train", 1)
        game: Any = getattr(env, "game", env)  # of copies whose other seat somebody has
        self._env, self._game, self._out = env, game, blank(env)

    def reset(self, seed: int) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begins the evaluation episode 0 of that seed."""
        first = np.zeros(1, np.int64)
        self._env.begin(first, first, seed, self._out.obs, self._out.mask)
        return self._out.obs[0].copy(), {}

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Which choices are allowed next, [choices]; None where all always are."""
        return None if self._out.mask is None else self._out.mask[0]

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Gymnasium's five."""
        spec, out = self._env.spec, self._out
        row = np.asarray(action, spec.action_dtype).reshape(1, spec.action_width)
        self._env.step(np.ascontiguousarray(row), out, 0)
        self._env.drain_episodes()
        return (
            out.obs[0].copy(),
            float(out.reward[0]),
            bool(out.terminated[0]),
            bool(out.truncated[0]),
            {},
        )

    def render(self) -> NDArray[np.uint8]:
        """The picture of the present record."""
        env = self._game
        s, p = Records(env.state)[0], Records(env.params)[int(env.book["which"][0])]
        drawn: NDArray[np.uint8] = env.kernel.module.picture(s, p, env.loaded.data)
        return drawn

    def close(self) -> None:
        """Releases the copy."""
        self._env.close()
