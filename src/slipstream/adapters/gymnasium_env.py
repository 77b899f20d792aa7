"""Gymnasium's `Env` over one sub-environment of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import check_single_player, each, make_batch
from slipstream.core.errors import ConfigError


class EnvAdapter(gymnasium.Env[Any, Any]):
    """One copy; an episode that has ended waits for `reset`.

    A seed gives the trajectory that the same seed gives a environment of the vector face. Where an
    episode ends, its info has `metrics`, the kernel's; where the kernel has a mask, every info
    has `action_mask`, bool [n], which `action_masks()` returns, too.

    Args:
        target: a kernel's name or file.
        render_mode: None; kernels draw no pictures.
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
            raise ConfigError(f"{batch.name} draws no pictures; leave `render_mode` out.")
        check_single_player(batch, "an Env has")
        self.batch = batch
        self.metadata = {"render_modes": []}
        self.render_mode = None
        self.observation_space, self.action_space = batch.observation_space, batch.action_space
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode: the first of the stream of `seed`, or the next one of its own."""
        super().reset(seed=seed)
        if options:
            raise ConfigError(f"{self.batch.name} has no reset options {sorted(options)}.")
        self.batch.check_open()
        if (
            seed is None and not self._seeded
        ):  # sub-environments of their own accord would all be alike
            seed = int(self.np_random.integers(2**31))
        self._seeded = True
        return self._only(self.batch.reset([seed])), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one action.

        Raises:
            ActionError: it is not in the action space.
            UnreadyError: the environment was not reset, or its episode has ended.
        """
        self.batch.check_open()
        came = self.batch.step(np.asarray(action)[None])
        info = self._info()
        if len(came.ended) and came.episodes.metrics:
            info["metrics"] = {name: float(v[0]) for name, v in came.episodes.metrics.items()}
        ends = bool(came.terminated[0]), bool(came.truncated[0])
        return self._only(came.obs), float(came.reward[0]), *ends, info

    @property
    def action_masks(self) -> Callable[[], NDArray[np.bool_]]:
        """Returns the choices allowed now, bool [n]: what sb3-contrib's MaskablePPO asks for.

        Raises:
            AttributeError: there is no mask, by which others notice that all are allowed.
        """
        mask = self.batch.mask
        if mask is None:
            raise AttributeError(f"{self.batch.name} has no action mask: all choices are allowed.")
        return lambda: np.asarray(mask[0].copy())

    def render(self) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Ends the copy. Safe to call again."""
        self.batch.close()

    def _only(self, obs: Any) -> Any:
        return each(obs)[0]

    def _info(self) -> dict[str, Any]:
        mask = self.batch.mask
        return {} if mask is None else {"action_mask": mask[0].copy()}
