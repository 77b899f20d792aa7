"""What all faces for Gymnasium share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from slipstream.adapters.errors import ClosedError
from slipstream.core.errors import ConfigError


class VectorFace(VectorEnv[Any, Any, NDArray[Any]]):
    """What all faces for Gymnasium share: spaces, seeds, `reset_mask`, and the end.

    Args:
        num_envs: E.
        observation_space, action_space: of one copy.
        autoreset_mode: NextStep, SameStep or Disabled, or Gymnasium's own constant.
        metadata: of the environment; it is copied.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        autoreset_mode: str | AutoresetMode,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.autoreset_mode = mode_of(autoreset_mode)
        self.metadata = {**(metadata or {}), "autoreset_mode": self.autoreset_mode}

    def _seeds(self, seed: Any) -> list[int | None]:
        """One for each copy."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
            return [int(seed) + e for e in range(self.num_envs)]
        try:
            seeds = [None if one is None else int(one) for one in seed]
        except (TypeError, ValueError):
            raise TypeError(
                f"`seed` must be a whole number or one for each copy, got {seed!r:.60}"
            ) from None
        if len(seeds) != self.num_envs:
            raise ValueError(
                "If seeds are passed as a list the length must match "
                f"num_envs={self.num_envs} but got length={len(seeds)}."
            )
        return seeds

    def _selected(self, options: dict[str, Any] | None) -> NDArray[np.bool_] | None:
        """`options['reset_mask']`, taken out of the options."""
        if options is None or "reset_mask" not in options:
            return None
        mask, name = options.pop("reset_mask"), "`options['reset_mask']`"
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"{name} must have shape `({self.num_envs},)`, got {mask.shape}")
        if mask.dtype != np.bool_:
            raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise ValueError(
                f"{name} must contain a boolean array with at least one True value, got "
                f"reset_mask={mask}"
            )
        return mask

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )


def mode_of(autoreset_mode: str | AutoresetMode) -> AutoresetMode:
    """Gymnasium's constant, of its value, too."""
    try:
        return AutoresetMode(autoreset_mode)
    except ValueError:
        names = ", ".join(mode.value for mode in AutoresetMode)
        raise ConfigError(
            f"There is no autoreset mode {autoreset_mode!r}: choose one of {names}."
        ) from None
