"""Per-member numbers of PPO's config, as its updates read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.config import PPOConfig


@dataclass(frozen=True)
class Settings:
    """Per-member numbers of the config, float64 [M]; infinity where a limit is off."""

    learning_rate: NDArray[np.float64]
    clip_range: NDArray[np.float64]
    value_clip_range: NDArray[np.float64]
    entropy_coef: NDArray[np.float64]
    value_coef: NDArray[np.float64]
    discount: NDArray[np.float64]
    gae_lambda: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]
    adam_eps: NDArray[np.float64]
    target_kl: NDArray[np.float64]
    epochs: int
    normalize_advantage: bool

    @classmethod
    def of(cls, config: PPOConfig, members: int) -> Settings:
        """Settings of M members."""
        return cls(
            learning_rate=config.per_member("learning_rate", members),
            clip_range=config.per_member("clip_range", members),
            value_clip_range=config.per_member("value_clip_range", members),
            entropy_coef=config.per_member("entropy_coef", members),
            value_coef=config.per_member("value_coef", members),
            discount=config.per_member("discount", members),
            gae_lambda=config.per_member("gae_lambda", members),
            max_grad_norm=config.per_member("max_grad_norm", members),
            adam_eps=config.per_member("adam_eps", members),
            target_kl=config.per_member("target_kl", members),
            epochs=config.epochs,
            normalize_advantage=config.normalize_advantage,
        )
