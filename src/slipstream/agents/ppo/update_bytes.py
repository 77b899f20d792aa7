"""Memory that PPO's updates need beside the rollout."""

from __future__ import annotations

import numpy as np

from slipstream.core.spec import Spec
from slipstream.nets.networks import input_width


def update_bytes(spec: Spec, horizon: int, members: int, num_envs: int) -> int:
    """Bytes that an update keeps beside the rollout: scaled observations, rows of the losses."""
    rows = members * num_envs * (horizon + 1)
    image = spec.observation_dtype == np.uint8 and len(spec.observation_shape) == 3
    numbers = 0 if image else input_width(int(np.prod(spec.observation_shape)))
    # Packed columns, action and its float copy, reward, advantage, target and their temporaries.
    return 4 * rows * (numbers + 2 * spec.action_width + 12)
