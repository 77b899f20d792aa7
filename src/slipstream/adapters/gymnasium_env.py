"""Adapter with Gymnasium's `Env` interface for one environment of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import check_single_player, make_batch, split_batch
from slipstream.core.errors import ConfigError


class EnvAdapter(gymnasium.Env[Any, Any]):
    """Single environment of a kernel, without autoreset.

    A seed gives the same trajectory as in the vector adapter. The info of the last step of an
    episode has the kernel's `metrics`. If the kernel has an action mask, every info has
    `action_mask`, bool [n], which `action_masks()` also returns.

    Args:
        target: Kernel name or file.
        render_mode: Must be None; kernels cannot be rendered.
        **options: `backend` and `split` as for `make_batch`; fields of the environment's Config.
    """

    def __init__(
        self,
        target: str | Mapping[str, Any],
        *,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        disabled = AutoresetMode.DISABLED
        batch = make_batch(target, 1, autoreset=disabled, foreign=False, **options)
        if render_mode is not None:
            raise ConfigError(f"{batch.name} cannot be rendered. Omit `render_mode`.")
        check_single_player(batch, "an Env has")
        self.batch = batch
        self.metadata = {"render_modes": []}
        self.render_mode = None
        self.observation_space, self.action_space = batch.observation_space, batch.action_space
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the first one of `seed`, or the next one of the current stream."""
        super().reset(seed=seed)
        if options:
            raise ConfigError(f"{self.batch.name} has no reset options {sorted(options)}.")
        self.batch.check_open()
        if seed is None and not self._seeded:  # otherwise all environments would be equal
            seed = int(self.np_random.integers(2**31))
        self._seeded = True
        return self._unbatch(self.batch.reset([seed])), self._get_info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Raises:
            ActionError: The action is not in the action space.
            ResetNeededError: The environment was not reset, or its episode has ended.
        """
        self.batch.check_open()
        result = self.batch.step(np.asarray(action)[None])
        info = self._get_info()
        if len(result.ended) and result.episodes.metrics:
            info["metrics"] = {name: float(v[0]) for name, v in result.episodes.metrics.items()}
        flags = bool(result.terminated[0]), bool(result.truncated[0])
        return self._unbatch(result.obs), float(result.reward[0]), *flags, info

    @property
    def action_masks(self) -> Callable[[], NDArray[np.bool_]]:
        """Method that returns the allowed actions, bool [n], as sb3-contrib's MaskablePPO expects.

        Raises:
            AttributeError: There is no mask. `hasattr` is then false, as libraries expect.
        """
        mask = self.batch.mask
        if mask is None:
            raise AttributeError(f"{self.batch.name} has no action mask: all actions are allowed.")
        return lambda: np.asarray(mask[0].copy())

    def render(self) -> None:
        """Do nothing: kernels cannot be rendered."""

    def close(self) -> None:
        """Close the environment. Safe to call again."""
        self.batch.close()

    def _unbatch(self, obs: Any) -> Any:
        return split_batch(obs)[0]

    def _get_info(self) -> dict[str, Any]:
        mask = self.batch.mask
        return {} if mask is None else {"action_mask": mask[0].copy()}
